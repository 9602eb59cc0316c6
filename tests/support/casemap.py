"""The one place where the words of a case become the product's own.

Hints for settings turn into config.toml and a policy; meanings of log fields turn
into fields of the record. A hint that nothing here knows is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tomli_w

from tests.support.paths import MISSING, lookup, same

MODEL = "qwen3-0.6b"
CLASS_HEADER = "x-router-scenario"
SESSION_KEY = "header:X-Session-Id"
LIVE_PATH = "/health"

# --- settings ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """How to start the product. `policy` None is the shipped one."""

    config: dict[str, Any]
    policy: dict[str, Any] | None
    env: dict[str, str] = field(default_factory=dict)


def settings(
    hints: Mapping[str, Any],
    nodes: Mapping[str, tuple[str, str]],
    *,
    redis_url: str | None = None,
) -> Settings:
    """`nodes` is id → (url, dialect)."""
    config: dict[str, Any] = {"backends": []}
    env: dict[str, str] = {}
    policy = None
    own = hints.get("backends", {})
    for name, (url, dialect) in nodes.items():
        backend, keys = _backend(name, url, dialect, own.get(name, {}))
        config["backends"].append(backend)
        env |= keys
    for name, value in hints.items():
        match name:
            case "policy":
                policy = policy_of(value)
            case "backends":
                pass
            case _:
                for part, setting in value.items():
                    _place(config, f"{name}.{part}", setting)
    if redis_url is not None:
        config.setdefault("affinity", {}).update(store="redis", url_env="REDIS_URL")
        env["REDIS_URL"] = redis_url
    return Settings(config, policy, env)


def _backend(
    name: str, url: str, dialect: str, hints: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    backend: dict[str, Any] = {"name": name, "url": url, "dialect": dialect, "model": MODEL}
    env = {}
    for hint, value in hints.items():
        match hint:
            case "api_key":
                backend["api_key_env"] = f"CASE_KEY_{name.upper()}"
                env[backend["api_key_env"]] = value
            case "timeout_ms":
                backend["timeout_s"] = value / 1000
            case "dialect" | "weight" | "max_inflight" | "model":
                backend[hint] = value
            case _:
                raise ValueError(f"no such hint for a backend: {hint}")
    return backend, env


def _place(config: dict[str, Any], hint: str, value: Any) -> None:
    match hint:
        case "limits.body_bytes":
            _set(config, "server", "body_limit_mb", value / 2**20)
        case "lifecycle.grace_ms":
            _set(config, "server", "grace_s", value / 1000)
        case "reload.settle_ms":
            _set(config, "policy", "settle_ms", value)
        case "health.interval_ms":
            _set(config, "health", "interval_s", value / 1000)
        case "affinity.ttl_s":
            _set(config, "affinity", "ttl_s", value)
        case "affinity.key":
            # Where the session id comes from is fixed, and this is the first place.
            if value != SESSION_KEY:
                raise ValueError(f"the session id cannot come from {value}")
        case "health.recovery_ms" | "log.usage" | "redis.timeout_ms" | "redis.max_connections":
            pass  # what the product does anyway, without a setting
        case _:
            raise ValueError(f"no such hint: {hint}")


def _set(config: dict[str, Any], table: str, key: str, value: Any) -> None:
    config.setdefault(table, {})[key] = value


# --- policies -------------------------------------------------------------------

# A programming question is `code`, one about the kitchen is not.
CLASS_KEYWORDS = {
    "code": ["python", "function", "code", "program", "algorithm", "编程", "函数", "代码"]
}
FALLBACK = "chat"


def policy_of(hint: Mapping[str, Any]) -> dict[str, Any]:
    """A whole policy that says what the hint says, and nothing more."""
    policy: dict[str, Any] = {"schema": 1, "default_scenario": FALLBACK}
    scenarios: dict[str, Any] = {FALLBACK: {"title": "Chat"}}
    preset: dict[str, Any] = {}
    mode = hint.get("mode", "force")
    for part, value in hint.items():
        match part:
            case "mode":
                pass
            case "set":
                preset |= _preset(value, mode)
            case "thinking":
                preset["thinking"] = _rule(value == "on", mode)
            case "profiles":
                policy["defaults"] = {
                    name: _preset(profile["set"], profile.get("mode", "fill"), bare="fill")
                    for name, profile in value.items()
                }
            case "classes":
                for name, settings_ in value.items():
                    scenarios |= _class(name, settings_)
            case _:
                raise ValueError(f"no such hint for a policy: {part}")
    if preset:
        # Last in the file: whatever half of it is written, the parameters are missing.
        scenarios[FALLBACK]["preset"] = preset
    policy["scenarios"] = scenarios
    return policy


def policy_text(hint: Mapping[str, Any]) -> str:
    return tomli_w.dumps(policy_of(hint))


def _class(name: str, hint: Mapping[str, Any]) -> dict[str, Any]:
    scenario = FALLBACK if name == "default" else name
    made: dict[str, Any] = {"title": scenario.capitalize()}
    if scenario in CLASS_KEYWORDS:
        made["match"] = {"keywords": CLASS_KEYWORDS[scenario]}
    made["preset"] = _preset(hint["set"], hint.get("mode", "force"))
    return {scenario: made}


def _preset(values: Mapping[str, Any], mode: str, *, bare: str = "force") -> dict[str, Any]:
    preset: dict[str, Any] = {}
    for path, value in values.items():
        name = _parameter(path)
        table = preset.setdefault("extra", {}) if name.startswith("extra.") else preset
        table[name.removeprefix("extra.")] = _rule(value, mode, bare=bare)
    return preset


def _rule(value: Any, mode: str, *, bare: str = "force") -> Any:
    return value if mode == bare else {mode: value}


PARAMETERS = {
    "chat_template_kwargs.enable_thinking": "thinking",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
}
SAME_NAME = {
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "stop", "thinking", "thinking_budget"),
}


def _parameter(path: str) -> str:
    if path in SAME_NAME:
        return path
    return PARAMETERS.get(path, f"extra.{path}")


# --- log records -----------------------------------------------------------------

FIELDS = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
}
OUTCOMES = {"proxy_error": {"router_error", "rejected", "client_error"}}
SWITCH = {"on": {"on", "True"}, "off": {"off", "False"}}
# Words that a case expects in a warning, and the words we use there.
WORDS = {"config": ("config", "policy")}


def field_matches(record: Mapping[str, Any], meaning: str, wanted: Any) -> bool:
    """Whether the record says this under our name for the meaning."""
    value = record_value(record, meaning)
    match meaning:
        case "outcome":
            return value in OUTCOMES.get(wanted, {wanted})
        case "thinking":
            return str(value) in SWITCH[wanted]
        case _:
            return same(value, wanted)


def record_value(record: Mapping[str, Any], meaning: str) -> Any:
    if meaning.startswith("original."):
        # A parameter is logged as [client's value, value sent, where that came from].
        name = _parameter(meaning.removeprefix("original."))
        values = record.get("params", {}).get(name, MISSING)
        return values if values is MISSING else values[0]
    return lookup(dict(record), FIELDS.get(meaning, meaning))


def record_id(record: Mapping[str, Any]) -> str:
    return str(record.get("request_id", ""))


def words_for(text: str) -> tuple[str, ...]:
    return WORDS.get(text, (text,))
