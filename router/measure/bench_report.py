"""What `bench` found, as lines, as a document, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from router import htmlpage
from router.measure import plots, summary
from router.measure.asking import Sample, without_texts
from router.measure.summary import Added, Saving, Spread, Summary

_NAMES = {
    "total_ms": "whole answer, ms",
    "ttft_ms": "first token, ms",
    "tpot_ms": "each further token, ms",
    "output_tokens": "output tokens",
    "overhead_ms": "router's own time, ms",
}
_STYLE = "svg { width: 28rem; }"


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """One run, whole or as far as it came."""

    command: str
    version: str
    began: str  # RFC 3339
    seconds: float
    how: str  # the arrangement, in words
    seed: int
    is_whole: bool  # not interrupted
    arms: Sequence[Summary]
    savings: Sequence[Saving]
    added: Sequence[Added]
    missed: Sequence[str]
    notes: Sequence[str]


def document(bench: Bench, samples: Sequence[Sample]) -> dict[str, Any]:
    """For `--json`: the figures, and each request without its texts."""
    return {**msgspec.to_builtins(bench), "samples": without_texts(samples)}


def lines(bench: Bench) -> Iterator[str]:
    yield f"{bench.how}; {bench.seconds:.1f} s, seed {bench.seed}"
    if not bench.is_whole:
        yield "INTERRUPTED: this is what there was"
    width = max([len(name) for name in _NAMES.values()])
    for arm in bench.arms:
        yield ""
        yield _headline(arm)
        columns = ("avg", "min", "p50", "p95", "p99", "max")
        yield f"{'':{width}}" + "".join(f"{column:>10}" for column in columns)
        for name, own in arm.spreads.items():
            cells = "".join(f"{_digits(getattr(own, column)):>10}" for column in columns)
            yield f"{_NAMES[name]:<{width}}{cells}"
        yield from _asides(arm)
    if bench.savings or bench.added:
        yield ""
        yield from _compared(bench)
    for note in bench.notes:
        yield f"note: {note}"


def _headline(arm: Summary) -> str:
    low, high = arm.success_interval
    pace = "" if arm.tokens_per_s is None else f", {arm.tokens_per_s:.1f} output tokens/s"
    success = f"{arm.success:.1%}" if arm.requests else "nothing"
    return (
        f"{arm.arm}: {arm.requests} requests, success {success} "
        f"(95 %: {low:.1%} to {high:.1%}){pace}"
    )


def _asides(arm: Summary) -> Iterator[str]:
    for text, times in arm.errors.items():
        yield f"  failed {times} times: {text}"
    for count, text in (
        (arm.cut, "answers cut at a limit of tokens"),
        (arm.empty, "answers without any text"),
        (arm.second, "answered when asked again: the server had closed the kept connection"),
        (arm.warned, "replies with warnings of the router"),
    ):
        if count:
            yield f"  {count} {text}"
    if arm.scenarios:
        yield "  scenarios: " + ", ".join(f"{name} {n}" for name, n in arm.scenarios.items())
    if arm.policies:
        yield "  policy: " + ", ".join(arm.policies)
    if arm.counts_frames:
        yield "  tokens are counted frames: the server told no usage"


def _compared(bench: Bench) -> Iterator[str]:
    first, second = (arm.arm for arm in bench.arms[:2])
    for saving in bench.savings:
        is_less = not saving.share < 0
        verb, sign = ("saves", 1) if is_less else ("adds", -1)
        yield (
            f"{second} {verb} {sign * saving.share:.1%} of {first}'s {_of(saving.quantity)} "
            f"({_saved_interval(saving, sign)}; {saving.pairs} pairs, {saving.prompts} prompts)"
        )
    for added in bench.added:
        low, high = (_digits(end) if end is not None else "?" for end in (added.low, added.high))
        yield (
            f"{second} adds {_digits(added.median)} ms to the {_of(added.quantity)} at the median "
            f"(95 %: {low} to {high}; {added.pairs} pairs)"
        )


def _of(quantity: str) -> str:
    return {
        "total_ms": "time",
        "ttft_ms": "time to the first token",
        "output_tokens": "output tokens",
    }[quantity]


def _saved_interval(saving: Saving, sign: int) -> str:
    if saving.low is None or saving.high is None:
        return "too few different prompts for an interval"
    low, high = sorted((sign * saving.low, sign * saving.high))
    return f"95 %: {low:.1%} to {high:.1%}"


def _digits(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


# --- the page --------------------------------------------------------------------------------


def page(bench: Bench, samples: Sequence[Sample]) -> str:
    compared = "".join(f"<p>{escape(line)}</p>" for line in _compared_lines(bench))
    if bench.savings:
        bars = [
            plots.Bar(_of(each.quantity), *_percent(each.low, each.share, each.high))
            for each in bench.savings
        ]
        names = " against ".join(arm.arm for arm in reversed(bench.arms[:2]))
        compared += plots.intervals(f"saved: {names}", "per cent", bars, none=0)
    return htmlpage.page(
        "Benchmark",
        "Benchmark",
        [
            f"<p>{escape(bench.began)}, {bench.seconds:.0f} s, seed {bench.seed}, scenario-router "
            f"{escape(bench.version)}. {escape(bench.how)}.</p>",
            f"<p><code>{escape(bench.command)}</code></p>",
            "" if bench.is_whole else "<p><strong>Interrupted: what there was.</strong></p>",
            _bounds(bench),
            htmlpage.section("One against the other", compared),
            *(htmlpage.section(arm.arm, _arm(arm)) for arm in bench.arms),
            htmlpage.section("Drawn", _drawn(samples, [arm.arm for arm in bench.arms])),
            htmlpage.section("Notes", "".join(f"<p>{escape(note)}</p>" for note in bench.notes)),
        ],
        style=_STYLE,
    )


def _compared_lines(bench: Bench) -> Iterator[str]:
    if bench.savings or bench.added:
        yield from _compared(bench)


def _percent(*shares: float | None) -> Any:
    return [None if share is None else 100 * share for share in shares]


def _bounds(bench: Bench) -> str:
    return "".join(f"<p><strong>missed: {escape(text)}</strong></p>" for text in bench.missed)


def _arm(arm: Summary) -> str:
    low, high = arm.success_interval
    figures = [
        ("requests", str(arm.requests)),
        (f"success (95 %: {low:.1%} to {high:.1%})", f"{arm.success:.1%}"),
    ]
    if arm.tokens_per_s is not None:
        figures.append(("output tokens/s", f"{arm.tokens_per_s:.1f}"))
    head = ("", "n", "avg", "min", "p50", "p95", "p99", "max", "95 % interval of p95")
    rows = [_row(name, own) for name, own in arm.spreads.items()]
    asides = "".join(f"<p>{escape(line.strip())}</p>" for line in _asides(arm))
    return htmlpage.figures(figures) + htmlpage.table(head, rows) + asides


def _row(name: str, own: Spread) -> list[str]:
    values = (own.avg, own.min, own.p50, own.p95, own.p99, own.max)
    low, high = ("?" if end is None else _digits(end) for end in own.p95_interval)
    return [_NAMES[name], str(own.n), *map(_digits, values), f"{low} to {high}"]


def _drawn(samples: Sequence[Sample], arms: Sequence[str]) -> str:
    drawn = []
    for name in ("total_ms", "ttft_ms", "output_tokens"):
        own = ordered(samples, arms, name)
        if own:
            title = _of(name)
            drawn.append(plots.shares(title, _NAMES[name], own))
    dots = {
        arm: [(s.began_s, s.total_ms) for s in samples if s.arm == arm and s.is_ok] for arm in arms
    }
    if any(dots.values()):
        drawn.append(plots.over_time("as it went", "whole answer, ms", dots))
    return f'<div class="beside">{"".join(drawn)}</div>' if drawn else ""


def ordered(
    samples: Sequence[Sample], arms: Sequence[str], name: str
) -> Mapping[str, Sequence[float]]:
    """Of each arm that has any: its values of one quantity, in order."""
    quantity = summary.QUANTITIES[name]
    found = {}
    for arm in arms:
        values = [v for s in samples if s.arm == arm and s.is_ok and (v := quantity(s)) is not None]
        if values:
            found[arm] = sorted(values)
    return found
