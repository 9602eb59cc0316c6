"""Which answers are better: `ab` asks people, by a page, or a model, and counts what they say."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import msgspec

from router.commands import asked
from router.measure import judging
from router.measure.asking import Arm, Asker, NoServer, Sending, base, body_of
from router.measure.judging import Judged, Pair
from router.measure.prompts import Prompt

#: a verdict is one word
_JUDGE_TOKENS = 8


async def by_model(args: argparse.Namespace, asker: Asker, pairs: Sequence[Pair]) -> list[Judged]:
    """What the named model thinks. Raises NoServer."""
    extra = {"temperature": 0, "max_tokens": _JUDGE_TOKENS}
    headers = asked.headers(args)

    async def answer(text: str) -> str:
        prompt = Prompt(0, ({"role": "user", "content": text},))
        body = body_of(prompt, args.judge, stream=False, extra=extra)
        arm = Arm("judge", base(args.judge_url), lambda _: Sending(body, headers))
        sample = await asker.ask(arm, prompt, turn=-1)
        if not sample.is_ok:
            raise NoServer(f"the judge does not answer: {sample.error}")
        return sample.text

    verdicts = []
    for pair in pairs:
        first, second = judging.questions(pair)
        by = f"model {args.judge}"
        verdicts.append(judging.agreed(pair, await answer(first), await answer(second), by))
    return verdicts


def serve_page(args: argparse.Namespace) -> int:
    from router.measure.judge_server import JudgeServer

    try:
        lines = args.judge_page.read_bytes().splitlines()
        shown = [msgspec.json.decode(line, type=Pair) for line in lines]
    except msgspec.DecodeError as fault:
        raise asked.Usage(f"{args.judge_page} has no saved pairs: {fault}") from None
    if not shown:
        raise asked.Usage(f"{args.judge_page} has no pairs: no two answers differed")
    verdicts = args.verdicts or args.judge_page.with_suffix(".verdicts.jsonl")
    with JudgeServer(judging.page(shown), shown[0].run, verdicts, port=args.port) as server:
        print(f"{len(shown)} pairs to judge at {server.url}; Ctrl-C counts them", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    args.verdicts = verdicts
    return count(args) if verdicts.exists() else 0


def count(args: argparse.Namespace) -> int:
    try:
        lines = args.verdicts.read_bytes().splitlines()
        verdicts = [msgspec.json.decode(line, type=Judged) for line in lines if line.strip()]
    except msgspec.DecodeError as fault:
        raise asked.Usage(f"{args.verdicts} has no verdicts: {fault}") from None
    counted = judging.count(verdicts)
    print(json.dumps(msgspec.to_builtins(counted)) if args.json else judging.told(counted))
    return 0
