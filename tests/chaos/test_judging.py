"""What counts as answered, as failed and as lost."""

from __future__ import annotations

import pytest

from router.errors import BackendError
from tests.chaos.asking import fate_of
from tests.chaos.streams import lags_of
from tests.support.rawclient import Frame, RawReply

ERROR = BackendError("The backend broke off.").body()
EVENT = b'data: {"choices": [{"delta": {"content": "1.5 "}}]}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = b'{"choices": [{"message": {"content": "yes"}}]}'


def reply(body: bytes, status: int | None = 200, *, is_whole: bool = True) -> RawReply:
    return RawReply(status=status, frames=[Frame(2.0, body)], ended_properly=is_whole)


@pytest.mark.parametrize(
    ("seen", "stream", "fate"),
    [
        (reply(WHOLE), False, "answered"),
        (reply(EVENT + DONE), True, "answered"),
        (reply(ERROR, 502), False, "failed"),
        (reply(ERROR, 502), True, "failed"),
        (reply(EVENT + b"data: " + ERROR + b"\n\n"), True, "failed"),
        (reply(b"", None), False, "lost"),
        (reply(WHOLE, is_whole=False), False, "lost"),
        (reply(b"{}"), False, "lost"),
        (reply(b"Bad Gateway", 502), False, "lost"),
        (reply(b'{"error": "no"}', 502), False, "lost"),
        (reply(EVENT), True, "lost"),
        (reply(EVENT + DONE, is_whole=False), True, "lost"),
        (reply(b""), True, "lost"),
    ],
)
def test_a_request_is_answered_or_told_why_or_it_is_lost(
    seen: RawReply, stream: bool, fate: str
) -> None:
    assert fate_of(seen, stream=stream)[0] == fate


def test_the_way_of_each_frame_is_told_by_the_frame() -> None:
    frames = [
        Frame(2.0, EVENT),
        Frame(3.0, EVENT[:20]),
        Frame(4.0, EVENT[20:] + EVENT),
        Frame(5, DONE),
    ]

    assert lags_of(RawReply(frames=frames)) == [0.5, 2.5, 2.5]
