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

from router import capabilities, commands, doctor, params
from router import policy as policies
from router.dialects import DIALECTS, Dialect
from router.doctor import Knob, Report
from router.doctor.asking import Answer
from tests.clients.demo import DemoBackend
from tests.support.script import END, Step, reply_json, stream_head
from tests.support.scripted import ScriptedBackend

Body = dict[str, Any]
Reply = tuple[int, Any]
PAGES = {"/version": {"version": "9.9"}}
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
        pages: Mapping[str, Any] = PAGES,
    ) -> None:
        self.hears, self.allowed, self.models = frozenset(hears), allowed, models
        self.thinks, self.checks = thinks, checks
        self.pages = {"/v1/models": models, **pages}
        self.bodies: list[Body] = []

    def get(self, path: str) -> Reply:
        found = self.pages
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
        return text[::-1] if any(name in asked for name in PENALTIES) else text


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
        if isinstance(value, str):
            data = value.encode()
        elif isinstance(value, list):
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
        # Sixteen until a story's words come again, and once as many as a brief thought may take.
        asked = [body["max_tokens"] for body in model.bodies]
        assert all(limit in (1, 4, 8, 16, 128, "x") for limit in asked)
        assert asked.count(16) <= 4
        assert asked.count(128) <= 1


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
    # What the router does with an answer itself is no knob of a server's.
    theirs = [name for name in params.PARAMS if name not in ("reasoning_output", "stream")]
    assert [knob.name for knob in report.knobs][: len(theirs)] == theirs


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


# --- what only some servers of a kind have, and where a thought is --------------------------


class Thinker(Model):
    """Thinks where it is told to, in tags or a member of its own; its budget is a flag's matter."""

    def __init__(self, member: str | None, *, parser: bool = False, opens: bool = False) -> None:
        super().__init__(*OBEYED)
        self.member, self.parser, self.opens = member, parser, opens

    def post(self, body: Body) -> Reply:
        if "thinking_token_budget" in body and not self.parser:
            self.bodies.append(body)
            return 400, {"error": {"message": "thinking_token_budget needs --reasoning-parser"}}
        return super().post(body)

    def _answer(self, asked: Body) -> Any:
        answer = super()._answer(asked)
        if not isinstance(answer, dict):
            return answer
        message = answer["choices"][0]["message"]
        thought = message.pop("reasoning_content", "")
        if not thought:
            return answer
        if self.bodies[-1].get("thinking_token_budget") == 0:
            thought = "cut"
        if self.member is not None:
            message[self.member] = thought
            return answer
        is_whole = self.bodies[-1].get("max_tokens", 0) > 100
        begin, end = "" if self.opens else "<think>", "</think>yes" if is_whole else ""
        message["content"] = f"{begin}{thought}{end}"
        return answer


@pytest.mark.parametrize(("parser", "verdict"), [(True, "honoured"), (False, "refused")])
def test_what_a_start_may_leave_out_is_asked_for(parser: bool, verdict: str) -> None:
    report = examined(Thinker("reasoning", parser=parser))

    found = knob(report, "thinking_budget")
    assert (found.verdict, found.said_as) == (verdict, "thinking_token_budget")
    assert knob(report, "thinking").verdict == "honoured"
    fitted = capabilities.fitted(DIALECTS["vllm"], doctor.capabilities(report))
    assert ("thinking_budget" in fitted.places) is parser
    assert losses(report) == {}


@pytest.mark.parametrize(
    ("model", "thought", "opens"),
    [
        (Thinker("reasoning"), "reasoning", False),
        (Thinker("reasoning_content"), "reasoning_content", False),
        (Thinker(None), "inline", False),
        (Thinker(None, opens=True), "inline", True),
        (Model(*OBEYED, thinks=False), "none", False),
    ],
)
def test_where_a_thought_arrives_is_seen(model: Model, thought: str, opens: bool) -> None:
    report = examined(model)

    assert (report.thought, report.opens_in_prompt) == (thought, opens)


