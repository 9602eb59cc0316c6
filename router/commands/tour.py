"""Three requests through a router that has just come up, and the lines to paste."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from router import config as configs
from router import keyfile, tls
from router.config import Config
from router.report_text import plain

#: one question of each kind that the presets differ most in
QUESTIONS = (
    ("FAQ", "Where can I see whether my refund has arrived?"),
    ("code", "Write a Python function that counts the vowels in a string."),
    (
        "reasoning",
        "A tank gains 4 litres a minute and loses 1. Step by step: when does it hold 30?",
    ),
)
#: the tour is a taste; a small CPU makes some fifteen tokens a second
_LIMIT = 96


async def give(address: str, config: Config, config_path: Path) -> None:
    """Ask each question through the router and print what came of it."""
    import httpx

    server, has_keys = config.server, config.auth.has_keys
    if server.tls_client_ca is not None:
        print("\nno tour: clients must show a certificate, and we have none to show", flush=True)
        print(lines_to_paste(address, None, has_keys=has_keys), flush=True)
        return
    key = _known_key(config)
    if has_keys and key is None:
        print("\nclients are asked for keys, which are kept as hashes: no tour without one")
        print(lines_to_paste(address, None, has_keys=True), flush=True)
        return
    headers = {"authorization": f"Bearer {key}"} if key is not None else {}
    # Whatever name the certificate is for: we ask the very server that we have started.
    cert = server.tls_cert
    trust: Any = tls.pinned(configs.beside(config_path, cert)) if cert is not None else True
    async with httpx.AsyncClient(
        base_url=address, headers=headers, timeout=300, trust_env=False, verify=trust
    ) as client:
        for kind, question in QUESTIONS:
            print(f"\n--- {kind}: {question}", flush=True)
            try:
                await _ask(client, question)
            except httpx.HTTPError as error:
                print(f"no answer: {type(error).__name__} {error}", flush=True)
        models = (await client.get("/v1/models")).json()["data"]
    real = [model for model in models if model["owned_by"] != "scenario-router"]
    print(lines_to_paste(address, real, has_keys=has_keys), flush=True)


def _known_key(config: Config) -> str | None:
    """A client's key that is spelled out somewhere, to show the way with."""
    if config.auth.keys_env is None:
        return None
    keys = keyfile.spelled_out(config.auth.keys_env, os.environ)
    return next((key.decode("utf-8", "surrogateescape") for _, key in keys), None)


async def _ask(client: Any, question: str) -> None:
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": _LIMIT,
        "stream": True,
    }
    began = time.perf_counter()
    first = None
    async with client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"x-router-debug": "true"}
    ) as reply:
        if reply.status_code != 200:
            print(f"status {reply.status_code}: {(await reply.aread()).decode()}", flush=True)
            return
        async for text in _texts(reply.aiter_lines()):
            first = first or time.perf_counter()
            print(text, end="", flush=True)
    headers = reply.headers
    ttft = f"{((first or time.perf_counter()) - began) * 1e3:.0f} ms"
    print(
        f"\n    scenario {headers['x-router-scenario']} ({headers['x-router-source']}, "
        f"confidence {headers['x-router-confidence']}) · "
        f"thinking {headers['x-router-thinking']} · TTFT {ttft} · "
        f"our overhead {headers['x-router-overhead-ms']} ms\n"
        f"    preset {headers['x-router-params']}",
        flush=True,
    )
    if warnings := headers.get("x-router-warnings"):
        print(f"    warnings {warnings}", flush=True)


async def _texts(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """The pieces of text, thought included, of a stream."""
    async for line in lines:
        if not line.startswith("data: {"):
            continue
        frame = json.loads(line[6:])
        if "error" in frame:
            yield f"[{frame['error'].get('message')}]"
        for choice in frame.get("choices", ()):
            delta = choice.get("delta", {})
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            yield thought or delta.get("content") or ""


def lines_to_paste(address: str, models: list[dict[str, Any]] | None, *, has_keys: bool) -> str:
    """How to point a client here. `models`: those that are served, where that is known."""
    key = "<your key>" if has_keys else "EMPTY"
    header = f' -H "Authorization: Bearer {key}"' if has_keys else ""
    names = ", ".join(
        plain(model["id"] + (f" = {model['label']}" if model.get("label") else ""))
        for model in models or ()
    )
    serving = f"Serving: {names or 'no model yet'}. " if models is not None else ""
    message = '{"role": "user", "content": "Write a slogan for a bakery."}'
    return f"""
{serving}The router stays up; Ctrl-C ends it and what it started.

curl:
  curl {address}/v1/chat/completions{header} -d '{{"model": "auto", "messages": [{message}]}}'

OpenAI SDK:
  from openai import OpenAI
  client = OpenAI(base_url="{address}/v1", api_key="{key}")
  client.chat.completions.create(model="auto", messages=[{message}])

LangChain:
  from langchain_openai import ChatOpenAI
  ChatOpenAI(base_url="{address}/v1", api_key="{key}", model="auto").invoke("Write a slogan.")
"""
