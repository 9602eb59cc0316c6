"""`bench`: how fast does a server answer, alone, beside another, or with another preset?

It asks from outside, as a client would, and tells what came of each request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any

from router import __version__
from router.commands import asked, progress, remote
from router.measure import bench_report, load, prompts, summary
from router.measure.asking import Arm, Asker, NoServer, Sample, Sending, base, body_of
from router.measure.bench_report import Bench
from router.measure.prompts import Prompt
from router.measure.summary import Gates

#: the sides of --compare that are no scenario
_UNTOUCHED, _CLASSIFIED = ("default", "off"), "auto"
_MORE = """
Sides of --compare: "default" is the request as the client wrote it (x-router-policy: off), "auto"
lets the router choose, any other name is that scenario's preset. The same prompts go to both, next
to each other, in random order.
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _MORE
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--url",
        default=remote.DEFAULT_URL,
        help=f"an OpenAI-compatible server (default: {remote.DEFAULT_URL})",
    )
    where.add_argument("--direct", metavar="URL", help="a server, compared with --via")
    parser.add_argument("--via", metavar="URL", help="the router before the --direct server")
    parser.add_argument(
        "--compare", type=_sides, metavar="A,B", help="two ways for one router to treat a request"
    )
    asked.add(parser, count=50)
    parser.add_argument(
        "--rate", type=asked.at_least(0.001, float), metavar="R", help="arrivals a second, instead"
    )
    parser.add_argument(
        "--prime",
        action="store_true",
        help="ask each prompt once before, uncounted: all find the server's prefix cache warm",
    )
    parser.add_argument(
        "--stream", action=argparse.BooleanOptionalAction, default=True, help="ask for streams"
    )
    parser.add_argument(
        "--model",
        help="model to ask for (default: the first that the server names, `auto` of a router)",
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="sent along"
    )
    parser.add_argument(
        "--gate", action="store_true", help="hold p95 to 1.5 times the average, success to 98 %%"
    )
    number = asked.at_least(0, float)
    for flag, text in (
        ("--max-p95-ratio", "p95 is at most so many times the average"),
        ("--min-success", "this share (0..1) of requests is answered"),
        ("--max-p95-ms", "p95 of the whole answer is at most this"),
        ("--max-ttft-p95-ms", "p95 to the first token is at most this"),
        ("--min-saved", "--compare saves at least this share (0..1) of the time"),
    ):
        parser.add_argument(flag, type=number, metavar="X", help=f"exit 1 unless {text}")


def run(args: argparse.Namespace) -> int:
    if (args.direct is None) != (args.via is None) or (args.compare and args.direct):
        print("--direct and --via go together, and without --compare", file=sys.stderr)
        return 2
    if args.prime and args.rate is not None:
        print("--prime is for clients that wait, not for --rate", file=sys.stderr)
        return 2
    questions = asked.read(args, scenarios=_scenarios(args))
    if questions is None:
        return 2
    run = _Run(args, questions)
    try:
        asyncio.run(run.make())
    except NoServer as fault:
        print(fault, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        run.is_whole = False
    found = run.found()
    try:
        if args.html is not None:
            args.html.write_text(bench_report.page(found, run.samples), encoding="utf-8")
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(bench_report.document(found, run.samples), indent=2, ensure_ascii=False))
    else:
        print("\n".join(bench_report.lines(found)))
    for text in found.missed:
        print(f"missed: {text}", file=sys.stderr)
    return 1 if found.missed or not run.is_whole else 0


class _Run:
    """One run; what it has seen stays readable when it is interrupted."""

    has_enough = False

    def __init__(self, args: argparse.Namespace, questions: list[Prompt]) -> None:
        self._args = args
        self._questions = questions
        self._names: list[str] = []
        self._began, self._ticks = datetime.now(UTC), time.perf_counter()
        self.samples: list[Sample] = []
        self.is_whole = True
        self._progress: progress.Progress | None = None

    def saw(self, sample: Sample) -> None:
        self.samples.append(sample)
        if self._progress is not None:
            self._progress.step()

    async def make(self) -> None:
        args = self._args
        async with Asker(timeout_s=args.timeout, trust=args.trust) as asker:
            arms = [arm if args.model else await _with_model(arm, asker) for arm in _arms(args)]
            self._names = [arm.name for arm in arms]
            await load.warm_up(asker, self._questions, arms, args.warmup)
            random = Random(args.seed)
            planned = load.turns(prompts.passes(self._questions, random), arms, args.count, random)
            asker.restart()
            self._ticks = time.perf_counter()
            with progress.progress("asking", args.count * len(arms)) as self._progress:
                if args.rate is not None:
                    await load.open_(asker, planned, self, rate=args.rate, random=random)
                else:
                    await load.closed(
                        asker,
                        planned,
                        self,
                        concurrency=args.concurrency,
                        is_primed=args.prime,
                    )

    def found(self) -> Bench:
        args = self._args
        arms = [summary.summary(name, self.samples) for name in self._names]
        both = summary.pairs(self.samples, *self._names) if len(arms) == 2 else []
        savings = summary.savings(both, seed=args.seed) if args.compare else []
        # Of two, the second is what is proposed; the first is what there was.
        missed = [text for arm in arms[-1:] for text in summary.missed(arm, savings, _gates(args))]
        return Bench(
            command=shlex.join(["scenario-router", *sys.argv[1:]]),
            version=__version__,
            began=self._began.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - self._ticks,
            how=_how(args, len(self._questions)),
            seed=args.seed,
            is_whole=self.is_whole,
            arms=arms,
            savings=savings,
            added=summary.added(both) if args.direct else [],
            missed=missed,
            notes=_notes(args, arms, is_whole=self.is_whole),
        )


