"""When a request may be asked again, and how often altogether. Pure: `now` is given.

A generation is not idempotent in cost, but until its first byte went to the client nothing was
delivered, so asking again is safe for the client. What it may cost the backends decides.
"""

from __future__ import annotations

import math

#: from a backend, or from a proxy before it, that did not do the work
_UNDONE = frozenset({502, 503, 504})
_WINDOW_S = 10.0


class Budget:
    """Retries of one worker: a share of its requests of the last ten seconds, and a few more.

    Without it, backends that fail because they are overloaded would get twice the load. Both
    sums fade with time instead of being counted in a window, so a call is a few operations.
    """

    def __init__(self, share: float = 0.2, least: float = 3.0) -> None:
        self._share = share
        self._least = least * _WINDOW_S
        self._requests = 0.0
        self._retries = 0.0
        self._at = 0.0

    def __repr__(self) -> str:
        return f"Budget({self._retries:.1f} retries of {self._requests:.1f} requests)"

    def asked(self, now: float) -> None:
        """A client's request; a retry is none."""
        self._fade(now)
        self._requests += 1

    def may_retry(self, now: float) -> bool:
        """Whether there is one left; it is spent when there is."""
        self._fade(now)
        if self._retries + 1 > self._share * self._requests + self._least:
            return False
        self._retries += 1
        return True

    def _fade(self, now: float) -> None:
        passed = now - self._at
        self._at = now
        if passed > 0:  # a clock that was set back stands still for one call
            kept = math.exp(-passed / _WINDOW_S)
            self._requests *= kept
            self._retries *= kept


def is_retryable(
    status: int | None, *, sent: bool, answered: bool, was_stale: bool = False
) -> bool:
    """Whether asking again is safe and can help.

    `status`: the backend's, None without an answer. `sent`: the request had left us.
    `answered`: the client has had a byte. `was_stale`: a kept-alive connection closed before
    any byte of an answer, as servers do with idle ones.

    Nothing was processed without a connection or on a stale one, so that needs no budget. 502,
    503 and 504 say that the work was not done. All else stays as it is: a 4xx is the client's
    own, 429 included, whose Retry-After is meant for the client; a 500 mostly follows from the
    request itself; after a timeout the work may still go on; and when a connection broke with
    the request on it, that request may be what broke the backend, and must not go on to the
    next one.
    """
    if answered:
        return False
    if status is not None:
        return status in _UNDONE
    return not sent or was_stale


def left_s(began: float, now: float, timeout_s: float) -> float:
    """The time to a first byte that retries have left, of the first backend's `timeout_s`.

    The deadline is the request's and not the attempt's, so that three attempts make nobody
    wait three times as long. None are begun without time left.
    """
    return min(timeout_s, max(0.0, timeout_s - (now - began)))
