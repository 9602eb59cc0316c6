"""Thought and answer told apart: the same parts wherever a text is cut, and no tag left over."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.thought import Part, Splitter
from tests.support.thoughts import (
    CLOSE,
    OPEN,
    cut_points,
    cut_text,
    plain_texts,
    said_texts,
    tagged_texts,
)


def told_apart(pieces: list[str], *, starts_inside: bool = False) -> tuple[str, str]:
    """Thought and answer of a text that comes in these pieces."""
    splitter = Splitter(starts_inside=starts_inside)
    parts = [part for piece in pieces for part in splitter.feed(piece)]
    return in_two(parts + splitter.end())


def in_two(parts: list[Part]) -> tuple[str, str]:
    thought = "".join(part.text for part in parts if part.is_thought)
    return thought, "".join(part.text for part in parts if not part.is_thought)


def read_whole(text: str, *, starts_inside: bool) -> tuple[str, str]:
    """The law, for a text that is there in one piece."""
    bare = text.lstrip()
    if bare.startswith(OPEN):
        bare = bare.removeprefix(OPEN)
    elif not starts_inside:
        return "", text
    thought, _, answer = bare.partition(CLOSE)
    return thought.strip(), answer.lstrip()


@example(f"{OPEN}a </th", [], False)
@example(f"{OPEN} </th", [8], False)
@example(" <th", [], True)
@given(tagged_texts, cut_points, st.booleans())
def test_any_cut_gives_the_same_thought_and_the_same_answer(
    text: str, points: list[int], starts_inside: bool
) -> None:
    found = told_apart(cut_text(text, points), starts_inside=starts_inside)

    assert found == read_whole(text, starts_inside=starts_inside)


@given(tagged_texts, st.booleans())
def test_a_text_that_comes_letter_by_letter_is_the_same_text(
    text: str, starts_inside: bool
) -> None:
    found = told_apart(list(text), starts_inside=starts_inside)

    assert found == read_whole(text, starts_inside=starts_inside)


@given(st.text(" \n\t", max_size=3), plain_texts, plain_texts, cut_points)
def test_no_tag_leaks_where_a_thought_stands_first(
    blanks: str, thought: str, answer: str, points: list[int]
) -> None:
    text = f"{blanks}{OPEN}{thought}{CLOSE}{answer}"

    assert told_apart(cut_text(text, points)) == (thought.strip(), answer.lstrip())


@given(said_texts, tagged_texts, cut_points)
def test_behind_the_first_word_of_an_answer_tags_are_text(
    word: str, rest: str, points: list[int]
) -> None:
    text = word + rest

    assert told_apart(cut_text(text, points)) == ("", text)


@given(plain_texts, plain_texts, cut_points)
def test_what_starts_inside_a_thought_needs_no_opening_tag(
    thought: str, answer: str, points: list[int]
) -> None:
    text = f"{thought}{CLOSE}{answer}"

    found = told_apart(cut_text(text, points), starts_inside=True)

    assert found == (thought.strip(), answer.lstrip())
    assert told_apart([OPEN, *cut_text(text, points)], starts_inside=True) == found


@pytest.mark.parametrize("text", ["", " ", "\n\n", OPEN, f"{OPEN}\n", f"{OPEN}\n\n{CLOSE}\n\n"])
@pytest.mark.parametrize("starts_inside", [True, False])
def test_a_thought_of_nothing_leaves_no_trace(text: str, starts_inside: bool) -> None:
    thought, answer = told_apart(list(text), starts_inside=starts_inside)

    assert thought == ""
    assert answer == ("" if OPEN in text or starts_inside else text)


@given(tagged_texts, cut_points, tagged_texts, st.booleans())
def test_once_it_is_answering_all_goes_on_as_it_comes(
    text: str, points: list[int], more: str, starts_inside: bool
) -> None:
    splitter = Splitter(starts_inside=starts_inside)
    parts = [part for piece in cut_text(text, points) for part in splitter.feed(piece)]

    if splitter.is_answering:
        assert splitter.feed(more) == ([Part(False, more)] if more else [])
        assert splitter.end() == []
    else:
        assert not [part for part in parts if not part.is_thought]


@given(tagged_texts, cut_points)
def test_is_thinking_between_the_tags_and_nowhere_else(text: str, points: list[int]) -> None:
    splitter = Splitter()
    for piece in cut_text(text, points):
        splitter.feed(piece)
    splitter.end()

    inside = text.lstrip()
    is_open = inside.startswith(OPEN) and CLOSE not in inside.removeprefix(OPEN)
    assert splitter.is_thinking == is_open


# --- servers that tell a thought apart themselves ---------------------------------------


@given(plain_texts, plain_texts, cut_points, cut_points)
def test_a_thought_that_the_server_tells_apart_is_cleaned_the_same_way(
    thought: str, answer: str, cuts: list[int], points: list[int]
) -> None:
    splitter = Splitter()
    parts = [part for piece in cut_text(thought, cuts) for part in splitter.thought(piece)]
    parts += [part for piece in cut_text(answer, points) for part in splitter.feed(piece)]

    found = in_two(parts + splitter.end())

    assert found == (thought.strip(), answer.lstrip() if thought else answer)


@given(said_texts, tagged_texts, cut_points)
def test_behind_a_thought_told_apart_tags_are_text(
    thought: str, answer: str, points: list[int]
) -> None:
    splitter = Splitter()
    parts = splitter.thought(thought)
    parts += [part for piece in cut_text(answer, points) for part in splitter.feed(piece)]

    assert in_two(parts + splitter.end()) == (thought.strip(), answer.lstrip())


def test_blanks_before_a_thought_told_apart_are_no_answer() -> None:
    splitter = Splitter()

    parts = splitter.feed("\n\n") + splitter.thought("why") + splitter.feed("\n\nSo.")

    assert in_two(parts) == ("why", "So.")


def test_a_thought_in_the_middle_of_an_answer_takes_no_blank_from_it() -> None:
    splitter = Splitter()

    parts = splitter.feed("One") + splitter.thought("hm") + splitter.feed(" two")

    assert in_two(parts) == ("hm", "One two")


# --- another try ------------------------------------------------------------------------


@given(tagged_texts, cut_points, plain_texts, cut_points)
def test_another_try_is_read_from_its_beginning(
    first: str, cuts: list[int], second: str, points: list[int]
) -> None:
    splitter = Splitter()
    for piece in cut_text(first, cuts):
        splitter.feed(piece)
    splitter.end()

    splitter.begin_again()
    parts = [part for piece in cut_text(second, points) for part in splitter.feed(piece)]
    parts += splitter.end()

    assert in_two(parts)[0] == ""
    assert in_two(parts)[1].lstrip() == second.lstrip()


@pytest.mark.parametrize("second", ["\n\nYes.", f"{OPEN}\n\n{CLOSE}\n\nYes.", f"{OPEN}{CLOSE}Yes."])
def test_the_answer_of_another_try_begins_with_a_word(second: str) -> None:
    splitter = Splitter(starts_inside=True)
    splitter.feed("a thought that does not end")
    splitter.end()

    splitter.begin_again()
    parts = [part for letter in second for part in splitter.feed(letter)]

    assert in_two(parts + splitter.end()) == ("", "Yes.")
