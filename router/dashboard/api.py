"""The dashboard's HTTP side: the page's files, and JSON about the log.

Handlers read the query, have a view answered by a thread, and write JSON. Who may ask is decided
before us where a router stands in front; alone we answer to this machine only.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from multidict import MultiMapping

from router import __version__, visitors
from router.dashboard import export, filters, labels, lines, queries, savings
from router.dashboard.again import Again
from router.dashboard.filters import Asked
from router.dashboard.pagefiles import POLICY, PageFiles
from router.dashboard.refusal import Refused
from router.dashboard.standing import Standing
from router.dashboard.store import Store
from router.errors import NotFound
from router.server.faults import answer_to

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: a view that also wants to know what the router in front says of now
LiveView = Callable[[Standing, Asked, MultiMapping[str], Mapping[str, Any]], Any]
#: set by the router that passes a request on: what it knows of itself now, as JSON
LIVE_HEADER = "X-Router-Live"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_BODY_BYTES = 64 << 10
_PATIENCE_S = 1.0
_LIVE_S = 1.0
_PAGE_ROWS = 500
_POINTS = 1000
_FAR = 10**9
_ANSWERS = 32
#: seconds that a view took, kept at its request
_TOOK = "view_took_s"


@dataclass(frozen=True, slots=True)
class Context:
    """What the pages are about."""

    folders: tuple[Path, ...]
    offline: bool
    again: Again
    port: int | None = None  # of this machine, where nobody stands in front of us


class Api:
    """The application. `store` is read by threads of its own, never by the loop."""

    def __init__(self, context: Context, store: Store) -> None:
        self._context = context
        self._store = store
        self._rows = Standing(store)
        self._files = PageFiles()
        self._answers: dict[str, tuple[Any, bytes]] = {}  # the last ones, by what was asked
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="view")
        self.asked_at = time.monotonic()
        self.is_ending = asyncio.Event()

    def application(self) -> web.Application:
        made = web.Application(middlewares=[self._outermost], client_max_size=_BODY_BYTES)
        get, post = made.router.add_get, made.router.add_post
        # An id is a client's, and may have braces, which aiohttp's own pattern leaves out.
        get("/dashboard", self._page)
        get("/dashboard/", self._to_page)
        get("/dashboard/static/{name:.+}", self._static)
        for name, handler in (
            ("meta", self._meta),
            ("live", self._live),
            ("now", self._now),
            ("series", self._view(_series)),
            ("scenarios", self._view(_scenarios)),
            ("savings", self._view(_savings)),
            ("backends", self._with_live(_backends)),
            ("sessions", self._view(_sessions)),
            ("experiments", self._with_live(_experiments)),
            ("requests", self._view(_requests)),
            ("requests/{id:[^/]+}", self._request),
            ("export", self._export),
        ):
            get(f"/dashboard/api/{name}", handler)
        post("/dashboard/api/requests/{id:[^/]+}/label", self._label)
        post("/dashboard/api/requests/{id:[^/]+}/explain", self._explain)
        return made

    # ------------------------------------------------------------------ around every answer

    @web.middleware
    async def _outermost(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.asked_at = time.monotonic()
        try:
            self._admit(request)
            response = await handler(request)
        except Exception as error:
            response = answer_to(request, error)
        if not response.prepared:
            response.headers.setdefault("Cache-Control", "no-store")
            response.headers.setdefault("Content-Security-Policy", POLICY)
            response.headers["X-Content-Type-Options"] = "nosniff"
            if _TOOK in request:
                response.headers["Server-Timing"] = f"view;dur={request[_TOOK] * 1e3:.1f}"
        return response

    def _admit(self, request: web.Request) -> None:
        """Refuse what a page of another site has a browser ask. Raises Refused."""
        host = request.headers.get("Host", "")
        port = self._context.port
        if port is not None and host not in {f"{name}:{port}" for name in _LOOPBACK}:
            # A name that was made to lead here would let its site read the log.
            raise Refused(
                "wrong_host", "This dashboard answers to its own address only.", status=403
            )
        if request.method not in ("GET", "HEAD"):
            visitors.check_writes(
                request.headers.get("Sec-Fetch-Site", ""), request.headers.get("Origin"), host
            )
            if request.content_type != "application/json":
                raise Refused("not_json", "Content-Type must be application/json.", status=415)

    async def _in_thread(self, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(work, *given, **named))

    async def _in_view(self, request: web.Request, view: Callable[..., Any], *given: Any) -> Any:
        """What a view says; how long it took is told, so that the page asks no more than fits."""

        def timed(rows: Standing) -> Any:
            begun = time.perf_counter()
            try:
                return view(rows, *given)
            finally:
                request[_TOOK] = time.perf_counter() - begun

        return await self._in_thread(self._rows.ask, timed)

    async def _asked(self, request: web.Request) -> Asked:
        """What a view is about, once what is on the disk has been read."""
        asked = filters.asked(request.query, time.time())
        await self._in_thread(self._store.fresh, _PATIENCE_S)
        return asked

    def _view(self, view: Callable[..., Any]) -> Handler:
        """A handler for a view that is answered out of the rows alone: anew, when there are new
        ones."""

        async def answer(request: web.Request) -> web.Response:
            asked = await self._asked(request)
            of = self._store.mark, asked.values, asked.end
            known = self._answers.pop(request.path_qs, None)
            if known is None or known[0] != of:
                known = of, orjson.dumps(await self._in_view(request, view, asked, request.query))
            self._answers[request.path_qs] = known
            while len(self._answers) > _ANSWERS:
                del self._answers[next(iter(self._answers))]
            return web.Response(body=known[1], content_type="application/json")

        return answer

    def _with_live(self, view: LiveView) -> Handler:
        """Likewise, with what the router in front says of now."""

        async def answer(request: web.Request) -> web.Response:
            asked = await self._asked(request)
            live = _told_live(request)
            return _json(await self._in_view(request, view, asked, request.query, live))

        return answer

    # ------------------------------------------------------------------ the page

    async def _page(self, request: web.Request) -> web.Response:
        return self._files.answer("index.html", request)

    async def _to_page(self, request: web.Request) -> web.Response:
        raise web.HTTPFound(f"../dashboard?{request.query_string}".rstrip("?"))

    async def _static(self, request: web.Request) -> web.Response:
        return self._files.answer(request.match_info["name"], request)

    # ------------------------------------------------------------------ views

    async def _meta(self, request: web.Request) -> web.Response:
        await self._in_thread(self._store.fresh, _PATIENCE_S)
        known = await self._in_view(request, queries.known)
        progress = self._store.progress
        folders = self._context.folders
        told = _told_live(request)
        has_bodies = await self._in_thread(lines.has_bodies, folders)
        bodies = told.get("bodies", "on" if has_bodies else "off")
        has_bodies |= bodies != "off"  # those to come
        return _json(
            {
                "version": __version__,
                "policy": told.get("policy"),
                "offline": self._context.offline,
                "log": {
                    "dir": ", ".join(map(str, folders)),
                    "files": progress.files,
                    "records": progress.records,
                    "first": known.pop("first"),
                    "last": known.pop("last"),
                    "reading": {"done": progress.done, "total": progress.total},
                    "skipped_lines": progress.skipped,
                    "dropped": told.get("dropped"),
                    "fault": progress.fault,
                },
                **known,
                "policy_scenarios": self._context.again.scenarios,
                "bodies": bodies,
                "can_explain": self._context.again.is_possible and has_bodies,
                "can_label": has_bodies and labels.is_possible(folders),
            }
        )

    async def _now(self, request: web.Request) -> web.Response:
        return _json(await self._live_event(request))

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """An event a second, until the page leaves. Behind a router it is the router's loop."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while not self.is_ending.is_set():
                event = await self._live_event(request)
                await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
                self.asked_at = time.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.is_ending.wait(), _LIVE_S)
        return response

    async def _live_event(self, request: web.Request) -> dict[str, Any]:
        await self._in_thread(self._store.fresh, _PATIENCE_S)
        event: dict[str, Any] = await self._in_thread(queries.live, self._store, time.time())
        told = _told_live(request)
        return {**event, "in_flight": told.get("in_flight"), "waiting": told.get("waiting")}

    async def _request(self, request: web.Request) -> web.Response:
        found = await self._found(request)
        given = await self._in_thread(labels.about, found.folder, found.record["request_id"])
        refusals = {
            "explain": self._context.again.refusal(found.record, found.body),
            "label": labels.refusal(found.folder, found.record, found.body),
        }
        return _json(
            {
                "record": found.record,
                "body": _told_body(found.body),
                "labels": given,
                "why_not": {name: why and why.code for name, why in refusals.items()},
            }
        )

    async def _found(self, request: web.Request) -> Found:
        """The request that is named. Raises NotFound."""
        request_id = request.match_info["id"]
        await self._in_thread(self._store.fresh, _PATIENCE_S)
        found: Found | None = await self._in_thread(_find, self._store, request_id)
        if found is None:
            raise NotFound(f"There is no request {request_id[:80]!r} in this log.")
        return found

    async def _label(self, request: web.Request) -> web.Response:
        wanted = labels.wanted(await request.read())
        found = await self._found(request)
        row = await self._in_thread(labels.write, found.folder, found.record, found.body, wanted)
        return _json(row, status=201)

    async def _explain(self, request: web.Request) -> web.Response:
        found = await self._found(request)
        again = self._context.again
        return _json(await self._in_thread(again.explained, found.record, found.body))

    async def _export(self, request: web.Request) -> web.StreamResponse:
        view = filters.one_of(request.query, "view", ("requests", *_EXPORTED))
        kind = filters.one_of(request.query, "format", ("csv", "json"))
        asked = await self._asked(request)
        name = f"scenario-router-{view}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.{kind}"
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Type": export.TYPES[kind],
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        if view == "requests":
            total, sql = await self._in_view(request, _export_of_requests, asked, request.query)
            headers["X-Export-Total"] = str(total)
            if total > export.MOST_ROWS:
                headers["X-Export-Cut"] = "true"
            pieces = export.pieces(self._store, sql, asked.values, kind)
        else:
            live = _told_live(request)
            rows = await self._in_view(request, _EXPORTED[view], asked, request.query, live)
            pieces = iter([export.whole(rows, kind)])
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while (piece := await self._in_thread(next, pieces, None)) is not None:
                await response.write(piece)
        return response


