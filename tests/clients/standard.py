"""LangChain's standard suite for chat models, aimed at an address.

What the demo model cannot do stands here with its reason; everything else must pass.
"""

from __future__ import annotations

from typing import Any, ClassVar

import openai
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from tests.clients.demo import MODEL

_NO_CALLS = "answers in prose: a model of 135M parameters does not call tools"
_RAMBLES = "does not end an optional text within the token limit"

#: the suite's tests that fail with this model whether or not a router is between
CANNOT = {
    "test_tool_calling": _NO_CALLS,
    "test_tool_calling_async": _NO_CALLS,
    "test_bind_runnables_as_tools": _NO_CALLS,
    "test_tool_choice": _NO_CALLS,
    "test_tool_calling_with_no_arguments": _NO_CALLS,
    "test_agent_loop": _NO_CALLS,
    "test_unicode_tool_call_integration": _NO_CALLS,
    "test_structured_output_pydantic_2_v1": "for pydantic v1, LangChain takes tools: " + _NO_CALLS,
    "test_structured_output_optional_param": _RAMBLES,
}

#: the suite skips these unless a model declares that it has the feature
NOT_OFFERED = {
    "test_pdf_inputs": "a text model",
    "test_audio_inputs": "a text model",
    "test_image_inputs": "a text model",
    "test_image_tool_message": "a text model",
    "test_pdf_tool_message": "a text model",
    "test_anthropic_inputs": "content blocks of another vendor's API",
    "test_json_mode": "free JSON without a schema does not end within the token limit",
    "test_stream_time": "measures time against a recording",
}


class Standard(ChatModelIntegrationTests):
    """The suite with ChatOpenAI. A subclass sets the address and chooses the tests."""

    cannot: ClassVar = CANNOT
    #: not an error of HTTP or of the connection: those would be the router's
    fails_with: ClassVar = (AssertionError, openai.LengthFinishReasonError)
    is_failure_certain: ClassVar[bool]
    base_url: str
    model_name: str

    @classmethod
    def wants(cls, test: str) -> bool:
        """Whether this inherited test is run."""
        return test not in NOT_OFFERED

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": self.model_name,
            "base_url": self.base_url,
            "api_key": "EMPTY",
            "temperature": 0,
            "max_tokens": 96,
            "max_retries": 0,
            "stream_usage": True,
        }

    @property
    def model_override_value(self) -> str | None:
        return MODEL  # what the answer names: virtual names end at the router
