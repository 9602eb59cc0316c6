"""`ab`: two presets or policies, the same prompts, one model: what does B change?

Pairs are made in random order, and what is known is told as better, worse, no difference,
or not yet.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import msgspec

from router import __version__, dialects, probe
from router.commands import asked, offline, progress
from router.config import Backend
from router.errors import RouterError
from router.measure import ab_report, judging, load, prompts, summary
from router.measure.ab_report import AB, Side
from router.measure.asking import Arm, Asker, NoServer, Sample, Sending, base, body_of
from router.measure.comparing import Comparison, is_settled
from router.measure.deciding import Decided, Untouched
from router.measure.judging import Judged, Pair
from router.measure.prompts import Prompt
from router.verdict import Live

_MORE = """
A side is a scenario ("faq": its preset, whatever a prompt looks like), a policy file ("new.toml"),
both ("faq@new.toml"), "off" (the request as the client wrote it), or a running router's address
("http://...", "faq@http://..."). Scenarios without a file are those of --policy, else of the
configuration. Of all but a router the request is made here, by the code that serves, and sent to
the backend: what a router does with the answer (a second try without thinking, a thought stopped
from outside) is not in it. For that, name two routers.
"""
_UNTOUCHED = ("off", "default")
#: verdicts on texts beyond that are not asked of a model
_JUDGE_TOKENS = 8


class Usage(Exception):
    """What is wrong with the flags, or with what they name."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _MORE
    parser.add_argument("--a", metavar="SIDE", help="what there is")
    parser.add_argument("--b", metavar="SIDE", help="what is proposed")
    offline.add(parser, "policy of sides that name no file")
    backend = parser.add_mutually_exclusive_group()
    backend.add_argument(
        "--backend", metavar="NAME", help="of the configuration, to ask (default: the first)"
    )
    backend.add_argument("--url", help="a server to ask, in place of a configured backend")
    parser.add_argument(
        "--dialect", choices=sorted(dialects.DIALECTS), help="how --url is spoken to (else: asked)"
    )
    parser.add_argument("--model", help="model that it serves (else: asked)")
    asked.add(parser, count=400)
    parser.add_argument(
        "--margin",
        type=asked.at_least(0.001, float),
        default=0.05,
        metavar="X",
        help="smallest change of a time or of tokens that matters (default: 0.05)",
    )
    parser.add_argument(
        "--share-margin",
        type=asked.at_least(0.001, float),
        default=0.05,
        metavar="X",
        help="smallest change of a share of requests that matters (default: 0.05)",
    )
    parser.add_argument(
        "--no-stop", action="store_true", help="go on although every verdict is settled"
    )
    parser.add_argument(
        "--fail-worse", action="store_true", help="exit 1 where any verdict is worse"
    )
    judge = parser.add_argument_group("quality")
    judge.add_argument(
        "--spot",
        type=asked.at_least(0, int),
        default=20,
        metavar="N",
        help="pairs to judge on the --html page and in --save (default: 20)",
    )
    judge.add_argument(
        "--save", type=Path, metavar="FILE", help="write those pairs, for --judge-page"
    )
    judge.add_argument(
        "--judge-page", type=Path, metavar="FILE", help="serve saved pairs here, to be judged"
    )
    judge.add_argument(
        "--port", type=asked.at_least(0, int), default=8089, help="of that page (default: 8089)"
    )
    judge.add_argument(
        "--verdicts",
        type=Path,
        metavar="FILE",
        help="count the verdicts in it (with --judge-page: where they go)",
    )
    judge.add_argument("--judge", metavar="MODEL", help="have a model judge the pairs, too")
    judge.add_argument("--judge-url", metavar="URL", help="where that model is served")


