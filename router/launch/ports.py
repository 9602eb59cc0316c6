"""Ports of this machine's loopback that nobody listens on."""

from __future__ import annotations

import contextlib
import socket


def free(count: int) -> list[int]:
    """As many different ones. Another program may take one before it is used: then the engine
    that was to have it says so when it starts."""
    with contextlib.ExitStack() as held:
        doors = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(door.getsockname()[1]) for door in doors]
