"""What was said, written down: every kind of question and answer, clean, cut, and bounded."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import body as bodies
from router.body import Body, Spoken
from router.chat import Endpoint
from router.journal import BodyJournal
from router.said import Said
from router.tally import Tally
from tests.support.pool import POLICY
from tests.support.product import Product
from tests.support.rawclient import exchange, request_bytes
from tests.support.script import CLOSE, DONE, END, chat_ok, delta, reply_json, stream_head
from tests.support.scripted import ScriptedBackend

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
CALL = {"index": 0, "id": "c", "function": {"name": "weather", "arguments": '{"city":'}}
MORE = {"index": 0, "function": {"arguments": ' "Rome"}'}}
THOUGHTFUL = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop",
         "message": {"role": "assistant", "content": "Ja.", "reasoning_content": "Hm, so."}},
        {"index": 1, "finish_reason": "stop", "message": {"role": "assistant", "content": "Nein."}},
    ],
}  # fmt: skip
ITEMS = [
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Ja."}]},
    {"type": "function_call", "name": "weather", "arguments": '{"city": "Rome"}'},
]
EVENTS = [
    {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "Hm."},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "J"},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "a."},
    {"type": "response.output_item.done", "output_index": 2, "item": ITEMS[2]},
    {"type": "response.completed", "response": {"status": "completed", "usage": None}},
]


def asked(name: str, *steps: Any) -> dict[str, Any]:
    """The answer to a question with this word in it."""
    return {"when": {"body_text": name}, "steps": list(steps)}


def event(data: Any) -> dict[str, Any]:
    return {"do": "sse", "data": data}


RULES = [
    asked(
        "ORACLE", stream_head(), delta(reasoning_content="Hm, "), delta(reasoning_content="so."),
        delta(content="J"), delta(content="a."), delta(tool_calls=[CALL]), delta(tool_calls=[MORE]),
        delta("stop"), DONE, END,
    ),
    asked("THOUGHTFUL", reply_json(THOUGHTFUL)),
    asked("EVENTS", stream_head(), *map(event, EVENTS), END),
    asked("ITEMS", reply_json({"id": "r", "status": "completed", "output": ITEMS})),
    asked("BROKEN", stream_head(), delta(content="Half an ans"), CLOSE),
    asked("REFUSED", reply_json({"error": {"message": "no"}}, status=400)),
    asked("MAIL", chat_ok("Write to boss@example.com or call 13812345678.")),
]  # fmt: skip
CONFIG = {"log": {"flush_ms": 5, "bodies": "on"}}


def written(folder: Path, request_id: str) -> dict[str, Any]:
    """The line of a request, once it is there; exactly one."""
    pause = threading.Event()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = [
            told
            for path in folder.glob("bodies-*.jsonl")
            for line in path.read_bytes().splitlines()
            if (told := json.loads(line))["request_id"] == request_id
        ]
        if found:
            assert len(found) == 1
            return dict(found[0])
        pause.wait(0.01)
    raise AssertionError(f"no body of {request_id}")


@pytest.fixture(scope="module")
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend() as running:
        running.set_script([chat_ok("Ja.")], rules=RULES)
        yield running


@pytest.fixture(scope="module")
def router(backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    backends = [{"name": "a", "url": backend.url, "model": "m"}]
    config = {**CONFIG, "backends": backends}
    with Product.start(tmp_path_factory.mktemp("bodies"), config, policy=POLICY) as product:
        yield product


def ask(product: Product, name: str, path: str, **body: Any) -> dict[str, Any]:
    """Ask, and what was written down of it."""
    reply = exchange(product.port, request_bytes("POST", path, {"x-request-id": name}, body))
    assert reply.status, reply
    return written(product.log_dir, name)


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


# --- every kind ---------------------------------------------------------------------------------


def test_a_chat_stream_with_thought_and_tools(router: Product) -> None:
    found = ask(router, "b-1", CHAT, messages=user("ORACLE?"), stream=True)

    assert found["prompt"] == [{"role": "user", "text": "ORACLE?", "parts": []}]
    assert (found["answer"], found["reasoning"]) == ("Ja.", "Hm, so.")
    assert found["tool_calls"] == [{"name": "weather", "arguments": '{"city": "Rome"}'}]
    assert (found["endpoint"], found["scenario"], found["schema"]) == (
        "chat.completions",
        "chat",
        1,
    )
    assert (found["cut"], found["redacted"]) == (False, {})
    (record,) = [r for r in router.wait_records(1) if r["request_id"] == "b-1"]
    assert found["ts"] == record["ts"]


def test_a_whole_chat_with_several_answers(router: Product) -> None:
    found = ask(router, "b-2", CHAT, messages=user("THOUGHTFUL?"), n=2)

    assert (found["answer"], found["other_answers"]) == ("Ja.", ["Nein."])
    assert found["reasoning"] == "Hm, so."


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion(router: Product, stream: bool) -> None:
    found = ask(router, f"b-3{stream}", COMPLETIONS, prompt="Is it so?", stream=stream)

    assert found["prompt"] == [{"role": "user", "text": "Is it so?", "parts": []}]
    assert (found["answer"], found["endpoint"]) == ("Ja.", "completions")


@pytest.mark.parametrize(("word", "stream"), [("ITEMS", False), ("EVENTS", True)])
def test_a_response(router: Product, word: str, stream: bool) -> None:
    asking = [{"role": "user", "content": [{"type": "input_text", "text": f"{word}?"}]}]
    found = ask(
        router, f"b-4{stream}", RESPONSES, instructions="Be short.", input=asking, stream=stream
    )

    assert [(m["role"], m["text"]) for m in found["prompt"]] == [
        ("system", "Be short."),
        ("user", f"{word}?"),
    ]
    assert (found["answer"], found["reasoning"]) == ("Ja.", "Hm.")
    assert found["tool_calls"] == [{"name": "weather", "arguments": '{"city": "Rome"}'}]


def test_a_stream_that_broke_off(router: Product) -> None:
    assert (
        ask(router, "b-5", CHAT, messages=user("BROKEN?"), stream=True)["answer"] == "Half an ans"
    )


def test_a_request_that_was_refused_has_its_prompt(router: Product) -> None:
    found = ask(router, "b-6", CHAT, messages=user("REFUSED?"))

    assert (found["prompt"][0]["text"], found["answer"]) == ("REFUSED?", "")


def test_an_untouched_one(router: Product) -> None:
    body = {"model": "m", "messages": user("ORACLE?"), "stream": True}
    headers = {"x-request-id": "b-7", "x-router-policy": "off"}
    exchange(router.port, request_bytes("POST", CHAT, headers, body))
    found = written(router.log_dir, "b-7")

    assert (found["answer"], found["reasoning"]) == ("Ja.", "Hm, so.")
    assert found["scenario"] is None


def test_secrets_of_both_sides_are_taken_out(router: Product) -> None:
    found = ask(router, "b-8", CHAT, messages=user("MAIL? password=hunter2"))

    assert found["prompt"][0]["text"] == "MAIL? password=[password]"
    assert found["answer"] == "Write to [email] or call [phone]."
    assert found["redacted"] == {"password": 1, "email": 1, "phone": 1}


COLLECTING = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
preset.reasoning_output = "drop"
[scenarios.collected]
preset.stream = "collect"
"""


