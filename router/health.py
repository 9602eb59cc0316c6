"""Whether a backend can be used, from what was observed of it. Pure: `now` is given.

Two witnesses. Active checks say whether it is up. What became of requests works a breaker:
some failures in a row open it, for longer each time; then one request at a time may probe.
Every `now` is of one clock. Where that clock jumps back, waits that began later are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec

#: ok: a whole answer. failed: no connection, reset, timeout, 500, 502, 504, a broken stream.
#: busy: 429 and 503. client: the client's own error, or it left; says nothing of the backend.
Outcome = Literal["ok", "failed", "busy", "client"]
State = Literal["up", "down", "open", "half-open", "waiting", "starting"]

#: how long a Retry-After is obeyed at most, and what "busy" means without one
_BUSY_MAX_S = 60.0
_BUSY_S = 1.0
#: a probe that is not heard of for so long has lost its place: nothing may block recovery
_PROBE_S = 60.0
_SLOWEST = 0.1
#: 2 ** this times any `open_s` is beyond any `open_max_s`, and still a number
_DOUBLINGS = 40


class Rules(msgspec.Struct, frozen=True):
    """When outcomes take a backend out, and how it comes back."""

    failures: int = 3  # in a row
    open_s: float = 5.0  # the first time; doubles
    open_max_s: float = 60.0
    slow_start_s: float = 10.0
    max_ejected: float = 0.5  # share of a pool


USUAL = Rules()


class Span(msgspec.Struct, frozen=True):
    """A stretch of time."""

    since: float
    length: float

    def left(self, now: float) -> float:
        """Seconds until its end; 0 outside, so also where the clock was set back before it."""
        passed = now - self.since
        return self.length - passed if 0 <= passed < self.length else 0.0


class Health(msgspec.Struct, frozen=True):
    """What is known of one backend. Before the first observation it counts as usable."""

    is_up: bool = True
    is_known: bool = False
    since: float = 0.0
    reason: str = "not checked yet"
    failures: int = 0  # in a row
    trips: int = 0  # openings since it was last well for the whole of a slow start
    opened: Span | None = None  # the breaker; half-open once this is over
    probe: Span | None = None  # the one request that a half-open breaker let through
    wait: Span | None = None  # what it asked us for by Retry-After
    recovered_at: float | None = None

    # ------------------------------------------------------------------ what was seen

    def observed(self, is_up: bool, reason: str, now: float) -> Health:
        """The health after one more active check."""
        has_changed = not self.is_known or self.is_up != is_up
        opened, recovered_at = self.opened, self.recovered_at
        if opened is not None and opened.since > now:
            opened = Span(now, 0)
        seen = msgspec.structs.replace(
            self,
            is_up=is_up,
            is_known=True,
            since=now if has_changed else self.since,
            reason=reason,
            # What is over is forgotten: where the clock was set back it would come once more.
            opened=opened,
            probe=_unless_over(self.probe, now),
            wait=_unless_over(self.wait, now),
            recovered_at=recovered_at if recovered_at is None or recovered_at <= now else None,
        )
        return seen._returned(now) if is_up and not self.is_up else seen

    def after(
        self,
        outcome: Outcome,
        now: float,
        rules: Rules,
        *,
        retry_after_s: float | None = None,
        may_eject: bool = True,
        sent_at: float | None = None,
    ) -> Health:
        """The health after a request; `may_eject`: the pool can do without this backend.

        `sent_at`: when the request was sent. What was sent before the breaker opened, before
        its probe or before the recovery tells of the time before and changes nothing.
        """
        if sent_at is not None and sent_at < self._news_since <= now:
            return self
        match outcome:
            case "ok":
                return self._succeeded(now, rules)
            case "failed":
                return self._failed(now, rules, may_eject=may_eject)
            case "busy":
                return self._told_to_wait(now, retry_after_s)
            case "client":
                return self if self.probe is None else msgspec.structs.replace(self, probe=None)
            case _:
                assert_never(outcome)

    def trying(self, now: float) -> Health:
        """A request is being sent now: with the breaker half-open it takes the one place."""
        opened, probe = self.opened, self.probe
        if opened is None or opened.left(now) or (probe is not None and probe.left(now)):
            return self
        return msgspec.structs.replace(self, probe=Span(now, _PROBE_S))

    # ------------------------------------------------------------------ what follows

    @property
    def is_sound(self) -> bool:
        """Whether one more good answer would tell nothing new."""
        return not (self.failures or self.trips or self.opened is not None)

    def is_usable(self, now: float) -> bool:
        """Whether it may be sent a request now; a half-open breaker lets one through."""
        return self.is_up and self.back_in_s(now) == 0

    def back_in_s(self, now: float) -> float:
        """Seconds until a wait of ours is over, be it for the breaker, its probe or the backend.

        A probe that is answered ends its wait sooner. When a backend that is down comes
        back, nobody knows.
        """
        if self.opened is None and self.wait is None:
            return 0.0
        spans = (self.opened, self.probe, self.wait)
        return max(0.0 if span is None else span.left(now) for span in spans)

    def share(self, now: float, rules: Rules) -> float:
        """The part of its usual load that it can take: less at first, after a recovery."""
        if self.recovered_at is None:
            return 1.0
        passed = now - self.recovered_at
        if not 0 <= passed < rules.slow_start_s:
            return 1.0
        return _SLOWEST + (1 - _SLOWEST) * passed / rules.slow_start_s

    def state(self, now: float, rules: Rules = USUAL) -> State:
        """The one word that says most."""
        if not self.is_up:
            return "down"
        if self.opened is not None:
            return "open" if self.opened.left(now) else "half-open"
        if self.wait is not None and self.wait.left(now):
            return "waiting"
        return "starting" if self.share(now, rules) < 1 else "up"

    # ------------------------------------------------------------------ one outcome each

    @property
    def _news_since(self) -> float:
        """Requests that were sent earlier than this have nothing new to say."""
        if self.probe is not None:
            return self.probe.since
        if self.opened is not None:
            return self.opened.since
        return self.recovered_at if self.recovered_at is not None else float("-inf")

    def _succeeded(self, now: float, rules: Rules) -> Health:
        if self.opened is not None:
            return msgspec.structs.replace(
                self, failures=0, opened=None, probe=None, recovered_at=now
            )
        if self.trips and self.share(now, rules) == 1:
            return msgspec.structs.replace(self, failures=0, trips=0)
        return msgspec.structs.replace(self, failures=0) if self.failures else self

    def _failed(self, now: float, rules: Rules, *, may_eject: bool) -> Health:
        if not self.is_up:
            # Out already. Open as well, it would use up the pool's places for ejected ones.
            return self
        if self.opened is not None:
            # While open these are last resorts; half-open, the answer to our question.
            return self if self.opened.left(now) else self._opened(now, rules)
        failures = self.failures + 1
        if failures >= rules.failures and may_eject:
            return self._opened(now, rules)
        return msgspec.structs.replace(self, failures=failures)

    def _opened(self, now: float, rules: Rules) -> Health:
        length = min(rules.open_s * 2.0 ** min(self.trips, _DOUBLINGS), rules.open_max_s)
        return msgspec.structs.replace(
            self, failures=0, trips=self.trips + 1, opened=Span(now, length), probe=None
        )

    def _told_to_wait(self, now: float, retry_after_s: float | None) -> Health:
        """Busy is alive: neither a failure nor a proof. A longer wait is kept."""
        asked = _BUSY_S if retry_after_s is None else min(max(0.0, retry_after_s), _BUSY_MAX_S)
        left = 0.0 if self.wait is None else self.wait.left(now)
        return msgspec.structs.replace(self, wait=Span(now, max(asked, left)), probe=None)

    def _returned(self, now: float) -> Health:
        """Down and up again: most likely another process, which owes nothing of the old one's.

        An open breaker becomes half-open and no more: a check asks for less than a request.
        """
        if self.opened is not None:
            return msgspec.structs.replace(self, opened=Span(now, 0), probe=None, wait=None)
        return msgspec.structs.replace(self, failures=0, wait=None, recovered_at=now)


def _unless_over(span: Span | None, now: float) -> Span | None:
    return span if span is not None and span.left(now) else None


def may_eject(healths: Sequence[Health], now: float, rules: Rules) -> bool:
    """Whether outcomes may take one more of this pool out, and leave one that is in.

    A fault that all share (a poisoned request, the network, a bad setting) is no reason to be
    without a backend. Half-open ones are still out. Active checks are bound by none of this.
    """
    out = sum(health.opened is not None for health in healths)
    usable = sum(health.opened is None and health.is_usable(now) for health in healths)
    return usable >= 2 and out + 1 <= rules.max_ejected * len(healths) + 1e-9


def outcome_of(status: int) -> Outcome:
    """What a backend's status says of the backend."""
    if status in (429, 503):
        return "busy"
    if status >= 500 and status != 501:  # 501: asked for what this engine does not have
        return "failed"
    return "ok" if 200 <= status < 300 else "client"
