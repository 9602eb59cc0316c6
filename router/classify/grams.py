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

Key = str | tuple[str, str]

HEAD_CHARS = 60
TAIL_CHARS = 40
_BEGINNINGS = (4, 6)

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\w|[^\s\w]|\n")
_CODE_MARKS = frozenset("{}();=<>[]")


def of(text: str, chars: int) -> set[Key]:
    """The keys of a folded text. `chars`: the length of the whole text, if this is a part."""
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        text = text[:HEAD_CHARS] + "\n" + text[-TAIL_CHARS:]
    words = ["^", *_WORD.findall(_NUMBER.sub("0", text)), "$"]
    keys: set[Key] = set(words)
    marks = len(keys & _CODE_MARKS)
    keys.update(pairwise(words))
    long_words = [word for word in words if len(word) > _BEGINNINGS[0]]
    for length in _BEGINNINGS:
        keys.update([f"~{word[:length]}" for word in long_words if len(word) > length])
    if len(words) > 3:
        keys.add("^" + words[2])
    lines, numbers = words.count("\n"), words.count("0")
    keys.update(
        (
            f"#long {chars.bit_length()}",
            f"#lines {min(4, lines)}",
            f"#numbers {min(4, numbers)}",
            f"#code {min(4, marks)}",
        )
    )
    return keys
