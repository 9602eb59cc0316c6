"""Secrets and personal numbers in a text, replaced by marks like `[email]`. Pure.

In: any text. Out: the same with a mark in each one's place, and how many of each kind there
were. What a checksum can settle is settled by it (cards, Chinese identity cards, IBANs), so that
order numbers, dates, versions and code stay. Time grows with the length alone: RE2 finds the
candidates, without the interpreter's lock, and each is judged by a bounded look at it.

It finds forms, not meanings: names, addresses, account numbers without a checksum and a password
that is told in a sentence go unseen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import re2

#: what can be found, by the name that is counted and stands in the mark
KINDS = (
    "private_key",
    "api_key",
    "token",
    "password",
    "email",
    "iban",
    "id_card",
    "bank_card",
    "phone",
)


def redact(text: str, found: dict[str, int]) -> str:
    """The text with marks; `found` is counted up by kind."""
    data = text.encode("utf-8", "replace")
    for rule in _RULES:
        if rule.hint is None or rule.hint in data:
            data = _replaced(rule, data, found)
    return data.decode()


class _Rule(NamedTuple):
    pattern: Any  # one group at most: what is replaced
    judge: Callable[[bytes, int, int], Iterator[tuple[int, int, str]]]
    hint: bytes | None = None  # a text without it has no match


def _replaced(rule: _Rule, data: bytes, found: dict[str, int]) -> bytes:
    pieces: list[bytes] = []
    at = 0
    group = 1 if rule.pattern.groups else 0
    for match in rule.pattern.finditer(data):
        for start, end, kind in rule.judge(data, *match.span(group)):
            pieces += (data[at:start], b"[%b]" % kind.encode())
            at = end
            found[kind] = found.get(kind, 0) + 1
    if not pieces:
        return data
    pieces.append(data[at:])
    return b"".join(pieces)


_Spans = Iterator[tuple[int, int, str]]
_WORD = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_DIGITS = frozenset(b"0123456789")
_HAS_DIGIT = re.compile(rb"[0-9]").search
_HAS_LETTER = re.compile(rb"[A-Za-z]").search


def _is_within_word(data: bytes, start: int, end: int) -> bool:
    """Whether an ASCII letter or digit goes on at either side; other scripts need no space."""
    return (start > 0 and data[start - 1] in _WORD) or (end < len(data) and data[end] in _WORD)


# --- keys and passwords -----------------------------------------------------------------------

_KEYS = "|".join(
    (
        r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, DeepSeek, OpenRouter
        r"(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{10,}",  # Stripe
        r"(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}",  # AWS
        r"LTAI[A-Za-z0-9]{12,}",  # Alibaba Cloud
        r"AKID[A-Za-z0-9]{28,}",  # Tencent Cloud
        r"gh[pousr]_[A-Za-z0-9]{30,}",
        r"github_pat_[A-Za-z0-9_]{30,}",
        r"glpat-[A-Za-z0-9_-]{20,}",
        r"xox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
        r"AIza[A-Za-z0-9_-]{35}",  # Google
        r"hf_[A-Za-z0-9]{30,}",
        r"npm_[A-Za-z0-9]{36}",
        r"pypi-[A-Za-z0-9_-]{50,}",
        r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    )
)


def _api_key(data: bytes, start: int, end: int) -> _Spans:
    """All of them are random: a long name with hyphens in it is not."""
    is_inside = start > 0 and (data[start - 1] in _WORD or data[start - 1] == 0x2D)
    if not is_inside and _HAS_DIGIT(data, start + 3, end):
        yield start, end, "api_key"


def _always(kind: str) -> Callable[[bytes, int, int], _Spans]:
    def judge(data: bytes, start: int, end: int) -> _Spans:
        yield start, end, kind

    return judge


def _token(data: bytes, start: int, end: int) -> _Spans:
    """Behind `Bearer`: what is no word of a sentence."""
    if _HAS_DIGIT(data, start, end):
        yield start, end, "token"


#: what a password is told by, in files, code, headers, queries and sentences
_TOLD = (
    r"(?:pass(?:word|wd|phrase|code)|pwd|secret|credentials?|(?:api|access|secret|private)[_-]?key"
    r"|authorization|密码|口令|密钥|密鑰|密碼)"
)
#: of these, most are words of a text and not keys
_TOLD_OFTEN = r"token"
_VALUE = (
    r"(?:\"[^\"\n]{4,200}|'[^'\n]{4,200}|`[^`\n]{4,200}"
    r"|[!#$%*+./0-9:=?@A-Z\\^_a-z|~<{-]{4,200}[(\[]?)"
)
_IS = r"(?:[_-]?[0-9a-z]{1,12})?[\"'`]?[ \t]{0,3}(?:[:：＝]|=>?|是|为|為|is:?)[ \t]{0,3}"
#: what stands for a value that is not told
_PLACEHOLDER = re.compile(
    rb"(?i)(?:x+|\*+|\.+|str|string|none|null|nil|true|false|undefined|optional|required|"
    rb"(?:your|my|the|new|old|a)?[_ -]?(?:password|passwd|secret|token|api[_-]?key|key)s?"
    rb"(?:[_ -]?here)?|bearer|basic|(?:[a-z]+ )?\[[a-z_]+\])\W*"
).fullmatch
#: an expression of some language: a name, a call, a member, a number, a variable to be put in
_EXPRESSION = re.compile(
    rb"[<{&=[].*|\$[{(].*|%[(s].*|\$?[A-Za-z_][A-Za-z_.]*[(\[]?|.*[(\[]|[0-9.,]{1,7}"
    rb"|(?:process|os|self|this|settings|config|conf|cfg|env|args|options|request|app)\.[\w.]+"
).fullmatch
#: where even a plain word is a value: in a query, in a file of variables, in a Chinese sentence
_IS_TOLD = re.compile(
    rb"(?:[?&][A-Za-z0-9_.-]{1,40}=|(?:^|\n)(?:export )?[A-Z0-9_]{1,40}="
    rb"|(?:\xe5\xaf\x86|\xe5\x8f\xa3)[^ \nA-Za-z]{3,20}[ ]?)\Z"
).search


def _password(data: bytes, start: int, end: int) -> _Spans:
    value = data[start:end]
    quote = 1 if value[:1] in (b'"', b"'", b"`") else 0
    plain = value[quote:]
    if _PLACEHOLDER(plain) or plain.startswith((b"[", b"${", b"$(", b"{", b"<", b"=")):
        return
    if quote or not _EXPRESSION(plain) or _is_told(data, start, plain):
        yield start + quote, end, "password"


def _is_told(data: bytes, start: int, plain: bytes) -> bool:
    return _IS_TOLD(data[max(0, start - 48) : start]) is not None and plain[-1:] not in b"(["


def _random(data: bytes, start: int, end: int) -> _Spans:
    """Long, of letters and digits both: no word."""
    start += data[start : start + 1] in (b'"', b"'", b"`")
    is_long = end - start >= 16 and data[start : start + 1] != b"["
    if is_long and _HAS_DIGIT(data, start, end) and _HAS_LETTER(data, start, end):
        yield start, end, "token"


# --- e-mail -----------------------------------------------------------------------------------

_EMAIL = r"[A-Za-z0-9._%+-]{1,64}(?:@|＠)(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,40})\.){1,6}[A-Za-z]{2,24}"


def _email(data: bytes, start: int, end: int) -> _Spans:
    following = data[end : end + 1]
    is_code = following in (b"(", b"[", b"_") or data.startswith(b"git@", start)
    if not is_code:
        yield start, end, "email"


# --- numbers ----------------------------------------------------------------------------------

_D = "[0-9０-９]"
_APART = r"[ \t\x{A0}\x{3000}()（）\x{2010}-\x{2014}－-]{0,3}"
#: dates stand first, as what texts are full of; what is too short for a telephone is none
_DATE = r"(?:19|20)[0-9]{2}-[01][0-9]-[0-3][0-9](?:[ T][0-2][0-9]\b)?"
_NUMBER = (
    rf"{_DATE}|(?:[+＋][(（]?{_D}(?:{_APART}{_D}){{7,}}|[(（]?{_D}(?:{_APART}{_D}){{9,}})"
    rf"(?:{_APART}[XxＸｘ])?"
)
_DATE_BYTES = 13
_UUID = re.compile(rb"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GROUP = re.compile(r"[0-9]+")
_HALF_WIDTH = {0xFF38: 0x58, 0xFF58: 0x58, 0xFF0B: 0x2B} | {0xFF10 + n: 0x30 + n for n in range(10)}

#: brand by its first digits → how long its numbers are; the first that fits
_CARDS: tuple[tuple[re.Pattern[str], frozenset[int]], ...] = tuple(
    (re.compile(prefix), frozenset(lengths))
    for prefix, lengths in (
        (r"3[47]", (15,)),  # American Express
        (r"3(?:0[0-5]|[689])", (14, 16, 19)),  # Diners Club
        (r"35(?:2[89]|[3-8])", (16, 19)),  # JCB
        (r"4", (16, 19)),  # Visa
        (r"5[1-5]|2(?:2[2-9]|[3-6]|7[01]|720)", (16,)),  # Mastercard
        (r"62|81", (16, 17, 18, 19)),  # UnionPay
        (r"5[0678]|6", (16, 19)),  # Maestro, Discover, RuPay
        (r"9[4-9]", (16, 18, 19)),  # Chinese banks' own
    )
)
_MOBILE = re.compile(r"(?:(?:00)?86)?1[3-9]\d{9}")
_LANDLINE = re.compile(r"(?:(?:00)?86)?(?:010|02\d|0[3-9]\d\d)")
#: two digits of the region, the birthday, a number, the check
_ID_CARD = re.compile(
    r"(?:1[1-5]|2[1-3]|3[1-7]|4[1-6]|5[0-4]|6[1-5]|71|8[1-3]|91)\d{4}"
    r"(?:18|19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dX]"
)
_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


class _Run:
    """Digits with nothing but spaces, hyphens and brackets between them."""

    def __init__(self, text: str, *, is_free: bool) -> None:
        half = text if text.isascii() else text.translate(_HALF_WIDTH)
        self.is_free = is_free  # no letter goes on at either side
        self.is_international = half.startswith("+")
        self.groups = [match.span() for match in _GROUP.finditer(half)]
        self.digits = "".join(half[start:end] for start, end in self.groups)
        self.has_x = half[-1] in "Xx"
        self.starts: dict[int, int] = {}  # of the digits: where a group begins → which one
        self.ends: dict[int, int] = {}
        count = 0
        for index, (start, end) in enumerate(self.groups):
            self.starts[count] = index
            count += end - start
            self.ends[count] = index
        between = [half[a[1] : b[0]] for a, b in zip(self.groups, self.groups[1:], strict=False)]
        self.is_marked = any(mark.strip() for mark in between) or half[:1] in "(（"

    def kind_at(self, at: int) -> tuple[str, int] | None:
        """What begins at this digit, and how many digits of it there are."""
        if self._is_id_card(at):
            return "id_card", 18 - self._takes_x(at)
        if not self.is_free:
            return None
        length = self._phone(at)
        if length:
            return "phone", length
        length = self._bank_card(at)
        return ("bank_card", length) if length else None

    def _takes_x(self, at: int) -> bool:
        return self.has_x and at + 17 == len(self.digits)

    def _is_id_card(self, at: int) -> bool:
        text = self.digits[at : at + 18]
        if self._takes_x(at):
            text += "X"
        elif at + 18 not in self.ends or (self.has_x and at + 18 == len(self.digits)):
            return False
        if not _ID_CARD.fullmatch(text):
            return False
        total = sum(w * int(d) for w, d in zip(_ID_WEIGHTS, text, strict=False))
        return "10X98765432"[total % 11] == text[17]

    def _bank_card(self, at: int) -> int:
        lengths = next((n for prefix, n in _CARDS if prefix.match(self.digits, at)), ())
        is_alone = at == 0 and len(self.digits) in lengths
        for length in sorted(lengths, reverse=True):
            if at + length not in self.ends or not _passes_luhn(self.digits[at : at + length]):
                continue
            # Among others, a card is written in groups as on the card; alone, in any.
            if (is_alone and length == len(self.digits)) or self._are_long(at, at + length):
                return length
        return 0

    def _are_long(self, start: int, end: int) -> bool:
        """Whether the groups from here to there have three digits at least."""
        sizes = [b - a for a, b in self.groups[self.starts[start] : self.ends[end] + 1]]
        return min(sizes) >= 3

    def _phone(self, at: int) -> int:
        digits = self.digits
        found = _MOBILE.match(digits, at)
        if found is not None and found.end() in self.ends and self._is_phone_like(at, found.end()):
            return found.end() - at
        found = _LANDLINE.match(digits, at)
        if found is not None:
            # Written in one, only as long as the numbers of big towns and new networks are.
            is_parted = found.end() in self.starts
            rest = (8, 7) if is_parted or len(found[0]) >= 4 else (8,)
            for length in rest:
                end = found.end() + length
                if end in self.ends and self._is_phone_like(found.end() if is_parted else at, end):
                    return end - at
        if at == 0:
            return self._foreign_phone()
        return 0

    def _is_phone_like(self, start: int, end: int) -> bool:
        """Whether the digits of it stand in three groups at most, its prefix apart."""
        return self.ends[end] - self._group_of(start) <= 3

    def _group_of(self, at: int) -> int:
        while at not in self.starts:
            at -= 1
        return self.starts[at]

    def _foreign_phone(self) -> int:
        """With a plus or 00 before the country; in groups behind a 0; as in North America."""
        digits, count = self.digits, len(self.digits)
        sizes = [end - start for start, end in self.groups]
        if self.is_international and digits[0] != "0":
            for end in sorted(self.ends, reverse=True):
                if 8 <= end <= 15 and (end >= 10 or self.ends[end] > 0):
                    return end
        if digits[:2] == "00" and digits[2] != "0" and len(sizes) > 1 and 11 <= count <= 17:
            return count
        if digits[0] == "0" and digits[1] != "0" and 3 <= sizes[0] <= 5 and 9 <= count <= 12:
            return count if 2 <= len(sizes) <= 4 else 0
        if self.is_marked and sizes in ([3, 3, 4], [1, 3, 3, 4]):
            local = digits[-10:]
            is_right = local[0] in "23456789" and local[3] in "23456789"
            return count if is_right and (len(sizes) == 3 or digits[0] == "1") else 0
        return 0


def _passes_luhn(digits: str) -> bool:
    total = 0
    for index, digit in enumerate(reversed(digits)):
        value = int(digit) << (index & 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0 and digits != digits[0] * len(digits)


def _numbers(data: bytes, start: int, end: int) -> _Spans:
    if end - start <= _DATE_BYTES and data[start + 4 : start + 5] == b"-":
        return
    if _is_part_of_a_figure(data, start, end):
        return
    text = data[start:end].decode()
    run = _Run(text, is_free=not _is_within_word(data, start, end))
    count, at = len(run.digits), 0
    while at < count:
        kind = run.kind_at(at) if at in run.starts else None
        if kind is None:
            at = run.groups[run.starts[at]][1] - run.groups[run.starts[at]][0] + at
            continue
        name, length = kind
        first = run.groups[run.starts[at]][0]
        if at == 0 and name == "phone":
            first = 0  # with its plus or bracket
        if name == "id_card" and run._takes_x(at):
            last = len(text)
        else:
            last = run.groups[run.ends[at + length]][1]
        yield start + len(text[:first].encode()), start + len(text[:last].encode()), name
        at += length


def _is_part_of_a_figure(data: bytes, start: int, end: int) -> bool:
    """Digits behind or before a point with a digit on its other side, and in a UUID."""
    before, after = data[max(0, start - 2) : start], data[end : end + 2]
    if len(before) == 2 and before[0] in _DIGITS and before[1] == 0x2E:
        return True
    if len(after) == 2 and after[1] in _DIGITS and after[0] == 0x2E:
        return True
    around = data[max(0, start - 36) : end + 36]
    if b"-" not in around or (end - start) > 40:
        return False
    offset = max(0, start - 36)
    return any(
        match.start() + offset <= start and end <= match.end() + offset
        for match in _UUID.finditer(around)
    )


_NANP = r"(?:\([2-9][0-9]{2}\)[ ]?|[2-9][0-9]{2}[.])[2-9][0-9]{2}[-.][0-9]{4}"


def _nanp(data: bytes, start: int, end: int) -> _Spans:
    if not _is_within_word(data, start, end) and not _is_part_of_a_figure(data, start, end):
        yield start, end, "phone"


_IBAN = r"[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]){11,30}"
_IBAN_LENGTHS = {
    country: int(length)
    for length, countries in {
        "15": "NO", "16": "BE", "18": "DK FO FI GL NL", "19": "MK SI", "20": "AT BA EE KZ LT LU XK",
        "21": "CH HR LI LV", "22": "BG BH CR DE GB GE IE ME RS VA", "23": "AE GI IL IQ TL OM",
        "24": "AD CZ ES MD PK RO SA SE SK TN VG DZ", "25": "LY PT ST", "26": "IS TR",
        "27": "FR GR IT MC MR SM", "28": "AL AZ BY CY DO GT HU LB NI PL SV", "29": "BR EG PS QA UA",
        "30": "JO KW MU", "31": "MT SC", "32": "LC",
    }.items()
    for country in countries.split()
}  # fmt: skip


def _iban(data: bytes, start: int, end: int) -> _Spans:
    length = _IBAN_LENGTHS.get(data[start : start + 2].decode())
    if length is None or (start > 0 and data[start - 1] in _WORD):
        return
    taken = at = 0
    while taken < length and start + at < end:
        taken += data[start + at] in _WORD
        at += 1
    stop = start + at
    if taken < length or (stop < len(data) and data[stop] in _WORD):
        return
    text = re.sub(rb"[ -]", b"", data[start:stop]).decode()
    if int("".join(str(int(sign, 36)) for sign in text[4:] + text[:4])) % 97 == 1:
        yield start, stop, "iban"


# --- all of it --------------------------------------------------------------------------------


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 32 << 20
    return re2.compile(pattern, options)


#: in this order: what is replaced is seen by none that follows
_RULES = (
    _Rule(
        _compiled(
            r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\z)"
        ),
        _always("private_key"),
        b"PRIVATE KEY",
    ),
    _Rule(
        _compiled(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
        _always("token"),
        b"eyJ",
    ),
    _Rule(_compiled(_KEYS), _api_key),
    _Rule(_compiled(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@\"']{0,100}:([^\s/@\"']{1,200})@"),
          _always("password"), b"://"),
    _Rule(
        _compiled(
            r"(?i)authorization[\"']?[ \t]*[:=][ \t]*[\"']?[a-z]+[ \t]+"
            r"([A-Za-z0-9._~+/=-]{4,})"
        ),
        _always("token"),
    ),
    _Rule(_compiled(r"(?i)(?:bearer|basic)[ \t]+([A-Za-z0-9._~+/=-]{8,})"), _token),
    _Rule(_compiled(f"(?i){_TOLD}{_IS}({_VALUE})"), _password),
    _Rule(_compiled(f"(?i){_TOLD_OFTEN}{_IS}({_VALUE})"), _random),
    _Rule(_compiled(_EMAIL), _email),
    _Rule(_compiled(_IBAN), _iban),
    _Rule(_compiled(_NUMBER), _numbers),
    _Rule(_compiled(_NANP), _nanp),
)  # fmt: skip
