"""Request bodies: refused as the client's error, or sent on with nothing lost that is not ours."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from router import explain, params, parse, splice, verdict
from router import policy as policies
from router.chat import Endpoint
from router.classify import Classifier
from router.dialects import DIALECTS, Dialect, spoken
from router.errors import ClientError
from router.verdict import Live, Slot, Verdict
from tests.fuzz import source

POLICY = """
schema = 1
default_scenario = "chat"
[defaults.direct]
temperature = { fill = 0.7 }
[defaults.thinking]
temperature = { fill = 0.6, floor = 0.3 }
thinking_budget = 64
[scenarios.chat]
preset.thinking = { fill = false }
preset.top_k = { cap = 20 }
preset.stop = { fill = ["END"] }
[scenarios.faq]
match.keywords = ["refund", "退款"]
preset.max_new_tokens = { cap = 64, floor = 2 }
preset.seed = 7
preset.presence_penalty = { strip = true }
preset.reasoning_output = "field"
preset.extra.custom = { fill = "x" }
[scenarios.code]
match.has = ["code"]
preset.thinking = true
preset.top_p = { fill = 0.8, cap = 0.9 }
preset.stream = "collect"
preset.session_id = "auto"
"""
ENDPOINTS = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES)
#: members that the router may change; whatever else a client sends arrives as it was
OURS = frozenset(name.partition(".")[0] for name in params.SPELLING) | {
    *("model", "messages", "extra_body", "stream", "stream_options", "custom", "session_id"),
    *("chat_template_kwargs", "continue_final_message", "add_generation_prompt"),
    *("generation_config", "options", "cache_prompt", "keep_alive", "reasoning_format"),
}


def _live() -> Live:
    policy = policies.parse(POLICY)
    return Live(
        policy=policy,
        classifier=Classifier(policy),
        pools={},
        aliases=frozenset({"mine"}),
        real_model_bypass=False,
        allow_policy_off=True,
        has_keys=False,
        plans={},
    )


LIVE = _live()
SLOTS = {
    name: Slot(
        name=name,
        upstream=cast(Any, None),
        dialect=dialect,
        model="qwen",
        is_named=True,
        host=b"h",
        authorization=None,
    )
    for name, dialect in DIALECTS.items()
}


def check(data: bytes) -> None:
    given = source.of(data)
    endpoint = ENDPOINTS[given.pick(len(ENDPOINTS))]
    headers = {b"x-router-scenario": (b"", b"faq", b"code", b"nope")[given.seed % 4]}
    refusal = None
    try:
        found = verdict.decide_for(endpoint, given.raw, headers, LIVE)
    except ClientError as fault:
        refusal = fault
    if refusal is not None:
        assert 400 <= refusal.status < 500
        assert refusal.message
        return
    anew = verdict.decide_for(endpoint, given.raw, headers, _live_anew())
    assert (found.found, found.decision) == (anew.found, anew.decision), "remembered wrongly"
    if "extra_body" not in splice.members(given.raw)[0] and b"think" not in given.raw:
        assert found.request.raw == given.raw
    for dialect in DIALECTS.values():
        check_told(found, dialect, endpoint)


def _live_anew() -> Live:
    """Likewise, with no decision remembered."""
    return Live(
        *[{} if name == "plans" else getattr(LIVE, name) for name in Live.__struct_fields__]
    )


def check_told(found: Verdict, dialect: Dialect, endpoint: Endpoint) -> None:
    request = found.request
    try:
        told = found.told(dialect, "qwen")
    except ClientError:  # a value of a kind that this server falls over
        return
    out = told.patch.apply(request.raw, request.spans)
    after, _ = splice.members(out)
    for name, value in request.values.items():
        is_double = name not in spoken.READ and name.casefold() in spoken.READ
        if name not in OURS and dialect.allowed is None and not is_double:
            assert bytes(after[name]) == bytes(value), f"{name} has changed for {dialect.name}"
    assert bytes(after["model"]) == b'"qwen"'
    json.loads(bytes(told.line))
    msgspec.json.encode(explain.told(found, LIVE, [SLOTS[dialect.name]]))
    if _is_strict(request.raw):
        assert _is_strict(out), f"no JSON for {dialect.name}: {out!r}"
    parse.chat_request(endpoint, out, {})


def _is_strict(raw: bytes) -> bool:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        json.loads(raw.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True
