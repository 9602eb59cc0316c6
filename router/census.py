"""What all workers of this router count and do, asked of any one of them.

A worker pins a snapshot of itself to its board about once a second, and in any case before it
tells of itself: so what was once told never goes back, whichever worker is asked next and
whichever dies. Who takes a dead one's place begins with its counts. A single worker has no board.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import structlog

from router import __version__, counted, exposition
from router.boards import Board, Pinned
from router.catalogue import METRICS, OPEN, Labels
from router.counted import Counted
from router.ledger import Ledger
from router.telemetry import HIDDEN_S, Metrics

log = structlog.get_logger(__name__)

#: how often it is looked whether there is something new to pin
PAUSE_S = 1.0
#: pinning may take this share of a worker's time, however much there is to pin
_SHARE = 0.005


class Place(msgspec.Struct, frozen=True):
    """Where a worker stands among all."""

    boards: Sequence[Board]
    number: int
    ledger: Ledger | None = None  # of what keys have used, the same for all

    @property
    def board(self) -> Board:
        return self.boards[self.number]


class AtBackend(msgspec.Struct):
    """How a worker finds a backend."""

    up: bool
    state: str  # up down open half-open waiting starting
    circuit: int  # as in circuit_state
    draining: bool
    inflight: int


class Report(msgspec.Struct):
    """How a worker is at a moment."""

    worker: int
    pid: int
    at: float  # since the epoch
    inflight: int
    waiting: int
    sessions: int
    backends: dict[str, AtBackend]
    policy: str
    policy_taken_at: float
    is_policy_ok: bool
    is_config_ok: bool
    is_log_ok: bool
    is_redis_ok: bool | None  # None: sessions are not kept there
    arms: dict[str, bool] = {}  # experiment/arm → whether it is stopped
    is_keys_ok: bool | None = None  # None: there is no file of keys
    connections: int = 0  # of clients
    tls_ends_at: float | None = None  # since the epoch; None: no TLS at the edge


class Snapshot(msgspec.Struct):
    """A worker, as it pins itself. `report` is None of a worker that is no more."""

    counted: Counted
    report: Report | None


class Live(msgspec.Struct):
    """Numbers of this moment, of all workers; rates come of two of them."""

    at: float
    requests: int  # finished, in all
    outcomes: dict[str, int]  # of these
    inflight: int
    waiting: int
    backends: dict[str, AtBackend]
    workers: list[Report]


_encode = msgspec.msgpack.Encoder().encode
#: a snapshot out of the bytes that it is pinned as
read = msgspec.msgpack.Decoder(Snapshot).decode


def counts_on(place: Place | None) -> Counted | None:
    """What a worker that takes this place begins with."""
    pinned = place.board.read() if place is not None else None
    return read(pinned.data).counted if pinned is not None else None


class Census:
    """Asks all workers, by their boards, and this one by itself."""

    def __init__(
        self,
        metrics: Metrics,
        report: Callable[[], Report],
        place: Place | None,
        *,
        settle: Callable[[], object],
    ) -> None:
        """`settle` counts what has just finished."""
        self._metrics = metrics
        self._report = report
        self._place = place
        self._settle = settle
        self._pinned = b""
        self._has_room = True
        self._known: dict[int, tuple[int, Snapshot]] = {}  # by worker, with the edition
        if place is not None:
            place.board.take(os.getpid())

    # ------------------------------------------------------------------ telling the others

    def look_around(self) -> float:
        """Pin what is new; in how many seconds to do so again."""
        began = time.perf_counter()
        report = self._report()
        self._metrics.know(report.backends, report.at)
        if self._place is not None:
            self._pin(self._place.board, Snapshot(self._metrics.counted(), report))
        return max(PAUSE_S, (time.perf_counter() - began) / _SHARE)

    def _myself(self) -> Snapshot:
        """How this worker is now; the others know as much when this returns."""
        self._settle()
        mine = Snapshot(self._metrics.counted(), self._report())
        if self._place is not None:
            self._pin(self._place.board, mine)
        return mine

    def _pin(self, board: Board, mine: Snapshot) -> None:
        data = _encode(mine)
        had_room, self._has_room = self._has_room, board.pin(data)
        if had_room and not self._has_room:
            log.error("too much to tell other workers: they tell an older state", bytes=len(data))

    def told(self) -> bytes:
        """This worker alone, for `read`."""
        return _encode(self._myself())

    def leave(self) -> None:
        """This worker ends: its counts stay, it is no longer one of those that serve."""
        if self._place is not None:
            self._myself()
            self._place.board.leave()

    # ------------------------------------------------------------------ asking all

    def everyone(self) -> Iterator[Snapshot]:
        """All workers, this one first, those that are no more without a report."""
        yield self._myself()
        if self._place is not None:
            for number, board in enumerate(self._place.boards):
                if number != self._place.number and (found := self._other(number, board)):
                    yield found

    def _other(self, number: int, board: Board) -> Snapshot | None:
        edition, snapshot = self._known.get(number, (0, None))
        if edition != board.edition:
            pinned = board.read()
            if pinned is not None:
                snapshot = self._take(number, pinned) or snapshot
        if snapshot is None or snapshot.report is None or snapshot.report.pid == board.pid:
            return snapshot
        return Snapshot(snapshot.counted, None)

    def _take(self, number: int, pinned: Pinned) -> Snapshot | None:
        try:
            snapshot = read(pinned.data)
        except msgspec.MsgspecError:
            log.exception("another worker is not understood", worker=number)
            return None
        self._known[number] = pinned.edition, snapshot
        return snapshot

    def _whole(self, whole: Counted, reports: Sequence[Report]) -> Counted:
        """What all have counted, as it is told."""
        if self._place is not None:
            restarts = sum(board.restarts for board in self._place.boards)
            whole.counters["worker_restarts_total"] = {(): restarts}
        now = time.time()
        used = {name for report in reports for name in report.backends}
        hidden = {b for b, since in whole.gone.items() if now - since > HIDDEN_S}
        return whole.without(hidden - used)

    def counted(self) -> Counted:
        """What all have counted."""
        everyone = list(self.everyone())
        whole = counted.merged(snapshot.counted for snapshot in everyone)
        return self._whole(whole, _reports(everyone))

    def live(self) -> Live:
        """For whoever watches."""
        everyone = list(self.everyone())
        reports = _reports(everyone)
        outcomes: dict[str, int] = {}
        at = METRICS["requests_total"].labels.index("outcome")
        for snapshot in everyone:
            for labels, count in snapshot.counted.counters["requests_total"].items():
                outcomes[labels[at]] = outcomes.get(labels[at], 0) + count
        return Live(
            at=time.time(),
            requests=sum(outcomes.values()),
            outcomes=outcomes,
            inflight=sum(report.inflight for report in reports),
            waiting=sum(report.waiting for report in reports),
            backends=_backends(reports),
            workers=sorted(reports, key=lambda report: report.worker),
        )

    def page(self) -> Iterator[str]:
        """The text of /metrics in pieces of a few milliseconds' work at most, some of them empty.

        For many backends it takes so long that streams would feel it, were it made at once.
        """
        whole, reports = Counted.nothing(), []
        for snapshot in self.everyone():
            whole.take(snapshot.counted)  # this worker's as the others know it, before it goes on
            reports += _reports([snapshot])
            yield ""
        told = self._whole(whole, reports)
        gauges = gauges_of(reports)
        for name, metric in METRICS.items():
            match metric.kind:
                case "counter":
                    yield from exposition.pieces(metric, told.counters[name])
                case "gauge":
                    yield from exposition.pieces(metric, gauges[name])
                case "histogram":
                    yield from exposition.pieces(metric, told.histograms[name])


def _reports(everyone: Sequence[Snapshot]) -> list[Report]:
    return [snapshot.report for snapshot in everyone if snapshot.report is not None]


def _backends(reports: Sequence[Report]) -> dict[str, AtBackend]:
    """Each backend over all workers: what runs there is summed, of what they see the worst."""
    found: dict[str, AtBackend] = {}
    for report in reports:
        for name, seen in report.backends.items():
            so_far = found.get(name)
            if so_far is None:
                found[name] = msgspec.structs.replace(seen)
                continue
            so_far.inflight += seen.inflight
            so_far.draining |= seen.draining
            if _badness(seen) > _badness(so_far):
                so_far.up, so_far.state, so_far.circuit = seen.up, seen.state, seen.circuit
    return found


def _badness(seen: AtBackend) -> tuple[bool, bool, int]:
    return not seen.up, seen.circuit == OPEN, seen.circuit


def gauges_of(reports: Sequence[Report]) -> Mapping[str, dict[Labels, float]]:
    """The gauges of the page, by name. Of states that workers see differently the worst counts."""
    backends = _backends(reports)
    keys = [report.is_keys_ok for report in reports if report.is_keys_ok is not None]
    redis = [report.is_redis_ok for report in reports if report.is_redis_ok is not None]
    ends = [report.tls_ends_at for report in reports if report.tls_ends_at is not None]
    return {
        "connections": {(): sum(report.connections for report in reports)},
        "queue_waiting": {(): sum(report.waiting for report in reports)},
        "inflight": {(): sum(report.inflight for report in reports)},
        "backend_up": {(name,): float(seen.up) for name, seen in backends.items()},
        "backend_draining": {(name,): float(seen.draining) for name, seen in backends.items()},
        "backend_inflight": {(name,): seen.inflight for name, seen in backends.items()},
        "circuit_state": {(name,): seen.circuit for name, seen in backends.items()},
        "experiment_arm_stopped": {
            tuple(arm.split("/")): float(any(report.arms.get(arm) for report in reports))
            for arm in dict.fromkeys(arm for report in reports for arm in report.arms)
        },
        "policy_info": {(report.policy,): 1 for report in reports},
        "policy_last_reload_timestamp_seconds": {
            (): max(report.policy_taken_at for report in reports)
        },
        "policy_last_reload_successful": {(): float(all(r.is_policy_ok for r in reports))},
        "config_last_reload_successful": {(): float(all(r.is_config_ok for r in reports))},
        "keys_last_reload_successful": {(): float(all(keys))} if keys else {},
        "tls_certificate_expiry_timestamp_seconds": {(): min(ends)} if ends else {},
        "sessions": {(str(report.worker),): report.sessions for report in reports},
        "redis_up": {(): float(all(redis))} if redis else {},
        "log_up": {(): float(all(report.is_log_ok for report in reports))},
        "workers": {(): len(reports)},
        "build_info": {(__version__,): 1},
    }
