"""What the journey of a request needs from the world, in its own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from router.body import Spoken
from router.chat import Endpoint
from router.config import Backend
from router.keyring import Grant
from router.message import AnswerHead, Request
from router.prefix import Turn
from router.rates import Standing
from router.record import Record
from router.toll import Toll
from router.tracing import Journey, Trace
from router.wire import Piece


class Order(msgspec.Struct, frozen=True):
    """A request as the edge hands it over."""

    http: Request
    endpoint: Endpoint
    path: bytes  # as the backend wants it, with its query
    grant: Grant | None  # what the client's key opens, where clients have keys


class AnswerListener(Protocol):
    """Who an answer is for; called in this order, the last one exactly once."""

    def on_sent(self) -> None:
        """The request is on its way."""

    def on_head(self, head: AnswerHead, *, has_more: bool) -> None:
        """`has_more`: a piece of the body follows at once, from the same read."""

    def on_piece(self, data: bytes, piece: Piece) -> None:
        """A part of the body; nothing follows the last one."""

    def express(self) -> tuple[Callable[[bytes], bool], Callable[[bytes], None]] | None:
        """A way past `on_piece` for whole chunks, if there is one just now.

        (May this chunk go as it is? How to send it.) Valid until the next `on_piece`.
        """

    def on_whole(self, head: AnswerHead, body: bytes) -> None:
        """`on_head` and the only `on_piece`, where both came in one read."""

    def on_end(self) -> None:
        """A body without a length ended with its connection."""

    def on_failure(self, fault: Exception, *, may_retry: bool) -> None:
        """No answer, or a broken one. `may_retry`: surely nothing of it was processed."""


class Attempt(Protocol):
    """One try against one backend."""

    def cancel(self) -> None:
        """Give up: the connection is closed, which is what ends the generation."""

    def pause(self) -> None:
        """Stop reading: the client is slower than the backend."""

    def resume(self) -> None: ...


class Upstream(Protocol):
    """A way to one backend."""

    @property
    def backend(self) -> Backend: ...

    @property
    def inflight(self) -> int: ...

    def send(
        self,
        head: bytes,
        body: bytes,
        method: bytes,
        listener: AnswerListener,
        *,
        fresh: bool = False,
        timeout_s: float | None = None,
    ) -> Attempt:
        """Send a whole request. `fresh`: not on a kept-alive connection.

        `timeout_s`: to the first byte of the answer, where it is less than the backend's own.
        """


class Reply(Protocol):
    """The client's side of one request."""

    def write(self, data: bytes) -> None: ...

    def finish(self, *, keep: bool) -> None:
        """The answer is whole; `keep`: the connection can carry another."""

    def abort(self) -> None:
        """Cut the connection: what was sent must not look whole."""


class Journal(Protocol):
    """Where records go. Never blocks and never raises."""

    def write(self, record: Record) -> None: ...


class Bodies(Protocol):
    """Where goes what was said. Never blocks and never raises."""

    @property
    def text_limit(self) -> int:
        """Bytes of an answer that are kept."""

    def wants(self, request_id: str) -> bool:
        """Whether this request is one of those that are written down."""

    def write(self, spoken: Spoken) -> None: ...


class Meter(Protocol):
    """What counts finished requests. Never blocks and never raises."""

    def observe(self, record: Record, actions: Sequence[tuple[str, ...]]) -> None:
        """`actions`: (scenario, parameter, origin) of what the preset did."""

    def limited(self, setting: str) -> None:
        """A request or a connection met the limit that this setting sets."""


class Conventions(Protocol):
    """What counts finished requests by OpenTelemetry's conventions. Never blocks, never raises."""

    def observe(self, record: Record, host: bytes | None) -> None:
        """`host`: of the backend that was asked, with its port."""


class Tracer(Protocol):
    """What tells of requests as traces. Never blocks and never raises."""

    def begin(self, fields: Mapping[bytes, bytes]) -> Trace:
        """A request's place in its trace, by its headers."""

    def take(self, journey: Journey) -> None:
        """A finished request that is to be told of."""


class Observer(Protocol):
    """What follows the experiments. Never blocks and never raises."""

    def observe(self, record: Record) -> None:
        """A request that was in an arm is over."""


class Repeater(Protocol):
    """What asks finished requests once more in another arm. Never blocks and never raises."""

    def consider(self, exchange: Any, record: Record) -> None:
        """A request that was in an arm is over, and still knows what it was."""

    def look(self) -> None:
        """Time has passed."""

    def give_way(self) -> None:
        """Something real comes."""


class Clock(Protocol):
    """Seconds: `now` since the epoch, `ticks` monotonic."""

    def now(self) -> float: ...

    def ticks(self) -> float: ...


class Sessions(Protocol):
    """What is remembered of sessions, by their hash. Never blocks and never raises."""

    def scenario(self, session: str) -> str | None:
        """The scenario that a session was last in, if it is known."""

    def settled(self, session: str, scenario: str) -> None:
        """The session's last turn was of this scenario."""

    def prompt(self, session: str) -> Turn | None:
        """The session's last prompt, if it is known."""

    def prompted(self, session: str, turn: Turn) -> None:
        """The session's last prompt was this one."""


class Lookup(Protocol):
    """A question that is still open."""

    def cancel(self) -> None:
        """Nobody wants to know any more."""


class Affinity(Protocol):
    """Which backend a session is at, where that is not its home. Never blocks, never raises.

    All calls come from the event loop; sessions are known by their hash.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other processes hear of what this one remembers."""

    def find(self, pool: str, session: str, then: Callable[[str | None], None]) -> Lookup | None:
        """Tell `then` the backend, or None for "its home", once and within a deadline.

        Returns None where that is done already, which is most of the time. Otherwise a question
        that may be cancelled; then `then` is never called.
        """

    def last(self, pool: str, session: str) -> str | None:
        """The backend that this process last saw the session served by, its home or not."""

    def served(self, pool: str, session: str, backend: str, *, is_home: bool) -> None:
        """The session's turn is at this backend. Where that is not its home, others are told."""

    def status(self) -> dict[str, Any]:
        """For operators: store, sessions, is_ok, faults, last_fault, latency_ms."""

    async def start(self) -> None:
        """Get ready; not being able to is no reason not to serve."""

    async def close(self) -> None: ...


class Rates(Protocol):
    """What keys with limits have used. Never blocks and never raises.

    All calls come from the event loop. A toll is asked for once; once it is granted, it is over
    once and settled once, in this order.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other routers count with this one."""

    def look(self, toll: Toll) -> Standing:
        """How the key stands as far as is known here; refused where asking is in vain."""

    def ask(self, toll: Toll, then: Callable[[Toll], None]) -> Lookup | None:
        """Put the key's standing into the toll and call `then`, once and within a deadline.

        Returns None where that is done already. Otherwise a question that may be cancelled; then
        `then` is never called, and nothing was used.
        """

    def over(self, toll: Toll) -> None:
        """The request has ended: its place is free. Nothing happens the second time."""

    def settle(self, toll: Toll, tokens: int) -> None:
        """It has used so many tokens, in place of those that it had reserved."""

    def status(self) -> dict[str, Any]:
        """For operators: store, is_ok, faults, last_fault, latency_ms, local."""

    async def start(self) -> None:
        """Get ready; not being able to is no reason not to serve."""

    async def close(self) -> None: ...