def _arms(args: argparse.Namespace) -> list[Arm]:
    headers = {**asked.headers(args), **_given(args.header)}

    def arm(name: str, url: str, model: str | None, more: Mapping[str, str]) -> Arm:
        encode = partial(_sending, args, model or "", {**headers, **more})
        return Arm(name, base(url), encode)

    if args.direct:
        return [arm("direct", args.direct, args.model, {}), arm("via", args.via, args.model, {})]
    if args.compare:
        return [arm(side, args.url, args.model or "auto", _treated(side)) for side in args.compare]
    return [arm("server", args.url, args.model, {})]


async def _with_model(arm: Arm, asker: Asker) -> Arm:
    """The arm with the name of a model that its server has, where none is set yet."""
    encode = arm.encode
    assert isinstance(encode, partial)
    args, model, headers = encode.args
    model = model or await asker.model_at(arm.url, headers)
    return Arm(arm.name, arm.url, partial(encode.func, args, model, headers))


def _sending(
    args: argparse.Namespace, model: str, headers: Mapping[str, str], prompt: Prompt
) -> Sending:
    return Sending(body_of(prompt, model, stream=args.stream, extra=asked.extra(args)), headers)


def _treated(side: str) -> dict[str, str]:
    """The headers that have a router treat a request so."""
    if side in _UNTOUCHED:
        return {"x-router-policy": "off"}
    return {} if side == _CLASSIFIED else {"x-router-scenario": side}


def _scenarios(args: argparse.Namespace) -> list[str]:
    """Of the built-in prompts, those that the compared presets are for."""
    return [side for side in args.compare or () if side not in (*_UNTOUCHED, _CLASSIFIED)]


def _gates(args: argparse.Namespace) -> Gates:
    usual = Gates(max_p95_ratio=1.5, min_success=0.98) if args.gate else Gates()
    given: dict[str, Any] = {name: getattr(args, name) for name in Gates.__struct_fields__}
    return Gates(
        **{name: getattr(usual, name) if value is None else value for name, value in given.items()}
    )


def _how(args: argparse.Namespace, count: int) -> str:
    if args.rate is None:
        way = f"{args.concurrency} client{'s' * (args.concurrency > 1)} at a time"
    else:
        way = f"{args.rate:g} arrivals a second, timed from when each was due"
    kind = "streams" if args.stream else "whole replies"
    primed = ", each prompt asked once before" if args.prime else ""
    return f"{count} different prompts, {kind}, {way}, {args.warmup} for warming up{primed}"


def _notes(args: argparse.Namespace, arms: list[summary.Summary], *, is_whole: bool) -> list[str]:
    found = list(args.note)
    if not is_whole:
        found.append("what was under way did not count; the slowest are likely to be among it")
    late = max((arm.late_ms for arm in arms), default=0.0)
    if args.rate is not None and late > 10:
        found.append(f"this client was up to {late:.0f} ms late itself; that counts as latency")
    if len({arm.requests for arm in arms}) > 1:
        found.append("the sides were asked unequally often; pairs count where both were answered")
    if args.compare and any(arm.succeeded < arm.requests for arm in arms):
        found.append("pairs with a failed request are left out of what is saved")
    if args.concurrency > 1 and len(arms) > 1:
        found.append("both sides shared the server meanwhile, each slowed by the other")
    return found


def _given(pairs: list[str]) -> dict[str, str]:
    split = (pair.partition(":") for pair in pairs)
    return {name.strip().lower(): value.strip() for name, _, value in split}


def _sides(text: str) -> list[str]:
    sides = [side.strip() for side in text.split(",")]
    if len(sides) != 2 or not all(sides) or sides[0] == sides[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not two names with a comma between")
    return sides
