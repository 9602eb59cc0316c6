"""What a key may use and has used: may it have one more request, and when else? Pure.

Requests and tokens a minute go by GCRA (the token bucket seen from its end): of each limit one
number is kept, the moment when all of it is there again. A request moves that moment on by what it
takes, and is let in while it is at most a minute away. So there is no window to wait for the end
of and nothing to fill up from time to time; the wait is known exactly, what turns out not to be
used is given back by moving the moment back, and a store that is shared has to hold one number. In
any stretch of t seconds a key gets at most its limit and t/60 of it.

The budget of a day is a plain sum from midnight to midnight UTC, which is what the log adds up to.

All in whole microseconds and tokens: the same reckoning in Redis (rates_redis.py) comes to the
same answers, to the last microsecond.
"""

from __future__ import annotations

from typing import NamedTuple

from router.keyring import Allowance

MINUTE_US = 60_000_000
DAY_US = 86_400_000_000
#: no estimate is larger: beyond it, Redis' numbers would not be exact any more
MOST_TOKENS = 100_000_000
#: what a request was refused for; the first is none
REFUSALS = ("", "requests", "tokens", "budget", "streams")


class Used:
    """What one key has used. Moments in microseconds of one clock; days are since the epoch."""

    def __init__(self) -> None:
        self.requests_at = 0  # when a whole minute's requests are there again
        self.tokens_at = 0  # ... and tokens
        self.day = 0
        self.spent = 0  # tokens of that day, with those that are reserved
        self.underway = 0  # requests

    def __repr__(self) -> str:
        return (
            f"Used(requests_at={self.requests_at}, tokens_at={self.tokens_at}, day={self.day}, "
            f"spent={self.spent}, underway={self.underway})"
        )


class Standing(NamedTuple):
    """How a key stands after a question; with what was asked for, where that was granted."""

    refused: str  # one of REFUSALS
    wait_us: int  # until it would be granted; 0: nobody knows
    requests_us: int  # until a whole minute's requests are there again
    tokens_us: int  # ... and tokens; more than a minute: more were used than there were
    day: int
    spent: int
    underway: int


def ask(used: Used, allowance: Allowance, now: int, date: int, tokens: int) -> Standing:
    """May it have a request of about so many tokens? Where it may, it has it.

    `now` on the clock of `used`, `date` since the epoch, both in microseconds. A request that was
    refused costs nothing. One that is larger than a whole minute's tokens is let in when all of
    them are there, since otherwise it never would be.
    """
    _turn_the_page(used, date)
    refused, wait = "", 0
    requests_at = max(used.requests_at, now)
    if (limit := allowance.requests_per_minute) is not None:
        requests_at += spacing(1, limit)
        wait = max(0, requests_at - now - MINUTE_US)
        if wait:
            refused = "requests"
    tokens_at = max(used.tokens_at, now)
    if (limit := allowance.tokens_per_minute) is not None:
        tokens_at += spacing(min(tokens, limit), limit)
        if tokens_at - now - MINUTE_US > wait:
            refused, wait = "tokens", tokens_at - now - MINUTE_US
    if (limit := allowance.tokens_per_day) is not None and used.spent >= limit:
        refused, wait = "budget", (used.day + 1) * DAY_US - date
    if not refused and (limit := allowance.streams) is not None and used.underway >= limit:
        refused = "streams"
    if not refused:
        used.requests_at, used.tokens_at = requests_at, tokens_at
        used.spent += tokens
        used.underway += 1
    return _standing(used, now, refused, wait)


def look(used: Used, allowance: Allowance, now: int, date: int) -> Standing:
    """How it stands, without asking for anything; refused for having no request left, if it is.

    That alone holds until its time has come, whatever else happens to this key.
    """
    _turn_the_page(used, date)
    if (limit := allowance.requests_per_minute) is not None:
        wait = max(used.requests_at, now) + spacing(1, limit) - now - MINUTE_US
        if wait > 0:
            return _standing(used, now, "requests", wait)
    return _standing(used, now, "", 0)


def settle(
    used: Used, allowance: Allowance, now: int, date: int, *, tokens: int, day: int, spent: int
) -> None:
    """Take so many tokens more, or give back what is below 0; `spent` likewise, of that day."""
    _turn_the_page(used, date)
    if (limit := allowance.tokens_per_minute) is not None:
        shift = spacing(tokens, limit) if tokens >= 0 else -spacing(-tokens, limit)
        used.tokens_at = max(used.tokens_at, now) + shift
    if day == used.day:
        used.spent = max(0, used.spent + spent)


def remember(used: Used, date: int, *, day: int, spent: int) -> None:
    """At least so much was spent that day, by what somebody has written down."""
    _turn_the_page(used, date)
    if used.day == day:
        used.spent = max(used.spent, spent)


def spacing(amount: int, limit: int) -> int:
    """How long so many of a limit a minute take to come back, microseconds.

    By the division of floating-point numbers, since Redis has no other.
    """
    return int(amount * MINUTE_US / limit)


def left(until_full_us: int, limit: int) -> int:
    """How many of a limit a minute are there."""
    return max(0, int((MINUTE_US - until_full_us) * limit / MINUTE_US))


def _turn_the_page(used: Used, date: int) -> None:
    day = date // DAY_US
    if used.day != day:
        used.day, used.spent = day, 0


def _standing(used: Used, now: int, refused: str, wait: int) -> Standing:
    return Standing(
        refused,
        wait,
        max(0, used.requests_at - now),
        max(0, used.tokens_at - now),
        used.day,
        used.spent,
        used.underway,
    )