def run(args: argparse.Namespace) -> int:
    try:
        if args.judge_page is not None:
            return _serve_page(args)
        if args.verdicts is not None:
            return _count(args)
        if not (args.a and args.b) or bool(args.judge) != bool(args.judge_url):
            raise Usage("--a and --b are needed, and --judge goes with --judge-url")
        return _compare(args)
    except Usage as wrong:
        print(wrong, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2


# --- the comparison --------------------------------------------------------------------------


def _compare(args: argparse.Namespace) -> int:
    questions = asked.read(args, scenarios=_scenarios(args))
    if questions is None:
        return 2
    run = _Run(args, questions)
    try:
        asyncio.run(run.make())
    except (NoServer, RouterError) as fault:
        print(fault, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        run.why_ended = "interrupted"
    found = run.found()
    if args.save is not None:
        lines = (msgspec.json.encode(pair) + b"\n" for pair in run.spot)
        args.save.write_bytes(b"".join(lines))
    if args.html is not None:
        page = ab_report.page(found, run.samples, run.spot)
        args.html.write_text(page, encoding="utf-8")
    if args.json:
        print(json.dumps(ab_report.document(found, run.samples), indent=2, ensure_ascii=False))
    else:
        print("\n".join(ab_report.lines(found)))
    is_worse = args.fail_worse and any(each.verdict == "worse" for each in found.findings)
    is_known = any(side.summary.succeeded for side in (found.a, found.b))
    return 1 if is_worse or not is_known or run.why_ended == "interrupted" else 0


class _Run:
    """One run; what it has seen stays readable when it is interrupted."""

    def __init__(self, args: argparse.Namespace, questions: list[Prompt]) -> None:
        self._args = args
        self._questions = questions
        self._random = Random(args.seed)
        self._began, self._ticks = datetime.now(UTC), time.perf_counter()
        self._seconds = 0.0
        self._progress: progress.Progress | None = None
        self._backend = ""
        self._policies: dict[str, str | None] = {}
        self._judge: str | None = None
        self.samples: list[Sample] = []
        self.spot: list[Pair] = []
        self.has_enough = False
        self.why_ended = "all pairs were made"
        self._names = (args.a, args.b if args.b != args.a else f"{args.b} (again)")
        self._comparison = Comparison(
            *self._names,
            margin=args.margin,
            share_margin=args.share_margin,
            planned=max(20, args.count // 2),
        )

    def saw(self, sample: Sample) -> None:
        self.samples.append(sample)
        if not self._comparison.add(sample):
            return
        findings = self._comparison.findings()
        settled = [each.verdict.is_settled for each in findings]
        if self._progress is not None:
            self._progress.step(f"{sum(settled)} of {len(settled)} settled")
        if is_settled(findings) and not self._args.no_stop and not self.has_enough:
            self.has_enough = True
            self.why_ended = "every verdict was settled"

    async def make(self) -> None:
        args = self._args
        async with Asker(timeout_s=args.timeout) as asker:
            arms = await self._arms(asker)
            await load.warm_up(asker, self._questions, arms, args.warmup)
            planned = load.turns(
                prompts.passes(self._questions, self._random), arms, args.count, self._random
            )
            asker.restart()
            self._ticks = time.perf_counter()
            try:
                with progress.progress("pairs", args.count) as self._progress:
                    await load.closed(asker, planned, self, concurrency=args.concurrency)
            finally:
                self._seconds = time.perf_counter() - self._ticks
                self._pick_spot()
            if args.judge:
                self._judge = judging.told(judging.count(await self._ask_judge(asker)))

    async def _arms(self, asker: Asker) -> list[Arm]:
        args = self._args
        target = _Target(args, asker)
        arms = []
        for name, side in zip(self._names, (args.a, args.b), strict=True):
            scenario, where = _parts(side)
            if where is not None and where.startswith("http"):
                arms.append(_routed(args, name, base(where), scenario))
                self._backend = self._backend or "running routers"
                continue
            live = _live(args, where)
            url, encode = await target.encoder(live, scenario)
            encode(self._questions[0])  # a scenario that is not there is told now
            arms.append(Arm(name, url, encode))
            self._backend = target.told
            self._policies[name] = None if scenario in _UNTOUCHED else live.policy.hash
        return arms

    def _pick_spot(self) -> None:
        both = summary.pairs(self.samples, *self._names)
        self.spot = judging.pairs(self._id(), both, self._questions, self._args.spot)

    async def _ask_judge(self, asker: Asker) -> list[Judged]:
        args = self._args
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

        judged = []
        for pair in self.spot:
            first, second = judging.questions(pair)
            by = f"model {args.judge}"
            judged.append(judging.agreed(pair, await answer(first), await answer(second), by))
        return judged

    def _id(self) -> str:
        told = f"{self._began.isoformat()} {self._args.seed} {self._names} {self._policies}"
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def found(self) -> AB:
        args = self._args
        sides = [
            Side(
                name=name,
                policy=self._policies.get(name),
                summary=summary.summary(name, self.samples),
            )
            for name in self._names
        ]
        return AB(
            command=shlex.join(["scenario-router", *sys.argv[1:]]),
            version=__version__,
            began=self._began.isoformat(timespec="seconds"),
            seconds=self._seconds,
            run=self._id(),
            seed=args.seed,
            backend=self._backend,
            prompts=len(self._questions),
            pairs=self._comparison.pairs,
            why_ended=self.why_ended,
            a=sides[0],
            b=sides[1],
            findings=self._comparison.findings(),
            judge=self._judge,
            notes=_notes(args, sides, self.why_ended),
        )


def _notes(args: argparse.Namespace, sides: list[Side], why_ended: str) -> list[str]:
    found = list(args.note)
    if any(side.summary.succeeded < side.summary.requests for side in sides):
        found.append("times and tokens are those of pairs in which both were answered")
    if any(side.summary.counts_frames for side in sides):
        found.append("tokens are counted frames: the server told no usage")
    if why_ended == "interrupted":
        found.append("what was under way did not count; the slowest are likely to be among it")
    if args.concurrency > 1:
        found.append("pairs were made at the same time, so they slowed each other down")
    return found


def _scenarios(args: argparse.Namespace) -> list[str]:
    """Of the built-in prompts, those that the named scenarios are for."""
    named = [_parts(side)[0] for side in (args.a, args.b)]
    return [name for name in dict.fromkeys(named) if name and name not in _UNTOUCHED]


def _parts(side: str) -> tuple[str | None, str | None]:
    """(scenario, file or address) of a side."""
    scenario, found, where = side.partition("@")
    if found:
        return scenario or None, where
    is_where = side.startswith("http") or side.endswith(".toml")
    return (None, side) if is_where else (side, None)


def _live(args: argparse.Namespace, policy: str | None) -> Live:
    if policy is not None and not Path(policy).is_file():
        raise Usage(f"{policy}: no such policy file")
    own = argparse.Namespace(**{**vars(args), "policy": policy or args.policy})
    live = offline.live(own)
    if live is None:
        raise Usage("no policy to compare")
    return live


def _routed(args: argparse.Namespace, name: str, url: str, scenario: str | None) -> Arm:
    headers = asked.headers(args)
    if scenario in _UNTOUCHED:
        headers["x-router-policy"] = "off"
    elif scenario is not None:
        headers["x-router-scenario"] = scenario
    extra, model = asked.extra(args), args.model or "auto"

    def encode(prompt: Prompt) -> Sending:
        return Sending(body_of(prompt, model, stream=True, extra=extra), headers)

    return Arm(name, url, encode)


class _Target:
    """The backend that is asked: its address, and how it wants to be spoken to."""

    def __init__(self, args: argparse.Namespace, asker: Asker) -> None:
        self._args = args
        self._asker = asker
        self._known: tuple[str, dialects.Dialect, str] | None = None
        self._headers = asked.headers(args)
        self.told = ""

    async def encoder(
        self, live: Live, scenario: str | None
    ) -> tuple[str, Callable[[Prompt], Sending]]:
        """Where prompts are sent under this policy, and what."""
        url, dialect, model = self._known or await self._look(live)
        headers, extra = self._headers, asked.extra(self._args)
        if scenario in _UNTOUCHED:
            return url, Untouched(live, model, headers=headers, extra=extra)
        return url, Decided(live, dialect, model, scenario=scenario, headers=headers, extra=extra)

    async def _look(self, live: Live) -> tuple[str, dialects.Dialect, str]:
        args = self._args
        backend = None if args.url else _configured(live, args.backend)
        url = base(backend.url if backend else args.url)
        if backend and backend.api_key_env and not args.key_env:
            self._headers["authorization"] = f"Bearer {os.environ[backend.api_key_env]}"
        name = args.dialect or (backend.dialect if backend else "auto")
        model = args.model or (backend.model if backend else None)
        if name == "auto" or model is None:
            document = await self._asker.models_at(url, self._headers)
            name = probe.dialect_name(document) if name == "auto" else name
            model = model or probe.served_model(document)
        if model is None:
            raise NoServer(f"{url} names no model: say --model")
        self.told = f"{model} at {url} ({name})"
        self._known = url, dialects.of(name), model
        return self._known


def _configured(live: Live, name: str | None) -> Backend:
    backends = [slot.upstream.backend for slot in live.slots]
    for backend in backends:
        if name in (None, backend.name):
            return backend
    names = ", ".join(backend.name for backend in backends)
    raise Usage(f"no backend {name!r} is configured; there are: {names}")


# --- verdicts of people ----------------------------------------------------------------------


def _serve_page(args: argparse.Namespace) -> int:
    from router.measure.judge_server import JudgeServer

    try:
        lines = args.judge_page.read_bytes().splitlines()
        shown = [msgspec.json.decode(line, type=Pair) for line in lines]
    except msgspec.DecodeError as fault:
        raise Usage(f"{args.judge_page} has no saved pairs: {fault}") from None
    if not shown:
        raise Usage(f"{args.judge_page} has no pairs: no two answers differed")
    verdicts = args.verdicts or args.judge_page.with_suffix(".verdicts.jsonl")
    with JudgeServer(judging.page(shown), shown[0].run, verdicts, port=args.port) as server:
        print(f"{len(shown)} pairs to judge at {server.url}; Ctrl-C counts them", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    args.verdicts = verdicts
    return _count(args) if verdicts.exists() else 0


def _count(args: argparse.Namespace) -> int:
    try:
        lines = args.verdicts.read_bytes().splitlines()
        verdicts = [msgspec.json.decode(line, type=Judged) for line in lines if line.strip()]
    except msgspec.DecodeError as fault:
        raise Usage(f"{args.verdicts} has no verdicts: {fault}") from None
    counted = judging.count(verdicts)
    print(json.dumps(msgspec.to_builtins(counted)) if args.json else judging.told(counted))
    return 0