# ---------------------------------------------------------------------- views, with their query


def _series(rows: Standing, asked: Asked, query: MultiMapping[str]) -> dict[str, Any]:
    return queries.series(rows, asked, filters.whole(query, "points", 120, 2, _POINTS))


def _scenarios(rows: Standing, asked: Asked, query: MultiMapping[str]) -> dict[str, Any]:
    return {"rows": queries.scenarios(rows, asked)}


def _savings(rows: Standing, asked: Asked, query: MultiMapping[str]) -> dict[str, Any]:
    return savings.savings(rows, asked)


def _page(query: MultiMapping[str], sorts: Sequence[str]) -> dict[str, Any]:
    """Which rows of a list are asked for, in which order. Raises ClientError."""
    return {
        "sort": filters.one_of(query, "sort", sorts),
        "order": filters.one_of(query, "order", ("desc", "asc")),
        "limit": filters.whole(query, "limit", 50, 1, _PAGE_ROWS),
        "offset": filters.whole(query, "offset", 0, 0, _FAR),
    }


def _sessions(rows: Standing, asked: Asked, query: MultiMapping[str]) -> dict[str, Any]:
    return queries.sessions(rows, asked, **_page(query, queries.SESSION_SORTS))


def _experiments(
    rows: Standing, asked: Asked, query: MultiMapping[str], live: Mapping[str, Any]
) -> dict[str, Any]:
    """As the policy has them, control first, with how the router finds them; then those that are
    in the log alone."""
    found = {(row["experiment"], row["arm"]): row for row in queries.experiments(rows, asked)}
    arms = []
    for written in live.get("experiments", ()):
        for arm in sorted(written["arms"], key=lambda arm: not arm["control"]):
            name = written["experiment"], arm["arm"]
            row = found.pop(name, None)
            if row is None and not _is_asked_for(query, *name):
                continue
            told = {"experiment": name[0], "arm": name[1], **(row or queries.NO_RECORDS)}
            arms.append({**told, "live": _arm_now(written, arm)})
    return {"rows": [*arms, *found.values()]}


