"""`doctor` against servers that obey, that do not listen, that refuse, and a real one."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from router import commands, doctor, params
from router import policy as policies
from router.dialects import DIALECTS
from router.doctor import Knob, Report
from router.doctor.asking import Answer
from tests.clients.demo import DemoBackend
from tests.support.script import END, Step, reply_json, stream_head
from tests.support.scripted import ScriptedBackend

Body = dict[str, Any]
Reply = tuple[int, Any]
MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 64}]}
WORDS = [
    "once",
    "upon",
    "a",
    "time",
    "there",
    "was",
    "a",
    "cat",
    "called",
    "Tom",
    "who",
    "liked",
    "to",
    "sleep",
    "all",
    "day",
]
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.faq.preset]
repetition_penalty = 1.2
temperature = 0.3
[scenarios.chat.preset]
thinking = { fill = false }
"""


# --- servers ---------------------------------------------------------------------------------


class Model:
    """A chat server in Python. `hears` are the members that it does something with."""

    def __init__(
        self,
        *hears: str,
        allowed: frozenset[str] | None = None,
        models: Mapping[str, Any] = MODELS,
        thinks: bool = True,
        checks: bool = True,
    ) -> None:
        self.hears, self.allowed, self.models = frozenset(hears), allowed, models
        self.thinks, self.checks = thinks, checks
        self.bodies: list[Body] = []

    def get(self, path: str) -> Reply:
        found = {"/v1/models": self.models, "/version": {"version": "9.9"}}
        return (200, found[path]) if path in found else (404, {"error": {"message": "no"}})

    def post(self, body: Body) -> Reply:
        self.bodies.append(body)
        if self.allowed is not None and (extra := sorted(set(body) - self.allowed)):
            return 422, {"detail": f"Unexpected fields in the request: {extra}"}
        heard = {name: value for name, value in body.items() if name in self.hears}
        if self.checks and (fault := _fault(heard)):
            return 400, {"error": {"message": fault}}
        return 200, self._answer(heard)

    def _answer(self, asked: Body) -> Any:
        words = self._words(asked)
        template = asked.get("chat_template_kwargs", {})
        is_thinking = self.thinks and template.get("enable_thinking", True)
        limit = asked.get("max_tokens", len(words))
        message: Body = {"role": "assistant", "content": " ".join(words[:limit])}
        if is_thinking:
            message |= {"reasoning_content": message["content"], "content": ""}
        finish = "length" if limit < len(words) else "stop"
        if "response_format" in asked:
            message["content"] = '{"z": 1}'
        for stop in asked.get("stop", ()):
            if stop in message["content"]:
                message["content"], finish = message["content"].split(stop)[0], "stop"
        choice: Body = {"index": 0, "message": message, "finish_reason": finish}
        if asked.get("logprobs"):
            choice["logprobs"] = {"content": [{}]}
        usage = {
            "prompt_tokens": 15 if is_thinking else 19,
            "completion_tokens": min(limit, len(words)),
        }
        if asked.get("stream"):
            chunk = {"choices": [{"index": 0, "delta": {"content": "once"}}]}
            last = [{"choices": [], "usage": usage}] if "stream_options" in asked else []
            return [chunk, *last, "[DONE]"]
        return {"choices": [choice] * asked.get("n", 1), "usage": usage}

    def _words(self, asked: Body) -> list[str]:
        narrow = asked.get("top_k") == 1 or asked.get("top_p", 1) < 0.1 or asked.get("min_p") == 1
        text = list(WORDS)
        if asked.get("temperature", 0) > 0 and not narrow:
            random.Random(asked.get("seed")).shuffle(text)
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        return text[::-1] if any(name in asked for name in penalties) else text


def _fault(heard: Body) -> str:
    numbers = {name for name, param in params.PARAMS.items() if param.kind in ("int", "float")}
    for name, value in heard.items():
        if name in numbers and isinstance(value, str):
            return f"{name} must be a number"
    return "" if isinstance(heard.get("stop", []), list) else "stop must be a list"


