"""What the classifier sees of a request: text sampled and folded, script, shape."""

from __future__ import annotations

import re
import unicodedata

from router.chat import ChatRequest, Features, sampled
from router.classify.han import SIMPLIFIED, TRADITIONAL

#: full-width punctuation that nearly every Chinese text has, and what it folds to
_PUNCTUATION = dict(zip("，？！：；（）", ",?!:;()", strict=True))
#: the other full-width characters of ASCII, the ideographic space, and half-width katakana
_WIDE = re.compile("[\u3000\uff01-\uff5e\uff66-\uff9f]+")
_IS_TRADITIONAL = re.compile(f"[{TRADITIONAL}]")
_TO_SIMPLIFIED = str.maketrans(TRADITIONAL, SIMPLIFIED)
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]+")
_FIRST_HANGUL = "\uac00"
_OTHER_SCRIPTS = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
_LATIN = re.compile("[a-z]+")


def of(request: ChatRequest, head: int, tail: int) -> Features:
    """The request's features; of a long text, so many characters of either end are read."""
    text = request.text
    folded = fold_sampled(text, head, tail)
    return Features(folded, len(text), language(folded), request.turns, request.has)


def fold_sampled(text: str, head: int, tail: int) -> str:
    """What is read of a text: the ends of a long one, folded."""
    return fold(sampled(text, head, tail))


def fold(text: str) -> str:
    """Case, width and the traditional forms of Chinese characters removed, nothing else."""
    if not text.isascii():
        for wide, narrow in _PUNCTUATION.items():  # a tenth of what one translate() takes
            text = text.replace(wide, narrow)
        if _WIDE.search(text):
            text = _WIDE.sub(_narrow, text)
        if _IS_TRADITIONAL.search(text):
            text = simplified(text)
    return text.casefold()


def fold_pattern(pattern: str) -> str:
    """A regular expression that finds in folded text what it would have found before."""
    return simplified(_WIDE.sub(lambda found: re.escape(_narrow(found)), pattern))


def _narrow(found: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", found[0])


def simplified(text: str) -> str:
    """Traditional Chinese characters in their simplified forms."""
    return text.translate(_TO_SIMPLIFIED)


def language(folded: str) -> str:
    """The main script. Kana or hangul decide at once; Han counts a character for a word."""
    if folded.isascii():
        return "en" if _LATIN.search(folded) else "other"
    if (found := _OTHER_SCRIPTS.search(folded)) is not None:
        return "ja" if found[0] < _FIRST_HANGUL else "ko"
    han = sum(map(len, _HAN.findall(folded)))
    if not han:
        return "en" if _LATIN.search(folded) else "other"
    if 2 * han > len(folded):
        return "zh"  # there is no room for as many Latin words
    return "zh" if han >= len(_LATIN.findall(folded)) else "en"
