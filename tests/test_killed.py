"""A worker is killed under load: what of the log is lost, and what readers make of the rest."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from router.recordfiles import Skipped, records, segments
from tests.support.pool import CHAT, POLICY
from tests.support.product import Product
from tests.support.rawclient import exchange, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

FLUSH_S = 0.4
#: between the end of an answer and our noting it, on a machine that is busy with other things
SLACK_S = 1.0
CLIENTS = 4


class Clients:
    """Ask again and again, each on new connections; note when an answer was whole."""

    def __init__(self, port: int) -> None:
        self.finished: dict[str, float] = {}
        self._port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, client: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            name = f"c{client}-{number}"
            body = {
                "messages": [{"role": "user", "content": "A river?"}],
                "stream": bool(client % 2),
            }
            reply = exchange(self._port, request_bytes("POST", CHAT, {"x-request-id": name}, body))
            if reply.status == 200 and reply.ended_properly:
                self.finished[name] = time.monotonic()
            elif reply.refused:
                self._stop.wait(0.01)

    def wait_for(self, count: int, *, older_s: float = 0.0) -> None:
        """So many more answers, so long ago."""
        before = len(self.finished)
        deadline = time.monotonic() + 60
        while True:
            now = time.monotonic()
            if sum(now - at > older_s for at in list(self.finished.values())[before:]) >= count:
                return
            assert now < deadline, f"{len(self.finished) - before} of {count} answers"
            self._stop.wait(0.02)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


def workers_of(product: Product) -> set[int]:
    """The processes that serve, each asked by name; connections are spread by the kernel."""
    found: set[int] = set()
    for _ in range(400):
        found.add(product.get("/router/status")["pid"])
        if len(found) == 2:
            return found
    raise AssertionError(f"one worker alone answers: {found}")


def test_a_killed_worker_loses_no_more_than_one_interval_of_the_log(tmp_path: Path) -> None:
    with ScriptedBackend([chat_ok("The Danube.")]) as backend:
        config = {
            "server": {"workers": 2},
            "log": {"flush_ms": FLUSH_S * 1e3},
            "backends": [{"name": "a", "url": backend.url, "model": "m"}],
        }
        with Product.start(tmp_path, config, policy=POLICY) as product:
            victim = min(workers_of(product))
            clients = Clients(product.port)
            clients.wait_for(50, older_s=FLUSH_S + SLACK_S)  # older than what may be lost
            killed_at = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            clients.wait_for(100)
            clients.stop()
        skipped = Skipped()
        told = Counter(record.request_id for record in records(segments(product.log_dir), skipped))

    before_s = {name: killed_at - at for name, at in clients.finished.items()}
    lost = [name for name in before_s if name not in told]
    assert sum(ago_s > FLUSH_S + SLACK_S for ago_s in before_s.values()) >= 50
    assert [name for name in lost if not -SLACK_S < before_s[name] < FLUSH_S + SLACK_S] == []
    assert max(told.values()) == 1
    assert skipped.foreign == 0
    assert skipped.torn <= 1