class _Handler(BaseHTTPRequestHandler):
    model: Model

    def do_GET(self) -> None:
        self._send(*self.model.get(self.path))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        self._send(*self.model.post(json.loads(raw)))

    def _send(self, status: int, value: Any) -> None:
        if isinstance(value, list):
            texts = [event if isinstance(event, str) else json.dumps(event) for event in value]
            data = "".join(f"data: {text}\n\n" for text in texts).encode()
        else:
            data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the test's screen."""


@contextmanager
def serving(model: Model) -> Iterator[str]:
    handler = type("Handler", (_Handler,), {"model": model})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


OBEYED = [
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "chat_template_kwargs",
    "response_format",
    "logprobs",
    "n",
    "stream",
    "stream_options",
]
STRICT = frozenset({*OBEYED, "model", "messages", "generation_config", "top_logprobs"}) - {
    "top_k",
    "min_p",
    "repetition_penalty",
}


def examined(model: Model, dialect: str | None = None) -> Report:
    with serving(model) as url, doctor.Asker(url, timeout_s=10) as asker:
        return doctor.examine(asker, dialect=dialect)


def verdicts(report: Report) -> dict[str, str]:
    return {knob.name: knob.verdict for knob in report.knobs}


def knob(report: Report, name: str) -> Knob:
    [found] = [knob for knob in report.knobs if knob.name == name]
    return found


# --- verdicts --------------------------------------------------------------------------------

VISIBLE = [
    "thinking",
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "structured_output",
    "logprobs",
    "n",
    "stream_usage",
    "stream_done",
]


def test_what_works_is_seen_to_work() -> None:
    report = examined(Model(*OBEYED))

    found = verdicts(report)
    assert {name: found[name] for name in VISIBLE} == dict.fromkeys(VISIBLE, "honoured")
    assert (report.engine, report.version, report.model, report.dialect) == (
        "vLLM",
        "9.9",
        "m",
        "vllm",
    )


@pytest.mark.parametrize("name", [name for name in OBEYED if name not in ("stream", "stop")])
def test_what_is_not_heard_is_not_called_honoured(name: str) -> None:
    ours = {"max_tokens": "max_new_tokens", "chat_template_kwargs": "thinking"}
    ours |= {"response_format": "structured_output", "stream_options": "stream_usage"}

    report = examined(Model(*(word for word in OBEYED if word != name)))

    assert knob(report, ours.get(name, name)).verdict == "ignored"


def test_who_listens_to_nothing_is_found_out() -> None:
    report = examined(Model(thinks=False))

    found = verdicts(report)
    deaf = [name for name in VISIBLE if name not in ("stream_usage", "stream_done")]
    assert {name: found[name] for name in deaf} == dict.fromkeys(deaf, "ignored")
    assert found["unknown_members"] == "ignored"
    assert "honoured" not in found.values()


def test_a_stop_that_stops_nothing_is_ignored() -> None:
    report = examined(Model(*(word for word in OBEYED if word != "stop")))

    assert knob(report, "stop").verdict == "ignored"


def test_a_member_that_is_checked_and_without_effect_is_not_called_honoured() -> None:
    class Unused(Model):
        def _words(self, asked: Body) -> list[str]:
            return super()._words({k: v for k, v in asked.items() if k != "top_k"})

    assert knob(examined(Unused(*OBEYED)), "top_k").verdict == "unknown"


def test_strict_servers_refuse_by_name() -> None:
    model = Model(*OBEYED, allowed=STRICT, models={"data": [{"id": "m", "status": {"v": 1}}]})

    asked = examined(model)
    flatly = examined(model, "vllm")

    assert asked.dialect == "transformers"
    assert knob(asked, "unknown_members").verdict == "refused"
    assert knob(asked, "temperature").verdict == "honoured"
    refused = knob(flatly, "repetition_penalty")
    assert refused.verdict == "refused"
    assert refused.evidence.startswith("422 Unexpected fields")


@pytest.mark.parametrize(
    ("member", "name"), [("chat_template_kwargs", "thinking"), ("temperature", "temperature")]
)
def test_a_refused_part_of_the_first_question_spoils_nothing_else(member: str, name: str) -> None:
    allowed = (STRICT | {"top_k", "min_p", "repetition_penalty", "seed"}) - {member}
    report = examined(Model(*OBEYED, allowed=allowed, thinks=False))

    assert knob(report, name).verdict == "refused"
    assert knob(report, "max_new_tokens").verdict == "honoured"


