"""What machines ask for: models, health, readiness, version, metrics, the OpenAPI document.

Also what is not there: 404, and 405 for a wrong method.

Plain functions from a request to a whole answer; no framework is loaded for them. The
operator's pages are elsewhere (pages.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import orjson

from router import __version__, compiled, permission
from router.errors import BadKey, MethodNotAllowed, ModelNotFound, NotFound, RouterError
from router.keyring import Grant

if TYPE_CHECKING:
    from router.app import App

_JSON = "application/json"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
#: whose pages are the operator's
OPERATORS = (b"/router/", b"/dashboard")


class Door(Enum):
    """Who an address is for."""

    ALL = "all"
    CLIENTS = "clients"  # there is another for operators
    OPERATORS = "operators"


class Page(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes
    content_type: str = _JSON
    headers: Mapping[str, str] = {}
    pieces: Iterator[str] | None = None  # in place of the body, where that takes its time


def headers_of(fault: RouterError) -> Mapping[str, str]:
    """What an error says beside its body."""
    return {"WWW-Authenticate": "Bearer"} if isinstance(fault, BadKey) else {}


def not_found(method: str, path: str) -> NotFound:
    return NotFound(
        f"There is nothing at {method} {path}; inference is at POST /v1/chat/completions."
    )


class Plain:
    """The plain pages of one worker."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._pages = {
            "/health": self._health,
            "/ready": self._ready,
            "/version": self._version,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
        }

    def page(
        self,
        method: str,
        target: str,
        *,
        is_inference: bool,
        door: Door,
        admit: Callable[[], Grant | None],
    ) -> Page:
        """The answer. `is_inference`: the path takes POST, which this was not.

        `door`: where it was asked. `admit` gives what the client's key opens, or raises BadKey;
        it is called for what is not everybody's.
        """
        path = unquote(target.partition("?")[0])
        short = path.removeprefix("/v1") if path.startswith("/v1/") else path
        name = short.rstrip("/")
        page = self._pages.get(name)
        is_of_models = name == "/models" or short.startswith("/models/")
        try:
            if door is Door.OPERATORS and (is_inference or is_of_models):
                raise NotFound("This address is for operators; inference is at the other one.")
            if door is Door.CLIENTS and name == "/metrics":
                raise not_found(method, path)
            if is_inference:
                return _refused(method, "POST")
            if page is None and not is_of_models:
                raise not_found(method, path)
            if method not in ("GET", "HEAD"):
                return _refused(method, "GET, HEAD")
            if page is not None:
                return page()
            grant = admit()
            if name == "/models":
                return _json({"object": "list", "data": self._model_list(grant)})
            return self._model(short.removeprefix("/models/"), grant)
        except RouterError as fault:
            return Page(fault.status, fault.body(), _JSON, headers_of(fault))

    def _model(self, wanted: str, grant: Grant | None) -> Page:
        for model in self._model_list(grant):
            if model["id"] == wanted:
                return _json(model)
        raise ModelNotFound(f"The model {wanted!r} does not exist.", param="model")

    def _model_list(self, grant: Grant | None) -> list[dict[str, Any]]:
        live = self._app.pipeline.live
        created = int(self._app.started_at)
        scenarios: tuple[str, ...] = tuple(live.policy.scenarios)
        if grant is not None and grant.is_limited:
            scenarios = permission.scenarios(grant, live.policy)
        virtual = ["auto", *(f"auto:{name}" for name in scenarios)]
        listed: list[dict[str, Any]] = [
            {"id": name, "object": "model", "created": created, "owned_by": "scenario-router"}
            for name in [*virtual, *sorted(live.aliases)]
        ]
        real: dict[str, dict[str, Any]] = {}
        for slot in live.slots:
            if slot.model is None or not permission.may_reach(grant, slot.upstream.backend.pool):
                continue
            entry = real.setdefault(
                slot.model,
                {
                    "id": slot.model,
                    "object": "model",
                    "created": created,
                    "owned_by": slot.dialect.name,
                    "backends": [],
                },
            )
            entry["backends"].append(slot.name)
            if slot.label is not None:
                entry["label"] = slot.label
        return listed + list(real.values())

    def _health(self) -> Page:
        return _json({"status": "ok"})

    def _ready(self) -> Page:
        is_ready, reason = self._app.is_ready()
        if is_ready:
            return _json({"status": "ready"})
        return Page(
            503, _dumps({"status": "not ready", "reason": reason}), _JSON, {"Retry-After": "1"}
        )

    def _version(self) -> Page:
        return _json(
            {
                "version": __version__,
                "compiled": len(compiled.modules()),
                "policy": self._app.pipeline.live.policy.hash,
            }
        )

    def _openapi(self) -> Page:
        from router.server import openapi  # most processes are never asked for it

        return Page(200, openapi.page(for_operators=False))

    def _metrics(self) -> Page:
        return Page(200, b"", _TEXT, pieces=self._app.census.page())


def _refused(method: str, allowed: str) -> Page:
    fault = MethodNotAllowed(f"{method} is not allowed here; {allowed} is.")
    return Page(fault.status, fault.body(), _JSON, {"Allow": allowed})


def _json(value: Any) -> Page:
    return Page(200, _dumps(value))


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
