"""The OpenAPI document says what is served: held against the routes, and against a real router."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from router.config import Config
from router.server import hot, openapi, pages, plain
from tests.support.product import ROOT, Product
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

WHOLE = openapi.document(for_operators=True)
SCHEMA = schemathesis.openapi.from_dict(json.loads(openapi.page(for_operators=True)))
OPERATIONS = {
    found.ok().label: found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)
}
schemathesis.serializer.alias("application/toml", "text/plain")
#: for each operation, of good requests and of bad ones; `make fuzz` asks for more
EXAMPLES = int(os.environ.get("OPENAPI_EXAMPLES", "6"))
#: what they take is told by more than a schema: a policy's text, the body of another endpoint
JUDGED_OTHERWISE = {"POST /router/policy/validate", "POST /router/explain"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
preset.temperature = { fill = 0.7 }
preset.thinking = { fill = false }
[scenarios.faq]
match.keywords = ["refund"]
preset.max_new_tokens = { cap = 64 }
[experiments.short]
scenarios = ["chat"]
[experiments.short.arms.control]
[experiments.short.arms.half]
preset.max_new_tokens = { cap = 32 }
"""


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    one = {"model": "qwen3-0.6b", "name": "one"}
    with ScriptedBackend([chat_ok("The Rhine.")]) as backend:
        config = {"backends": [{**one, "url": backend.url}]}
        with Product.start(tmp_path_factory.mktemp("openapi"), config, policy=POLICY) as running:
            yield running


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        yield opened


def routes() -> set[tuple[str, str]]:
    """(method, path) of all that is served, the dashboard left out, which is a page's own."""
    app = cast(
        Any,
        SimpleNamespace(
            config=Config.model_validate({"backends": [{"name": "b", "url": "http://b"}]}),
            guard=None,
        ),
    )
    inference = {("post", f"/v1{path.decode()}") for path in hot._PATHS}
    machines = {("get", path) for path in plain.Plain(app)._pages} | {
        ("get", "/models"),
        ("get", "/models/{model}"),
    }
    operators = {
        (route.method.lower(), route.resource.canonical)
        for route in pages.Pages(app)._application().router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    served = inference | machines | operators
    return {
        (method, f"/v1{path}" if path.startswith("/models") else path)
        for method, path in served
        if not path.startswith("/dashboard")
    }


def documented(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (method, path)
        for path, item in document["paths"].items()
        for method in item
        if method != "parameters"
    }


def test_what_is_served_is_in_the_document_and_nothing_else() -> None:
    assert documented(WHOLE) == routes()


def test_the_document_without_the_operators_pages_tells_nothing_of_them() -> None:
    told = openapi.document(for_operators=False)

    assert documented(told) == {(m, p) for m, p in routes() if not p.startswith("/router/")}
    text = json.dumps(told)
    assert "/router/" not in text
    assert "adminKey" not in text


def test_both_documents_are_served_as_they_are_made(router: Product) -> None:
    told = json.loads(json.dumps(openapi.document(for_operators=False)))
    assert router.get("/openapi.json") == router.get("/v1/openapi.json") == told
    assert router.get("/router/openapi.json") == json.loads(json.dumps(WHOLE))


def asked() -> Iterator[Any]:
    """Each operation with good requests, and with bad ones where there can be any."""
    for label, operation in OPERATIONS.items():
        yield pytest.param(label, GenerationMode.POSITIVE, id=label)
        can_be_wrong = list(operation.query) or [
            body for body in operation.body if body.media_type == "application/json"
        ]
        if can_be_wrong:
            yield pytest.param(label, GenerationMode.NEGATIVE, id=f"{label} wrongly")


@pytest.mark.parametrize(("label", "mode"), list(asked()))
def test_every_answer_is_as_the_document_says(
    router: Product, session: requests.Session, label: str, mode: GenerationMode
) -> None:
    """No failure of ours, and documented statuses, content types, headers and bodies alone."""
    operation = OPERATIONS[label]
    # What the router does not read is the backend's to refuse.
    unheeded = [schemathesis.checks.negative_data_rejection]
    if label in JUDGED_OTHERWISE:
        unheeded.append(schemathesis.checks.positive_data_acceptance)

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=EXAMPLES < 20,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: schemathesis.Case[Any]) -> None:
        if "x-router-scenario" in case.headers and mode is GenerationMode.POSITIVE:
            case.headers["x-router-scenario"] = "faq"  # one that is there, which no schema can say
        case.call_and_validate(
            base_url=router.url,
            session=session,
            timeout=20,
            excluded_checks=unheeded,
        )

    ask()


def test_other_methods_and_paths_are_refused_in_the_one_shape(
    router: Product, session: requests.Session
) -> None:
    for path, item in WHOLE["paths"].items():
        at = router.url + re.sub(r"\{\w+\}", "x", path)
        for method in METHODS:
            if method.lower() in item:
                continue
            reply = session.request(method, at, timeout=20)
            assert (reply.status_code, reply.json()["error"]["code"]) == (405, "method_not_allowed")
            allowed = {one.strip().lower() for one in reply.headers["allow"].split(",")}
            assert allowed - {"head"} == set(item) - {"parameters"}, path
    for path in ("/nothing", "/v1/nothing", "/router/nothing", "/v1/chat"):
        reply = session.post(router.url + path, timeout=20)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


def test_the_headers_of_a_reply_are_those_that_are_documented(
    router: Product, session: requests.Session
) -> None:
    body: Any = {"model": "auto", "messages": [{"role": "user", "content": "Why?"}]}
    reply = session.post(
        router.url + "/v1/chat/completions",
        json=body,
        headers={"x-router-debug": "true"},
        timeout=20,
    )

    given = {name.lower() for name in reply.headers if name.lower().startswith("x-router-")}
    assert given <= set(openapi.REPLY_HEADERS)
    for name, (when, _) in openapi.REPLY_HEADERS.items():
        if when in ("always", "x-router-debug") or when.startswith("where"):
            assert name in reply.headers or name == "x-router-warnings"


def test_every_status_has_its_codes() -> None:
    told = openapi.codes()

    assert ("invalid_request_error", "model_not_found") in told[404]
    assert {400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 502, 503, 504} <= set(told)


# --- docs/api.md ------------------------------------------------------------------------------

REFERENCE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def table(name: str) -> list[list[str]]:
    """The cells of a table of the reference, by the mark before and behind it."""
    text = REFERENCE.split(f"<!-- {name} -->")[1]
    rows = [line.strip("|").split("|") for line in text.strip().splitlines()[2:]]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_reference_has_every_operation() -> None:
    wanted = [
        [f"`{method.upper()} {path}`", operation["summary"]]
        for path, item in WHOLE["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    ]

    found = table("inference") + table("machines") + table("operators")
    assert [row[:2] for row in found] == wanted


def test_the_reference_has_every_header_and_error() -> None:
    requested = {name: told for name, (told, _) in openapi.REQUEST_HEADERS.items()}
    assert {row[0].strip("`"): row[1] for row in table("request headers")} == requested
    replied = {name: [when, told] for name, (when, told) in openapi.REPLY_HEADERS.items()}
    assert {row[0].strip("`"): row[1:] for row in table("reply headers")} == replied
    refused = [
        [str(status), f"`{kind}`", f"`{code}`"]
        for status, told in openapi.codes().items()
        for kind, code in told
    ]
    assert [row[:3] for row in table("errors")] == refused
