"""One small question to a server, and what came back; bounded in time and size.

A fresh connection each: what is asked about is the server, not its keep-alive.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Any, Self

import httpx
import msgspec
import orjson

from router.probe import document_in

_BODY_LIMIT = 1 << 20
_TOLD, _SAID = 160, 8_000


class DoctorError(Exception):
    """The backend cannot be examined; the text says why, for whoever asked."""


class NoAnswer(Exception):
    """One question got no whole answer."""


class Answer(msgspec.Struct, frozen=True):
    status: int
    server: str  # its Server header
    body: bytes

    def json(self) -> Any:
        return document_in(self.body)

    def told(self) -> str:
        """The status, and how what an error says begins."""
        return f"{self.status} {condensed(self.said())}".rstrip()

    def said(self) -> str:
        """What an error says, in whatever shape it comes."""
        document = self.json()
        said = document
        if isinstance(document, dict):
            said = document.get("error") or document.get("detail") or document
            if isinstance(said, dict) and isinstance(said.get("message"), str):
                said = said["message"]
        if not isinstance(said, str):
            said = self.body.decode(errors="replace") if said is None else orjson.dumps(said)
        return (said.decode() if isinstance(said, bytes) else said)[:_SAID]


def condensed(text: str) -> str:
    """As much of a text as fits in a line."""
    return " ".join(text.split())[:_TOLD]


class Asker:
    """Asks one server, one question at a time."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout_s: float = 30.0,
        limit_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        trust: ssl.SSLContext | None = None,
        tls_name: str | None = None,
    ) -> None:
        """Each question may take `timeout_s`, all of them together `limit_s` from now.

        `trust` is how an https server is verified, `tls_name` whom its certificate must be for;
        left out: by what this system trusts, and the host of its url.
        """
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        self.timeout_s = timeout_s
        self._clock = clock
        self._limit_s, self._until = limit_s, clock() + limit_s
        if key is not None and not (key.isascii() and key.isprintable()):
            raise DoctorError("the key holds what no header can carry")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._extensions = {"sni_hostname": tls_name} if tls_name is not None else {}
        self._client = httpx.Client(
            headers=headers,
            trust_env=False,
            verify=trust if trust is not None else ssl.create_default_context(),
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    @property
    def why_late(self) -> str:
        """Why nothing more can be asked; empty while there is time."""
        return f"{self._limit_s:g} s were enough" if self._clock() >= self._until else ""

    def get(self, path: str) -> Answer:
        return self._ask("GET", path, None)

    def post(self, path: str, body: bytes, *, patience: float = 1) -> Answer:
        """`patience` is how many times longer than others the question may take."""
        return self._ask("POST", path, body, patience)

    def _ask(self, method: str, path: str, body: bytes | None, patience: float = 1) -> Answer:
        headers = {} if body is None else {"content-type": "application/json"}
        if why := self.why_late:
            raise NoAnswer(f"not asked: {why}")
        now = self._clock()
        deadline = min(now + self.timeout_s * patience, self._until)
        late = f"no answer within {deadline - now:.3g} s"
        try:
            with self._client.stream(
                method,
                self.url + path,
                content=body,
                headers=headers,
                timeout=deadline - now,
                extensions=self._extensions,
            ) as reply:
                read = b""
                for piece in reply.iter_bytes():
                    read += piece
                    if self._clock() > deadline:
                        raise NoAnswer(late)
                    if len(read) > _BODY_LIMIT:
                        raise NoAnswer("an answer of more than a megabyte")
                return Answer(reply.status_code, reply.headers.get("server", ""), read)
        except httpx.TimeoutException:
            raise NoAnswer(late) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise NoAnswer(f"{type(error).__name__} {error}".rstrip()) from None
