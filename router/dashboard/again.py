"""A request decided once more, by the policy that is on the disk now: the code that serves.

In: a record and what was kept of the prompt. Out: what it was, what it would be, and what differs.
The request is put together again from both; what neither holds is named in the answer.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from router.chat import Endpoint
from router.dashboard.refusal import Refused, no_body
from router.files import Signature, signature_of

if TYPE_CHECKING:
    from router.config import Backend
    from router.dialects import Dialect
    from router.verdict import Live

_ENDPOINTS = {
    "chat.completions": Endpoint.CHAT,
    "completions": Endpoint.COMPLETIONS,
    "responses": Endpoint.RESPONSES,
}
#: our name of a parameter → how a client says it in a chat request, where that is another word
_SAID = {"thinking": "enable_thinking", "max_new_tokens": "max_tokens"}
#: what is ours alone, or was no member of the request
_UNSAID = ("reasoning_output", "stream")
#: words in a record's reasons for what a request had and a kept prompt has not
_SHAPES = re.compile(r"\b(tools?|forced_tool|json_schema|json_object|image|logprobs|n > 1)\b")


class Again:
    """Holds the policy that was last on the disk. May be asked from several threads."""

    def __init__(self, config: Path | None, policy: Path | None) -> None:
        """`config` is the router's configuration; `policy` takes the place of what it names."""
        self._config = config
        self._policy = policy
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._backends: Mapping[str, Backend] = {}  # of the configuration, by name
        self._files: tuple[Path, ...] = ()
        self._taken: Signature = ()

    @property
    def is_possible(self) -> bool:
        return self._config is not None and self._config.exists()

    @property
    def scenarios(self) -> list[str] | None:
        """Those of the policy that was last read; None before."""
        return None if self._live is None else list(self._live.policy.scenarios)

    def warm_up(self) -> None:
        """Read the policy now, so that who asks first need not wait; no matter if that fails."""
        if self.is_possible:
            with contextlib.suppress(Refused):
                self._loaded()

    def refusal(self, record: Mapping[str, Any], body: Mapping[str, Any] | None) -> Refused | None:
        """Why this request cannot be explained, as far as that is known without trying."""
        if not self.is_possible:
            return Refused("no_config", "No configuration is known here; --config names one.")
        if record.get("endpoint") not in _ENDPOINTS or record.get("scenario") is None:
            return Refused("not_classified", "This request was passed on without being classified.")
        return no_body(record) if body is None else None

    def explained(
        self, record: Mapping[str, Any], body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """What it was and what it would be. Raises Refused."""
        from router.errors import RouterError
        from router.verdict import decide_for

        if (refusal := self.refusal(record, body)) is not None:
            raise refusal
        assert body is not None
        live = self._loaded()
        try:
            verdict = decide_for(Endpoint.CHAT, _raw(record, body), _headers(record), live)
        except RouterError as fault:
            raise Refused("refused_now", f"It would be refused now: {fault.message}") from None
        found, decision = verdict.found, verdict.decision
        said: Mapping[str, Any] = {param.name: param.value for param in decision.params}
        if (dialect := self._dialect(record)) is not None:
            said = verdict.told(dialect, record.get("backend_model") or "").params
        now = {
            "scenario": found.scenario,
            "source": found.source,
            "confidence": round(found.confidence, 3),
            "thinking": decision.thinking,
            "params": msgspec.to_builtins(
                {p.name: (p.client, said.get(p.name), p.origin) for p in decision.params}
            ),
            "signals": [*found.signals, *decision.because],
            "policy": live.policy.hash,
        }
        then = {name: record.get(name) for name in now}
        return {
            "then": then,
            "now": now,
            "differs": _differs(then, now),
            "basis": "body",
            "notes": _notes(record, body),
        }

    def _dialect(self, record: Mapping[str, Any]) -> Dialect | None:
        """The words of the server that had the request, as far as it was examined; None where
        there was no server, or one of a kind that is not known here."""
        from router import capabilities, dialects, trained

        if record.get("dialect") not in dialects.DIALECTS:
            return None
        dialect = dialects.of(record["dialect"])
        backend = self._backends.get(record.get("backend") or "")
        if backend is None:
            return dialect
        if backend.dialect == "auto":
            model = record.get("backend_model")
            dialect = capabilities.as_examined(dialect, backend.url, model, trained.folder())
        if backend.context is not None:
            dialect = msgspec.structs.replace(dialect, context=backend.context)
        return dialect

    def _loaded(self) -> Live:
        """What the files say now; read again when they change. Raises Refused."""
        with self._lock:
            taken = signature_of(self._files)
            if self._live is None or taken != self._taken:
                self._live = self._read()
            return self._live

    def _read(self) -> Live:
        # Loaded when first asked for: it is most of the router.
        from router import config as configs
        from router import offline
        from router import policy as policies
        from router.tomlfile import FileFault

        assert self._config is not None
        flags: dict[tuple[str, ...], Any] = {}
        if self._policy is not None:
            flags["policy", "file"] = str(self._policy)
        try:
            config = configs.load(self._config, flags=flags)
            place = configs.policy_path(self._config, config)
            taken = signature_of([self._config, place])
            beside = policies.load(place, lightly=True).beside
            taken += signature_of(beside)
            live = offline.live(config, self._config, dialect="vllm")
        except FileFault as fault:
            raise Refused("bad_policy", f"The policy on the disk cannot be used: {fault}") from None
        self._backends = {backend.name: backend for backend in config.backends}
        self._files = (self._config, place, *beside)
        self._taken = taken
        return live


def _raw(record: Mapping[str, Any], body: Mapping[str, Any]) -> bytes:
    """The request as its client may have sent it."""
    members: dict[str, Any] = {
        "model": record["client_model"],
        "messages": [
            {"role": message["role"], "content": message["content"]} for message in body["prompt"]
        ],
        "stream": bool(record.get("stream")),
    }
    for name, (client, _, _) in (record.get("params") or {}).items():
        if client is not None and name not in _UNSAID:
            members[_SAID.get(name, name.removeprefix("extra."))] = client
    return msgspec.json.encode(members)


def _headers(record: Mapping[str, Any]) -> dict[bytes, bytes]:
    if record.get("source") != "header":
        return {}
    return {b"x-router-scenario": str(record["scenario"]).encode()}


def _differs(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found = [name for name in ("scenario", "source", "thinking") if then[name] != now[name]]
    before, after = then["confidence"], now["confidence"]
    if before is None or abs(before - after) >= 0.0015:  # one of them may be rounded the other way
        found.append("confidence")
    was, is_now = then["params"] or {}, now["params"]
    return found + [
        f"params.{name}"
        for name in sorted({*was, *is_now})
        if list(was.get(name, ()))[1:] != list(is_now.get(name, ()))[1:]
    ]


def _notes(record: Mapping[str, Any], body: Mapping[str, Any]) -> list[str]:
    """What the request may have had that is not kept, by a word for each."""
    notes = []
    if body.get("cut"):
        notes.append("cut")
    if body.get("redacted"):
        notes.append("redacted")
    has_parts = any(message["parts"] for message in body["prompt"])
    if has_parts or _SHAPES.search(" ".join(record.get("signals") or ())):
        notes.append("shape")  # tools, schemas and images are not kept
    if record.get("source") == "sticky":
        notes.append("session")  # what the session was about before is not kept
    if record.get("endpoint") != "chat.completions":
        notes.append("endpoint")  # asked again as a chat request
    return notes
