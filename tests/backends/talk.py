"""Questions to an engine through the router by the openai SDK, and what came back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from openai import OpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from tests.backends.policy import PLAIN

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer, whole or joined from its stream."""

    text: str
    thought: str
    finish: str | None
    usage: CompletionUsage | None
    headers: Mapping[str, str]
    calls: tuple[tuple[str, str], ...] = ()

    @property
    def prompt_tokens(self) -> int:
        assert self.usage is not None
        return self.usage.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        assert self.usage is not None
        return self.usage.completion_tokens

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were not computed again; None where nobody tells."""
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        return details.cached_tokens if details is not None else None

    @property
    def warnings(self) -> str:
        return self.headers.get("x-router-warnings", "")


class Talk:
    """A client of the router in front of one engine."""

    def __init__(self, url: str) -> None:
        self.client = OpenAI(base_url=url + "/v1", api_key="EMPTY", max_retries=0, timeout=120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.close()

    def ask(
        self, question: str | Sequence[Message], *, scenario: str = PLAIN, **fields: Any
    ) -> Reply:
        """The whole answer; `fields` stand at the top level of the body."""
        raw = self.client.chat.completions.with_raw_response.create(
            model=f"auto:{scenario}",
            messages=_messages(question),
            extra_body=fields,
            extra_headers={"x-router-debug": "true"},
        )
        answer = raw.parse()
        choice = answer.choices[0]
        calls = [
            (call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or ()
            if isinstance(call, ChatCompletionMessageFunctionToolCall)
        ]
        return Reply(
            text=choice.message.content or "",
            thought=_thought(choice.message),
            finish=choice.finish_reason,
            usage=answer.usage,
            headers=raw.headers,
            calls=tuple(calls),
        )

    def stream(
        self, question: str | Sequence[Message], *, scenario: str = PLAIN, **fields: Any
    ) -> Reply:
        """The same answer as a stream, joined."""
        text, thought, finish, usage = "", "", None, None
        with self.client.chat.completions.with_raw_response.create(
            model=f"auto:{scenario}",
            messages=_messages(question),
            stream=True,
            stream_options={"include_usage": True},
            extra_body=fields,
            extra_headers={"x-router-debug": "true"},
        ).parse() as chunks:
            headers = chunks.response.headers
            for chunk in chunks:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    thought += _thought(choice.delta)
                    finish = choice.finish_reason or finish
        return Reply(text=text, thought=thought, finish=finish, usage=usage, headers=headers)


def _messages(question: str | Sequence[Message]) -> Any:
    return [{"role": "user", "content": question}] if isinstance(question, str) else [*question]


def _thought(part: Any) -> str:
    """The thought beside an answer, under either name that servers have for it."""
    return getattr(part, "reasoning_content", None) or getattr(part, "reasoning", None) or ""
