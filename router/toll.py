"""What a key's limits mean for one request: what it reserves, is told, and has used in the end.

Pure. In: an allowance, the request as it was decided, later its record. Out: tokens, header
lines, and the error of one that is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from router import rates
from router.errors import OutOfBudget, RateLimited
from router.keyring import Allowance
from router.params import is_number
from router.rates import MOST_TOKENS, Standing

if TYPE_CHECKING:
    from router.record import Record
    from router.verdict import Verdict

#: bytes of UTF-8 that a token has on average: four letters, or one and a third Chinese characters
_TOKEN_BYTES = 4
#: an image's share of a prompt: its bytes tell nothing
_IMAGE_TOKENS = 1000
_BYTES_BY_LANG = {"zh": 3, "ja": 3, "ko": 3}
_MOST_CHOICES = 128
#: what the names of the headers begin with
PREFIX = b"x-ratelimit-"


class Toll:
    """One request of a key that has limits: what it was granted, until that is settled."""

    def __init__(self, name: str, allowance: Allowance) -> None:
        self.name = name
        self.allowance = allowance
        self.prompt = 0  # tokens of the prompt, estimated
        self.tokens = 0  # that were asked for
        self.standing: Standing | None = None  # once the key was asked for
        self.is_shared = False  # others have been told of what it reserved
        self.is_underway = False  # it takes up one of the key's places
        self.is_settled = False

    @property
    def taken(self) -> int:
        """Of the minute's tokens: never more than there are."""
        limit = self.allowance.tokens_per_minute
        return self.tokens if limit is None else min(self.tokens, limit)

    @property
    def is_granted(self) -> bool:
        return self.standing is not None and not self.standing.refused


def reserve(toll: Toll, body: bytes, verdict: Verdict | None) -> None:
    """Set what the toll asks for: the prompt by its bytes, and all that the answer may have."""
    toll.tokens = toll.prompt = _prompt(body, verdict)
    limits = toll.allowance
    if verdict is None or (limits.tokens_per_minute is None and limits.tokens_per_day is None):
        return
    limit = verdict.decision.value("max_new_tokens")
    if is_number(limit) and 0 < limit < MOST_TOKENS:
        answers = _choices(verdict) if "n" in verdict.request.has else 1
        toll.tokens = min(MOST_TOKENS, toll.prompt + int(limit) * answers)


def _prompt(body: bytes, verdict: Verdict | None) -> int:
    if verdict is not None and "image" in verdict.request.has:
        return len(verdict.request.text) // _TOKEN_BYTES + _IMAGE_TOKENS
    if not body.startswith((b"{", b"[")):
        return 1  # a form with a recording, say: its bytes tell nothing
    return min(MOST_TOKENS, len(body) // _TOKEN_BYTES + 1)


def _choices(verdict: Verdict) -> int:
    """How many answers are asked for."""
    try:
        told = orjson.loads(bytes(verdict.request.values.get("n", b"1")))
    except orjson.JSONDecodeError:
        return 1
    return max(1, min(told, _MOST_CHOICES)) if isinstance(told, int) else 1


def used(record: Record, toll: Toll, *, was_sent: bool) -> int:
    """Tokens that a finished request has used: by its usage, else by what went through our hands.

    Without an answer there is nothing to pay for, unless the client left while it was made.
    """
    made, read = record.output_tokens, record.input_tokens
    is_read = record.answer_chars is not None
    if not was_sent or not (is_read or record.outcome == "client_disconnect"):
        return 0
    if read is None:
        read = toll.prompt
    if made is None:
        width = _BYTES_BY_LANG.get(record.lang or "", 1)
        chars = (record.answer_chars or 0) + (record.reasoning_chars or 0)
        made = (chars * width + _TOKEN_BYTES - 1) // _TOKEN_BYTES
    return min(MOST_TOKENS, read + made)


# --- what the client is told ------------------------------------------------------------------


def lines(allowance: Allowance, standing: Standing) -> list[bytes]:
    """Header lines, by OpenAI's names; those of a day have a name of their own."""
    told = []
    if (limit := allowance.requests_per_minute) is not None:
        told.append(_lines(b"requests", limit, standing.requests_us))
    if (limit := allowance.tokens_per_minute) is not None:
        told.append(_lines(b"tokens", limit, standing.tokens_us))
    if (limit := allowance.tokens_per_day) is not None:
        told.append(
            b"x-ratelimit-limit-tokens-day: %d\r\nx-ratelimit-remaining-tokens-day: %d"
            % (limit, max(0, limit - standing.spent))
        )
    return told


def told(allowance: Allowance, standing: Standing) -> dict[str, dict[str, int | None]]:
    """The same for operators: of each limit how much it is, and how much of it is used."""
    found: dict[str, dict[str, int | None]] = {}
    for name, limit, until_full_us in (
        ("requests_per_minute", allowance.requests_per_minute, standing.requests_us),
        ("tokens_per_minute", allowance.tokens_per_minute, standing.tokens_us),
    ):
        if limit is not None:
            found[name] = {"limit": limit, "left": rates.left(until_full_us, limit)}
    # Counted for all of them, whether or not there is a limit.
    found["tokens_per_day"] = {"limit": allowance.tokens_per_day, "used": standing.spent}
    found["streams"] = {"limit": allowance.streams, "used": standing.underway}
    return found


def _lines(what: bytes, limit: int, until_full_us: int) -> bytes:
    return (
        b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b"
        % (what, limit, what, rates.left(until_full_us, limit), what, duration(until_full_us))
    )


def duration(us: int) -> bytes:
    """As OpenAI writes it: 0s, 12ms, 1.5s, 6m0s, 1h0m0s."""
    ms = -(-us // 1000)
    if ms < 1000:
        return b"%dms" % ms if ms else b"0s"
    if ms < 60_000:
        seconds, rest = divmod(ms, 1000)
        return (b"%d.%03d" % (seconds, rest)).rstrip(b"0").rstrip(b".") + b"s"
    minutes, seconds = divmod(-(-ms // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return (b"%dh" % hours if hours else b"") + b"%dm%ds" % (minutes, seconds)


def refusal(name: str, allowance: Allowance, standing: Standing, busy_s: int) -> RateLimited:
    """The error of a request that was refused. `busy_s`: when a place may be free again."""
    match standing.refused:
        case "budget":
            return OutOfBudget(
                f"The key {name!r} has used up its {allowance.tokens_per_day} tokens of today. "
                "There are more at midnight UTC.",
                limit="budget",
                wait_us=standing.wait_us,
            )
        case "streams":
            return RateLimited(
                f"The key {name!r} has all the requests under way that it may have at once: "
                f"{allowance.streams}.",
                limit="streams",
                wait_us=busy_s * 1_000_000,
            )
        case "tokens":
            limit = f"{allowance.tokens_per_minute} tokens"
        case _:
            limit = f"{allowance.requests_per_minute} requests"
    return RateLimited(
        f"The key {name!r} has reached its limit of {limit} a minute. "
        f"Try again in {duration(standing.wait_us).decode()}.",
        limit=standing.refused,
        wait_us=standing.wait_us,
    )
