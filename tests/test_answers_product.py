"""Answers that think, through the running router: asked again, moved, put together, kept alive."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.clients.demo import await_fact, record_of
from tests.support.product import Product
from tests.support.rawclient import (
    HOST,
    RawConnection,
    RawReply,
    ReplyReader,
    exchange,
    request_bytes,
    sse_events,
    sse_payloads,
)
from tests.support.script import CLOSE as HANG_UP
from tests.support.script import DONE, END, RESET, Step, chat_ok, reply_json, stream_head
from tests.support.scripted import ScriptedBackend, Seen
from tests.support.thoughts import CLOSE, OPEN, chunk, joined, said_whole, whole

Said = dict[str, Any]
CHAT = "/v1/chat/completions"
MODEL = "qwen3-0.6b"
ASK: Said = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
STREAM: Said = {**ASK, "stream": True}
SILENCE: Step = {"do": "wait_disconnect", "max_ms": 60_000}
GATE: Step = {"do": "gate"}
RESCUED = "thought-used-up-the-tokens"
FIRST_USAGE = {"prompt_tokens": 15, "completion_tokens": 64, "total_tokens": 79}
SECOND_USAGE = {"prompt_tokens": 19, "completion_tokens": 5, "total_tokens": 24}
SUM = {"prompt_tokens": 15, "completion_tokens": 69, "total_tokens": 84}
ANSWER = "The Rhine."
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}

_PRESET = """
[scenarios.{0}.preset]
thinking = true
max_new_tokens = {{ cap = 64 }}
"""
POLICY = (
    'schema = 1\ndefault_scenario = "chat"\n'
    + _PRESET.format("chat")
    + "".join(
        _PRESET.format(mode) + f'reasoning_output = "{mode}"\n'
        for mode in ("field", "inline", "drop", "keep")
    )
    + _PRESET.format("unguarded")
    + "[scenarios.unguarded.guard]\nempty_answers = false\n"
    + _PRESET.format("budgeted")
    + "thinking_budget = { fill = 100 }\n"
)

# --- what the backend says ------------------------------------------------------------------


def thinking_whole(form: str, thought: str, answer: str, finish: str = "stop") -> Said:
    if form == "tags":
        text = f"{OPEN}\n{thought}\n{CLOSE}\n\n{answer}" if answer else f"{OPEN}\n{thought}"
        return whole({"content": text}, finish, usage=FIRST_USAGE)
    return whole({"content": answer or None, form: thought}, finish, usage=FIRST_USAGE)


def thinking_frames(form: str, thought: str, answer: str, finish: str = "stop") -> list[Said]:
    deltas: list[Said] = [{"role": "assistant", "content": ""}]
    if form == "tags":
        deltas.append({"content": OPEN})
        deltas += [{"content": f"\n{word}"} for word in thought.split()]
        deltas += [{"content": f"\n{CLOSE}\n\n"}] if answer else []
    else:
        deltas += [{form: f"{word} "} for word in thought.split()]
    deltas += [{"content": answer}] if answer else []
    return [*map(chunk, deltas), chunk({}, finish)]


def usage_frame(usage: Said) -> Said:
    return {**chunk({}), "choices": [], "usage": usage}


def streamed(frames: Sequence[Said], usage: Said | None = None) -> list[Step]:
    documents = [*frames, usage_frame(usage)] if usage is not None else frames
    sends: list[Step] = [{"do": "sse", "data": document} for document in documents]
    return [stream_head(), *sends, DONE, END]


def thinks_only(form: str, *, stream: bool) -> list[Step]:
    """An answer whose thought took all the tokens."""
    if stream:
        return streamed(thinking_frames(form, "Well let me", "", "length"), FIRST_USAGE)
    return [reply_json(thinking_whole(form, "Well let me", "", "length"))]


def answers(*, stream: bool) -> list[Step]:
    """The same request's answer with thinking off."""
    if not stream:
        document = whole({"content": ANSWER}, usage=SECOND_USAGE)
        return [reply_json({**document, "id": "c-2"})]
    frames = [chunk({"role": "assistant", "content": ""}), chunk({"content": ANSWER})]
    frames.append(chunk({}, "stop"))
    return streamed([{**frame, "id": "c-2"} for frame in frames], SECOND_USAGE)


def plays(
    backend: ScriptedBackend, first: Sequence[Step], second: Sequence[Step] | None = None
) -> None:
    """Script it: `second` for a request with thinking off."""
    off = {"body_eq": {"chat_template_kwargs.enable_thinking": False}}
    rules = [{"when": off, "steps": list(second)}] if second is not None else []
    backend.set_script(first, rules=rules)
    backend.requests.clear()