@pytest.mark.parametrize(("prompt", "opens"), [("hi\n<think>\n", True), ("hi\n", False)])
def test_a_prompt_that_is_told_shows_the_opening_tag(prompt: str, opens: bool) -> None:
    class Telling(Thinker):
        def _answer(self, asked: Body) -> Any:
            answer = super()._answer(asked)
            if "return_prompt_text" in self.bodies[-1]:
                answer["prompt_text"] = prompt
            return answer

    model = Telling(None, opens=True)
    report = examined(model)

    assert report.opens_in_prompt is opens
    assert all(body["max_tokens"] != 128 for body in model.bodies)


def test_a_server_says_which_it_is_and_since_when() -> None:
    metrics = "# HELP process_start_time_seconds x\nprocess_start_time_seconds 1.5e+09\n"
    props = {
        "build_info": "b1",
        "media_marker": "<__media_x__>",
        "default_generation_settings": {"n_ctx": 512},
    }
    models = {"data": [{"id": "m", "owned_by": "llamacpp"}]}

    vllm = examined(Model(*OBEYED, pages={**PAGES, "/metrics": metrics}))
    llamacpp = examined(Model(*OBEYED, models=models, pages={"/props": props}))
    silent = examined(Model(*OBEYED, models={"data": [{"id": "m"}]}, pages={}))

    assert (vllm.version, vllm.started, vllm.context) == ("9.9", "1.5e+09", 64)
    assert (llamacpp.version, llamacpp.started, llamacpp.context) == ("b1", "<__media_x__>", 512)
    assert (silent.version, silent.started, silent.context) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "calls", "verdict"),
    [("", True, "honoured"), ("<tool_call", False, "honoured"), ("once upon", False, "ignored")],
)
def test_a_forced_call_is_seen_even_where_it_is_cut(text: str, calls: bool, verdict: str) -> None:
    class Caller(Model):
        def _answer(self, asked: Body) -> Any:
            answer = super()._answer(asked)
            if "tool_choice" in self.bodies[-1]:
                message: Body = {"content": text, "tool_calls": [{}] if calls else None}
                answer["choices"][0]["message"] = message
                answer["usage"]["prompt_tokens"] = 120
            return answer

    report = examined(Caller(*OBEYED, thinks=False))

    assert knob(report, "tool_choice").verdict == verdict
    assert knob(report, "tools").verdict == "honoured"


def test_tools_that_need_a_flag_are_refused() -> None:
    class Flagless(Model):
        def post(self, body: Body) -> Reply:
            if "tools" in body:
                self.bodies.append(body)
                return 400, {"error": {"message": "tool choice requires --tool-call-parser"}}
            return super().post(body)

    found = verdicts(examined(Flagless(*OBEYED)))

    assert (found["tools"], found["tool_choice"]) == ("refused", "refused")


# --- servers that make it hard ---------------------------------------------------------------


PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", *PENALTIES, "stop")


@pytest.mark.parametrize("first", [{"temperature": 0}, {"temperature": 1.0}])
def test_a_server_that_keeps_the_first_sampling_is_found_out(first: Body) -> None:
    class Frozen(Model):
        def _answer(self, asked: Body) -> Any:
            kept = {name: value for name, value in asked.items() if name not in SAMPLING}
            return super()._answer({**kept, **first, "seed": asked.get("seed", len(self.bodies))})

    report = examined(Frozen(*OBEYED))

    found = verdicts(report)
    assert {name: found[name] for name in SAMPLING} == dict.fromkeys(SAMPLING, "ignored")
    assert "continuous batching" in report.notes[-1]
    assert "temperature" not in report_fit(report).places


def report_fit(report: Report) -> Dialect:
    return capabilities.fitted(DIALECTS[report.dialect], doctor.capabilities(report))


def test_the_first_request_leaves_sampling_to_the_model() -> None:
    model = Model(*OBEYED)

    examined(model)

    assert set(model.bodies[0]) == {"model", "messages", "max_tokens"}


def test_two_words_as_likely_as_each_other_hide_nothing() -> None:
    class Tied(Model):
        """What narrows a draw to the likeliest leaves two of them."""

        def _words(self, asked: Body) -> list[str]:
            words = super()._words(asked)
            is_narrow = words == WORDS and asked.get("temperature", 0) > 0
            return ["twice", *words[1:]] if is_narrow and "seed" in asked else words

    found = verdicts(examined(Tied(*OBEYED)))

    assert {found[name] for name in ("top_p", "top_k", "min_p")} == {"honoured"}


