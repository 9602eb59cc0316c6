"""A thousand slow streams through one worker: memory, completeness, and that no frame is held."""

from __future__ import annotations

import asyncio
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import stand as stands
from tests.chaos.asking import fate_of, fetch, request_of
from tests.chaos.load import percentile
from tests.chaos.stand import EngineProcess, Setup
from tests.support.rawclient import RawReply

_STREAMS = 1000
_GAP_S = 1.0  # between two frames of a stream
_RAMP_S = 4.0
_SENT_AT = re.compile(rb'"content": "(\d+\.\d+) "')
#: memory that an allocator keeps or gives back as it likes
_FLAT = 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What was seen of them."""

    streams: int
    seconds: float
    fates: dict[str, int]
    frames: int
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    held: int  # frames that came when the one behind them had left, too
    rss_first_mb: float  # median over the first third of the time that all were open
    rss_last_mb: float
    rss_before_mb: float

    @property
    def is_good(self) -> bool:
        is_flat = self.rss_last_mb <= self.rss_first_mb * _FLAT
        return self.fates == {"answered": self.streams} and not self.held and is_flat


async def measure(engines: dict[str, EngineProcess], folder: Path, seconds: float) -> Streams:
    with stands.standing(Setup(), folder, engines, {"model": "m"}) as stand:
        for engine in engines.values():
            engine.be("well", pause_ms=_GAP_S * 1e3)
        pid = stand.status()["pid"]
        before = stands.rss_mb(pid)
        memory: list[float] = []

        async def watch() -> None:
            await asyncio.sleep(_RAMP_S + 1)
            while True:
                memory.append(stands.rss_mb(pid))
                await asyncio.sleep(0.5)

        async def one(number: int) -> RawReply:
            await asyncio.sleep(_RAMP_S * number / _STREAMS)
            name = f"stream-{number}"
            tokens = round(seconds / _GAP_S)
            raw = request_of(request_id=name, session=name, turn=1, stream=True, tokens=tokens)
            return await fetch(stand.ports[0], raw, limit_s=seconds * 1.5 + 30)

        watching = asyncio.ensure_future(watch())
        replies = await asyncio.gather(*map(one, range(_STREAMS)))
        watching.cancel()
    # The ramp in is the ramp out: only while all were open the figures compare.
    whole = memory[: max(3, round((seconds - _RAMP_S - 2) / 0.5))]
    third = len(whole) // 3
    lags = [lag for reply in replies for lag in lags_of(reply)]
    return Streams(
        streams=_STREAMS,
        seconds=seconds,
        fates=dict(Counter(fate_of(reply, stream=True)[0] for reply in replies)),
        frames=len(lags),
        lag_p50_ms=(percentile(lags, 0.5) or 0) * 1e3,
        lag_p99_ms=(percentile(lags, 0.99) or 0) * 1e3,
        lag_max_ms=max(lags, default=0) * 1e3,
        held=sum(lag >= _GAP_S for lag in lags),
        rss_first_mb=statistics.median(whole[:third]),
        rss_last_mb=statistics.median(whole[-third:]),
        rss_before_mb=before,
    )


def lags_of(reply: RawReply) -> list[float]:
    """How long each frame took from its engine to the client, seconds."""
    lags = []
    rest = b""
    for frame in reply.frames:
        rest += frame.data
        lags += [frame.at - float(found[1]) for found in _SENT_AT.finditer(rest)]
        rest = rest[rest.rfind(b"\n\n") + 2 :] if b"\n\n" in rest else rest
    return lags