def _is_asked_for(query: MultiMapping[str], experiment: str, arm: str) -> bool:
    """Whether these filters would let records of this arm through."""
    named = (query.getall("experiment", []), experiment), (query.getall("arm", []), arm)
    return all(not wanted or name in wanted for wanted, name in named)


def _arm_now(written: Mapping[str, Any], arm: Mapping[str, Any]) -> dict[str, Any]:
    """What the router has counted of an arm, in all, and what it makes of it."""
    is_off = written["state"] == "stopped" and arm["state"] == "running"
    stopped = arm["stopped"] or {}
    return {
        "state": "off" if is_off else arm["state"],
        "weight": arm["weight"],
        "control": arm["control"],
        "requests": arm["requests"],
        "sessions": arm["sessions"],
        "verdict": arm["verdict"],
        "effect": arm["effect"],
        "shadow": arm["shadow"],
        "stopped_because": stopped.get("because"),
        "stopped_since": stopped.get("since"),
    }


def _requests(rows: Standing, asked: Asked, query: MultiMapping[str]) -> dict[str, Any]:
    return queries.requests(rows, asked, **_page(query, queries.REQUEST_SORTS))


def _backends(
    rows: Standing, asked: Asked, query: MultiMapping[str], live: Mapping[str, Any]
) -> dict[str, Any]:
    """With what the router says of them now; those that had no request are told too."""
    told = queries.backends(rows, asked)
    now = {backend.pop("backend"): backend for backend in live.get("backends", ())}
    for row in told["rows"]:
        row["live"] = now.pop(row["backend"], None)
    told["rows"] += [
        {**queries.NO_REQUESTS, "backend": name, "live": backend} for name, backend in now.items()
    ]
    for row in told["rows"]:
        if row["live"] is not None:
            row["model"], row["dialect"] = row["live"].pop("model"), row["live"].pop("dialect")
    return told


