"""What the dashboard will not do, and a word for the page to know it by."""

from __future__ import annotations

from router.errors import ClientError


class Refused(ClientError):
    """409 where what is asked for cannot be done with what there is; else as said."""

    def __init__(self, code: str, message: str, *, status: int = 409) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