def test_a_seed_that_does_not_repeat_is_ignored() -> None:
    class Moody(Model):
        def _words(self, asked: Body) -> list[str]:
            return super()._words({**asked, "seed": len(self.bodies)})

    report = examined(Moody(*OBEYED))

    assert knob(report, "seed").verdict == "ignored"
    assert knob(report, "temperature").verdict == "honoured"


def test_few_questions_are_asked_and_each_for_few_tokens() -> None:
    for hears in (OBEYED, []):
        model = Model(*hears)
        report = examined(model)

        assert report.requests == len(model.bodies) <= 30
        assert all(body["max_tokens"] <= 8 or body["max_tokens"] == "x" for body in model.bodies)


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_each_dialect_asks_in_its_own_words(name: str) -> None:
    model = Model(*OBEYED, allowed=DIALECTS[name].allowed)

    report = examined(model, name)

    spoken = {word for body in model.bodies for word in body}
    for param, place in DIALECTS[name].places.items():
        assert knob(report, param).said_as == place.paths[0]
        is_packed = DIALECTS[name].finish is not None and param in ("top_k", "min_p")
        word = "generation_config" if is_packed else place.paths[0].split(".")[0]
        assert word in spoken or param == "repetition_penalty"
    assert [knob.name for knob in report.knobs][: len(params.PARAMS)] == list(params.PARAMS)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error": {"message": "bad\\n x", "code": 400}}', "400 bad x"),
        (b'{"error": "bad"}', "400 bad"),
        (b'{"detail": [{"loc": ["top_k"]}]}', '400 [{"loc":["top_k"]}]'),
        (b"Internal Server Error", "400 Internal Server Error"),
        (b"\xff", "400 �"),
        (b"", "400"),
    ],
)
def test_errors_are_read_in_every_shape(body: bytes, told: str) -> None:
    assert Answer(400, "", body).told() == told


# --- what is lost ----------------------------------------------------------------------------


def losses(report: Report, text: str = POLICY) -> dict[str, str]:
    return {loss.param: loss.because for loss in doctor.losses(report, policies.parse(text))}


def test_what_is_ignored_or_cannot_be_said_is_lost() -> None:
    hears = [word for word in OBEYED if word not in ("repetition_penalty", "chat_template_kwargs")]
    unheard = examined(Model(*hears))
    unsaid = examined(Model(*OBEYED), "openai")

    assert losses(examined(Model(*OBEYED))) == {}
    assert losses(unheard) == {"repetition_penalty": "ignored", "thinking": "ignored"}
    assert losses(unsaid) == {"repetition_penalty": "cannot be said", "thinking": "cannot be said"}


def test_what_does_not_think_obeys_when_told_not_to() -> None:
    deaf = examined(Model(*(word for word in OBEYED if "chat_t" not in word), thinks=False))
    wants_thought = POLICY.replace("fill = false", "force = true")

    assert "thinking" not in losses(deaf)
    assert losses(deaf, wants_thought)["thinking"] == "ignored"


def test_each_scenario_says_what_it_wanted() -> None:
    report = examined(Model(*OBEYED, thinks=False), "ollama")

    [loss] = doctor.losses(report, policies.parse(POLICY))

    assert (loss.param, loss.wanted) == ("repetition_penalty", {"faq": (1.2,)})


# --- the command -----------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    def written(*urls: str, policy: str = POLICY) -> str:
        (tmp_path / "policy.toml").write_text(policy)
        backends = "".join(
            f'[[backends]]\nname = "b{number}"\nurl = "{url}"\ndialect = "auto"\n'
            for number, url in enumerate(urls)
        )
        path = tmp_path / "config.toml"
        path.write_text(f'[policy]\nfile = "policy.toml"\n{backends}')
        return str(path)

    return written


Written = Callable[..., str]


def test_a_table_of_a_hundred_columns_and_no_loss(
    config: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Model(*OBEYED)) as url:
        code = commands.run(["doctor", url, "--config", config(url)])

    told = capsys.readouterr().out
    assert code == 0
    assert max(map(len, told.splitlines())) <= 100
    assert "vLLM 9.9" in told
    assert "lands" in told


