"""Everything that is not inference: models, health, metrics, explain, policy, the page.

One aiohttp application. Its connections are lent, one request at a time (hot.py).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import orjson
import structlog
from aiohttp import web

from router import __version__
from router import policy as policies
from router.chat import Endpoint
from router.errors import BadKey, ClientError, MethodNotAllowed, NotFound, RouterError
from router.explain import told
from router.pipeline import decide_for
from router.server.hot import endpoint_of
from router.server.statuspage import PAGE
from router.telemetry import Gauge
from router.tomlfile import FileFault

if TYPE_CHECKING:
    from router.app import App
    from router.server.hot import LentTransport, PageProtocol

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ENDPOINTS = {
    "chat.completions": Endpoint.CHAT,
    "completions": Endpoint.COMPLETIONS,
    "responses": Endpoint.RESPONSES,
}


def _json(value: Any, status: int = 200, **headers: str) -> web.Response:
    return web.Response(
        body=orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE),
        status=status,
        content_type="application/json",
        headers=headers,
    )


def _error(fault: RouterError) -> web.Response:
    return web.Response(body=fault.body(), status=fault.status, content_type="application/json")


class Pages:
    """The pages of one worker."""

    def __init__(self, app: App) -> None:
        self._app = app
        env = app.config.server.admin_key_env
        self._admin_key = os.environ[env].encode() if env else None
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=3600.0,  # the connection's own idle limit rules
        )

    async def start(self) -> None:
        await self._runner.setup()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def connection(self) -> PageProtocol:
        return cast("PageProtocol", cast(web.Server, self._runner.server)())

    def _application(self) -> web.Application:
        application = web.Application(
            middlewares=[self._outermost],
            client_max_size=int(self._app.config.server.body_limit_mb * 2**20),
        )
        get, post = application.router.add_get, application.router.add_post
        for prefix in ("", "/v1"):
            get(prefix + "/models", self._models)
            get(prefix + "/models/{id:.+}", self._model)
        get("/health", self._health)
        get("/ready", self._ready)
        get("/version", self._version)
        get("/metrics", self._metrics)
        get("/router/status", self._status)
        get("/router/policy", self._policy)
        post("/router/explain", self._explain)
        post("/router/policy/validate", self._validate)
        post("/router/policy/reload", self._reload)
        get("/dashboard", self._dashboard)
        return application

    @web.middleware
    async def _outermost(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors in the OpenAI shape, the admin key, and word that the page is written."""
        try:
            self._admit(request)
            response = await handler(request)
        except RouterError as fault:
            response = _error(fault)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = _error(
                MethodNotAllowed(f"{request.method} is not allowed here; {allowed} is.")
            )
            response.headers["Allow"] = allowed
        except web.HTTPNotFound:
            response = self._nothing_here(request)
        except web.HTTPException as error:
            refusal = ClientError(error.reason)
            refusal.status = error.status
            response = _error(refusal)
        except Exception:
            log.exception("page failed", path=request.path)
            response = _error(RouterError("The router failed on this page; its log says why."))
        pipeline = self._app.pipeline
        fields = {
            b"x-request-id": request.headers.get("X-Request-Id", "").encode("utf-8", "replace")
        }
        response.headers["X-Request-Id"] = pipeline.id_for(fields)
        response.headers["X-Router-Policy"] = pipeline.live.policy.hash
        response.headers["Server"] = "scenario-router"
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await response.write_eof()
        if not response.keep_alive:
            response.force_close()
        transport = cast("LentTransport | None", request.transport)
        if transport is not None:
            transport.page_done()
        return response

    def _nothing_here(self, request: web.Request) -> web.Response:
        """404, or 405 where another method would have been an inference request."""
        if endpoint_of(request.path.encode("utf-8", "surrogateescape")) is not None:
            response = _error(MethodNotAllowed(f"{request.method} is not allowed here; POST is."))
            response.headers["Allow"] = "POST"
            return response
        return _error(_not_found(request))

    def _admit(self, request: web.Request) -> None:
        if self._admin_key is None or not request.path.startswith(("/router/", "/dashboard")):
            return
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._admin_key):
            raise BadKey("The router's own pages need the admin key.")

    # ------------------------------------------------------------ for clients

    def _model_list(self) -> list[dict[str, Any]]:
        live = self._app.pipeline.live
        created = int(self._app.started_at)
        virtual = ["auto", *(f"auto:{name}" for name in live.policy.scenarios)]
        listed: list[dict[str, Any]] = [
            {"id": name, "object": "model", "created": created, "owned_by": "scenario-router"}
            for name in [*virtual, *sorted(live.aliases)]
        ]
        real: dict[str, dict[str, Any]] = {}
        for slot in live.slots:
            if slot.model is None:
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

    async def _models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": self._model_list()})

    async def _model(self, request: web.Request) -> web.Response:
        wanted = request.match_info["id"]
        for model in self._model_list():
            if model["id"] == wanted:
                return _json(model)
        fault = NotFound(f"The model {wanted!r} does not exist.", param="model")
        fault.code = "model_not_found"
        raise fault

    async def _health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        is_ready, reason = self._app.is_ready()
        if is_ready:
            return _json({"status": "ready"})
        return _json({"status": "not ready", "reason": reason}, status=503, **{"Retry-After": "1"})

    async def _version(self, request: web.Request) -> web.Response:
        return _json({"version": __version__, "policy": self._app.pipeline.live.policy.hash})

    async def _metrics(self, request: web.Request) -> web.Response:
        self._app.pipeline.settle()
        text = self._app.metrics.text(self._gauges())
        return web.Response(
            body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    def _gauges(self) -> list[Gauge]:
        app = self._app
        slots = app.slots
        journal = app.journal
        policy = app.pipeline.live.policy
        return [
            Gauge(
                "backend_up",
                "1 while checks succeed.",
                ("backend",),
                [((slot.name,), float(slot.health.is_up)) for slot in slots],
            ),
            Gauge(
                "backend_inflight",
                "Requests under way.",
                ("backend",),
                [((slot.name,), slot.upstream.inflight) for slot in slots],
            ),
            Gauge("inflight", "Requests under way in all.", (), [((), len(app.pipeline.active))]),
            Gauge("policy_info", "The policy in force.", ("hash",), [((policy.hash,), 1)]),
            Gauge(
                "policy_last_reload_timestamp_seconds",
                "When it was taken.",
                (),
                [((), app.keeper.loaded_at)],
            ),
            Gauge("log_written_lines", "Records on disk.", (), [((), journal.written)]),
            Gauge("log_dropped_lines", "Records lost to the disk.", (), [((), journal.dropped)]),
        ]

    # ------------------------------------------------------------ for operators

    async def _status(self, request: web.Request) -> web.Response:
        app = self._app
        live = app.pipeline.live
        is_ready, reason = app.is_ready()
        return _json(
            {
                "version": __version__,
                "uptime_s": round(time.time() - app.started_at, 1),
                "pid": os.getpid(),
                "ready": is_ready,
                "reason": reason,
                "inflight": len(app.pipeline.active),
                "policy": {
                    "file": str(app.policy_path),
                    "hash": live.policy.hash,
                    "scenarios": list(live.policy.scenarios),
                    "loaded_at": app.keeper.loaded_at,
                    "last_error": app.keeper.last_error,
                },
                "backends": [
                    {
                        "name": slot.name,
                        "url": slot.upstream.backend.url,
                        "pool": slot.upstream.backend.pool,
                        "dialect": slot.dialect.name,
                        "model": slot.model,
                        "label": slot.label,
                        "up": slot.health.is_up and slot.health.is_known,
                        "since": slot.health.since,
                        "reason": slot.health.reason,
                        "inflight": slot.upstream.inflight,
                        "max_inflight": slot.upstream.backend.max_inflight,
                        "weight": slot.upstream.backend.weight,
                    }
                    for slot in live.slots
                ],
                "log": {
                    "dir": app.config.log.dir,
                    "written": app.journal.written,
                    "dropped": app.journal.dropped,
                    "fault": app.journal.fault,
                },
            }
        )

    async def _policy(self, request: web.Request) -> web.Response:
        policy = self._app.pipeline.live.policy
        etag = f'"{policy.hash}"'
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304, headers={"ETag": etag})
        return web.Response(
            text=policy.text, content_type="application/toml", headers={"ETag": etag}
        )

    async def _validate(self, request: web.Request) -> web.Response:
        try:
            text = (await request.read()).decode()
            policy = policies.parse(text, "policy")
        except UnicodeDecodeError:
            return _json({"valid": False, "mistakes": [{"message": "not UTF-8"}]}, status=400)
        except FileFault as fault:
            mistakes = [
                {"path": m.path, "line": m.line, "message": m.message} for m in fault.mistakes
            ]
            return _json({"valid": False, "mistakes": mistakes}, status=400)
        return _json({"valid": True, "hash": policy.hash, "scenarios": list(policy.scenarios)})

    async def _reload(self, request: web.Request) -> web.Response:
        error = await self._app.keeper.reload()
        policy = self._app.pipeline.live.policy
        if error is not None:
            return _json({"reloaded": False, "error": error, "hash": policy.hash}, status=400)
        return _json({"reloaded": True, "hash": policy.hash})

    async def _explain(self, request: web.Request) -> web.Response:
        name = request.query.get("endpoint", "chat.completions")
        endpoint = _ENDPOINTS.get(name)
        if endpoint is None:
            raise ClientError(f"endpoint must be one of {', '.join(_ENDPOINTS)}.", param="endpoint")
        live = self._app.pipeline.live
        headers = {
            name.lower(): value for name, value in request.raw_headers
        }  # as the serving path sees them
        verdict = decide_for(endpoint, await request.read(), headers, live)
        return _json(told(verdict, live, live.pools.get(verdict.decision.pool, ())))

    async def _dashboard(self, request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")


def _not_found(request: web.Request) -> NotFound:
    return NotFound(
        f"There is nothing at {request.method} {request.path}; inference is at "
        "POST /v1/chat/completions."
    )
