"""A replayable case as data: what to send, what the upstreams answer, what must hold.

Cases come from a JSONL file, one a line, or from a folder, one a file. They name
settings and log fields by meaning; `casemap.py` knows the product's own names.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.paths import put
from tests.support.rawclient import request_bytes

JsonObject = Mapping[str, Any]
BODY_FORMS = ("body", "body_text", "body_b64", "body_gen", "raw_b64")
SEND_HEADER = "X-Case-Send"  # says which send of a scenario a request belongs to


@dataclass(frozen=True, slots=True)
class Case:
    id: str
    title: str
    client: str  # raw | openai
    needs: tuple[str, ...]
    request: JsonObject
    nodes: tuple[JsonObject, ...]
    config: JsonObject
    actions: tuple[JsonObject, ...]
    must: tuple[JsonObject, ...]
    should: tuple[JsonObject, ...]

    @classmethod
    def of(cls, value: JsonObject) -> Self:
        return cls(
            id=value["id"],
            title=value["title"],
            client=value.get("client", "raw"),
            needs=tuple(value.get("needs", ())),
            request=value["request"],
            nodes=tuple(value["backend"]["nodes"]),
            config=value.get("config", {}),
            actions=tuple(value.get("scenario") or [{"do": "send", "as": "r1"}]),
            must=tuple(value["expect"].get("must", ())),
            should=tuple(value["expect"].get("should", ())),
        )

    def __str__(self) -> str:
        return f"{self.id}: {self.title}"


def from_lines(path: Path) -> list[Case]:
    """The cases of a JSONL file; none where there is no such file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Case.of(json.loads(line)) for line in lines if line.strip()]


def from_folder(path: Path) -> list[Case]:
    """The cases of a folder, one a file."""
    return [
        Case.of(json.loads(file.read_text(encoding="utf-8")))
        for file in sorted(path.glob("*.json"))
    ]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request of a `send`, ready for either client."""

    raw: bytes
    method: str
    path: str
    headers: Mapping[str, str]
    json: Any  # the body's value; None where it is no JSON
    extra_body: JsonObject  # what the SDK is to put beside the body

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers.items() if k.lower() == name.lower()), None)


def outgoing(request: JsonObject, *, number: int, label: str) -> Outgoing:
    """The request line-up as bytes; `number` replaces {i}, `label` marks it as one send."""
    if "raw_b64" in request:
        raw = base64.b64decode(request["raw_b64"])
        return Outgoing(raw, raw.split(b" ", 1)[0].decode(), "", {}, None, {})
    headers = {k: v.replace("{i}", str(number)) for k, v in request.get("headers", {}).items()}
    headers |= {SEND_HEADER: label, "X-Request-Id": f"case-{label}"}
    method, path = request.get("method", "POST"), request["path"]
    extra = request.get("sdk_extra_body", {})
    value, body = _body(request, extra)
    return Outgoing(request_bytes(method, path, headers, body), method, path, headers, value, extra)


def _body(request: JsonObject, extra: JsonObject) -> tuple[Any, bytes]:
    if "body_text" in request:
        return None, request["body_text"].encode()
    if "body_b64" in request:
        return None, base64.b64decode(request["body_b64"])
    if "body" not in request:
        return None, b""
    value = copy.deepcopy(request["body"])
    if "body_gen" in request:
        recipe = request["body_gen"]
        if recipe["kind"] != "json_fill":
            raise ValueError(f"no such body_gen: {recipe['kind']}")
        put(value, recipe["path"], recipe["char"] * recipe["count"])
    whole = {**value, **extra} if extra else value
    return value, json.dumps(whole, ensure_ascii=False).encode()


def overridden(request: JsonObject, override: JsonObject) -> dict[str, Any]:
    """The request line-up with these places replaced; null removes a header or a body form."""
    result: dict[str, Any] = copy.deepcopy(dict(request))
    for path, value in override.items():
        head, _, rest = path.partition(".")
        if head == "headers":
            names = [name for name in result["headers"] if name.lower() == rest.lower()]
            for name in names:
                del result["headers"][name]
            if value is not None:
                result["headers"][rest] = value
        elif rest:
            put(result, path, value)
        elif head in BODY_FORMS:
            for form in BODY_FORMS:
                result.pop(form, None)
            if value is not None:
                result[head] = value
        else:
            result[head] = value
    return result


def numbers(count: int, vary: Mapping[str, str]) -> list[int]:
    """What {i} stands for in each of `count` requests: n, or a small sum over n."""
    formula = vary.get("i", "n")
    found = re.fullmatch(r"n(?:\s*([%+*-])\s*(\d+))?", formula)
    if found is None:
        raise ValueError(f"not a formula over n: {formula}")
    sign, operand = found[1], int(found[2] or 0)
    match sign:
        case None:
            return list(range(count))
        case "%":
            return [n % operand for n in range(count)]
        case "+":
            return [n + operand for n in range(count)]
        case "-":
            return [n - operand for n in range(count)]
        case _:
            return [n * operand for n in range(count)]


def names_of(check: JsonObject, known: Sequence[str]) -> list[str]:
    """The sends that a check looks at."""
    wanted = check.get("of", "*")
    if wanted == "*":
        return list(known)
    return [wanted] if isinstance(wanted, str) else list(wanted)