def _export_of_requests(rows: Standing, asked: Asked, query: MultiMapping[str]) -> tuple[int, str]:
    sort = filters.one_of(query, "sort", queries.REQUEST_SORTS)
    order = filters.one_of(query, "order", ("desc", "asc"))
    sql = queries.requests_sql(asked, sort=sort, order=order, limit=export.MOST_ROWS)
    return queries.count(rows, asked), sql


def _series_rows(
    rows: Standing, asked: Asked, query: MultiMapping[str], live: Mapping[str, Any]
) -> list[dict[str, Any]]:
    told = _series(rows, asked, query)
    by_scenario = told.pop("by_scenario")
    told.pop("step_s")
    columns = {**told, **{f"scenario {name}": counts for name, counts in by_scenario.items()}}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


#: views that are exported whole
_EXPORTED: Mapping[str, LiveView] = {
    "scenarios": lambda rows, asked, query, live: queries.scenarios(rows, asked),
    "savings": lambda rows, asked, query, live: savings.savings(rows, asked)["rows"],
    "backends": lambda *given: _backends(*given)["rows"],
    "sessions": lambda rows, asked, query, live: queries.sessions(
        rows,
        asked,
        sort=filters.one_of(query, "sort", queries.SESSION_SORTS),
        order=filters.one_of(query, "order", ("desc", "asc")),
        limit=export.MOST_GROUPS,
        offset=0,
    )["rows"],
    "experiments": lambda *given: _experiments(*given)["rows"],
    "series": _series_rows,
}


@dataclass(frozen=True, slots=True)
class Found:
    """A request, with all that is known of it."""

    folder: Path
    record: dict[str, Any]
    body: dict[str, Any] | None


def _find(store: Store, request_id: str) -> Found | None:
    kept = queries.request(store, request_id)
    if kept is None:
        return None
    record = lines.record(kept.folder, kept.name, request_id)
    body = lines.body(kept.folder, request_id, kept.began)
    return Found(Path(kept.folder), record if record is not None else kept.fields, body)


def _told_body(body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if body is None:
        return None
    names = ("prompt", "answer", "other_answers", "reasoning", "tool_calls", "redacted", "cut")
    return {name: body.get(name) for name in names}


def _told_live(request: web.Request) -> dict[str, Any]:
    """What the router in front says of itself; nothing where there is none."""
    try:
        told = orjson.loads(request.headers.get(LIVE_HEADER, "{}"))
    except orjson.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(value, default=str), status=status, content_type="application/json"
    )
