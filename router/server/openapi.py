"""What is served, as an OpenAPI 3.1 document; made once, when it is first asked for.

In: the tables that serve (paths, parameters, errors). Out: one document for clients, and one
that has the operator's pages too. Bodies name what the router itself reads or writes and leave
the rest open, as the router does: what it does not know goes to the backend as it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import orjson

from router import __version__, params
from router import errors as faults
from router.chat import PASSED
from router.params import Param

Schema = dict[str, Any]

#: request header → (what it does, schema)
REQUEST_HEADERS: Mapping[str, tuple[str, Schema]] = {
    "x-session-id": (
        "Whose conversation this is; it stays at one backend. Also `x-conversation-id` and "
        "`x-litellm-session-id`.",
        {"type": "string"},
    ),
    "x-request-id": (
        "The request's name in replies and in the log, up to 128 printable characters; else one "
        "is made up.",
        {"type": "string"},
    ),
    "traceparent": ("A W3C trace to go on with.", {"type": "string"}),
    "x-router-scenario": (
        "Take this scenario; 400 where the policy has none of the name.",
        {"type": "string"},
    ),
    "x-router-policy": (
        "`off`: forward the body untouched. The operator may forbid it (403).",
        {"enum": ["off"]},
    ),
    "x-router-debug": (
        "`true` or `1`: tell in the reply's headers how it was decided.",
        {"enum": ["true", "1"]},
    ),
}
#: header of a reply → (when, what)
REPLY_HEADERS: Mapping[str, tuple[str, str]] = {
    "x-request-id": ("always", "the request's name, as in the log"),
    "x-router-policy": ("always", "12 hexadecimal digits of the policy's hash"),
    "x-router-scenario": ("where it was classified", "the scenario"),
    "x-router-backend": ("where one was asked", "the backend that answered"),
    "x-router-overhead-ms": ("where one was asked", "milliseconds of ours before it was"),
    "x-router-experiment": ("in an experiment", "`name/arm`"),
    "x-router-warnings": ("where there are any", "what could not be said to this backend"),
    "x-router-rescued": ("a second try without thinking", "header, or trailer of a stream"),
    "retry-after": ("429 and 503", "seconds to wait"),
    "retry-after-ms": ("429 of a key's limit", "the same, finer"),
    "x-should-retry": ("429 of a key's budget", "false: not before midnight UTC"),
    "x-ratelimit-limit-requests": ("a key with that limit", "requests a minute"),
    "x-ratelimit-remaining-requests": ("a key with that limit", "so many at once, now"),
    "x-ratelimit-reset-requests": ("a key with that limit", "until all of them are there again"),
    "x-ratelimit-limit-tokens": ("a key with that limit", "tokens a minute"),
    "x-ratelimit-remaining-tokens": ("a key with that limit", "so many at once, now"),
    "x-ratelimit-reset-tokens": ("a key with that limit", "until all of them are there again"),
    "x-ratelimit-limit-tokens-day": ("a key with a budget", "tokens a day, UTC"),
    "x-ratelimit-remaining-tokens-day": ("a key with a budget", "what is left of them"),
    "www-authenticate": ("401", "Bearer"),
    "x-router-source": ("x-router-debug", "what the scenario was chosen by"),
    "x-router-confidence": ("x-router-debug", "share of the evidence, 0 to 1"),
    "x-router-thinking": ("x-router-debug", "on, off or default"),
    "x-router-session": ("x-router-debug", "hash of the session, or none"),
    "x-router-affinity": ("x-router-debug", "hit, new, moved or none"),
    "x-router-params": ("x-router-debug", "each parameter with what decided it"),
    "x-router-because": ("x-router-debug", "the reasons, in the policy's words"),
}

_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_TRUTH: Schema = {"type": "boolean"}
_ANYTHING: Schema = {"type": "object"}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these members, and perhaps others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


# ------------------------------------------------------------------ what clients send

_KINDS: Mapping[str, Schema] = {
    "bool": {"type": ["boolean", "null"]},
    "int": {"type": ["integer", "null"]},
    "float": {"type": ["number", "null"]},
    "text": _TEXT_OR_NULL,
    "texts": {"type": ["string", "array", "null"], "items": _TEXT},
    "choice": {"type": ["boolean", "null"]},
}


def _spelled(param: Param, spelling: str) -> Schema:
    """A parameter by one of its names. Numbers out of range are brought inside, with a warning."""
    told = dict(_KINDS[param.kind])
    if param.name == "thinking" and spelling in params.SHARED | {"think", "thinking"}:
        told = {"type": ["boolean", "string", "object", "null"]}
    told["description"] = f"`{param.name}` of the policy"
    return told


def _parameters() -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for spelling, param in params.SPELLING.items():
        top, _, inner = spelling.partition(".")
        if inner:
            nested = found.setdefault(top, {"type": ["object", "null"], "properties": {}})
            nested["properties"][inner] = _spelled(param, inner)
        else:
            found[top] = _spelled(param, spelling)
    return found


def _asked(prompt: Mapping[str, Schema], is_needed: bool) -> Schema:
    told = _object(
        prompt if is_needed else {},
        {
            **({} if is_needed else prompt),
            "model": {
                "type": ["string", "null"],
                "description": "`auto`, `auto:<scenario>`, a served model or an alias.",
            },
            "stream": {"type": ["boolean", "null"]},
            **_parameters(),
        },
    )
    return told


def _requests() -> dict[str, Schema]:
    part = _object({}, {"type": _TEXT, "text": _TEXT_OR_NULL})
    content: Schema = {"type": ["string", "array", "null"], "items": part}
    message = _object({"role": _TEXT}, {"content": content})
    item = _object({}, {"role": _TEXT_OR_NULL, "content": content, "type": _TEXT_OR_NULL})
    return {
        "ChatRequest": _asked({"messages": {**_list(message), "minItems": 1}}, True),
        "CompletionRequest": _asked({"prompt": {"type": ["string", "array"]}}, False),
        "ResponseRequest": _asked({"input": {"type": ["string", "array"], "items": item}}, False),
    }


# ------------------------------------------------------------------ what is answered


def _answers() -> dict[str, Schema]:
    model = _object(
        {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT},
        {"backends": _list(_TEXT), "label": _TEXT},
    )
    error = _object({"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NULL, "code": {}})
    error["properties"]["code"] = {"type": ["string", "integer", "null"]}
    version = _object({"version": _TEXT, "compiled": _COUNT, "policy": _TEXT})
    return {
        "Error": _object({"error": error}),
        "Answer": _ANYTHING,
        "Model": model,
        "ModelList": _object({"object": {"const": "list"}, "data": _list(_ref("Model"))}),
        "Health": _object({"status": {"const": "ok"}}),
        "Ready": _object({"status": {"const": "ready"}}),
        "NotReady": _object({"status": {"const": "not ready"}, "reason": _TEXT}),
        "Version": version,
    }


def _of_operators() -> dict[str, Schema]:
    backend = _object(
        {
            **dict.fromkeys(("name", "url", "pool", "dialect", "state", "reason"), _TEXT),
            **dict.fromkeys(("up", "draining", "fitted"), _TRUTH),
            **dict.fromkeys(("inflight", "max_inflight"), _COUNT),
            "model": _TEXT_OR_NULL,
        }
    )
    worker = _object(dict.fromkeys(("worker", "pid", "inflight", "waiting", "sessions"), _COUNT))
    status = _object(
        {
            **dict.fromkeys(("version", "reason"), _TEXT),
            "uptime_s": _NUMBER,
            "ready": _TRUTH,
            **dict.fromkeys(("pid", "inflight", "waiting"), _COUNT),
            "workers": _list(worker),
            "policy": _object({"file": _TEXT, "hash": _TEXT, "scenarios": _list(_TEXT)}),
            "config": _object({"file": _TEXT, "waiting": _list(_TEXT)}),
            "backends": _list(backend),
            "affinity": _ANYTHING,
            "experiments": _list(_ref("Experiment")),
            "log": _object({"dir": _TEXT, "written": _COUNT, "dropped": _COUNT}),
        }
    )
    arm = _object({"arm": _TEXT, "control": _TRUTH, "state": _TEXT, "requests": _COUNT})
    experiment = _object(
        {"experiment": _TEXT, "state": _TEXT, "scenarios": _list(_TEXT), "arms": _list(arm)}
    )
    param = _object({"client": {}, "sent": {}, "origin": _TEXT, "action": _TEXT_OR_NULL})
    explanation = _object(
        {
            **dict.fromkeys(("scenario", "title", "source", "pool", "policy"), _TEXT),
            "confidence": _NUMBER,
            "because": _list(_TEXT),
            "thinking": {"type": ["boolean", "null"]},
            "backends": _list(_TEXT),
            "params": {"type": "object", "additionalProperties": param},
            "warnings": _list(_TEXT),
        },
        {
            "backend": _TEXT,
            "dialect": _TEXT,
            "body": {**_TEXT, "description": "what would be sent, byte for byte"},
        },
    )
    mistake = _object({"message": _TEXT}, {"path": _TEXT, "line": {"type": ["integer", "null"]}})
    drained = _object({"name": _TEXT, "draining": _TRUTH, "inflight": _COUNT})
    return {
        "Document": _object({"openapi": _TEXT, "paths": _ANYTHING}),
        "Status": status,
        "Experiment": experiment,
        "Experiments": _object({"experiments": _list(_ref("Experiment")), "policy": _TEXT}),
        "Explanation": explanation,
        "ValidPolicy": _object({"valid": {"const": True}, "hash": _TEXT, "findings": _list({})}),
        "InvalidPolicy": _object({"valid": {"const": False}, "mistakes": _list(mistake)}),
        "Reloaded": _object({"reloaded": _TRUTH, "hash": _TEXT, "config": _ANYTHING}),
        "Drained": _object({"backends": _list(drained), "warning": _TEXT_OR_NULL}),
    }


# ------------------------------------------------------------------ operations


def _reply(description: str, schema: Schema | None, kind: str = "application/json") -> Schema:
    always = [name for name, (when, _) in REPLY_HEADERS.items() if when == "always"]
    told: Schema = {
        "description": description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in always},
    }
    if schema is not None:
        told["content"] = {kind: {"schema": schema}}
    return told


def _errors(*statuses: int) -> dict[str, Schema]:
    return {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)
    }


def _operation(
    name: str, summary: str, tag: str, replies: Mapping[str, Schema], **more: Any
) -> Schema:
    return {
        "operationId": name,
        "summary": summary,
        "tags": [tag],
        **more,
        "responses": dict(replies),
    }


#: what any inference request may come to, beside a backend's own refusals
_OF_INFERENCE = (400, 401, 403, 404, 408, 413, 414, 415, 429, 431, 500, 502, 503, 504)


def _inference() -> Iterator[tuple[str, Schema]]:
    for path, schema, summary in (
        ("/v1/chat/completions", "ChatRequest", "Answer a conversation"),
        ("/v1/completions", "CompletionRequest", "Go on with a text"),
        ("/v1/responses", "ResponseRequest", "Answer, in the newer form"),
    ):
        yield path, {"post": _forwarded(path, summary, _ref(schema))}
    for name in PASSED:
        path = f"/v1/{name}"
        summary = f"`{name}`, passed on as it came"
        yield path, {"post": _forwarded(path, summary, None)}


def _forwarded(path: str, summary: str, schema: Schema | None) -> Schema:
    answer = _reply("The backend's answer", _ref("Answer"))
    if schema is not None:
        answer["content"]["text/event-stream"] = {}
    body = {"application/json": {"schema": schema}} if schema is not None else {"*/*": {}}
    others = _reply("A refusal of the backend's own, in the same shape", _ref("Error"))
    return _operation(
        path.removeprefix("/v1/").replace("/", "."),
        summary,
        "inference",
        {"200": answer, **_errors(*_OF_INFERENCE), "4XX": others},
        parameters=[{"$ref": f"#/components/parameters/{name}"} for name in REQUEST_HEADERS],
        requestBody={"required": True, "content": body},
        security=[{"clientKey": []}, {}],
    )


def _for_machines() -> Iterator[tuple[str, Schema]]:
    def got(name: str, summary: str, schema: Schema, kind: str = "application/json") -> Schema:
        return {"get": _operation(name, summary, "machines", {"200": _reply("So", schema, kind)})}

    all_of_them = got("models", "Virtual names and the pools' models", _ref("ModelList"))
    yield "/v1/models", all_of_them
    one = got("model", "One of them", _ref("Model"))
    one["get"]["responses"] |= _errors(404)
    for of in (all_of_them, one):
        of["get"]["responses"] |= _errors(401)
        of["get"]["security"] = [{"clientKey": []}, {}]
    name = {"name": "model", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}
    yield "/v1/models/{model}", {**one, "parameters": [name]}
    yield "/health", got("health", "Is the process alive?", _ref("Health"))
    ready = got("ready", "Is a policy loaded and a backend usable?", _ref("Ready"))
    ready["get"]["responses"]["503"] = _reply("Not ready, and why", _ref("NotReady"))
    yield "/ready", ready
    yield "/version", got("version", "Versions, and the policy's hash", _ref("Version"))
    yield "/metrics", got("metrics", "For Prometheus", _TEXT, "text/plain")
    yield "/openapi.json", got("openapi", "This document", _ANYTHING)


def _for_operators() -> Iterator[tuple[str, Schema]]:
    def told(
        name: str, summary: str, schema: str, *errors: int, refused: str | None = None, **more: Any
    ) -> Schema:
        replies = {"200": _reply("So", _ref(schema)), **_errors(401, *errors)}
        if refused is not None:
            replies["400"] = _reply("Not taken, and why", _ref(refused))
        return _operation(
            name, summary, "operators", replies, security=[{"adminKey": []}, {}], **more
        )

    named = [{"name": "name", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}]

    toml = {"required": True, "content": {"application/toml": {"schema": _TEXT}}}
    yield "/router/status", {"get": told("status", "How it is", "Status")}
    policy = told("policy", "The policy in force; its hash is the ETag", "Status")
    policy["responses"]["200"] = _reply("The file's text", _TEXT, "application/toml")
    yield "/router/policy", {"get": policy}
    yield (
        "/router/policy/validate",
        {
            "post": told(
                "validate",
                "Would a reload take this policy, and what would `check` say of it?",
                "ValidPolicy",
                413,
                refused="InvalidPolicy",
                requestBody=toml,
            )
        },
    )
    yield (
        "/router/policy/reload",
        {"post": told("reload", "Take the files anew", "Reloaded", refused="Reloaded")},
    )
    endpoint = {
        "name": "endpoint",
        "in": "query",
        "schema": {"enum": ["chat.completions", "completions", "responses"]},
    }
    bodies = [_ref(name) for name in ("ChatRequest", "CompletionRequest", "ResponseRequest")]
    yield (
        "/router/explain",
        {
            "post": told(
                "explain",
                "What would this request get, and why? No backend is asked",
                "Explanation",
                *(400, 404, 413),
                parameters=[endpoint],
                requestBody={
                    "required": True,
                    "content": {"application/json": {"schema": {"anyOf": bodies}}},
                },
            )
        },
    )
    yield "/router/openapi.json", {"get": told("wholeOpenapi", "This document", "Document")}
    yield "/router/experiments", {"get": told("experiments", "How they stand", "Experiments")}
    arm = {
        "name": "arm",
        "in": "query",
        "description": "one arm; else all but control",
        "schema": _TEXT,
    }
    for verb, summary in (
        ("stop", "Put an arm out: its sessions get control"),
        ("start", "Take an arm in again, and count anew"),
    ):
        yield (
            f"/router/experiments/{{name}}/{verb}",
            {
                "parameters": named,
                "post": told(f"{verb}Arm", summary, "Experiments", 404, parameters=[arm]),
            },
        )
    for verb, summary in (
        ("drain", "Give a backend no new requests"),
        ("undrain", "Give it new ones again"),
    ):
        yield (
            f"/router/backends/{{name}}/{verb}",
            {
                "parameters": named,
                "post": told(verb, summary, "Drained", 404),
            },
        )


# ------------------------------------------------------------------ the document


def codes() -> dict[int, list[tuple[str, str]]]:
    """What we refuse by: status → (type, code) of each fault."""
    found: dict[int, list[tuple[str, str]]] = {}
    waiting: list[type[faults.RouterError]] = [faults.RouterError]
    while waiting:
        fault = waiting.pop(0)
        waiting += [kind for kind in fault.__subclasses__() if kind.__module__ == faults.__name__]
        told = found.setdefault(fault.status, [])
        if (fault.type, fault.code) not in told:
            told.append((fault.type, fault.code))
    return dict(sorted(found.items()))


def document(*, for_operators: bool) -> dict[str, Any]:
    """The document; with the operator's pages, or without a word of them."""
    paths = dict([*_inference(), *_for_machines(), *(_for_operators() if for_operators else ())])
    responses = {
        str(status): _reply("Code " + " or ".join(f"`{code}`" for _, code in told), _ref("Error"))
        for status, told in codes().items()
    }
    security = {"clientKey": {"type": "http", "scheme": "bearer"}}
    if for_operators:
        security["adminKey"] = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Scenario Router",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Paths below /v1 are served without it, too.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**_requests(), **_answers(), **(_of_operators() if for_operators else {})},
            "responses": responses,
            "headers": {
                name: {"description": told, "required": when == "always", "schema": _TEXT}
                for name, (when, told) in REPLY_HEADERS.items()
            },
            "parameters": {
                name: {
                    "name": name,
                    "in": "header",
                    "description": description,
                    "schema": schema,
                }
                for name, (description, schema) in REQUEST_HEADERS.items()
            },
            "securitySchemes": security,
        },
    }


@cache
def page(*, for_operators: bool) -> bytes:
    """The document as it is served."""
    told = document(for_operators=for_operators)
    return orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)
