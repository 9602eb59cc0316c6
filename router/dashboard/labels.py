"""What a request should have been, by the person who looked at it: rows for `eval` and `suggest`.

They are appended to `labels.jsonl` in the folder of the request's log. A row holds the prompt, so
it can be written only where bodies are kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from router.dashboard.refusal import Refused, no_body
from router.errors import ClientError
from router.record import timestamp

FILE = "labels.jsonl"
_READ_BYTES = 64 << 20


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """What the page sends."""

    scenario: str
    thinking: bool | None = None  # whether thinking pays here
    note: str | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.scenario) <= 64 or len(self.note or "") > 1000:
            raise ValueError("a scenario has 1 to 64 characters, a note at most 1000")


def wanted(raw: bytes) -> Wanted:
    """Raises ClientError."""
    try:
        return msgspec.json.decode(raw, type=Wanted)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(f"A label is {{scenario, thinking?, note?}}: {error}.") from None


def refusal(
    folder: Path, record: Mapping[str, Any], body: Mapping[str, Any] | None
) -> Refused | None:
    """Why this request cannot be given a label; None where it can, as far as is known."""
    if body is None:
        return no_body(record)
    if not body["prompt"] or body["prompt"][-1]["role"] != "user":
        return Refused("no_user_turn", "What was kept does not end with what the user wrote.")
    if not os.access(folder, os.W_OK):
        return Refused("not_writable", "The log's folder is not ours to write in.")
    return None


def write(
    folder: Path, record: Mapping[str, Any], body: Mapping[str, Any] | None, wanted: Wanted
) -> dict[str, Any]:
    """Append a row, and give it. Raises Refused."""
    if (refused := refusal(folder, record, body)) is not None:
        raise refused
    assert body is not None
    messages = [
        {"role": message["role"], "content": message["content"]} for message in body["prompt"]
    ]
    row = {
        "ts": timestamp(time.time()),
        "id": record["request_id"],
        "label": wanted.scenario,
        "messages": messages,
        "source": "dashboard",
        "was": record.get("scenario"),
    }
    if wanted.thinking is not None:
        row["think"] = wanted.thinking
    if record.get("lang"):
        row["lang"] = record["lang"]
    if wanted.note:
        row["note"] = wanted.note
    if body.get("cut"):
        row["cut"] = True
    line = msgspec.json.encode(row) + b"\n"
    try:
        fd = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        try:
            os.write(fd, line)  # one append: whole, whoever else writes
        finally:
            os.close(fd)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Refused("not_writable", f"The label cannot be written: {reason}.") from None
    return row


def about(folder: Path, request_id: str) -> list[dict[str, Any]]:
    """The labels that a request was given, the oldest first."""
    wanted = msgspec.json.encode(request_id)
    found: list[dict[str, Any]] = []
    with suppress(OSError), (folder / FILE).open("rb") as file:
        for line in file.read(_READ_BYTES).split(b"\n"):
            if wanted in line:
                with suppress(msgspec.DecodeError, RecursionError):
                    row = msgspec.json.decode(line, type=dict[str, Any])
                    if row.get("id") == request_id:
                        names = ("ts", "label", "think", "note")
                        ts, label, think, note = (row.get(name) for name in names)
                        found.append({"ts": ts, "scenario": label, "thinking": think, "note": note})
    return found


def is_possible(folders: Sequence[Path]) -> bool:
    return any(os.access(folder, os.W_OK) for folder in folders)
