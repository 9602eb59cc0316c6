"""What the classifier sees of a request: text sampled and folded, script, shape."""

from __future__ import annotations

import re
import unicodedata

from router.chat import ChatRequest, Features

# Only letters and digits have a width that keywords must not depend on; full-width
# punctuation is ordinary Chinese and folding all of it would cost ten times more.
_FULL_WIDTH = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uff9d]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]+")
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7af]")
_LATIN = re.compile("[a-z]+")


def of(request: ChatRequest, head: int, tail: int) -> Features:
    """The request's features; of a long text, so many characters of either end are read."""
    text = request.text
    folded = fold(text if len(text) <= head + tail else sampled(text, head, tail))
    return Features(folded, len(text), language(folded), request.turns, request.has)


def sampled(text: str, head: int, tail: int) -> str:
    """A long text's beginning and end: people put the task at either end of what they paste."""
    if len(text) <= head + tail:
        return text
    return text[:head] + "\n" + text[len(text) - tail :]


def fold(text: str) -> str:
    """Case and letter width removed, nothing else."""
    if not text.isascii() and _FULL_WIDTH.search(text):
        text = unicodedata.normalize("NFKC", text)
    return text.casefold()


def language(folded: str) -> str:
    """The main script. Kana or hangul decide at once; Han counts a character for a word."""
    if folded.isascii():
        return "en" if _LATIN.search(folded) else "other"
    if _KANA.search(folded):
        return "ja"
    if _HANGUL.search(folded):
        return "ko"
    han = sum(map(len, _HAN.findall(folded)))
    if not han and not _LATIN.search(folded):
        return "other"
    return "zh" if han >= len(_LATIN.findall(folded)) else "en"
