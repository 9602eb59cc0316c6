"""A backend that says any bytes at all, and keeps all that it was sent.

    with RawBackend() as backend:
        backend.answers = [b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\n{}"]
        ...
        assert backend.heard()[0].startswith(b"POST /v1/chat/completions ")

For answers that no server should give; `scripted.py` tells all that a decent one does.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Self

from tests.support.rawclient import HOST

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_MODELS = b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}'


def whole(body: bytes, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    """An ordinary answer with these further header lines."""
    told = b"".join(line + b"\r\n" for line in lines)
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, told, len(body), body)


class RawBackend:
    """Answers the requests on each connection with `answers`, one after another, the last again
    and again. An answer of several pieces is sent piece by piece; `then` is called after each.
    """

    def __init__(self) -> None:
        self.answers: Sequence[bytes | Sequence[bytes]] = [whole(b"{}")]
        self.probe: bytes = whole(_MODELS, b"content-type: application/json")
        self.answers_heads = False  # as soon as one is there, and reads no body
        self.sent = 0  # bytes of answers since it forgot
        self.connections = 0  # since it began
        self._streams: dict[int, bytearray] = {}  # of connections that asked more than health
        self._probed: list[bytes] = []
        self._given = 0
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._socket = socket.create_server((HOST, 0))
        self._socket.settimeout(0.2)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(5)
        self._socket.close()

    def heard(self) -> list[bytes]:
        """All bytes that came on each connection, probes of the router's own left out."""
        with self._lock:
            return [bytes(stream) for stream in self._streams.values()]

    def probed(self) -> list[bytes]:
        """The heads of the router's own questions."""
        with self._lock:
            return list(self._probed)

    def forget(self) -> None:
        with self._lock:
            self._streams, self._probed, self._given, self.sent = {}, [], 0, 0

    def wait(self, is_so: Callable[[], bool], timeout_s: float = 5.0) -> bool:
        """Whether it becomes so in time."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > deadline or self._ended.wait(0.01):
                return False
        return True

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(0.2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = next(self._numbers)
        buffer = b""
        with connection, contextlib.suppress(OSError):
            while not self._ended.is_set():
                with contextlib.suppress(TimeoutError):
                    data = connection.recv(65536)
                    if not data:
                        return
                    buffer += data
                    if not buffer.startswith(b"GET "):
                        with self._lock:
                            self._streams.setdefault(number, bytearray()).extend(data)
                if self.answers_heads and b"\r\n\r\n" in buffer:
                    self._answer(connection, buffer)
                    self._ended.wait()  # the rest is read by nobody
                while (size := _size(buffer)) is not None and len(buffer) >= size:
                    request, buffer = buffer[:size], buffer[size:]
                    self._answer(connection, request)

    def _answer(self, connection: socket.socket, request: bytes) -> None:
        if request.startswith(b"GET "):
            with self._lock:
                self._probed.append(request)
            connection.sendall(self.probe)
            return
        with self._lock:
            answer = self.answers[min(self._given, len(self.answers) - 1)]
            self._given += 1
        for piece in [answer] if isinstance(answer, bytes) else answer:
            connection.sendall(piece)
            with self._lock:
                self.sent += len(piece)


def _size(buffer: bytes) -> int | None:
    """Of the first request in these bytes, as far as its head tells."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = _LENGTH.search(buffer[: end + 2])
    return end + 4 + (int(length[1]) if length else 0)
