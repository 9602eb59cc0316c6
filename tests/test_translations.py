"""A page in Chinese says what the English one says: same sections, code, links and figures."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.support.product import ROOT

PAGES = [ROOT / "README.zh.md", ROOT / "docs" / "policy.zh.md"]
#: Characters for each Latin word that is no code: less is a section that nobody translated.
LEAST_CHINESE = 3
COMMENT = re.compile(r"(^|\s+)# .*$")
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass
class Section:
    """From one heading to the next."""

    prose: str
    code: list[str] = field(default_factory=list)  # of its blocks, fences included, no comments


def sections(page: str) -> list[Section]:
    found: list[Section] = []
    fenced = False
    for line in page.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            found[-1].code.append(line)
        elif fenced:
            found[-1].code.append(COMMENT.sub("", line))
        elif line.startswith("#"):
            found.append(Section(line))
        else:
            found[-1].prose += "\n" + line
    return found


def facts(section: Section) -> dict[str, list[str]]:
    """What no translation changes."""
    rows = [line for line in section.prose.splitlines() if line.startswith("|")]
    return {
        "heading": [section.prose.partition(" ")[0]],
        "code": section.code,
        "span": sorted(" ".join(span.split()) for span in SPAN.findall(section.prose)),
        "link": sorted(map(target, LINK.findall(section.prose))),
        "mark": re.findall(r"<!-- .* -->", section.prose),
        "row": [" ".join([*sorted(SPAN.findall(row)), *figures(row)]) for row in rows],
    }


def target(link: str) -> str:
    """Where a link leads, whichever the language, in which headings of a page have other names."""
    return "#" if link.startswith("#") else link.replace(".zh.md", ".md")


def figures(row: str) -> list[str]:
    return sorted(re.findall(r"-?\d+(?:\.\d+)?", SPAN.sub("", row)))


def chinese(section: Section) -> bool:
    plain = LINK.sub("]", SPAN.sub("", section.prose.partition("\n")[2]))
    words = len(re.findall(r"[A-Za-z][\w-]*", plain))
    return len(re.findall(r"[\u4e00-\u9fff]", plain)) >= LEAST_CHINESE * words


def drift(english: str, translated: str) -> list[str]:
    """What the translation has less, or more, than the page that it is of."""
    found = []
    for ours, theirs in zip_longest(sections(english), sections(translated)):
        if ours is None or theirs is None:
            found.append(f"a section on one page alone: {(ours or theirs).prose[:40]!r}")
            continue
        where = theirs.prose.partition("\n")[0]
        there = facts(theirs)
        for kind, wanted in facts(ours).items():
            if wanted != there[kind]:
                less = Counter(wanted) - Counter(there[kind])
                more = Counter(there[kind]) - Counter(wanted)
                found.append(f"{where}: {kind}: missing {[*less]}, not in English {[*more]}")
        if not chinese(theirs):
            found.append(f"{where}: not in Chinese")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_translation_says_what_the_english_page_says(page: Path) -> None:
    english = page.with_name(page.name.replace(".zh.md", ".md"))

    assert drift(english.read_text("utf-8"), page.read_text("utf-8")) == []


ENGLISH = """\
# Title
Take `cap`, see [there](policy.md#strict) and [below](#more).
| key | what |
|---|---|
| `top_k` | from 1 |
## More
Any words.
```toml
top_k = 1  # all
```
"""
CHINESE = """\
# 标题
用 `cap`，见[那里](policy.zh.md#strict)和[下文](#更多)。
| 键 | 含义 |
|---|---|
| `top_k` | 从 1 起 |
## 更多
任意文字。
```toml
top_k = 1  # 全部
```
"""


def test_a_good_translation_is_taken() -> None:
    assert drift(ENGLISH, CHINESE) == []


@pytest.mark.parametrize(
    ("said", "instead", "kind"),
    [
        ("`cap`", "上限", "span: missing ['cap']"),
        ("policy.zh.md", "thinking.md", "link: missing ['policy.md#strict']"),
        ("从 1 起", "从 2 起", "row: missing ['top_k 1'], not in English ['top_k 2']"),
        ("top_k = 1", "top_k = 2", "code: missing ['top_k = 1']"),
        ("```toml", "```sh", "code: missing ['```toml']"),
        ("## 更多", "### 更多", "heading: missing ['##']"),
        ("## 更多\n", "", "a section on one page alone: '## More"),
        ("任意文字", "Any words", "更多: not in Chinese"),
    ],
)
def test_what_has_drifted_is_found(said: str, instead: str, kind: str) -> None:
    assert said in CHINESE

    assert any(kind in line for line in drift(ENGLISH, CHINESE.replace(said, instead)))
