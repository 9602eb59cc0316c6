"""Pages that ask for nothing else: one style, one shell, tables. All text is escaped.

In: text. Out: HTML with its style inside, and a policy that forbids the browser to load
anything, or to run anything but a script that was handed in here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
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
.beside { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start; }
svg { width: 20rem; max-width: 100%; color: var(--ink); }
"""
#: the colours of marks, readable in dark and light
GREEN, RED, BLUE = "rgb(42,157,74)", "rgb(209,67,59)", "rgb(58,120,214)"


def page(
    title: str, heading: str, body: Iterable[str], *, style: str = "", script: str = ""
) -> str:
    """The whole page. `script` may speak to the server that the page came from, no other."""
    allowed = "default-src 'none'; style-src 'unsafe-inline'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed += f"; script-src 'sha256-{digest}'; connect-src 'self'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{allowed}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}{style}</style>",
            f"<h1>{escape(heading)}</h1>",
            *(part for part in body if part),
            *([f"<script>{script}</script>"] if script else []),
            "</html>\n",
        ]
    )


def section(title: str, inside: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{inside}\n</section>" if inside else ""


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and large values."""
    inside = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs
    )
    return f'<dl class="figures">\n{inside}\n</dl>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    heads = "".join(f"<th scope=col>{escape(name)}" for name in head)
    lines = ["<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) + "</tr>" for row in rows]
    name = f' class="{kind}"' if kind else ""
    return f"<table{name}>\n<thead><tr>{heads}</tr></thead>\n" + "\n".join(lines) + "\n</table>"
