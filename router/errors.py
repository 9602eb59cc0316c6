"""The error family: what went wrong, whose fault it is, what the client is told.

    RouterError
    ├── ClientError            400, the client's request cannot be served as it is
    │   ├── InvalidJson, InvalidValue, ContextLength
    │   ├── BadKey             401
    │   ├── Forbidden          403   (NotAllowed → ScenarioNotAllowed, PoolNotAllowed)
    │   ├── NotFound           404   (ModelNotFound)
    │   ├── MethodNotAllowed   405
    │   ├── RequestTimeout     408
    │   ├── TooLarge           413   (TargetTooLong 414, HeadTooLarge 431)
    │   └── UnsupportedCoding  415
    ├── Overloaded             429, our own limits
    │   └── RateLimited        429, a key's limits (OutOfBudget: none left for today)
    ├── TooManyConnections     503   (TooManyFromAddress 429)
    ├── BackendError           502   (BackendRefused, BackendUntrusted: nothing was sent;
    │   │                                 AnswerTooLarge)
    │   └── BackendTimeout     504
    └── NoBackend              503

Only `server/` turns these into HTTP. Messages are written for clients and never
name an internal address.
"""

from __future__ import annotations

import orjson


class RouterError(Exception):
    """A fault with its status, its OpenAI type and code, and a text for the client."""

    status = 500
    type = "server_error"
    code = "router_error"
    outcome = "router_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        limit: str | None = None,
    ) -> None:
        """`limit`: the setting that says how much there may be of what was too much."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.limit = limit

    def lines(self) -> list[bytes]:
        """The header lines that belong to it."""
        if self.retry_after_s is None:
            return []
        return [b"retry-after: %d" % self.retry_after_s]

    def body(self) -> bytes:
        """The OpenAI error object as JSON bytes."""
        return error_body(self.message, type=self.type, param=self.param, code=self.code)


class ClientError(RouterError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_value"
    outcome = "client_error"


class InvalidJson(ClientError):
    code = "invalid_json"


class InvalidValue(ClientError):
    code = "invalid_value"


class ContextLength(ClientError):
    """The prompt is longer than what the backend can take."""

    code = "context_length_exceeded"


class BadRequestHead(ClientError):
    """HTTP that cannot be read, or must not be (smuggling)."""

    code = "invalid_http"


class TlsOnPlainPort(BadRequestHead):
    """A TLS handshake where plain HTTP is spoken."""

    code = "tls_on_plain_port"


class BadKey(ClientError):
    status = 401
    code = "invalid_api_key"


class Forbidden(ClientError):
    status = 403
    code = "forbidden"


class ScenarioNotAllowed(Forbidden):
    """The client's key is a good one, and not for this scenario."""

    type = "permission_error"
    code = "scenario_not_allowed"


class PoolNotAllowed(Forbidden):
    """Likewise, and not for this pool."""

    type = "permission_error"
    code = "pool_not_allowed"


class NotFound(ClientError):
    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(ClientError):
    status = 405
    code = "method_not_allowed"


class RequestTimeout(ClientError):
    status = 408
    code = "request_timeout"


class TooLarge(ClientError):
    status = 413
    code = "request_too_large"


class TargetTooLong(ClientError):
    """The path and query of a request."""

    status = 414
    code = "request_target_too_long"


class UnsupportedCoding(ClientError):
    status = 415
    code = "unsupported_content_encoding"


class HeadTooLarge(ClientError):
    status = 431
    code = "request_head_too_large"


class Overloaded(RouterError):
    """Every backend of the pool is at its in-flight limit."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    outcome = "rejected"


class RateLimited(Overloaded):
    """The client's key has a limit, and is at it."""

    def __init__(self, message: str, *, limit: str, wait_us: int) -> None:
        """`limit` is the record's word for it; `wait_us` until it is worth another try."""
        super().__init__(message, retry_after_s=max(1, -(-wait_us // 1_000_000)))
        self.key_limit = limit
        self.retry_after_ms = max(1, -(-wait_us // 1000))

    def lines(self) -> list[bytes]:
        """The SDKs of OpenAI wait by the finer one."""
        return [*super().lines(), b"retry-after-ms: %d" % self.retry_after_ms]


class OutOfBudget(RateLimited):
    """The client's key has used up what it had for today."""

    type = "insufficient_quota"
    code = "insufficient_quota"

    def lines(self) -> list[bytes]:
        """Clients that try again by themselves are told not to: it takes until tomorrow."""
        return [*super().lines(), b"x-should-retry: false"]


class TooManyConnections(RouterError):
    """There are as many clients as there may be."""

    status = 503
    code = "too_many_connections"
    outcome = "rejected"


class TooManyFromAddress(TooManyConnections):
    """One address has as many connections as it may have."""

    status = 429
    type = "rate_limit_error"


class BackendError(RouterError):
    """A backend failed before its answer began."""

    status = 502
    code = "backend_error"
    outcome = "upstream_error"
    tells_of_health = True  # whether such a backend is worse than another


class BackendRefused(BackendError):
    """No connection: the request never left us, so another backend may have it."""


class BackendUntrusted(BackendRefused):
    """No connection, as one side does not accept the other's certificate or speaks no TLS."""

    code = "backend_tls_error"


class BackendTimeout(BackendError):
    """A backend took the request and did not answer in time."""

    status = 504
    type = "timeout"
    code = "backend_timeout"
    outcome = "upstream_timeout"


class AnswerTooLarge(BackendError):
    """An answer that has no end, or none that is worth waiting for."""

    code = "response_too_large"
    tells_of_health = False  # it does what it was asked for


class NoBackend(RouterError):
    """No backend of the pool can be reached."""

    status = 503
    code = "no_healthy_backend"
    outcome = "rejected"


class BackendsUnreachable(NoBackend):
    """Every backend of the pool refused the connection just now."""

    outcome = "upstream_error"


class Draining(NoBackend):
    """We are shutting down and take nothing new."""


def error_body(message: str, *, type: str, param: str | None, code: str | int | None) -> bytes:
    """`{"error": {...}}` as every OpenAI client reads it."""
    return orjson.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})