def test_a_loss_is_a_finding_and_the_report_is_written(
    config: Written, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    with serving(Model(*(word for word in OBEYED if word != "repetition_penalty"))) as url:
        flags = ["--config", config(url), "--json", "--write", str(file)]
        code = commands.run(["doctor", *flags])

    told = json.loads(capsys.readouterr().out)
    assert code == 1
    assert told == json.loads(file.read_text())
    assert (told["schema"], told["url"], told["dialect"], told["model"]) == (1, url, "vllm", "m")
    assert [loss["param"] for loss in told["losses"]] == ["repetition_penalty"]
    assert {"name", "said_as", "verdict", "evidence"} <= set(told["knobs"][0])


def test_all_backends_are_asked_and_one_that_is_down_hides_no_other(
    config: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Model(*OBEYED)) as url, ScriptedBackend(listen="refuse") as down:
        code = commands.run(["doctor", "--json", "--config", config(down.url, url)])

    told, faults = capsys.readouterr()
    assert code == 2
    assert [report["url"] for report in json.loads(told)] == [url]
    assert faults.startswith(f"b0 ({down.url}): cannot be reached: ConnectError")


def test_documentation_is_no_proof(config: Written, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Model(*OBEYED, thinks=False)) as url:
        commands.run(["doctor", url, "--dialect", "sglang", "--config", config(url)])

    told = capsys.readouterr().out
    assert "from documentation;" in told
    assert "unknown   unproven: field is accepted; no thought to move" in told
    assert "would be taken for vllm" in told


def test_the_model_and_the_key_are_the_askers(
    config: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCTOR_KEY", "k-1")
    with ScriptedBackend([reply_json({"error": {"message": "stop"}}, 401)]) as backend:
        flags = ["--config", config(backend.url), "--model", "other", "--key-env", "DOCTOR_KEY"]
        code = commands.run(["doctor", backend.url, *flags])

    [seen] = [seen for seen in backend.requests if seen.method == "POST"]
    assert code == 2
    assert seen.json["model"] == "other"
    assert seen.header("authorization") == "Bearer k-1"


def test_faults_are_told_in_a_line(config: Written, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> str:
        assert commands.run(["doctor", *words, "--config", config("http://127.0.0.1:9")]) == 2
        said, fault = capsys.readouterr()
        assert said == ""
        assert fault.count("\n") == 1
        return fault

    assert "no URL" in told("ftp://x")
    assert "NOT_THERE is not set" in told("http://127.0.0.1:9", "--key-env", "NOT_THERE")
    assert "cannot be read" in told("http://127.0.0.1:9", "--policy", "no.toml")
    with serving(Model(models={"data": []})) as url:
        assert "--model" in told(url)
    with ScriptedBackend([reply_json({"error": {"message": "who?"}}, 401)]) as backend:
        assert "--key-env" in told(backend.url)
    with ScriptedBackend([{"do": "wait_disconnect", "max_ms": 20_000}]) as slow:
        assert "no answer within 0.2 s" in told(slow.url, "--timeout", "0.2")
    html: list[Step] = [stream_head(), {"do": "send", "text": "<html>\x1b[31mhello"}, END]
    with ScriptedBackend(html) as page:
        assert "<html>" in (fault := told(page.url))
        assert "\x1b" not in fault


# --- a real one ------------------------------------------------------------------------------


def test_llama_cpp_is_what_its_dialect_says(demo_backend: DemoBackend) -> None:
    with doctor.Asker(demo_backend.url + "/v1", timeout_s=60) as asker:
        report = doctor.examine(asker)
        misspoken = doctor.examine(asker, dialect="vllm")

    found = verdicts(report)
    honoured = [name for name in VISIBLE if name != "thinking"] + ["use_cache"]
    assert (report.engine, report.dialect, report.model) == (
        "llama.cpp",
        "llamacpp",
        demo_backend.model,
    )
    assert {name: found[name] for name in honoured} == dict.fromkeys(honoured, "honoured")
    # The demo model does not think, so its switch is read and there is nothing to see.
    assert found["thinking"] == "unknown"
    assert "is refused" in knob(report, "thinking").evidence
    assert found["unknown_members"] == "ignored"
    # The very name that its dialect is there for.
    assert knob(misspoken, "repetition_penalty").verdict == "ignored"
