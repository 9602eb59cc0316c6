"""What `ab` found, as lines, as a document, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from router import htmlpage
from router.measure import bench_report, judging, plots
from router.measure.asking import Sample, without_texts
from router.measure.comparing import Finding
from router.measure.judging import Pair
from router.measure.statistics import Verdict
from router.measure.summary import Summary

_NAMES = {
    "ttft": "time to the first token",
    "total": "time of the whole answer",
    "output_tokens": "output tokens",
    "cut": "answers cut by a limit",
    "success": "requests answered",
}
_STYLE = "svg { width: 28rem; }" + judging.STYLE


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One arm, as it was named and as it was."""

    name: str
    policy: str | None  # hash; None: untouched, or told by a router on the way
    summary: Summary


class AB(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison, whole or as far as it came."""

    command: str
    version: str
    began: str
    seconds: float
    run: str  # id; what shuffles the sides of the pairs to judge
    seed: int
    backend: str
    prompts: int
    pairs: int
    why_ended: str
    a: Side
    b: Side
    findings: Sequence[Finding]
    judge: str | None  # a model's verdicts, in words
    notes: Sequence[str]


def document(ab: AB, samples: Sequence[Sample]) -> dict[str, Any]:
    return {**msgspec.to_builtins(ab), "samples": without_texts(samples)}


def lines(ab: AB) -> Iterator[str]:
    yield f"A  {_side(ab.a)}"
    yield f"B  {_side(ab.b)}"
    yield (
        f"{ab.pairs} pairs of {ab.prompts} prompts on {ab.backend}, {ab.seconds:.1f} s, "
        f"seed {ab.seed}; ended: {ab.why_ended}"
    )
    yield ""
    width = max(map(len, _NAMES.values()))
    yield f"{'B against A':{width}}{'A':>10}{'B':>10}{'effect':>10}  {'interval':<24}verdict"
    for each in ab.findings:
        low, high = (_effect(each, end) for end in (each.low, each.high))
        cells = f"{_side_value(each, each.a):>10}{_side_value(each, each.b):>10}"
        cells += f"{_effect(each, each.value):>10}"
        verdict = f"{each.verdict}{_outlook(each)}"
        yield f"{_NAMES[each.quantity]:{width}}{cells}  {f'{low} to {high}':<24}{verdict}"
    yield ""
    yield from explained(ab.findings)
    for side in (ab.a, ab.b):
        for text, times in side.summary.errors.items():
            yield f"{side.name}: failed {times} times: {text}"
    if ab.judge:
        yield f"judged by a model (weak evidence): {ab.judge}"
    for note in ab.notes:
        yield f"note: {note}"


def explained(findings: Sequence[Finding]) -> Iterator[str]:
    """What the table's words mean."""
    if not findings:
        yield "no pair was answered: nothing is known"
        return
    margins = {each.kind: each.margin for each in findings}
    ratio, share = margins.get("ratio"), margins.get("difference")
    matters = [] if ratio is None else [f"{ratio:.0%} of a time or of tokens"]
    matters += [] if share is None else [f"{100 * share:g} points of a share"]
    yield f"Smallest effect that matters: {', '.join(matters)}."
    yield (
        "All intervals together hold with 95 %, however often they are looked at: of two that are "
        "alike, one report in twenty at most ever says better or worse anywhere."
    )


def _side(side: Side) -> str:
    policy = f"  (policy {side.policy})" if side.policy else ""
    return f"{side.name}{policy}: {side.summary.succeeded} of {side.summary.requests} answered"


def _side_value(each: Finding, value: float | None) -> str:
    if value is None:
        return "?"
    if each.kind == "difference":
        return f"{value:.1%}"
    return f"{value:,.0f}" + (" ms" if each.quantity != "output_tokens" else "")


def _effect(each: Finding, value: float | None) -> str:
    """A ratio as a change, a difference in points."""
    if value is None:
        return "?"
    return f"{value - 1:+.1%}" if each.kind == "ratio" else f"{100 * value:+.1f} pt"


def _outlook(each: Finding) -> str:
    likely = each.likely_pairs
    if each.verdict is not Verdict.NOT_YET or likely is None or likely <= each.pairs:
        return ""
    return f"; about {likely} pairs would show {each.margin:.0%}"


# --- the page --------------------------------------------------------------------------------


def page(ab: AB, samples: Sequence[Sample], shown: Sequence[Pair]) -> str:
    """Pairs to judge stand first, the figures behind a fold: they would tell who is who."""
    figures = _figures(ab, samples)
    if shown:
        figures = (
            "<details><summary>The figures (judge first: they tell who is who)</summary>"
            f"{figures}</details>"
        )
    return htmlpage.page(
        "A against B",
        "A against B",
        [
            f"<p>{escape(ab.began)}, {ab.pairs} pairs of {ab.prompts} prompts, seed {ab.seed}, run "
            f"{escape(ab.run)}, scenario-router {escape(ab.version)}</p>",
            htmlpage.section("Which answer is better?", judging.rows(shown)),
            figures,
        ],
        style=_STYLE,
        script=judging.SCRIPT if shown else "",
    )


def _figures(ab: AB, samples: Sequence[Sample]) -> str:
    head = ("", "A", "B", "B against A", "interval", "pairs", "verdict")
    rows = [
        [
            _NAMES[each.quantity],
            _side_value(each, each.a),
            _side_value(each, each.b),
            _effect(each, each.value),
            f"{_effect(each, each.low)} to {_effect(each, each.high)}",
            str(each.pairs),
            f"{each.verdict}{_outlook(each)}",
        ]
        for each in ab.findings
    ]
    texts = [*lines(ab)]
    return "\n".join(
        [
            f"<p><code>{escape(ab.command)}</code></p>",
            "".join(f"<p>{escape(text)}</p>" for text in texts[:3]),
            htmlpage.section("Verdicts", htmlpage.table(head, rows)),
            "".join(f"<p>{escape(text)}</p>" for text in explained(ab.findings)),
            f"<p>judged by a model (weak evidence): {escape(ab.judge)}</p>" if ab.judge else "",
            "".join(f"<p>note: {escape(note)}</p>" for note in ab.notes),
            htmlpage.section("Drawn", _drawn(ab, samples)),
        ]
    )


def _drawn(ab: AB, samples: Sequence[Sample]) -> str:
    bars = [
        plots.Bar(
            _NAMES[each.quantity], *(_change(end) for end in (each.low, each.value, each.high))
        )
        for each in ab.findings
        if each.kind == "ratio" and each.value is not None
    ]
    drawn = [plots.intervals("B against A", "change in per cent", bars, none=0)] if bars else []
    arms = [ab.a.name, ab.b.name]
    for name, title in (("total_ms", "whole answer"), ("output_tokens", "output tokens")):
        own: Mapping[str, Sequence[float]] = bench_report.ordered(samples, arms, name)
        if own:
            drawn.append(plots.shares(title, name.replace("_", " "), own))
    return f'<div class="beside">{"".join(drawn)}</div>' if drawn else ""


def _change(ratio: float | None) -> Any:
    return None if ratio is None else 100 * (ratio - 1)
