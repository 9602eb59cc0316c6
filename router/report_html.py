"""A report on labelled prompts as one page that asks for nothing else.

In: the report. Out: HTML with its style and its drawing inside; no script, and a policy
that forbids the browser to load or run anything. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from router.evaluation import BINS, RECALL, TYPICAL_CHARS, Answer, Bin, Report, Share

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --ink: #1b1b1f; --paper: #fff;
  font: 16px/1.5 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6ea; --paper: #16161a; } }
body { max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--paper); }
section { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; }
th:first-child, td:first-child, .words td, .words th { text-align: left; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: 1rem 0; }
.figures div { display: flex; flex-direction: column-reverse; }
.figures dd { margin: 0; font-size: 1.7rem; line-height: 1.2; }
.matrix td, .matrix th { padding: .3rem .6rem; border: 1px solid var(--line); }
.matrix { print-color-adjust: exact; }
.words td:nth-last-child(-n+2) { overflow-wrap: anywhere; min-width: 12rem; }
.beside { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start; }
svg { width: 20rem; max-width: 100%; color: var(--ink); }
"""
#: a cell's colour, and how much of it is laid on at most: figures stay readable in dark and light
_RIGHT, _WRONG, _DARKEST = "42,157,74", "209,67,59", 0.7
_MARK = f"rgb({_RIGHT})"
#: the drawing: its side and the room around it for the axes' names
_SIDE, _ROOM = 240, 44


def page(report: Report, *, title: str, policy: str) -> str:
    """The whole page."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}: labelled prompts</title>",
            f"<style>{_STYLE}</style>",
            f"<h1>{escape(title)}</h1>",
            f"<p>{report.rows} labelled prompts under policy <code>{escape(policy)}</code></p>",
            _headline(report),
            _section("Scenarios", _labels(report)),
            _section("Languages", _languages(report)),
            _section("What decided", _shares("decided by", report.stages)),
            _section("Where rows are from", _shares("from", report.sources)),
            _section("Which was taken for which", _matrix(report.confusion)),
            _section("Is the confidence right?", _reliability(report.bins)),
            _section("Thinking", _thinking(report)),
            _section("The most confident mistakes", _answers(report.mistakes)),
            "</html>\n",
        ]
    )


def _section(title: str, inside: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{inside}\n</section>" if inside else ""


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
    inside = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures
    )
    return f'<dl class="figures">\n{inside}\n</dl>'


def _labels(report: Report) -> str:
    return _table(
        ("label", "rows", "precision", "recall", "F1"),
        (
            (label, str(own.rows), _share(own.precision), _share(own.recall), _share(own.f1))
            for label, own in report.labels.items()
        ),
    )


def _languages(report: Report) -> str:
    return _table(
        ("language", "rows", "accuracy", "macro-F1"),
        (
            (lang, str(own.rows), _share(own.accuracy), _share(own.macro_f1))
            for lang, own in report.languages.items()
        ),
    )


def _shares(title: str, shares: Mapping[str, Share]) -> str:
    if not shares:
        return ""
    return _table(
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
    bounds = _table(
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
<polyline points="{path}" stroke="{_MARK}" stroke-width="2" fill="none"/>
<g fill="{_MARK}" fill-opacity=".8">
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
    return _table(
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


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    heads = "".join(f"<th scope=col>{escape(name)}" for name in head)
    lines = ["<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) + "</tr>" for row in rows]
    name = f' class="{kind}"' if kind else ""
    return f"<table{name}>\n<thead><tr>{heads}</tr></thead>\n" + "\n".join(lines) + "\n</table>"


def _share(value: float) -> str:
    return f"{value:.3f}"
