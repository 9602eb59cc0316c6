"""Which answer is better? Pairs for a person, or a model, who does not know whose is whose. Pure.

Whether A stands on the left is worked out from the run's id and the pair's number, so a page
and a file of verdicts say nothing of it, and the count needs nothing but them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from enum import StrEnum
from html import escape

import msgspec

from router import htmlpage
from router.measure import statistics
from router.measure.asking import Sample
from router.measure.prompts import Prompt
from router.measure.statistics import Effect


class Choice(StrEnum):
    LEFT = "left"
    RIGHT = "right"
    SAME = "same"


class Pair(msgspec.Struct, frozen=True):
    """One prompt and both answers."""

    run: str
    pair: int
    prompt: str
    a: str
    b: str

    @property
    def sides(self) -> tuple[str, str]:
        """Left and right."""
        return (self.a, self.b) if is_a_left(self.run, self.pair) else (self.b, self.a)


class Judged(msgspec.Struct, frozen=True):
    """A verdict, as it stands in a file."""

    run: str
    pair: int
    choice: Choice
    by: str = "person"


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """What verdicts come to."""

    a: int
    b: int
    same: int
    #: share of pairs won by B less that won by A, always valid
    value: float | None
    low: float
    high: float
    by: Sequence[str]


def is_a_left(run: str, pair: int) -> bool:
    return hashlib.sha256(f"{run}:{pair}".encode()).digest()[0] % 2 == 0


def pairs(
    run: str, both: Iterable[tuple[Sample, Sample]], prompts: Sequence[Prompt], most: int
) -> list[Pair]:
    """So many pairs of answers that differ, each prompt at most once."""
    texts = {prompt.id: prompt.text for prompt in prompts}
    found: dict[int, Pair] = {}
    for a, b in both:
        if a.text.strip() != b.text.strip() and a.prompt not in found:
            found[a.prompt] = Pair(run, a.turn, texts[a.prompt], a.text, b.text)
        if len(found) == most:
            break
    return list(found.values())


def count(verdicts: Iterable[Judged]) -> Count:
    """The last verdict on a pair is the one that counts."""
    last = {(each.run, each.pair, each.by): each for each in verdicts}
    won = {True: 0, False: 0}
    same = 0
    for each in last.values():
        if each.choice is Choice.SAME:
            same += 1
        else:
            won[is_a_left(each.run, each.pair) == (each.choice is Choice.LEFT)] += 1
    effect: Effect = statistics.paired_proportion_difference(won[True], won[False], len(last))
    return Count(
        a=won[True],
        b=won[False],
        same=same,
        value=effect.value if last else None,
        low=effect.low,
        high=effect.high,
        by=sorted({each.by for each in last.values()}),
    )


def told(count: Count) -> str:
    if count.value is None:
        return "no verdicts"
    known = "no difference is known"
    if count.low > 0:
        known = "B is preferred"
    elif count.high < 0:
        known = "A is preferred"
    return (
        f"A won {count.a}, B won {count.b}, alike {count.same}: {known} "
        f"(B less A: {count.value:+.0%} of pairs; 95 %: {count.low:+.0%} to {count.high:+.0%}; "
        f"by {', '.join(count.by)})"
    )


# --- the page ---------------------------------------------------------------------------------

STYLE = """
.pair { border-top: 1px solid var(--line); padding: 1rem 0; }
.answers { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5rem; }
.answers > div { white-space: pre-wrap; overflow-wrap: anywhere; padding: .6rem .8rem;
  border: 1px solid var(--line); border-radius: .4rem; max-height: 24rem; overflow-y: auto; }
.prompt { white-space: pre-wrap; font-weight: 600; }
.buttons { display: flex; gap: .6rem; margin-top: .8rem; justify-content: center; }
button { font: inherit; padding: .3rem 1rem; cursor: pointer; }
button[aria-pressed=true] { outline: 3px solid rgb(58,120,214); }
"""
# Served, each verdict goes to the file at once; opened as a file, they are gathered for saving.
SCRIPT = """
const verdicts = new Map();
const served = location.protocol.startsWith("http");
const state = document.getElementById("state");
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-choice]");
  if (!button) return;
  const pair = button.closest(".pair");
  const row = {run: pair.dataset.run, pair: Number(pair.dataset.pair),
    choice: button.dataset.choice};
  if (served) {
    const reply = await fetch("verdicts", {method: "POST", body: JSON.stringify(row),
      headers: {"content-type": "application/json"}}).catch(() => null);
    if (!reply || !reply.ok) { state.textContent = "NOT saved: is ab still running?"; return; }
  }
  verdicts.set(pair.dataset.pair, row);
  for (const other of pair.querySelectorAll("button"))
    other.setAttribute("aria-pressed", String(other === button));
  state.textContent = verdicts.size + " judged" + (served ? ", saved" : "");
});
const save = document.getElementById("save");
save.hidden = served;
save.addEventListener("click", () => {
  const text = [...verdicts.values()].map((row) => JSON.stringify(row) + "\\n").join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "application/jsonl"}));
  link.download = "verdicts.jsonl";
  link.click();
});
"""


def rows(shown: Sequence[Pair]) -> str:
    """The pairs, with their buttons."""
    if not shown:
        return ""
    buttons = "".join(
        f'<button type="button" data-choice="{choice}" aria-pressed="false">{text}</button>'
        for choice, text in (
            (Choice.LEFT, "Left is better"),
            (Choice.SAME, "Alike"),
            (Choice.RIGHT, "Right is better"),
        )
    )
    parts = [
        '<p>Which answer is better? The sides are shuffled. <span id="state" role="status">'
        '</span> <button type="button" id="save">Save verdicts.jsonl</button></p>'
    ]
    for pair in shown:
        left, right = (escape(text.strip() or "(no text)") for text in pair.sides)
        parts.append(
            f'<div class="pair" data-run="{escape(pair.run)}" data-pair="{pair.pair}">'
            f'<p class="prompt">{escape(pair.prompt)}</p>'
            f'<div class="answers"><div>{left}</div><div>{right}</div></div>'
            f'<div class="buttons">{buttons}</div></div>'
        )
    return "\n".join(parts)


def page(shown: Sequence[Pair]) -> str:
    """The pairs alone."""
    title = "Which answer is better?"
    return htmlpage.page(title, title, [rows(shown)], style=STYLE, script=SCRIPT)


# --- a model as judge -------------------------------------------------------------------------

#: what a model is asked; its answer is one word
QUESTION = """Two answers to the same question. Which one is better: more correct, more helpful?

Question:
{prompt}

Answer 1:
{left}

Answer 2:
{right}

Reply with one word only: 1, 2 or same."""


def questions(pair: Pair) -> tuple[str, str]:
    """Asked in both orders: a model that likes what stands first says so."""
    left, right = pair.sides
    return (
        QUESTION.format(prompt=pair.prompt, left=left, right=right),
        QUESTION.format(prompt=pair.prompt, left=right, right=left),
    )


def agreed(pair: Pair, first: str, second: str, by: str) -> Judged:
    """The verdict of a model that was asked both ways; alike where it contradicts itself."""
    one, two = _said(first), _said(second)
    turned = {Choice.LEFT: Choice.RIGHT, Choice.RIGHT: Choice.LEFT, Choice.SAME: Choice.SAME}
    choice = one if one is turned[two] else Choice.SAME
    return Judged(pair.run, pair.pair, choice, by)


def _said(answer: str) -> Choice:
    words = answer.replace(".", " ").replace("*", " ").lower().split()
    word = words[-1] if words else ""
    return {"1": Choice.LEFT, "2": Choice.RIGHT}.get(word, Choice.SAME)
