"""Policy files: all mistakes are told, and one that is taken serves every request."""

from __future__ import annotations

import json
from typing import Any

from router import policy as policies
from router import policycheck, trials, verdict
from router.chat import Endpoint
from router.classify import Classifier
from router.config import Backend
from router.dialects import DIALECTS
from router.errors import ClientError
from router.policy import Policy
from router.tomlfile import FileFault
from router.verdict import Live
from tests.fuzz import folders, source

#: nothing lies beside the policy
FOLDER = folders.new("policy")
BACKENDS = [Backend.model_validate({"name": "b", "url": "http://127.0.0.1:9", "dialect": "vllm"})]
ASKED: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "How do I get a refund?"}]},
    {
        "messages": [{"role": "user", "content": "```py\nx=1\n``` 退款"}],
        "max_tokens": 5,
        "temperature": None,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "enable_thinking": True,
        "stream": True,
    },
]


def check(data: bytes) -> None:
    given = source.of(data)
    try:
        text = given.raw.decode()
        policy = policies.parse(text, "policy", FOLDER)
    except UnicodeDecodeError:
        return
    except FileFault as fault:
        assert fault.mistakes
        lines = text.count("\n") + 1
        for mistake in fault.mistakes:
            assert mistake.message
            assert mistake.line is None or 1 <= mistake.line <= lines + 1
        return
    assert policies.parse(text, "policy", FOLDER).hash == policy.hash
    for finding in policycheck.findings(policy, BACKENDS, {}):
        json.dumps(finding.told())
    serve(policy)


def serve(policy: Policy) -> None:
    live = Live(
        policy=policy,
        classifier=Classifier(policy),
        pools={},
        aliases=frozenset(),
        real_model_bypass=False,
        allow_policy_off=True,
        has_keys=False,
        plans={},
        trials=trials.of(policy),
    )
    for body in ASKED:
        raw = json.dumps({"model": "auto", **body}).encode()
        for scenario in policy.scenarios:
            headers = {b"x-router-scenario": scenario.encode(), b"x-session-id": b"s"}
            found = verdict.decide_for(Endpoint.CHAT, raw, headers, live, request_id="r")
            assert found.found.scenario == scenario
            for dialect in DIALECTS.values():
                try:
                    told = found.told(dialect, "qwen")
                except ClientError as fault:
                    raise AssertionError(f"a sound request is refused: {fault}") from fault
                json.loads(told.patch.apply(found.request.raw, found.request.spans))
        verdict.decide_for(Endpoint.CHAT, raw, {}, live, request_id="r")
