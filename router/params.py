"""The parameters of a request: one name each, all the spellings clients use for it.

A table and the reading of one value. Knows names and ranges, no policy and no
backend: how a backend wants a parameter said is its dialect's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec


class Param(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter: its kind, its range, and its spellings in order of authority."""

    name: str
    kind: str  # "bool" | "int" | "float" | "text" | "texts" | "choice"
    spellings: tuple[str, ...]
    low: float = -math.inf
    high: float = math.inf
    above_low: bool = False  # the low bound itself is excluded
    choices: tuple[str, ...] = ()

    def fault(self, value: object) -> str | None:
        """Why this value cannot be sent, in words for an operator; None if it can."""
        match self.kind:
            case "bool":
                return None if isinstance(value, bool) else "must be true or false"
            case "text":
                return None if isinstance(value, str) and value else "must be a text"
            case "texts":
                texts = value if isinstance(value, list) else [value]
                good = all(isinstance(text, str) and text for text in texts)
                return None if good else "must be a text or a list of texts, none of them empty"
            case "choice":
                return None if value in self.choices else f"must be one of {list(self.choices)}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return "must be a number"
        if isinstance(value, float) and not math.isfinite(value):
            return "must be a finite number"
        if self.kind == "int" and isinstance(value, float) and not value.is_integer():
            return "must be a whole number"
        if value < self.low or value > self.high or (self.above_low and value <= self.low):
            return f"must be in {'(' if self.above_low else '['}{self.low:g}, {self.high:g}]"
        return None


# Ranges are the strictest of the backends we know, which is vLLM's request model:
# a preset inside them is accepted everywhere. -1 for top_k means "all tokens".
_TABLE = (
    Param(
        name="thinking",
        kind="bool",
        spellings=(
            # vLLM lets an explicit template argument beat reasoning_effort; so do we.
            "chat_template_kwargs.enable_thinking",
            "enable_thinking",
            "think",
            "thinking",
            "reasoning_effort",
            "reasoning",
        ),
    ),
    Param(
        name="thinking_budget",
        kind="int",
        low=0,
        spellings=(
            "thinking_token_budget",
            "thinking_budget",
            "thinking_budget_tokens",
            "chat_template_kwargs.thinking_budget",
        ),
    ),
    Param(
        name="reasoning_output",
        kind="choice",
        choices=("field", "inline", "drop", "keep"),
        spellings=("include_reasoning", "return_reasoning", "separate_reasoning"),
    ),
    Param(name="temperature", kind="float", low=0, high=2, spellings=("temperature",)),
    Param(name="top_p", kind="float", low=0, high=1, above_low=True, spellings=("top_p",)),
    Param(name="top_k", kind="int", low=-1, spellings=("top_k",)),
    Param(name="min_p", kind="float", low=0, high=1, spellings=("min_p",)),
    Param(
        name="max_new_tokens",
        kind="int",
        low=1,
        spellings=(
            "max_completion_tokens",
            "max_tokens",
            "max_new_tokens",
            "max_output_tokens",
            "n_predict",
        ),
    ),
    Param(
        name="repetition_penalty",
        kind="float",
        low=0,
        high=10,
        above_low=True,
        spellings=("repetition_penalty", "repeat_penalty"),
    ),
    Param(name="presence_penalty", kind="float", low=-2, high=2, spellings=("presence_penalty",)),
    Param(name="frequency_penalty", kind="float", low=-2, high=2, spellings=("frequency_penalty",)),
    Param(name="seed", kind="int", low=-(2**63), high=2**63 - 1, spellings=("seed",)),
    Param(name="stop", kind="texts", spellings=("stop",)),
    Param(name="session_id", kind="text", spellings=("session_id",)),
    Param(name="use_cache", kind="bool", spellings=("use_cache", "cache_prompt")),
    Param(name="skip_special_tokens", kind="bool", spellings=("skip_special_tokens",)),
    Param(
        name="clean_up_tokenization_spaces",
        kind="bool",
        spellings=("clean_up_tokenization_spaces",),
    ),
    Param(name="priority", kind="int", spellings=("priority",)),
    # `collect`: the backend streams although the client wants a whole answer.
    Param(name="stream", kind="choice", choices=("keep", "collect"), spellings=()),
)

PARAMS: Mapping[str, Param] = {param.name: param for param in _TABLE}
#: spelling as a client writes it (dotted when nested) → parameter
SPELLING: Mapping[str, Param] = {
    spelling: param for param in _TABLE for spelling in param.spellings
}
#: top-level members that can hold a spelling
TOP_LEVEL = frozenset(spelling.split(".")[0] for spelling in SPELLING)
#: names that say more than one parameter, so they are not removed once understood
SHARED = frozenset({"reasoning_effort", "reasoning", "chat_template_kwargs"})

_THINKING_WORDS = {
    "true": True,
    "enabled": True,
    "on": True,
    "auto": True,
    "false": False,
    "disabled": False,
    "off": False,
    "none": False,
}


def thinking_wish(value: object) -> bool | None:
    """What one spelling of the thinking switch says; None where it says nothing."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _THINKING_WORDS.get(value.lower(), True) if value else None
    if isinstance(value, Mapping):
        for key in ("type", "effort", "enabled"):
            if key in value:
                return thinking_wish(value[key])
    return None


def reading(param: Param, spelling: str, value: Any) -> Any:
    """A client's value in our terms; a null stays None, which counts as sent."""
    if value is None:
        return None
    if param.name == "thinking":
        return thinking_wish(value)
    if param.name == "reasoning_output":
        if isinstance(value, bool):
            return ("field" if spelling == "separate_reasoning" else "keep") if value else "drop"
        return value
    if param.kind in ("int", "float") and isinstance(value, str):
        # Servers coerce "5" to 5, and so must a cap: text is no way round a limit.
        try:
            number = float(value)
        except ValueError:
            return value
        if not math.isfinite(number):
            return value
        return int(number) if number.is_integer() else number
    return value


def strongest(param: Param, readings: Iterable[tuple[str, Any]]) -> Any:
    """One value where a client used several spellings.

    Token limits: the smallest counts, as each was meant as a limit. Anything else:
    the spelling with the most authority.
    """
    found = dict(readings)
    if param.name == "max_new_tokens":
        limits = [v for v in found.values() if is_number(v) and v >= 0]
        if limits:
            return min(limits)
    for spelling in param.spellings:
        if found.get(spelling) is not None:
            return found[spelling]
    return None


def is_choice(name: str) -> bool:
    """Whether its values are words of ours."""
    return name in PARAMS and PARAMS[name].kind == "choice"


def is_sayable(value: object) -> bool:
    """Whether JSON can carry it."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(is_sayable, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(is_sayable, value))


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
