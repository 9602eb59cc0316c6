"""What goes wrong on a page, as its answer: in the OpenAI shape, with the status it deserves."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from aiohttp import web

from router.errors import ClientError, MethodNotAllowed, RouterError, TooLarge
from router.server.plain import headers_of, not_found

log = structlog.get_logger(__name__)


def answer_to(request: web.Request, error: Exception) -> web.Response:
    """What a page says in place of its answer; what nobody expected goes to the log, too."""
    match error:
        case RouterError():
            return _told(error)
        case web.HTTPRedirection():
            return error
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            refusal = MethodNotAllowed(f"{request.method} is not allowed here; {allowed} is.")
            return _told(refusal, {"Allow": allowed})
        case web.HTTPNotFound():
            return _told(not_found(request.method, request.path))
        case web.HTTPRequestEntityTooLarge():
            return _told(TooLarge("The body is too long."))
        case web.HTTPException():
            refused = ClientError(error.reason)
            refused.status = error.status
            return _told(refused)
    log.error("page failed", path=request.path, exc_info=error)
    return _told(RouterError("The router failed on this page; its log says why."))


def _told(fault: RouterError, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=fault.body(),
        status=fault.status,
        content_type="application/json",
        headers={**headers_of(fault), **(headers or {})},
    )