class GatedBackend(ScriptedBackend):
    """One that waits at each GATE until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self._passes = threading.Semaphore(0)

    def set_script(self, steps: Sequence[Step], *, rules: Sequence[Mapping[str, Any]] = ()) -> None:
        self._passes = threading.Semaphore(0)
        super().set_script(steps, rules=rules)

    def let_go_on(self, times: int = 1) -> None:
        self._passes.release(times)

    def take(self, seen: Seen) -> list[Step]:
        return cast("list[Step]", self._gated(super().take(seen)))

    def _gated(self, steps: Sequence[Step]) -> Iterator[Step]:
        for step in steps:
            if step is not GATE:
                yield step
                continue
            while not self._passes.acquire(blocking=False):
                yield {"do": "sleep", "ms": 2}


# --- the client -----------------------------------------------------------------------------


def post(
    product: Product, body: Any, headers: dict[str, str] | None = None, path: str = CHAT
) -> RawReply:
    return exchange(product.port, request_bytes("POST", path, headers, body))


def record_for(product: Product, reply: RawReply) -> Said:
    return record_of(product, str(reply.header("x-request-id")))


def read(reply: RawReply) -> Said:
    """What a reply says, a stream or a whole, once it is known to be one."""
    assert reply.status == 200, reply.text
    assert reply.ended_properly
    if (reply.header("content-type") or "").startswith("application/json"):
        return said_whole(reply.json())[0]
    payloads = sse_payloads(reply.body)
    assert payloads[-1] == "[DONE]"
    assert payloads.count("[DONE]") == 1
    return joined(sse_events(reply.body))[0]


class Line:
    """A client that reads as the bytes come."""

    def __init__(self, product: Product, body: Any, headers: dict[str, str] | None = None) -> None:
        self._socket = socket.create_connection((HOST, product.port), 10)
        self._reader = ReplyReader()
        self.raw = b""
        self._socket.sendall(request_bytes("POST", CHAT, headers, body))

    @property
    def reply(self) -> RawReply:
        return self._reader.reply

    def until(self, seen: Callable[[RawReply], Any]) -> RawReply:
        deadline = time.monotonic() + 20
        while not self._reader.done and not seen(self.reply):
            assert time.monotonic() < deadline, self.reply
            data = self._socket.recv(65536)
            self.raw += data
            if data:
                self._reader.feed(data, time.monotonic())
            else:
                self._reader.eof(time.monotonic())
        return self.reply

    def rest(self) -> RawReply:
        return self.until(lambda _: False)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()


def one(backend: ScriptedBackend, **fields: Any) -> Said:
    return {"name": "one", "url": backend.url, "model": MODEL, **fields}


@contextlib.contextmanager
def running(
    folder: Path, backends: list[Said], policy: str = POLICY, **tables: Any
) -> Iterator[Product]:
    config = {"backends": backends, "log": {"flush_ms": 5}, **tables}
    with Product.start(folder, config, policy=policy) as product:
        yield product


@pytest.fixture(scope="module")
def vllm() -> Iterator[ScriptedBackend]:
    with ScriptedBackend() as backend:
        yield backend


@pytest.fixture(scope="module")
def product(vllm: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with running(tmp_path_factory.mktemp("answers"), [one(vllm)]) as router:
        yield router


FORMS = ("tags", "reasoning", "reasoning_content")
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

# --- thought that used the tokens up --------------------------------------------------------


@both
@pytest.mark.parametrize("form", FORMS)
def test_an_empty_answer_is_asked_for_again_without_thinking(
    product: Product, vllm: ScriptedBackend, form: str, stream: bool
) -> None:
    plays(vllm, thinks_only(form, stream=stream), answers(stream=stream))
    asked = {**ASK, "stream": True, "stream_options": {"include_usage": True}} if stream else ASK

    with Line(product, asked, {"x-router-scenario": "field"}) as line:
        reply = line.rest()

    said = read(reply)
    assert said["content"] == ANSWER
    assert said["finish"] == "stop"
    assert said["reasoning_content"].split() == ["Well", "let", "me"]
    first, second = (request.json for request in vllm.requests)
    assert first["chat_template_kwargs"] == {"enable_thinking": True}
    assert second["chat_template_kwargs"] == {"enable_thinking": False}
    assert "max_tokens" not in first  # a cap on the answer would end the thought
    assert second["max_tokens"] == 64
    assert second["messages"] == first["messages"] == ASK["messages"]
    record = record_for(product, reply)
    assert record["rescued"] is True
    assert (record["status"], record["outcome"], record["finish_reason"]) == (200, "ok", "stop")
    assert (record["input_tokens"], record["output_tokens"]) == (15, 69)
    if stream:
        assert reply.header("x-router-rescued") is None
        assert reply.header("trailer") == "x-router-rescued"
        assert line.raw.endswith(b"0\r\nx-router-rescued: %b\r\n\r\n" % RESCUED.encode())
        documents = sse_events(reply.body)
        assert {document["id"] for document in documents} == {"c-1"}
        assert documents[-1]["usage"] == SUM
    else:
        assert reply.header("x-router-rescued") == RESCUED
        assert reply.json()["usage"] == SUM
        assert reply.json()["id"] == "c-1"


@both
@pytest.mark.parametrize("scenario", ["inline", "drop", "keep"])
def test_a_second_answer_stands_where_the_thought_left_room(
    product: Product, vllm: ScriptedBackend, scenario: str, stream: bool
) -> None:
    plays(vllm, thinks_only("tags", stream=stream), answers(stream=stream))

    content = read(post(product, STREAM if stream else ASK, {"x-router-scenario": scenario}))[
        "content"
    ]

    if scenario == "drop":
        assert content == ANSWER
    else:
        assert content.count(OPEN) == content.count(CLOSE) == 1
        assert content.rpartition(CLOSE)[2].strip() == ANSWER


@both
def test_an_answer_needs_no_second(product: Product, vllm: ScriptedBackend, stream: bool) -> None:
    for finish in ("stop", "length"):
        frames = thinking_frames("reasoning", "Well", "The", finish)
        document = thinking_whole("reasoning", "Well", "The", finish)
        plays(vllm, streamed(frames) if stream else [reply_json(document)], answers(stream=stream))

        reply = post(product, STREAM if stream else ASK)

        assert read(reply)["content"] == "The"
        assert len(vllm.requests) == 1
        assert record_for(product, reply)["rescued"] is False


@both
def test_the_guard_can_be_switched_off(
    product: Product, vllm: ScriptedBackend, stream: bool
) -> None:
    plays(vllm, thinks_only("reasoning", stream=stream), answers(stream=stream))

    reply = post(product, STREAM if stream else ASK, {"x-router-scenario": "unguarded"})

    assert read(reply)["finish"] == "length"
    assert len(vllm.requests) == 1
    assert reply.header("x-router-rescued") is None
    assert record_for(product, reply)["rescued"] is False


FAILURES: dict[str, list[Step]] = {
    "refused": [reply_json({"error": {"message": "no"}}, status=500)],
    "closed": [HANG_UP],
    "reset": [RESET],
    "headless": [stream_head(), HANG_UP],
    "an error inside": [stream_head(), {"do": "sse", "data": {"error": "no"}}, END],
    "no JSON": [{"do": "send", "text": "oops"}, HANG_UP],
    "nothing": [stream_head(), DONE, END],
    "no choices": [reply_json({"choices": []})],
    "odd choices": [reply_json({"choices": ["x"]})],
}


@both
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
def test_where_the_second_fails_the_client_gets_the_first(
    product: Product, vllm: ScriptedBackend, failure: list[Step], stream: bool
) -> None:
    asked = {**STREAM, "stream_options": {"include_usage": True}} if stream else ASK
    plays(vllm, thinks_only("reasoning", stream=stream))
    alone = post(product, asked, {"x-router-scenario": "unguarded"})
    plays(vllm, thinks_only("reasoning", stream=stream), failure)

    reply = post(product, asked)

    assert len(vllm.requests) == 2
    assert read(reply) == read(alone)
    if stream:
        assert sse_events(reply.body)[-1]["usage"] == FIRST_USAGE
    else:
        assert reply.json() == alone.json()
    record = record_for(product, reply)
    assert (record["rescued"], record["finish_reason"]) == (False, "length")
    assert (record["outcome"], record["output_tokens"]) == ("ok", 64)


def test_behind_a_trailer_the_connection_can_be_used_again(
    product: Product, vllm: ScriptedBackend
) -> None:
    plays(vllm, thinks_only("reasoning", stream=True), answers(stream=True))

    with RawConnection(product.port) as connection:
        for _ in range(2):
            connection.send(request_bytes("POST", CHAT, None, STREAM))
            assert read(connection.read())["content"] == ANSWER

    assert len(vllm.requests) == 4


def test_a_second_that_hangs_up_midway_is_a_broken_stream(
    product: Product, vllm: ScriptedBackend
) -> None:
    begun: list[Step] = [stream_head(), {"do": "sse", "data": chunk({"content": "The"})}, HANG_UP]
    plays(vllm, thinks_only("reasoning", stream=True), begun)

    reply = post(product, STREAM)

    payloads = sse_payloads(reply.body)
    assert "[DONE]" not in payloads
    assert json.loads(payloads[-1])["error"]["code"] == "backend_error"
    assert record_for(product, reply)["outcome"] == "upstream_error"


def test_a_whole_second_that_hangs_up_midway_is_as_if_it_was_not(
    product: Product, vllm: ScriptedBackend
) -> None:
    cut: list[Step] = [
        {"do": "head", "headers": {"Content-Length": "99"}, "framing": "length"},
        {"do": "send", "text": '{"choices":['},
        HANG_UP,
    ]
    plays(vllm, thinks_only("reasoning", stream=False), cut)

    assert read(post(product, ASK))["finish"] == "length"


def test_a_client_that_leaves_during_the_second_ends_it(
    product: Product, vllm: ScriptedBackend
) -> None:
    plays(vllm, thinks_only("reasoning", stream=True), [stream_head(), SILENCE])

    with Line(product, STREAM) as line:
        vllm.wait_requests(2)
        request_id = str(line.until(lambda reply: reply.status).header("x-request-id"))

    assert vllm.requests[1].wait_peer_closed() is not None
    assert record_of(product, request_id)["outcome"] == "client_disconnect"


@both
def test_untouched_is_untouched(product: Product, vllm: ScriptedBackend, stream: bool) -> None:
    for form in FORMS:
        steps = thinks_only(form, stream=stream)
        plays(vllm, steps, answers(stream=stream))
        body = json.dumps({**(STREAM if stream else ASK), "model": MODEL}).encode()

        reply = post(product, body, {"x-router-policy": "off"})

        [seen] = vllm.requests
        assert seen.body == body
        assert reply.body == seen.entity
        assert reply.header("x-router-rescued") is None


def test_a_budget_for_thought_is_not_the_answers(product: Product, vllm: ScriptedBackend) -> None:
    plays(vllm, thinks_only("reasoning", stream=False), answers(stream=False))

    post(product, ASK, {"x-router-scenario": "budgeted"})

    first, *_, last = vllm.requests
    assert first.json["max_tokens"] == 164
    assert last.json["max_tokens"] == 64


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_the_clients_own_limit_holds_for_the_second_too(
    product: Product, vllm: ScriptedBackend, limit: str
) -> None:
    plays(vllm, thinks_only("reasoning", stream=False), answers(stream=False))

    assert read(post(product, {**ASK, limit: 30}))["content"] == ANSWER

    assert [request.json[limit] for request in vllm.requests] == [30, 30]


# --- what a cap would break -----------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "asked",
    [
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "required"},
        {"response_format": SCHEMA},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_no_cap_is_sent_with_tools_or_a_schema(
    product: Product, vllm: ScriptedBackend, asked: Said, stream: bool
) -> None:
    plays(vllm, thinks_only("reasoning", stream=stream), answers(stream=stream))

    post(product, {**ASK, **asked, "stream": stream})

    for request in vllm.requests:
        assert not {"max_tokens", "max_completion_tokens", "max_new_tokens"} & set(request.json)


# --- where the thought is wanted ------------------------------------------------------------

WANTED: dict[str, tuple[str | None, str]] = {
    "field": ("Well then", ANSWER),
    "inline": (None, f"{OPEN}\nWell then\n{CLOSE}\n\n{ANSWER}"),
    "drop": (None, ANSWER),
}


def thinks(vllm: ScriptedBackend, form: str, *, stream: bool) -> None:
    if not stream:
        plays(vllm, [reply_json(thinking_whole(form, "Well then", ANSWER))])
        return
    frames = thinking_frames("reasoning", "Well then", ANSWER)
    if form == "tags":
        deltas = ["<thi", "nk>\nWell", " then\n</", "think>\n\n", ANSWER]
        frames = [chunk({"content": delta}) for delta in deltas] + [chunk({}, "stop")]
    elif form == "reasoning_content":
        frames = json.loads(json.dumps(frames).replace('"reasoning"', '"reasoning_content"'))
    plays(vllm, streamed(frames))


@both
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", WANTED)
def test_the_sdk_reads_the_thought_where_the_policy_puts_it(
    product: Product, vllm: ScriptedBackend, mode: str, form: str, stream: bool
) -> None:
    thinks(vllm, form, stream=stream)
    thought, content = WANTED[mode]

    with openai.OpenAI(base_url=product.url + "/v1", api_key="x", max_retries=0) as client:
        answer: Any = client.chat.completions.create(
            model=f"auto:{mode}", messages=ASK["messages"], stream=stream
        )
        if stream:
            with answer:
                deltas = [c.choices[0].delta.model_dump() for c in answer if c.choices]
            found = [
                "".join(delta.get(name) or "" for delta in deltas) or None
                for name in ("reasoning_content", "content")
            ]
        else:
            message = answer.choices[0].message.model_dump()
            found = [message.get("reasoning_content"), message["content"]]

    assert found == [thought, content]
    assert len(vllm.requests) == 1


@both
@pytest.mark.parametrize("form", FORMS)
def test_kept_the_thought_stays_where_the_server_put_it(
    product: Product, vllm: ScriptedBackend, form: str, stream: bool
) -> None:
    thinks(vllm, form, stream=stream)

    reply = post(product, STREAM if stream else ASK, {"x-router-scenario": "keep"})

    [seen] = vllm.requests
    theirs = [f for f in sse_payloads(seen.entity) if '"usage"' not in f]
    assert (sse_payloads(reply.body) == theirs) if stream else (reply.body == seen.entity)


@both
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wish", ["include_reasoning", "return_reasoning"])
def test_a_client_that_wants_no_thought_gets_none(
    product: Product, vllm: ScriptedBackend, form: str, wish: str, stream: bool
) -> None:
    thinks(vllm, form, stream=stream)

    reply = post(product, {**ASK, "stream": stream, wish: False})

    assert read(reply) == {"role": "assistant", "content": ANSWER, "finish": "stop"} or (
        form == "tags" and read(reply) == {"content": ANSWER, "finish": "stop"}
    )
    assert b"reasoning" not in reply.body
    assert wish not in vllm.requests[0].json


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", WANTED)
def test_langchain_reads_the_same_of_a_stream_and_a_whole(
    product: Product, vllm: ScriptedBackend, mode: str, form: str
) -> None:
    model = ChatOpenAI(
        model=f"auto:{mode}",
        base_url=product.url + "/v1",
        api_key=SecretStr("x"),
        max_retries=0,
    )
    thinks(vllm, form, stream=False)
    at_once = model.invoke("Name a river.")
    thinks(vllm, form, stream=True)
    piece_by_piece = "".join(str(part.content) for part in model.stream("Name a river."))

    assert at_once.content == piece_by_piece == WANTED[mode][1]


@both
@pytest.mark.parametrize("mode", WANTED)
def test_the_record_counts_thought_and_answer_apart(
    product: Product, vllm: ScriptedBackend, mode: str, stream: bool
) -> None:
    thinks(vllm, "reasoning", stream=stream)

    reply = post(product, STREAM if stream else ASK, {"x-router-scenario": mode})

    record = record_for(product, reply)
    assert (record["answer_chars"], record["reasoning_chars"]) == (len(ANSWER), len("Well then"))


def test_a_thought_in_a_compressed_answer_is_moved_too(
    product: Product, vllm: ScriptedBackend
) -> None:
    body = thinking_whole("tags", "Well", ANSWER)
    plays(vllm, [{"do": "json_negotiated", "codings": ["gzip"], "body": body}])

    reply = post(product, ASK, {"x-router-scenario": "drop", "accept-encoding": "gzip"})

    assert vllm.requests[0].header("accept-encoding") == "gzip"
    assert reply.header("content-encoding") is None
    assert read(reply)["content"] == ANSWER


@pytest.mark.parametrize("size", [0, 5 << 20])
def test_an_answer_of_any_size_passes(product: Product, vllm: ScriptedBackend, size: int) -> None:
    document = whole({"content": "x" * size, "reasoning": "Well"})
    head: Step = {
        "do": "head",
        "headers": {"Content-Type": "application/json"},
        "framing": "chunked",
    }
    plays(vllm, [head, {"do": "send", "text": json.dumps(document)}, END])

    reply = post(product, ASK, {"x-router-scenario": "drop"})

    assert len(read(reply).get("content", "")) == size


# --- a server that gives up only what it streams --------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[GatedBackend]:
    with GatedBackend() as backend:
        yield backend


@pytest.fixture(scope="module")
def collecting(server: GatedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    backend = one(server, dialect="transformers", max_inflight=4)
    with running(tmp_path_factory.mktemp("collecting"), [backend]) as router:
        yield router


TRANSFORMERS = [
    chunk({"role": "assistant"}),
    chunk({"reasoning_content": "Well"}),
    chunk({"content": "The"}),
    chunk({"content": " Rhine."}),
    {**chunk({}, "stop"), "usage": FIRST_USAGE},
]


def test_a_whole_answer_is_streamed_to_us_and_given_whole(
    collecting: Product, server: GatedBackend
) -> None:
    plays(server, [*streamed(TRANSFORMERS)[:-2], END])  # it has no [DONE]

    reply = post(collecting, ASK)

    [seen] = server.requests
    assert seen.json["stream"] is True
    assert "stream_options" not in seen.json
    assert reply.header("content-type") == "application/json"
    assert reply.header("cache-control") is None
    assert reply.header("transfer-encoding") is None
    assert reply.json() == whole(
        {"reasoning_content": "Well", "content": ANSWER}, usage=FIRST_USAGE
    )
    record = record_for(collecting, reply)
    assert (record["stream"], record["output_tokens"]) == (False, 64)
    assert record["answer_chars"] == len(ANSWER)


def test_a_server_that_does_not_stream_all_the_same_is_understood(
    collecting: Product, server: GatedBackend
) -> None:
    plays(server, [chat_ok(ANSWER)])
    streaming = read(post(collecting, STREAM))
    plays(server, [reply_json(whole({"content": ANSWER}))])

    assert read(post(collecting, ASK))["content"] == streaming["content"] == ANSWER


def test_a_client_that_leaves_ends_the_generation(
    collecting: Product, server: GatedBackend
) -> None:
    first, *_ = streamed(TRANSFORMERS[:3])
    plays(server, [first, {"do": "sse", "data": TRANSFORMERS[2]}, SILENCE])

    with Line(collecting, ASK, {"x-request-id": "left-early"}):
        [seen] = server.wait_requests(1)
        await_fact(lambda: seen.frames)
        assert seen.peer_closed_at is None

    assert seen.wait_peer_closed() is not None
    assert record_of(collecting, "left-early")["outcome"] == "client_disconnect"


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ([{"do": "sse", "data": {"error": "CUDA out of memory"}}, END], 500),
        ([HANG_UP], 502),
        ([END], 502),
        ([DONE, END], 502),
    ],
)
@pytest.mark.parametrize("begun", [0, 3])
def test_what_goes_wrong_inside_is_an_error_with_its_status(
    collecting: Product, server: GatedBackend, end: list[Step], status: int, begun: int
) -> None:
    plays(server, [*streamed(TRANSFORMERS[:begun])[:-2], *end])

    reply = post(collecting, ASK)

    assert (reply.status, reply.ended_properly) == (status, True)
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "backend_error"
    if status == 500:
        assert error["message"] == "CUDA out of memory"
    record = record_for(collecting, reply)
    assert (record["status"], record["outcome"]) == (status, "upstream_error")


def test_what_is_collected_is_rescued_too(collecting: Product, server: GatedBackend) -> None:
    cut_short = [*TRANSFORMERS[:2], {**chunk({}, "length"), "usage": FIRST_USAGE}]
    answer = [chunk({"content": ANSWER}), {**chunk({}, "stop"), "usage": SECOND_USAGE}]
    plays(server, [*streamed(cut_short)[:-2], END], [*streamed(answer)[:-2], END])

    reply = post(collecting, ASK, {"x-router-scenario": "field"})

    assert reply.json() == whole({"reasoning_content": "Well", "content": ANSWER}, usage=SUM)
    assert reply.header("x-router-rescued") == RESCUED
    assert [request.json["stream"] for request in server.requests] == [True, True]


# --- one at a time --------------------------------------------------------------------------


@pytest.fixture
def gated() -> Iterator[GatedBackend]:
    with GatedBackend() as backend:
        yield backend


def test_one_too_many_waits_and_is_served(gated: GatedBackend, tmp_path: Path) -> None:
    gated.set_script([GATE, reply_json(whole({"content": ANSWER}))])
    limits = {"queue": 1, "queue_timeout_s": 30}
    with (
        running(tmp_path, [one(gated, max_inflight=1)], limits=limits) as product,
        Line(product, ASK, {"x-request-id": "first"}) as first,
    ):
        gated.wait_requests(1)
        with Line(product, ASK, {"x-request-id": "left"}):
            assert post(product, ASK).status == 429
        assert record_of(product, "left")["outcome"] == "client_disconnect"
        with Line(product, ASK, {"x-request-id": "second"}) as second:
            refused = post(product, ASK)
            assert refused.status == 429
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert int(refused.header("retry-after") or 0) >= 1
            assert len(gated.requests) == 1

            gated.let_go_on()
            assert first.rest().status == 200
            gated.wait_requests(2)
            gated.let_go_on()
            assert second.rest().status == 200

        assert record_of(product, "first")["queue_ms"] == 0
        record = record_of(product, "second")
        assert record["queue_ms"] > 0
        assert record["overhead_ms"] < record["total_ms"]
        assert record_for(product, refused)["outcome"] == "rejected"
        left = record_of(product, "left")
        assert left["status"] is None
        assert left["backend"] is None


def test_who_has_waited_for_too_long_is_told_so(gated: GatedBackend, tmp_path: Path) -> None:
    gated.set_script([SILENCE])
    limits = {"queue": 3, "queue_timeout_s": 0.1}
    with (
        running(tmp_path, [one(gated, max_inflight=1)], limits=limits) as product,
        Line(product, ASK),
    ):
        gated.wait_requests(1)
        with Line(product, ASK) as other, Line(product, STREAM) as third:
            reply = post(product, ASK)
            replies = [reply, other.rest(), third.rest()]

        for reply in replies:
            assert reply.status == 429
            assert reply.json()["error"]["code"] == "rate_limit_exceeded"
            assert reply.header("retry-after")
            record = record_for(product, reply)
            assert (record["outcome"], record["status"]) == ("rejected", 429)
            assert record["queue_ms"] >= 100
        assert len(gated.requests) == 1


def test_in_line_a_short_answer_goes_before_a_long_one(gated: GatedBackend, tmp_path: Path) -> None:
    gated.set_script([GATE, reply_json(whole({"content": ANSWER}))])
    policy = """
