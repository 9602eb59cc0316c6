"""`ab`: two presets or policies, the same prompts, one model: what does B change?

Pairs are made in random order, and what is known is told as better, worse, no difference,
or not yet.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import msgspec

from router import __version__, dialects
from router.commands import asked, judged, offline, progress, sides
from router.errors import RouterError
from router.measure import ab_report, judging, load, prompts, summary
from router.measure.ab_report import AB, Side
from router.measure.asking import Asker, NoServer, Sample
from router.measure.comparing import Comparison, is_settled
from router.measure.judging import Pair
from router.measure.prompts import Prompt

_MORE = """
A side is a scenario ("faq": its preset, whatever a prompt looks like), a policy file ("new.toml"),
both ("faq@new.toml"), "off" (the request as the client wrote it), or a running router's address
("http://...", "faq@http://..."). Scenarios without a file are those of --policy, else of the
configuration. Of all but a router the request is made here, by the code that serves, and sent to
the backend: what a router does with the answer (a second try without thinking, a thought stopped
from outside) is not in it. For that, name two routers.
"""


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
            return judged.serve_page(args)
        if args.verdicts is not None:
            return judged.count(args)
        if not (args.a and args.b) or bool(args.judge) != bool(args.judge_url):
            raise asked.Usage("--a and --b are needed, and --judge goes with --judge-url")
        return _compare(args)
    except asked.Usage as wrong:
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
        self._policies: Mapping[str, str | None] = {}
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
        async with Asker(timeout_s=args.timeout, trust=args.trust) as asker:
            arms, self._backend, self._policies = await sides.arms(
                args, self._names, asker, self._questions[0]
            )
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
                try:
                    verdicts = await judged.by_model(args, asker, self.spot)
                    self._judge = judging.told(judging.count(verdicts))
                except NoServer as fault:
                    self._judge = f"not judged: {fault}"

    def _pick_spot(self) -> None:
        both = summary.pairs(self.samples, *self._names)
        self.spot = judging.pairs(self._id(), both, self._questions, self._args.spot)

    def _id(self) -> str:
        told = f"{self._began.isoformat()} {self._args.seed} {self._names} {self._policies}"
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def found(self) -> AB:
        args = self._args
        both = [
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
            a=both[0],
            b=both[1],
            findings=self._comparison.findings(),
            judge=self._judge,
            notes=_notes(args, both, self.why_ended),
        )


def _notes(args: argparse.Namespace, both: list[Side], why_ended: str) -> list[str]:
    found = list(args.note)
    if any(side.summary.succeeded < side.summary.requests for side in both):
        found.append("times and tokens are those of pairs in which both were answered")
    if any(side.summary.counts_frames for side in both):
        found.append("tokens are counted frames: the server told no usage")
    if why_ended == "interrupted":
        found.append("what was under way did not count; the slowest are likely to be among it")
    if args.concurrency > 1:
        found.append("pairs were made at the same time, so they slowed each other down")
    return found


def _scenarios(args: argparse.Namespace) -> list[str]:
    """Of the built-in prompts, those that the named scenarios are for."""
    named = [sides.parts(side)[0] for side in (args.a, args.b)]
    return [name for name in dict.fromkeys(named) if name and name not in sides.UNTOUCHED]
