"""The operator's pages: status, policy, explain, the dashboard.

One aiohttp application. Its connections are lent, one request at a time (hot.py). It is
loaded when the first of its pages is asked for: probes and scrapes, which every
deployment has, do without it and without its 13 MB (plain.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import orjson
import structlog
from aiohttp import web

from router import __version__, heads, policycheck, reading, tomlfile, visitors
from router import policy as policies
from router.chat import Endpoint
from router.errors import BadKey, ClientError, InvalidJson, NotFound
from router.explain import told
from router.keyring import Grant, digest_of
from router.policy import Policy
from router.policycheck import Finding
from router.server import openapi
from router.server.dashboard import OPEN, Dashboard
from router.server.faults import answer_to
from router.tomlfile import FileFault
from router.verdict import Slot, decide_for

if TYPE_CHECKING:
    from router.app import App
    from router.journal import BodyJournal
    from router.retention import Retention
    from router.server.hot import LentTransport, PageProtocol

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ENDPOINTS = {
    "chat.completions": Endpoint.CHAT,
    "completions": Endpoint.COMPLETIONS,
    "responses": Endpoint.RESPONSES,
}


def _counts(bodies: BodyJournal | None) -> dict[str, Any] | None:
    if bodies is None:
        return None
    return {"written": bodies.written, "dropped": bodies.dropped, "fault": bodies.fault}


def _kept(retention: Retention | None) -> dict[str, Any] | None:
    if retention is None:
        return None
    return {
        "packed": retention.packed,
        "removed": retention.removed,
        "fault": retention.fault,
    }


def _json(value: Any, status: int = 200, **headers: str) -> web.Response:
    return web.Response(
        body=orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE),
        status=status,
        content_type="application/json",
        headers=headers,
    )


class Pages:
    """The pages of one worker."""

    def __init__(self, app: App) -> None:
        self._app = app
        env = app.config.server.admin_key_env
        self._admin_key = digest_of(os.environ[env].encode()) if env else None
        self._guard = app.guard if env is None else None
        self._dashboard = Dashboard(app)
        head_limit = app.config.server.header_limit_kb << 10
        self._runner = web.AppRunner(
            self._application(),
            # The edge has measured each head, and refuses in our shape: never let this one do it.
            max_line_size=head_limit,
            max_field_size=head_limit,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=3600.0,  # the connection's own idle limit rules
            shutdown_timeout=2.0,
        )

    async def start(self) -> None:
        await self._runner.setup()

    async def stop(self) -> None:
        await self._dashboard.stop()
        await self._runner.cleanup()

    def connection(self) -> PageProtocol:
        return cast("PageProtocol", cast(web.Server, self._runner.server)())

    def _application(self) -> web.Application:
        application = web.Application(
            middlewares=[self._outermost],
            client_max_size=int(self._app.config.server.body_limit_mb * 2**20),
        )
        get, post = application.router.add_get, application.router.add_post
        get("/router/status", self._status)
        get("/router/policy", self._policy)
        get("/router/openapi.json", self._openapi)
        post("/router/explain", self._explain)
        get("/router/experiments", self._experiments)
        post("/router/experiments/{name}/stop", self._stop_arm)
        post("/router/experiments/{name}/start", self._start_arm)
        post("/router/policy/validate", self._validate)
        post("/router/policy/reload", self._reload)
        post("/router/backends/{name}/drain", self._drain)
        post("/router/backends/{name}/undrain", self._undrain)
        for path in ("/dashboard", "/dashboard/{rest:.*}"):
            get(path, self._dashboard.answer)
            post(path, self._dashboard.answer)
        application.on_response_prepare.append(self._sign)
        return application

    @web.middleware
    async def _outermost(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors in the OpenAI shape, the admin key, and word that the page is written."""
        try:
            self._admit(request)
            response = await handler(request)
        except Exception as error:
            response = answer_to(request, error)
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await response.write_eof()
        if not response.keep_alive:
            response.force_close()
        transport = cast("LentTransport | None", request.transport)
        if transport is not None:
            transport.page_done()
        return response

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        """What every answer says, put in just before its head is written."""
        pipeline = self._app.pipeline
        fields = {
            b"x-request-id": request.headers.get("X-Request-Id", "").encode("utf-8", "replace")
        }
        response.headers["X-Request-Id"] = pipeline.id_for(fields)
        response.headers["X-Router-Policy"] = pipeline.live.policy.hash
        response.headers["Server"] = "scenario-router"
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")

    def _admit(self, request: web.Request) -> None:
        """Raises BadKey, or Forbidden. The dashboard's files hold nothing of anybody's, and ask
        for the key."""
        told = request.headers
        if self._guard is not None:
            self._guard.check_host(told.get("Host", ""))
        if request.method not in ("GET", "HEAD", "OPTIONS"):  # nothing is done by those
            visitors.check_writes(
                told.get("Sec-Fetch-Site", ""), told.get("Origin"), told.get("Host", "")
            )
        if self._admin_key is None or OPEN.fullmatch(request.rel_url.raw_path):
            return
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        key = heads.bearer({b"authorization": given}) or b""
        if not hmac.compare_digest(digest_of(key), self._admin_key):
            raise BadKey("The router's own pages need the admin key.")

    async def _status(self, request: web.Request) -> web.Response:
        app = self._app
        live = app.pipeline.live
        learned = live.classifier.learned
        now = app.census.live()
        counted = app.census.counted()
        is_ready, reason = app.is_ready()
        return _json(
            {
                "version": __version__,
                "uptime_s": round(time.time() - app.started_at, 1),
                "pid": os.getpid(),
                "ready": is_ready,
                "reason": reason,
                "inflight": now.inflight,
                "waiting": now.waiting,
                "workers": [
                    {
                        "worker": report.worker,
                        "pid": report.pid,
                        "inflight": report.inflight,
                        "waiting": report.waiting,
                        "sessions": report.sessions,
                        "policy": report.policy,
                        # when it last told of itself; long ago: it hangs
                        "age_s": round(max(0.0, now.at - report.at), 1),
                    }
                    for report in now.workers
                ],
                "policy": {
                    "file": str(app.policy_path),
                    "hash": live.policy.hash,
                    "scenarios": list(live.policy.scenarios),
                    "loaded_at": app.keeper.loaded_at,
                    "last_error": app.keeper.last_error,
                    # on examples that were left out of the fit; null: words and shapes alone
                    "learned": None if learned is None else dict(learned.weights.measured),
                },
                "config": {
                    "file": str(app.config_keeper.path),
                    "loaded_at": app.config_keeper.loaded_at,
                    "last_error": app.config_keeper.last_error,
                    "waiting": app.config_keeper.waiting,  # for a restart
                },
                "keys": self._keys(),
                "tls": await asyncio.to_thread(app.certificates),
                "backends": [
                    {
                        "name": slot.name,
                        "configured": app.fleet.origin(slot),  # several addresses, one name
                        "url": slot.upstream.backend.url,
                        "pool": slot.upstream.backend.pool,
                        "dialect": slot.dialect.name,
                        "model": slot.model,
                        "label": slot.label,
                        "up": slot.health.is_up and slot.health.is_known,
                        "since": slot.health.since,
                        "reason": slot.health.reason,
                        "state": slot.health.state(time.time(), app.pipeline.rules),
                        "draining": slot.is_draining,
                        "inflight": now.backends[slot.name].inflight,  # of all workers
                        "max_inflight": slot.max_inflight * len(now.workers),
                        "context": slot.dialect.context,
                        "fitted": bool(slot.dialect.variant),  # to what this server was seen to do
                        "warm_up": slot.warm_up,
                        "prefix": {
                            "kept": slot.dialect.keeps_prefix,
                            **counted.prefix(slot.name),
                        },
                        "weight": slot.upstream.backend.weight,
                    }
                    for slot in live.slots
                ],
                "affinity": app.pipeline.affinity.status(),
                "rates": {
                    **app.pipeline.rates.status(),
                    # of those that have limits; as far as this worker knows
                    "keys": app.keys_used(),
                },
                # of this worker; null: nothing is sent
                "telemetry": app.exporter.status() if app.exporter is not None else None,
                "experiments": await app.referee.status(),
                "log": {
                    "dir": app.config.log.dir,
                    "written": counted.counters["log_written_total"][()],
                    "dropped": counted.counters["log_dropped_total"][()],
                    "fault": app.journal.fault,
                    # of this worker
                    "bodies": _counts(app.bodies),
                    "kept": _kept(app.retention),
                },
            }
        )

    def _keys(self) -> dict[str, Any] | None:
        """Of clients; null: nobody is asked for one."""
        keyring, keeper = self._app.hub.keyring, self._app.keys_keeper
        if keyring is None:
            return None
        return {
            "count": len(keyring.grants),
            "file": keeper and str(keeper.path),
            "loaded_at": keeper and keeper.loaded_at,
            "last_error": keeper and keeper.last_error,
        }

    async def _policy(self, request: web.Request) -> web.Response:
        policy = self._app.pipeline.live.policy
        etag = f'"{policy.hash}"'
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304, headers={"ETag": etag})
        return web.Response(
            text=policy.text,
            content_type="application/toml",
            headers={"ETag": etag, "Cache-Control": "no-cache"},
        )

    async def _openapi(self, request: web.Request) -> web.Response:
        """What is served, the operator's pages included."""
        return web.Response(body=openapi.page(for_operators=True), content_type="application/json")

    async def _validate(self, request: web.Request) -> web.Response:
        """Whether a reload would take this text, and what `check` would say of it."""
        try:
            text = (await request.read()).decode()
            policy, findings = await asyncio.to_thread(self._judged, text)
        except UnicodeDecodeError:
            return _json({"valid": False, "mistakes": [{"message": "not UTF-8"}]}, status=400)
        except FileFault as fault:
            mistakes = [
                {"path": m.path, "line": m.line, "message": m.message} for m in fault.mistakes
            ]
            return _json({"valid": False, "mistakes": mistakes}, status=400)
        return _json(
            {
                "valid": True,
                "hash": policy.hash,
                "scenarios": list(policy.scenarios),
                "tests": len(policy.file.tests),
                "findings": [finding.told() for finding in findings],
            }
        )

    def _judged(self, text: str) -> tuple[Policy, list[Finding]]:
        folder = self._app.policy_path.parent
        policy = reading.elsewhere(
            policies.parse, text, "policy", folder, others=self._app.pipeline.live.policy.beside
        )
        self._app.keeper.prepared(policy)
        beside = {str(path): tomlfile.read(path) for path in policy.beside}
        return policy, policycheck.findings(policy, self._app.config.backends, beside)

    async def _reload(self, request: web.Request) -> web.Response:
        """The policy is what is answered for; configuration and keys are told of beside it."""
        error = await self._app.reload()
        told: dict[str, Any] = {"reloaded": error is None}
        if error is not None:
            told["error"] = error
        told["hash"] = self._app.pipeline.live.policy.hash
        keeper = self._app.config_keeper
        told["config"] = {
            "reloaded": keeper.last_error is None,
            "error": keeper.last_error,
            "waiting": keeper.waiting,
        }
        if (keys := self._app.keys_keeper) is not None:
            told["keys"] = {"reloaded": keys.last_error is None, "error": keys.last_error}
        return _json(told, status=200 if error is None else 400)

    async def _drain(self, request: web.Request) -> web.Response:
        return self._drained(*self._app.fleet.drain(request.match_info["name"]), request)

    async def _undrain(self, request: web.Request) -> web.Response:
        return self._drained(*self._app.fleet.undrain(request.match_info["name"]), request)

    def _drained(
        self, slots: Sequence[Slot], fault: str | None, request: web.Request
    ) -> web.Response:
        if not slots:
            exist = ", ".join(slot.name for slot in self._app.slots)
            name = request.match_info["name"]
            raise NotFound(f"There is no backend {name!r}. There are: {exist}.")
        return _json(
            {
                "backends": [
                    {
                        "name": slot.name,
                        "draining": slot.is_draining,
                        "inflight": slot.upstream.inflight,
                    }
                    for slot in slots
                ],
                # Others look the same up in a folder that all share.
                "warning": fault and f"other workers cannot be told: {fault}",
            }
        )

    async def _experiments(self, request: web.Request) -> web.Response:
        return _json(await self._experiments_told(None))

    async def _experiments_told(self, fault: str | None) -> dict[str, Any]:
        referee = self._app.referee
        return {
            "experiments": await referee.status(),
            "policy": self._app.pipeline.live.policy.hash,
            "file": str(self._app.policy_path),
            # Others look the same up in a folder that all share.
            "warning": (fault := fault or referee.fault)
            and f"other workers cannot be told: {fault}",
        }

    async def _stop_arm(self, request: web.Request) -> web.Response:
        return await self._change_arm(request, self._app.referee.stop)

    async def _start_arm(self, request: web.Request) -> web.Response:
        return await self._change_arm(request, self._app.referee.start)

    async def _change_arm(
        self, request: web.Request, change: Callable[[str, str | None], Awaitable[str | None]]
    ) -> web.Response:
        """Of an experiment: the arm that `?arm=` names, or all but control."""
        name, arm = request.match_info["name"], request.query.get("arm")
        try:
            fault = await change(name, arm)
        except KeyError:
            there = self._app.pipeline.live.policy.file.experiments
            if name not in there:
                exist = ", ".join(there) or "none"
                raise NotFound(f"There is no experiment {name!r}. There are: {exist}.") from None
            arms = ", ".join(one for one in there[name].arms if one != there[name].control)
            raise NotFound(
                f"{name} has no arm {arm!r} beside control. There are: {arms}."
            ) from None
        return _json(await self._experiments_told(fault))

    async def _explain(self, request: web.Request) -> web.Response:
        name = request.query.get("endpoint", "chat.completions")
        endpoint = _ENDPOINTS.get(name)
        if endpoint is None:
            raise ClientError(f"endpoint must be one of {', '.join(_ENDPOINTS)}.", param="endpoint")
        live = self._app.pipeline.live
        headers = {
            name.lower(): value for name, value in request.raw_headers
        }  # as the serving path sees them
        request_id = heads.given_id(headers) or ""
        grant = self._grant_called(request.query["key"]) if "key" in request.query else None
        verdict = decide_for(
            endpoint, await request.read(), headers, live, request_id=request_id, grant=grant
        )
        found = told(verdict, live, live.pools.get(verdict.decision.pool, ()), grant)
        try:
            # A client's number may have more than 64 bits, which not every encoder writes.
            body = msgspec.json.format(msgspec.json.encode(found)) + b"\n"
        except RecursionError:
            raise InvalidJson("A parameter is nested too deep to be told.") from None
        return web.Response(body=body, content_type="application/json")

    def _grant_called(self, name: str) -> Grant:
        keyring = self._app.hub.keyring
        grants = {grant.name: grant for grant in (keyring.grants if keyring is not None else ())}
        if name not in grants:
            raise NotFound(f"There is no key {name!r}. There are: {', '.join(grants) or 'none'}.")
        return grants[name]