schema = 1
default_scenario = "long"
[scenarios.long]
[scenarios.short]
priority = 40
"""
    config = {"backends": [one(gated, max_inflight=1)], "limits": {"queue": 4}}
    with Product.start(tmp_path, config, policy=policy) as product:

        def line(name: str, scenario: str) -> Line:
            told = {"x-request-id": name, "x-router-scenario": scenario}
            return Line(product, ASK, told)

        with line("first", "long") as first:
            gated.wait_requests(1)
            with line("a-long-one", "long") as long:
                waits_in_line(product, 1)
                with line("a-short-one", "short") as short:
                    waits_in_line(product, 2)
                    for turn in (first, short, long):
                        gated.let_go_on()
                        assert turn.rest().status == 200

    ids = [request.header("x-request-id") for request in gated.requests]
    assert ids == ["first", "a-short-one", "a-long-one"]


def waits_in_line(product: Product, count: int) -> None:
    """Come back once so many requests wait."""
    deadline = time.monotonic() + 10
    pause = threading.Event()
    while product.get("/router/status")["waiting"] != count:
        assert time.monotonic() < deadline
        pause.wait(0.02)


# --- a sign of life -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quiet_backend() -> Iterator[GatedBackend]:
    with GatedBackend() as backend:
        yield backend


@pytest.fixture(scope="module")
def lively(
    quiet_backend: GatedBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """A router that lets no client wait for more than a moment without a word."""
    folder = tmp_path_factory.mktemp("lively")
    server, health = {"keepalive_s": 0.05}, {"interval_s": 60}
    with running(folder, [one(quiet_backend)], server=server, health=health) as router:
        yield router


PLAIN = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "The"}),
    chunk({"content": " Rhine."}),
    chunk({}, "stop"),
]
_HEAD, *_FRAMES = streamed(PLAIN)
#: where a backend falls silent
SILENT: dict[str, list[Step]] = {
    "before its head": [GATE, _HEAD, *_FRAMES],
    "behind its head": [_HEAD, GATE, *_FRAMES],
    "behind its role": [_HEAD, _FRAMES[0], GATE, *_FRAMES[1:]],
    "in the answer": [_HEAD, *_FRAMES[:2], GATE, *_FRAMES[2:]],
}


#: the two that a client's own code has to cope with: no role yet, and a role already
AWKWARD = {name: SILENT[name] for name in ("before its head", "behind its role")}


def signs_in(body: bytes) -> list[Said]:
    """The chunks that say nothing."""
    return [
        document
        for document in sse_events(body)
        if document.get("choices") == [{"index": 0, "delta": {}, "finish_reason": None}]
    ]


@pytest.mark.parametrize("steps", SILENT.values(), ids=SILENT.keys())
def test_a_silent_stream_shows_a_sign_of_life(
    lively: Product, quiet_backend: GatedBackend, steps: list[Step]
) -> None:
    plays(quiet_backend, steps)

    with Line(lively, STREAM) as line:
        line.until(lambda reply: len(signs_in(reply.body)) >= 2)
        assert not line.reply.ended_properly
        quiet_backend.let_go_on()
        reply = line.rest()

    assert read(reply)["content"] == ANSWER
    assert (reply.header("content-type") or "").startswith("text/event-stream")
    for sign in signs_in(reply.body):
        assert sign["object"] == "chat.completion.chunk"
        assert {"id", "created", "model"} <= set(sign)
    assert b"\n:" not in b"\n" + reply.body
    record = record_for(lively, reply)
    assert (record["outcome"], record["finish_reason"]) == ("ok", "stop")
    assert record["answer_chars"] == len(ANSWER)


def test_a_thought_that_is_dropped_is_not_a_silence(
    lively: Product, quiet_backend: GatedBackend
) -> None:
    thoughts: list[Step] = [{"do": "sse", "data": chunk({"reasoning": "hm "})}]
    plays(quiet_backend, [_HEAD, _FRAMES[0], *thoughts, GATE, *_FRAMES[1:]])

    with Line(lively, {**STREAM, "include_reasoning": False}) as line:
        line.until(lambda reply: signs_in(reply.body))
        quiet_backend.let_go_on()
        reply = line.rest()

    assert read(reply) == {"role": "assistant", "content": ANSWER, "finish": "stop"}


def test_a_whole_answer_gets_no_sign(lively: Product, quiet_backend: GatedBackend) -> None:
    plays(quiet_backend, [GATE, reply_json(whole({"content": ANSWER}))])

    with Line(lively, ASK) as line, Line(lively, STREAM) as other:
        quiet_backend.wait_requests(2)
        other.until(lambda reply: len(signs_in(reply.body)) >= 2)
        assert line.raw == b""
        quiet_backend.let_go_on(2)
        assert line.rest().json() == whole({"content": ANSWER})


EARLY_ERRORS: dict[str, list[Step]] = {
    "a refusal": [GATE, reply_json({"detail": "temperature is too hot"}, status=422)],
    "a failure": [GATE, reply_json({"error": {"message": "oh no"}}, status=500)],
    "a hang-up": [GATE, HANG_UP],
    "no stream": [GATE, reply_json(whole({"content": ANSWER}))],
    "no stream, piece by piece": [
        GATE,
        {"do": "head", "headers": {"Content-Type": "application/json"}},
        {"do": "send", "text": '{"choices":['},
        {"do": "sleep", "ms": 20},
        {"do": "send", "text": "]}"},
        END,
    ],
    "a hang-up behind the head": [GATE, _HEAD, HANG_UP],
    "an error inside": [GATE, _HEAD, {"do": "sse", "data": {"error": "oh no"}}, END],
}


@pytest.mark.parametrize("steps", EARLY_ERRORS.values(), ids=EARLY_ERRORS.keys())
def test_behind_a_sign_of_life_an_error_is_one_frame(
    lively: Product, quiet_backend: GatedBackend, steps: list[Step]
) -> None:
    plays(quiet_backend, steps)

    with Line(lively, STREAM) as line:
        line.until(lambda reply: signs_in(reply.body))
        quiet_backend.let_go_on(2)  # one that hangs up on a kept connection is asked again
        reply = line.rest()

    assert reply.status == 200
    assert line.raw.count(b"HTTP/1.1") == 1
    payloads = sse_payloads(reply.body)
    assert "[DONE]" not in payloads
    errors = [payload for payload in payloads if "error" in json.loads(payload)]
    assert errors == payloads[-1:]
    assert set(json.loads(errors[0])["error"]) == {"message", "type", "param", "code"}
    record = record_for(lively, reply)
    assert record["status"] == 200
    assert record["outcome"] in ("upstream_error", "client_error")


def test_a_client_that_leaves_behind_a_sign_of_life_ends_the_generation(
    lively: Product, quiet_backend: GatedBackend
) -> None:
    plays(quiet_backend, [SILENCE])

    with Line(lively, STREAM) as line:
        line.until(lambda reply: signs_in(reply.body))

    assert quiet_backend.requests[0].wait_peer_closed() is not None
    request_id = str(line.reply.header("x-request-id"))
    assert record_of(lively, request_id)["outcome"] == "client_disconnect"


@pytest.mark.parametrize("steps", AWKWARD.values(), ids=AWKWARD.keys())
def test_the_sdk_goes_over_signs_of_life(
    lively: Product, quiet_backend: GatedBackend, steps: list[Step]
) -> None:
    plays(quiet_backend, steps)
    signs, text = 0, ""

    with openai.OpenAI(base_url=lively.url + "/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(model="auto", messages=ASK["messages"], stream=True)
        with stream:
            for part in stream:
                delta = part.choices[0].delta
                text += delta.content or ""
                signs += not delta.model_dump(exclude_unset=True)
                if signs == 2:
                    quiet_backend.let_go_on()
                    signs = 3

    assert text == ANSWER


@pytest.mark.parametrize("steps", AWKWARD.values(), ids=AWKWARD.keys())
def test_the_sdks_stream_helper_goes_over_signs_of_life(
    lively: Product, quiet_backend: GatedBackend, steps: list[Step]
) -> None:
    plays(quiet_backend, steps)
    signs = 0

    with (
        openai.OpenAI(base_url=lively.url + "/v1", api_key="x", max_retries=0) as client,
        client.chat.completions.stream(model="auto", messages=ASK["messages"]) as stream,
    ):
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                delta = event.chunk.choices[0].delta
                signs += not delta.model_dump(exclude_unset=True)
                if signs == 2:
                    quiet_backend.let_go_on()
                    signs = 3
        final = stream.get_final_completion()

    message = final.choices[0].message
    assert (message.role, message.content) == ("assistant", ANSWER)
    assert final.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("steps", AWKWARD.values(), ids=AWKWARD.keys())
def test_langchain_goes_over_signs_of_life(
    lively: Product, quiet_backend: GatedBackend, steps: list[Step]
) -> None:
    plays(quiet_backend, steps)
    model = ChatOpenAI(
        model="auto", base_url=lively.url + "/v1", api_key=SecretStr("x"), max_retries=0
    )

    parts, empty = [], 0
    for part in model.stream("Name a river."):
        parts.append(part)
        empty += not part.content
        if empty == 3:  # at most one of them is the role's
            quiet_backend.let_go_on()
            empty = 4

    total = parts[0]
    for part in parts[1:]:
        total += part
    assert type(total).__name__ == "AIMessageChunk"
    assert total.content == ANSWER


# --- too long -------------------------------------------------------------------------------


def test_a_prompt_that_cannot_fit_is_refused_unasked(tmp_path: Path) -> None:
    long = {"role": "user", "content": "river " * 2000}
    with (
        ScriptedBackend([chat_ok(ANSWER)]) as backend,
        running(tmp_path, [one(backend, context=100)]) as product,
    ):
        for body in ({**ASK, "messages": [long]}, {**STREAM, "messages": [long]}):
            reply = post(product, body)
            assert reply.status == 400
            error = reply.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert error["type"] == "invalid_request_error"
            assert error["param"] == "messages"
            record = record_for(product, reply)
            assert (record["outcome"], record["status"]) == ("client_error", 400)
        assert backend.requests == []
        assert post(product, ASK).status == 200
        rulers = {"role": "user", "content": "-" * 20_000 + " " * 20_000}
        assert post(product, {**ASK, "messages": [rulers]}).status == 200


def test_a_backend_that_is_too_small_is_passed_over_for_one_that_is_not(tmp_path: Path) -> None:
    long = {"role": "user", "content": "river " * 2000}
    with ScriptedBackend() as big, ScriptedBackend() as small:
        big.set_script([{"do": "chat_ok", "text": "The Rhine."}])
        small_one = {**one(small, context=100), "name": "two"}
        with running(tmp_path, [small_one, one(big)]) as product:
            replies = [post(product, {**ASK, "messages": [long]}) for _ in range(4)]

    assert {reply.status for reply in replies} == {200}
    assert small.requests == []


def test_where_the_next_backend_is_too_small_as_well_that_is_said(tmp_path: Path) -> None:
    long = {"role": "user", "content": "river " * 2000}
    with ScriptedBackend() as small:
        gone = {"name": "gone", "url": "http://127.0.0.1:9", "model": MODEL, "dialect": "vllm"}
        with running(tmp_path, [gone, {**one(small, context=100), "name": "two"}]) as product:
            replies = [post(product, {**ASK, "messages": [long]}) for _ in range(4)]

    assert {reply.status for reply in replies} <= {400, 503}
    assert {reply.ended_properly for reply in replies} == {True}


def test_a_frame_of_odd_json_does_not_stop_the_clock(
    lively: Product, quiet_backend: GatedBackend
) -> None:
    odd = {**chunk({"content": "a"}), "x": "ODD"}
    frame: Step = {
        "do": "send",
        "text": "data: " + json.dumps(odd).replace('"ODD"', "1e999") + "\n\n",
    }
    plays(quiet_backend, [_HEAD, frame, GATE, *_FRAMES[1:]])

    with Line(lively, STREAM) as line:
        line.until(lambda reply: signs_in(reply.body))
        quiet_backend.let_go_on()
        line.rest()
