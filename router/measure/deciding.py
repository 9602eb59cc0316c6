"""A request as a policy would have it sent, decided here with the code that serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router import dialects, untouched
from router.chat import Endpoint
from router.measure.asking import Sending, body_of
from router.measure.prompts import Prompt
from router.verdict import Live, decide_for


class Decided:
    """Encodes prompts under one policy for one kind of server."""

    def __init__(
        self,
        live: Live,
        dialect: dialects.Dialect,
        model: str,
        *,
        scenario: str | None,
        headers: Mapping[str, str],
        extra: Mapping[str, Any],
    ) -> None:
        """`scenario` is taken whatever a prompt looks like; None: it is told apart."""
        self._live = live
        self._dialect = dialect
        self._model = model
        self._hints = {} if scenario is None else {b"x-router-scenario": scenario.encode()}
        self._headers = headers
        self._extra = extra

    def __call__(self, prompt: Prompt) -> Sending:
        """Raises RouterError for what the router would refuse."""
        raw = body_of(prompt, "auto", stream=True, extra=self._extra)
        verdict = decide_for(Endpoint.CHAT, raw, self._hints, self._live)
        told = verdict.told(self._dialect, self._model)
        return Sending(
            told.patch.apply(verdict.request.raw, verdict.request.spans),
            self._headers,
            scenario=verdict.found.scenario,
            policy=self._live.policy.hash,
        )


class Untouched:
    """Encodes prompts as a client that knows nothing of policies."""

    def __init__(
        self, live: Live, model: str, *, headers: Mapping[str, str], extra: Mapping[str, Any]
    ) -> None:
        self._live = live
        self._model = model
        self._headers = headers
        self._extra = extra

    def __call__(self, prompt: Prompt) -> Sending:
        raw = body_of(prompt, "auto", stream=True, extra=self._extra)
        return Sending(untouched.with_model(raw, self._model, self._live), self._headers)
