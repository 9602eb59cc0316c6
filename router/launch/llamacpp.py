"""How our own llama.cpp server is started (see `llamacpp_server`).

Values in, a command out; nothing is looked up or run here.
"""

from __future__ import annotations

CONTEXT = 8192
SLOTS = 2
"""The context is shared out among the slots: 4,096 tokens a conversation."""


def command(
    *, python: str, path: str, repo: str, file: str, alias: str, port: int, threads: int
) -> tuple[str, ...]:
    """The server in a process of its own, with a file or a place on the hub to fetch it from."""
    weights = ("--model-path", path) if path else ("--hub-repo", repo, "--hub-file", file)
    flags = ("--alias", alias, "--port", str(port), "--threads", str(threads))
    room = ("--ctx", str(CONTEXT), "--slots", str(SLOTS))
    return (python, "-m", "router.launch.llamacpp_server", *weights, *flags, *room)
