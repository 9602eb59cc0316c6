"""A report on labelled prompts as one page that asks for nothing else.

In: the report. Out: HTML with its style and its drawing inside; no script, and a policy
that forbids the browser to load or run anything. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from router import htmlpage
from router.evaluation import BINS, RECALL, TYPICAL_CHARS, Answer, Bin, Report, Share
from router.htmlpage import GREEN, section, table

_STYLE = """
.matrix td, .matrix th { padding: .3rem .6rem; border: 1px solid var(--line); }
.matrix { print-color-adjust: exact; }
.words td:nth-last-child(-n+2) { overflow-wrap: anywhere; min-width: 12rem; }
"""
#: a cell's colour, and how much of it is laid on at most: figures stay readable in dark and light
_RIGHT, _WRONG, _DARKEST = "42,157,74", "209,67,59", 0.7
#: the drawing: its side and the room around it for the axes' names
_SIDE, _ROOM = 240, 44


def page(report: Report, *, title: str, policy: str) -> str:
    """The whole page."""
    return htmlpage.page(
        f"{title}: labelled prompts",
        title,
        [
            f"<p>{report.rows} labelled prompts under policy <code>{escape(policy)}</code></p>",
            _headline(report),
            section("Scenarios", _labels(report)),
            section("Languages", _languages(report)),
            section("What decided", _shares("decided by", report.stages)),
            section("Where rows are from", _shares("from", report.sources)),
            section("Which was taken for which", _matrix(report.confusion)),
            section("Is the confidence right?", _reliability(report.bins)),
            section("Thinking", _thinking(report)),
            section("The most confident mistakes", _answers(report.mistakes)),
        ],
        style=_STYLE,
    )


def _headline(report: Report) -> str:
    low, high = report.accuracy_interval
    figures = [
        (f"accuracy (95 %: {_share(low)} to {_share(high)})", _share(report.accuracy)),
        ("macro-F1", _share(report.macro_f1)),
        ("expected calibration error", _share(report.ece)),
        ("of rows nothing spoke for", _share(report.abstain_rate)),
        ("accuracy of the others", _share(report.answered.accuracy)),
        ("p50 of a decision", f"{report.times.p50_us:.0f} µs"),
        ("p99 of a decision", f"{report.times.p99_us:.0f} µs"),
        ("p50 in the first run", f"{report.times.first_p50_us:.0f} µs"),
    ]
    if report.times.typical_p50_us is not None:
        low_chars, high_chars = TYPICAL_CHARS
        figures.append(
            (
                f"p50, {low_chars} to {high_chars} characters",
                f"{report.times.typical_p50_us:.0f} µs",
            )
        )
    return htmlpage.figures(figures)


def _labels(report: Report) -> str:
    return table(
        ("label", "rows", "precision", "recall", "F1"),
        (
            (label, str(own.rows), _share(own.precision), _share(own.recall), _share(own.f1))
            for label, own in report.labels.items()
        ),
    )


def _languages(report: Report) -> str:
    return table(
        ("language", "rows", "accuracy", "macro-F1"),
        (
            (lang, str(own.rows), _share(own.accuracy), _share(own.macro_f1))
            for lang, own in report.languages.items()
        ),
    )


def _shares(title: str, shares: Mapping[str, Share]) -> str:
    if not shares:
        return ""
    return table(
        (title, "rows", "accuracy"),
        ((name, str(own.rows), _share(own.accuracy)) for name, own in shares.items()),
    )


def _matrix(confusion: Mapping[str, Mapping[str, int]]) -> str:
    """Rows are labels and columns answers; a cell is as dark as its share of the row."""
    columns = "".join(f"<th scope=col>{escape(got)}" for got in next(iter(confusion.values())))
    lines = [f"<tr><th>label \\ got{columns}</tr>"]
    for label, own in confusion.items():
        total = sum(own.values())
        cells = "".join(
            f'<td style="background:rgba({_RIGHT if got == label else _WRONG},'
            f'{_DARKEST * count / total:.2f})">{count or ""}'
            for got, count in own.items()
        )
        lines.append(f"<tr><th scope=row>{escape(label)}{cells}</tr>")
    return '<table class="matrix">\n' + "\n".join(lines) + "\n</table>"


def _reliability(bins: Sequence[Bin]) -> str:
    bounds = table(
        ("confidence", "rows", "mean", "accuracy"),
        (
            (
                f"{_share(own.low)} to {_share(own.high)}",
                str(own.rows),
                _share(own.confidence),
                _share(own.accuracy),
            )
            for own in bins
        ),
    )
    note = f"<p>Up to {BINS} bins of equal size; on the dashed line, confidence is accuracy.</p>"
    return f'{note}\n<div class="beside">\n{_diagram(bins)}\n{bounds}\n</div>'


def _diagram(bins: Sequence[Bin]) -> str:
    """Accuracy over confidence; a point's area is its bin's rows."""
    total = sum(own.rows for own in bins)
    places = [(_x(own.confidence), _y(own.accuracy), own) for own in bins]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    points = "\n".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 + 12 * (own.rows / total) ** 0.5:.1f}">'
        f"<title>{own.rows} rows: confidence {_share(own.confidence)}, "
        f"accuracy {_share(own.accuracy)}</title></circle>"
        for x, y, own in places
    )
    ticks = "\n".join(
        f'<text x="{_x(at):.0f}" y="{_y(0) + 15:.0f}" text-anchor="middle">{at:g}</text>'
        f'<text x="{_x(0) - 6:.0f}" y="{_y(at) + 4:.0f}" text-anchor="end">{at:g}</text>'
        for at in (0, 0.5, 1)
    )
    width = _SIDE + 2 * _ROOM
    middle = width / 2
    return f"""<svg viewBox="0 0 {width} {width}" role="img" aria-label="Accuracy over confidence"
 font-size="11" fill="currentColor">