def test_what_is_looked_at_only_where_something_is_drawn_is_not_ignored() -> None:
    class Lazy(Model):
        def post(self, body: Body) -> Reply:
            if body.get("temperature") == 0:
                body = {name: value for name, value in body.items() if name not in DRAWN}
            return super().post(body)

        def _words(self, asked: Body) -> list[str]:
            return super()._words({k: v for k, v in asked.items() if k not in DRAWN})

    found = verdicts(examined(Lazy(*OBEYED)))

    assert {found[name] for name in DRAWN} == {"unknown"}


DRAWN = ("top_p", "top_k", "min_p")


class Slow(Model):
    """Takes seconds that only its own clock counts: one answer after another."""

    def __init__(self, first_s: float, then_s: float) -> None:
        super().__init__(*OBEYED)
        self.first_s, self.then_s, self.now = first_s, then_s, 0.0

    def post(self, body: Body) -> Reply:
        self.now += self.then_s if self.bodies else self.first_s
        return super().post(body)

    def examined(self, *, timeout_s: float = 30, limit_s: float = 120) -> Report:
        with serving(self) as url:
            asker = doctor.Asker(url, timeout_s=timeout_s, limit_s=limit_s, clock=lambda: self.now)
            with asker:
                return doctor.examine(asker)


def test_the_first_answer_may_take_longer() -> None:
    report = Slow(80, 1).examined(timeout_s=30)

    assert knob(report, "temperature").verdict == "honoured"


def test_what_is_not_asked_in_time_is_unknown() -> None:
    report = (model := Slow(1, 10)).examined(limit_s=120)

    assert knob(report, "thinking").verdict == "honoured"
    assert knob(report, "n").verdict == "unknown"
    assert "not asked: 120 s were enough" in knob(report, "n").evidence
    assert report.requests == len(model.bodies) == 13
    assert not report.is_whole


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
    table = [line for line in told.splitlines() if not line.startswith("what it can do is kept in")]
    assert max(map(len, table)) <= 100
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
    unknown = [line for line in told.splitlines() if line[29:36] == "unknown"]
    assert unknown
    assert all(line[39:].startswith("unproven: ") for line in unknown)
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
        assert "no answer within 0.6 s" in told(slow.url, "--timeout", "0.2")
    html: list[Step] = [stream_head(), {"do": "send", "text": "<html>\x1b[31mhello"}, END]
    with ScriptedBackend(html) as page:
        assert "<html>" in (fault := told(page.url))
        assert "\x1b" not in fault


def test_what_it_can_do_is_kept_for_who_serves(
    config: Written,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SCENARIO_ROUTER_CACHE", str(tmp_path / "cache"))
    with serving(Model(*OBEYED)) as url:
        path = capabilities.path_for(url, tmp_path / "cache")
        commands.run(["doctor", url, "--no-write", "--config", config(url)])
        assert not path.exists()
        told_nothing = capsys.readouterr().out
        commands.run(["doctor", url, "--config", config(url)])

    kept = capabilities.read(path)
    assert kept is not None
    assert (kept.url, kept.dialect, kept.model, kept.context) == (url, "vllm", "m", 64)
    assert (kept.knobs["top_k"], kept.knobs["n"]) == ("honoured", "honoured")
    assert str(path) in capsys.readouterr().out
    assert "kept" not in told_nothing


def test_half_an_examination_is_not_kept(
    config: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    class Falling(Model):
        def post(self, body: Body) -> Reply:
            return super().post(body) if len(self.bodies) < 9 else silence()

    def silence() -> Reply:
        over.wait(10)
        return 500, ""

    over = threading.Event()
    with serving(Falling(*OBEYED)) as url:
        code = commands.run(["doctor", url, "--timeout", "0.1", "--config", config(url)])
        over.set()

    assert code == 0
    assert "not kept" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_spoils_no_report(
    config: Written,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SCENARIO_ROUTER_CACHE", str(tmp_path / "file"))
    with serving(Model(*OBEYED)) as url:
        code = commands.run(["doctor", url, "--json", "--config", config(url)])

    told, faults = capsys.readouterr()
    assert code == 0
    assert json.loads(told)["capabilities_file"] is None
    assert "not kept" in faults


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
