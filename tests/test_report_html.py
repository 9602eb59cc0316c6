"""The report as a page: it stands alone, and rows cannot write what they like there."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from router import evaluation, report_html
from tests.support.labelled import outcome

EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=y>"


class Reader(HTMLParser):
    """All tags with their attributes, and all text outside the style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside != "style":
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page_of(*outcomes: evaluation.Outcome, title: str = "rows.jsonl") -> str:
    return report_html.page(evaluation.report(outcomes), title=title, policy="abc")


MIXED = (
    outcome("faq", "faq", 0.75, think=True, thought=0.6, wants_thought=True, chars=200),
    outcome("faq", "code", 0.25, id="r7", source="desk", signals=("keyword 退款",), text="你好"),
    outcome("code", "code", 0.5, lang="zh"),
)


def test_whatever_a_row_says_is_text() -> None:
    evil = outcome(
        EVIL, "faq", id=EVIL, lang=EVIL, source=EVIL, stage=EVIL, signals=(EVIL,), text=EVIL
    )
    page = Reader(page_of(evil, title=EVIL))
    plain = Reader(page_of(outcome("a", "faq", source="b"), title="c"))

    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.text.count("<script>alert(1)</script>") >= 9


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_text_makes_a_tag(label: str, text: str) -> None:
    page = Reader(page_of(outcome(label, "faq\0", text=text, source=label)))
    plain = Reader(page_of(outcome("a", "faq\0", text="a", source="a")))

    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]


def test_the_page_stands_alone_and_runs_nothing() -> None:
    page = page_of(*MIXED)
    read = Reader(page)

    assert read.count("script") == read.count("link") == read.count("img") == 0
    names = {name for _, attributes in read.tags for name in attributes}
    assert not {name for name in names if name in ("src", "href") or name.startswith("on")}
    assert "url(" not in page
    assert "@import" not in page
    policies = [a["content"] for tag, a in read.tags if tag == "meta" and "http-equiv" in a]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_it_is_dark_where_the_reader_likes_it_dark() -> None:
    assert "@media (prefers-color-scheme: dark)" in page_of(*MIXED)


def test_all_parts_are_there() -> None:
    report = evaluation.report(MIXED)
    read = Reader(report_html.page(report, title="rows.jsonl", policy="abc"))

    for expected in (
        *("rows.jsonl", "3 labelled prompts under policy abc", "0.667", "macro-F1", "10 µs"),
        *("Languages", "zh", "desk", "keyword 退款", "你好", "r7"),
        "1 of 1 rows are worth a thought",
        "From 0.600 on, precision 1.000",
    ):
        assert expected in read.text
    assert read.count("circle") == len(report.bins) == 3


def test_a_cell_is_as_dark_as_its_share_of_the_row() -> None:
    shades = [
        attributes["style"]
        for tag, attributes in Reader(page_of(*MIXED)).tags
        if tag == "td" and "style" in attributes
    ]

    assert shades == [
        *("background:rgba(42,157,74,0.70)", "background:rgba(209,67,59,0.00)"),
        *("background:rgba(209,67,59,0.35)", "background:rgba(42,157,74,0.35)"),
    ]


def test_parts_that_have_nothing_to_say_are_left_out() -> None:
    text = Reader(page_of(outcome("faq", "faq"))).text

    for title in ("Where rows are from", "Thinking", "The most confident mistakes"):
        assert title not in text
