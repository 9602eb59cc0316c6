"""What the learned stage sees of a text: its words, pairs of them, word beginnings and its shape.

A Chinese character is a word here, so pairs of them do for Chinese what words do for
English. The beginnings of long words stand for their other forms (translate, translation,
translating); a number is a number, whichever it is. Only the first and the last characters
of a text are read: people put the task at either end of what they paste, and reading more
made no difference to accuracy.
"""

from __future__ import annotations

import re
from itertools import pairwise

from router.chat import sampled

Key = str | tuple[str, str]

HEAD_CHARS = 60
TAIL_CHARS = 40

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\w|[^\s\w]|\n")
_BEGINNINGS = tuple(re.compile(rf"\b[a-z]{{{length}}}(?=[a-z])") for length in (4, 6))
_CODE_MARKS = frozenset("{}();=<>[]")

_LONG = tuple(f"#long {bits}" for bits in range(64))
_LINES = tuple(f"#lines {count}" for count in range(5))
_NUMBERS = tuple(f"#numbers {count}" for count in range(5))
_CODE = tuple(f"#code {count}" for count in range(5))


def of(text: str, chars: int) -> set[Key]:
    """The keys of a folded text. `chars`: the length of the whole text, if this is a part."""
    text = _NUMBER.sub("0", sampled(text, HEAD_CHARS, TAIL_CHARS))
    words = ["^", *_WORD.findall(text), "$"]
    keys: set[Key] = set(words)
    marks = len(keys & _CODE_MARKS)
    keys.update(pairwise(words))
    for beginning in _BEGINNINGS:
        keys.update(beginning.findall(text))
    if len(words) > 3:
        keys.add("^" + words[2])
    lines, numbers = words.count("\n"), words.count("0")
    keys.add(_LONG[chars.bit_length()])
    keys.add(_LINES[min(4, lines)])
    keys.add(_NUMBERS[min(4, numbers)])
    keys.add(_CODE[min(4, marks)])
    return keys