@pytest.mark.parametrize(
    ("model", "word", "stream"),
    [("auto:collected", "ORACLE", False), ("auto", "THOUGHTFUL", False), ("auto", "ORACLE", True)],
)
def test_a_thought_that_the_client_does_not_get_is_written_down(
    backend: ScriptedBackend, tmp_path: Path, model: str, word: str, stream: bool
) -> None:
    config = {**CONFIG, "backends": [{"name": "a", "url": backend.url, "model": "m"}]}
    with Product.start(tmp_path, config, policy=COLLECTING) as product:
        body = {"model": model, "messages": user(f"{word}?"), "stream": stream}
        raw = request_bytes("POST", CHAT, {"x-request-id": "b-9"}, body)
        reply = exchange(product.port, raw)
        found = written(product.log_dir, "b-9")

    assert ("Hm, so." in reply.text) == (model == "auto:collected")
    assert (found["answer"], found["reasoning"]) == ("Ja.", "Hm, so.")


# --- which, and where ---------------------------------------------------------------------------


def test_off_writes_no_body(backend: ScriptedBackend, tmp_path: Path) -> None:
    config = {"log": {"flush_ms": 5}, "backends": [{"name": "a", "url": backend.url, "model": "m"}]}
    with Product.start(tmp_path, config, policy=POLICY) as product:
        exchange(product.port, request_bytes("POST", CHAT, {}, {"messages": user("Ja?")}))
        product.wait_records(1)
        assert product.get("/router/status")["log"]["bodies"] is None

    assert list(product.log_dir.glob("bodies-*")) == []


