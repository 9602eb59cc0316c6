"""What the dashboard will not do, and a word for the page to know it by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.errors import ClientError


class Refused(ClientError):
    """409 where what is asked for cannot be done with what there is; else as said."""

    def __init__(self, code: str, message: str, *, status: int = 409) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def no_body(record: Mapping[str, Any]) -> Refused:
    """There is no prompt of this request to go by."""
    if record.get("shadow"):
        return Refused("repeat", "A repeat in the background; its request has the prompt.")
    return Refused(
        "no_body", "The prompt of this request was not kept; [log] bodies keeps prompts."
    )