<path d="M{_x(0)} {_y(1)}V{_y(0)}H{_x(1)}" stroke="currentColor" fill="none"/>
<path d="M{_x(0)} {_y(0)}L{_x(1)} {_y(1)}" stroke="currentColor" stroke-dasharray="4 4"/>
<polyline points="{path}" stroke="{GREEN}" stroke-width="2" fill="none"/>
<g fill="{GREEN}" fill-opacity=".8">
{points}
</g>
{ticks}
<text x="{middle:g}" y="{width - 6}" text-anchor="middle">confidence</text>
<text transform="translate(12 {middle:g}) rotate(-90)" text-anchor="middle">accuracy</text>
</svg>"""


def _x(share: float) -> float:
    return _ROOM + _SIDE * share


def _y(share: float) -> float:
    return _ROOM + _SIDE * (1 - share)


def _thinking(report: Report) -> str:
    found = report.thinking
    if found is None:
        return ""
    lines = [
        f"<p>{found.worth} of {found.rows} rows are worth a thought. As decided: precision "
        f"{_share(found.precision)}, recall {_share(found.recall)}, F1 {_share(found.f1)}.</p>"
    ]
    if found.best is not None:
        lines.append(
            f"<p>From {_share(found.best.threshold)} on, precision {_share(found.best.precision)} "
            f"at recall {_share(found.best.recall)}: the best with recall ≥ {RECALL:.2f}.</p>"
        )
    return "\n".join(lines)


def _answers(answers: Sequence[Answer]) -> str:
    if not answers:
        return ""
    return table(
        ("row", "label", "got", "confidence", "by", "signals", "text"),
        (
            (
                answer.id,
                answer.label,
                answer.got,
                f"{answer.confidence:.2f}",
                answer.stage,
                "; ".join(answer.signals),
                answer.text,
            )
            for answer in answers
        ),
        kind="words",
    )


def _share(value: float) -> str:
    return f"{value:.3f}"