def test_a_share_is_chosen_by_id_alone(backend: ScriptedBackend, tmp_path: Path) -> None:
    chosen = BodyJournal(tmp_path, flush_s=1, limit=10, text_limit=1, share=0.3)
    chosen.close()
    wanted = {f"s-{n}" for n in range(30) if chosen.wants(f"s-{n}")}
    assert 2 < len(wanted) < 20
    log = {"flush_ms": 5, "bodies": "sampled", "body_share": 0.3}
    config = {"log": log, "backends": [{"name": "a", "url": backend.url, "model": "m"}]}
    with Product.start(tmp_path, config, policy=POLICY) as product:
        for n in range(30):
            headers = {"x-request-id": f"s-{n}"}
            raw = request_bytes("POST", CHAT, headers, {"messages": user("Ja?")})
            exchange(product.port, raw)
        product.wait_records(30)
    (path,) = product.log_dir.glob("bodies-*.jsonl")

    assert {json.loads(line)["request_id"] for line in path.read_bytes().splitlines()} == wanted


def test_bodies_that_wait_for_the_disk_are_bounded_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.write_text("in the way")
    journal = BodyJournal(folder, flush_s=0.001, limit=10_000, text_limit=100)
    large = b'{"messages": [{"role": "user", "content": "' + b"x" * (20 << 20) + b'"}]}'
    for _ in range(6):
        journal.write(spoken(raw=large))
    assert journal.dropped == 3
    journal.close()

    assert (journal.written, journal.dropped) == (0, 6)


# --- the line -----------------------------------------------------------------------------------


def spoken(
    messages: Any = None, *, raw: bytes | None = None, said: Said | None = None, **members: Any
) -> Spoken:
    if raw is None:
        members = members if messages is None else {"messages": messages, **members}
        raw = json.dumps(members, ensure_ascii=False).encode()
    return Spoken(
        ts="x", request_id="r", endpoint=Endpoint.CHAT, scenario=None, raw=raw,
        said=said if said is not None else Said(1000),
    )  # fmt: skip


def told(limit: int, *args: Any, **asked: Any) -> Body:
    return bodies.of(spoken(*args, **asked), limit)


def test_what_is_no_text_is_named_and_not_stored() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo"}}
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    found = told(
        1000,
        [
            {"role": "user", "content": [{"type": "text", "text": "Look:"}, image]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "rain", "tool_call_id": "c"},
        ],
    )

    assert [(m.role, m.text, m.parts) for m in found.prompt] == [
        ("user", "Look:", ("image_url",)),
        ("assistant", "", ("tool_call weather",)),
        ("tool", "rain", ()),
    ]
    assert not found.cut


def test_of_a_long_prompt_the_last_messages_are_kept() -> None:
    found = told(20, [*user("a" * 15), *user("b" * 15), *user("c" * 15)])

    assert [m.text for m in found.prompt] == ["b" * 5, "c" * 15]
    assert found.cut


@pytest.mark.parametrize("letter", ["x", "é", "退", "😀", "\\", '"', "\n", "\u0007"])
@pytest.mark.parametrize("escaped", [False, True])
def test_a_very_long_text_is_cut_between_letters(letter: str, escaped: bool) -> None:
    message = json.dumps({"messages": user("Ja" + letter * 100_000)}, ensure_ascii=escaped)
    found = told(100, raw=message.encode())

    (text,) = [m.text for m in found.prompt]
    assert found.cut
    assert ("Ja" + letter * 100).startswith(text)
    assert len(text.encode()) > 95


def test_a_secret_at_the_cut_is_taken_out_whole() -> None:
    for limit in range(1, 60):
        found = told(limit, user("My card is 4111 1111 1111 1111, and more of the like"))
        assert "4111" not in found.prompt[0].text


def test_a_long_answer_is_cut() -> None:
    said = Said(10)
    tally = Tally()
    tally.said = said
    for _ in range(2000):
        tally.read(b'{"choices": [{"index": 0, "delta": {"content": "abcde"}}]}')

    found = told(10, user("?"), said=said)

    assert (found.answer, found.cut) == ("abcdeabcde", True)
    assert said.size < 10_000


@given(st.binary(max_size=200))
def test_any_bytes_make_a_line(raw: bytes) -> None:
    said = Said(100)
    said.whole(raw)
    line = bodies.line(spoken(raw=raw, said=said), 100)

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["request_id"] == "r"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["messages", "input", "prompt", "content", "text", "type", "role", "choices", "output",
             "message", "tool_calls", "function", "name", "arguments", "index", "instructions"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(_JSON, st.sampled_from(list(Endpoint)))
def test_any_document_makes_a_line(document: Any, endpoint: Endpoint) -> None:
    raw = json.dumps(document).encode()
    said = Said(100)
    said.whole(raw)
    tally = Tally()
    tally.said = said
    tally.read(raw)
    entry = spoken(raw=raw, said=said)
    entry.endpoint = endpoint

    assert json.loads(bodies.line(entry, 100))["schema"] == 1
