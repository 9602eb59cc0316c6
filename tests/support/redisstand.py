"""A real Redis for the cases that need one, behind a relay that can be slow.

The server is a process of its own, so it can be frozen; the product only ever sees
the relay's port. Keys are read past the relay.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import BinaryIO, Self

from tests.support.rawclient import HOST, READ_SIZE, shut


class RedisStand:
    """`redis-server` and a relay; `url` is for the product."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.delay_s = 0.0  # each way
        self._listener = socket.create_server((HOST, 0))
        self.url = f"redis://{HOST}:{self._listener.getsockname()[1]}/0"
        self._open: set[socket.socket] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.thaw()
        self.stop()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            ["redis-server", "--port", str(self._port), "--bind", HOST, "--save", ""],
            cwd=self._folder,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if b"Ready to accept connections" in line:
                # What it says later nobody reads; the pipe must not fill up.
                threading.Thread(target=self._process.stdout.read, daemon=True).start()
                return
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
        for sock in list(self._open):
            shut(sock)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def keys(self) -> dict[str, int]:
        """Every key and the seconds it has left; -1 without an end."""
        with socket.create_connection((HOST, self._port), 5) as sock, sock.makefile("rb") as lines:
            names = _ask(sock, lines, "KEYS", "*")
            assert isinstance(names, list)
            return {str(name): int(str(_ask(sock, lines, "TTL", str(name)))) for name in names}

    # --- the relay ---

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # the stand is taken down
            try:
                server = socket.create_connection((HOST, self._port), 5)
            except OSError:
                client.close()  # the server is down: so is this connection
                continue
            server.settimeout(None)
            self._open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        """Bytes one way, each piece `delay_s` late, in order and without piling up."""
        with contextlib.suppress(OSError):  # either end may go; the other is told below
            while data := source.recv(READ_SIZE):
                time.sleep(self.delay_s)
                target.sendall(data)
        shut(target)
        source.close()
        self._open.discard(source)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def _ask(sock: socket.socket, lines: BinaryIO, *words: str) -> object:
    """One command and its reply, in Redis' own protocol."""
    parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    sock.sendall(f"*{len(parts)}\r\n{''.join(parts)}".encode())
    return _reply(lines)


def _reply(lines: BinaryIO) -> object:
    kind, rest = (line := lines.readline().decode().rstrip())[:1], line[1:]
    match kind:
        case "*":
            return [_reply(lines) for _ in range(int(rest))]
        case "$":
            return lines.read(int(rest) + 2)[:-2].decode()
        case ":" | "+":
            return rest
        case _:
            raise AssertionError(f"redis said {line!r}")
