"""`bench` and `ab` as a user runs them: processes, real sockets, a scripted and a real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from router import capabilities, commands, trained
from router.capabilities import Capabilities
from router.measure import load
from router.measure.asking import Arm, Asker, Sample, Sending
from router.measure.judge_server import JudgeServer
from router.measure.prompts import Prompt
from tests.clients.demo import DemoBackend
from tests.support.product import ROOT, Product
from tests.support.script import Step, chat_ok, pause, reply_json
from tests.support.scripted import ScriptedBackend

#: two presets that a script can tell apart
POLICY = {
    "schema": 1,
    "default_scenario": "long",
    "scenarios": {
        "long": {"preset": {"max_new_tokens": 200}},
        "short": {"preset": {"max_new_tokens": 20}},
    },
}
LONG, SHORT = (" ".join(["word"] * count) for count in (20, 5))


def rule(limit: int, *steps: Step) -> Mapping[str, Any]:
    return {"when": {"body_eq": {"max_tokens": limit}}, "steps": list(steps)}


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedBackend]:
    with ScriptedBackend() as running:
        yield running


@pytest.fixture(scope="module")
def front(upstream: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    backend = {"name": "scripted", "url": upstream.url, "model": "qwen3-0.6b"}
    folder = tmp_path_factory.mktemp("front")
    with Product.start(folder, {"backends": [backend]}, policy=POLICY) as running:
        yield running


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = ({"prompt": f"Which river is number {number}?"} for number in range(12))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ran(*words: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "router", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def refused(*words: str) -> bool:
    """Whether a command, run here, ends as a mistake in its usage."""
    try:
        return commands.run(words) == 2
    except SystemExit as left:
        return left.code == 2


# --- bench -------------------------------------------------------------------------------------


def test_one_command_tells_what_a_preset_saves(
    upstream: ScriptedBackend, front: Product, prompts: Path, tmp_path: Path
) -> None:
    upstream.set_script([chat_ok(LONG)], rules=[rule(20, chat_ok(SHORT))])
    page = tmp_path / "report.html"
    code, out, err = ran(
        *("bench", "--url", front.url, "--compare", "default,short", "-n", 24, "--json"),
        *("--prompts", prompts, "--html", page),
    )
    found = json.loads(out)
    tokens = next(each for each in found["savings"] if each["quantity"] == "output_tokens")

    assert (code, err) == (0, "")
    # 20 and 5 tokens, each time: the share is known, and so its interval has no width.
    assert tokens["share"] == pytest.approx(0.75)
    assert tokens["low"] == pytest.approx(0.75)
    assert (tokens["pairs"], tokens["prompts"]) == (24, 12)
    assert [arm["requests"] for arm in found["arms"]] == [24, 24]
    assert found["arms"][1]["scenarios"] == {"short": 24}
    text = page.read_text(encoding="utf-8")
    assert "saves 75.0% of default" in text
    assert "<svg" in text
    assert "src=" not in text
    assert "http://www" not in text


def test_both_sides_get_the_same_prompts_next_to_each_other(
    upstream: ScriptedBackend, front: Product, prompts: Path
) -> None:
    upstream.set_script([chat_ok("x y")])
    before = len(upstream.requests)
    ran(
        *("bench", "--direct", upstream.url, "--via", front.url, "-n", 8, "--warmup", 0),
        *("--prompts", prompts, "--model", "qwen3-0.6b"),
    )
    asked = [seen.json["messages"][-1]["content"] for seen in upstream.requests[before:]]

    assert len(asked) == 16
    assert asked[0::2] == asked[1::2]
    assert len(set(asked)) == 8


def test_failures_fail_the_gate_and_are_named(upstream: ScriptedBackend, prompts: Path) -> None:
    broken = {"error": {"message": "the GPU is on fire"}}
    is_third = {"when": {"body_text": "number 3?"}, "steps": [reply_json(broken, status=500)]}
    upstream.set_script([chat_ok("Fine.")], rules=[is_third])
    code, out, err = ran(
        *("bench", "--url", upstream.url, "-n", 12, "--gate", "--prompts", prompts),
        *("--max-p95-ratio", 1000),
    )

    assert code == 1
    assert "failed 1 times: status 500: the GPU is on fire" in out
    assert "missed: server: success 91.7% < 98.0%" in err


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure(prompts: Path) -> None:
    with ScriptedBackend(
        [chat_ok("Yes.")],
        keepalive={"close_when": "next_request_arrives", "first_only": True},
    ) as backend:
        code, out, _ = ran(
            *("bench", "--url", backend.url, "-n", 4, "--warmup", 1, "--json"),
            *("--prompts", prompts),
        )
    [arm] = json.loads(out)["arms"]

    assert (code, arm["succeeded"], arm["second"], arm["errors"]) == (0, 4, 1, {})


def test_an_answer_that_does_not_come_is_a_failure(
    upstream: ScriptedBackend, prompts: Path
) -> None:
    upstream.set_script([{"do": "wait_disconnect", "max_ms": 20_000}])
    code, out, _ = ran(
        *("bench", "--url", upstream.url, "-n", 2, "--warmup", 0, "--timeout", 0.2),
        *("--prompts", prompts, "--json", "--min-success", 0.5),
    )

    assert code == 1
    assert json.loads(out)["arms"][0]["errors"] == {"no whole answer within 0.2 s": 2}


def test_interrupted_it_prints_what_there_is(upstream: ScriptedBackend, prompts: Path) -> None:
    held = {"do": "wait_disconnect", "max_ms": 20_000}
    upstream.set_script([chat_ok("Yes.")], rules=[{"when": {"body_text": "3?"}, "steps": [held]}])
    before = len(upstream.requests)
    words = ["bench", "--url", upstream.url, "--warmup", "0", "-n", "12", "--prompts", str(prompts)]
    process = subprocess.Popen(
        [sys.executable, "-m", "router", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # One client at a time: who waits at the held one has had all those before it.
    for number in range(1, 13):
        seen = upstream.wait_requests(before + number, 30)[before + number - 1]
        if b"3?" in seen.body:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "INTERRUPTED" in out
    assert f"{number - 1} requests" in out


@pytest.mark.parametrize(
    "words",
    [
        ["--direct", "http://x"],
        ["--compare", "faq"],
        ["--param", "top_p"],
        ["--scenario", "nothing-of-the-kind"],
        ["--prompts", "/nowhere/prompts.jsonl"],
        ["--prime", "--rate", "5"],
    ],
)
def test_flags_that_make_no_sense_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused("bench", *words)
    assert capsys.readouterr().err


def test_where_nobody_answers_that_is_said(upstream: ScriptedBackend) -> None:
    with ScriptedBackend(listen="refuse") as nobody:
        code, out, err = ran("bench", "--url", nobody.url)

    assert (code, out) == (1, "")
    assert f"{nobody.url}/v1/models does not answer" in err


async def test_arrivals_do_not_wait_for_a_slow_server() -> None:
    """Each is due at its own time, drawn beforehand; latency counts from there."""
    now, dues = 0.0, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Slow(Asker):
        async def ask(
            self, arm: Arm, prompt: Prompt, *, turn: int, due: float | None = None
        ) -> Sample:
            nonlocal now
            now += 10  # far longer than between two arrivals
            assert due is not None
            dues.append(due)
            return None  # type: ignore[return-value]

    class Watch:
        has_enough = False

        def saw(self, sample: Sample) -> None:
            pass

    arm = Arm("a", "", lambda _: Sending(b"", {}))
    turns = (load.Turn(number, Prompt(0, ()), (arm,)) for number in range(20))
    async with Slow(timeout_s=1, clock=lambda: now) as asker:
        await load.open_(asker, turns, Watch(), rate=5, random=Random(3), sleep=sleep)

    drawn, at = Random(3), 0.0
    expected = [at := at + drawn.expovariate(5) for _ in range(20)]
    assert dues == pytest.approx(expected)


# --- ab ----------------------------------------------------------------------------------------


def compared(upstream: ScriptedBackend, policy: Path, *words: object) -> dict[str, Any]:
    code, out, err = ran(
        *("ab", "--url", upstream.url, "--dialect", "vllm", "--json", "--warmup", 1),
        *("--policy", policy, *words),
    )
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def verdicts(found: Mapping[str, Any]) -> dict[str, str]:
    return {each["quantity"]: each["verdict"] for each in found["findings"]}


def test_a_planted_delay_is_found(upstream: ScriptedBackend, front: Product, prompts: Path) -> None:
    slow = [pause(60), chat_ok(SHORT)]
    upstream.set_script([], rules=[rule(200, chat_ok(SHORT)), rule(20, *slow)])
    sides = ("--a", "long", "--b", "short", "--prompts", prompts)
    found = compared(upstream, front.policy_path, *sides, "-n", 40)

    assert verdicts(found)["total"] == "worse"
    assert verdicts(found)["ttft"] == "worse"
    assert verdicts(found)["output_tokens"] == "no difference"


def test_two_that_are_alike_are_not_told_apart_and_end_by_themselves(
    upstream: ScriptedBackend, front: Product, prompts: Path
) -> None:
    upstream.set_script([pause(5), chat_ok(SHORT)])
    sides = ("--a", "long", "--b", "short", "--prompts", prompts)
    wide = ("--margin", 0.5, "--share-margin", 0.2)
    found = compared(upstream, front.policy_path, *sides, "-n", 400, *wide)

    assert set(verdicts(found).values()) == {"no difference"}
    assert found["why_ended"] == "every verdict was settled"
    assert found["pairs"] < 400


def test_a_policy_file_is_compared_by_the_bytes_that_it_would_have_sent(
    upstream: ScriptedBackend, front: Product, prompts: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.toml"
    text = front.policy_path.read_text(encoding="utf-8")
    new.write_text(text.replace("max_new_tokens = 200", "max_new_tokens = 99"), encoding="utf-8")
    upstream.set_script([chat_ok(SHORT)])
    before = len(upstream.requests)
    found = compared(
        *(upstream, front.policy_path, "--a", front.policy_path, "--b", f"short@{new}"),
        *("--prompts", prompts, "-n", 3, "--warmup", 0),
    )
    asked = upstream.requests[before:]
    limits = [seen.json["max_tokens"] for seen in asked]

    assert sorted(limits) == [20, 20, 20, 200, 200, 200]
    assert found["a"]["policy"] != found["b"]["policy"]
    assert found["a"]["summary"]["scenarios"] == {"long": 3}
    explained = subprocess.run(
        [sys.executable, "-m", "router", "explain", "--json", "--config", front.config_path],
        cwd=ROOT,
        input=json.dumps(
            {
                "model": "auto",
                "messages": asked[0].json["messages"],
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            separators=(",", ":"),
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    of_long = [seen for seen in asked if seen.json["max_tokens"] == 200]
    same_prompt = [s.body for s in of_long if s.json["messages"] == asked[0].json["messages"]]
    assert same_prompt == [json.loads(explained.stdout)["body"].encode()]


def test_a_backend_is_spoken_to_as_the_doctor_saw_it_understand(
    front: Product, prompts: Path
) -> None:
    with ScriptedBackend([chat_ok(SHORT)]) as deaf:
        seen = Capabilities(
            url=deaf.url,
            time="2026-01-01T00:00:00Z",
            engine="scripted",
            version="1",
            model="qwen3-0.6b",
            dialect="openai",
            knobs={"max_new_tokens": "ignored"},
        )
        capabilities.write(capabilities.path_for(deaf.url, trained.folder()), seen)
        code, out, err = ran(
            *("ab", "--url", deaf.url, "--policy", front.policy_path, "--a", "long"),
            *("--b", "short", "--prompts", prompts, "-n", 1, "--warmup", 0, "--json"),
        )

        assert code == 0, err
        assert "as examined" in out
        assert all("max_tokens" not in request.json for request in deaf.requests)


def test_running_routers_are_compared_too(
    upstream: ScriptedBackend, front: Product, prompts: Path
) -> None:
    upstream.set_script([chat_ok(LONG)], rules=[rule(20, chat_ok(SHORT))])
    sides = ("--a", f"off@{front.url}", "--b", f"short@{front.url}", "--prompts", prompts)
    found = compared(upstream, front.policy_path, *sides, "-n", 30)

    assert verdicts(found)["output_tokens"] == "better"
    assert found["b"]["summary"]["scenarios"] == {"short": 30}


def test_worse_can_fail_a_pipeline(
    upstream: ScriptedBackend, front: Product, prompts: Path
) -> None:
    upstream.set_script([chat_ok(SHORT)], rules=[rule(200, chat_ok(LONG))])
    sides = ("--a", "short", "--b", "long", "--prompts", prompts, "-n", 30)
    code, out, _ = ran(
        *("ab", "--url", upstream.url, "--dialect", "vllm", "--policy", front.policy_path),
        *(*sides, "--fail-worse"),
    )

    assert code == 1
    assert "worse" in out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--a", "faq"],
        ["--a", "x", "--b", "new.toml", "--config", "nowhere.toml"],
        ["--a", "faq", "--b", "chat", "--judge", "m"],
        ["--verdicts", "nowhere.jsonl"],
        ["--a", "long", "--b", "short", "--backend", "nobody", "--scenario", "faq"],
    ],
)
def test_comparisons_that_make_no_sense_are_refused(
    words: list[str], front: Product, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused("ab", "--policy", str(front.policy_path), *words)
    assert capsys.readouterr().err


def test_a_scenario_that_does_not_exist_is_told_before_anything_is_asked(
    upstream: ScriptedBackend, front: Product
) -> None:
    before = len(upstream.requests)
    code, _, err = ran(
        *("ab", "--url", upstream.url, "--policy", front.policy_path, "--a", "long", "--b", "nope"),
        *("--scenario", "faq"),
    )

    assert (code, "names 'nope'" in err) == (1, True)
    assert len(upstream.requests) == before


# --- quality -----------------------------------------------------------------------------------


def test_a_person_judges_pairs_and_the_verdicts_are_counted(
    upstream: ScriptedBackend, front: Product, prompts: Path, tmp_path: Path
) -> None:
    upstream.set_script([chat_ok(LONG)], rules=[rule(20, chat_ok(SHORT))])
    saved, html = tmp_path / "pairs.jsonl", tmp_path / "ab.html"
    sides = ("--a", "long", "--b", "short", "--prompts", prompts, "-n", 12)
    found = compared(upstream, front.policy_path, *sides, "--save", saved, "--html", html)
    pairs = [json.loads(line) for line in saved.read_text(encoding="utf-8").splitlines()]
    assert len(pairs) == 12
    assert "<details>" in html.read_text(encoding="utf-8")

    process = subprocess.Popen(
        [sys.executable, "-m", "router", "ab", "--judge-page", str(saved), "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = process.stdout.readline().split(" at ")[1].split(";")[0]
    with urllib.request.urlopen(url) as reply:
        page = reply.read().decode()
    assert page.count('class="pair"') == 12
    for pair in pairs:
        before = page.split(f'data-pair="{pair["pair"]}"')[1].split("<div>")
        is_left = before[1].startswith(f"{SHORT}<")
        send(
            url,
            {"run": found["run"], "pair": pair["pair"], "choice": "left" if is_left else "right"},
        )
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)

    assert "A won 0, B won 12, alike 0: B is preferred" in out
    verdicts_of = saved.with_suffix(".verdicts.jsonl")
    assert len(verdicts_of.read_text(encoding="utf-8").splitlines()) == 12
    code, counted, _ = ran("ab", "--verdicts", verdicts_of, "--json")
    assert (code, json.loads(counted)["b"]) == (0, 12)


def send(url: str, row: Mapping[str, Any], **headers: str) -> int:
    request = urllib.request.Request(
        url + "verdicts",
        data=json.dumps(row).encode(),
        headers={"content-type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_only_this_pages_verdicts_are_taken(tmp_path: Path) -> None:
    verdicts_of = tmp_path / "verdicts.jsonl"
    good = {"run": "r1", "pair": 1, "choice": "left"}
    with JudgeServer("<p>", "r1", verdicts_of, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        answers = [
            send(server.url, {**good, "run": "another"}),
            send(server.url, {**good, "choice": "both"}),
            send(server.url, good, **{"content-type": "text/plain"}),
            send(server.url, good, host="evil.example"),
            send(server.url, good),
        ]
        server.shutdown()
        thread.join()

    assert answers == [409, 400, 400, 403, 204]
    assert len(verdicts_of.read_text(encoding="utf-8").splitlines()) == 1


def test_a_model_judges_in_both_orders_and_is_called_weak(
    upstream: ScriptedBackend, front: Product, prompts: Path
) -> None:
    upstream.set_script([chat_ok(LONG)], rules=[rule(20, chat_ok(SHORT))])
    sides = ("--a", "long", "--b", "short", "--prompts", prompts, "-n", 12, "--spot", 4)
    with ScriptedBackend([chat_ok("1")]) as judge:
        found = compared(
            *(upstream, front.policy_path, *sides, "--judge", "big", "--judge-url", judge.url)
        )
        asked = [seen.json["messages"][0]["content"] for seen in judge.requests]

    assert len(asked) == 8
    for first, second in zip(asked[0::2], asked[1::2], strict=True):
        assert first != second
    # It always says the first: that is no verdict.
    assert found["judge"].startswith("A won 0, B won 0, alike 4")


def test_a_judge_that_does_not_answer_costs_no_figures(
    upstream: ScriptedBackend, front: Product, prompts: Path
) -> None:
    upstream.set_script([chat_ok(LONG)], rules=[rule(20, chat_ok(SHORT))])
    sides = ("--a", "long", "--b", "short", "--prompts", prompts, "-n", 2, "--spot", 1)
    with ScriptedBackend(listen="refuse") as judge:
        found = compared(
            *(upstream, front.policy_path, *sides, "--judge", "big", "--judge-url", judge.url)
        )

    assert found["pairs"] == 2
    assert found["judge"].startswith("not judged: the judge does not answer")


# --- a real model ------------------------------------------------------------------------------


def test_a_real_model_is_asked_with_and_without_a_preset(
    demo_backend: DemoBackend, router: Product
) -> None:
    code, out, err = ran(
        *("bench", "--url", router.url, "--compare", "default,faq", "-n", 3, "--warmup", 1),
        *("--lang", "en", "--max-tokens", 96, "--json"),
    )
    found = json.loads(out)
    capped = [each for each in found["samples"] if each["arm"] == "faq"]

    assert code == 0, err
    assert all(each["output_tokens"] <= 64 for each in capped)
    assert all(each["has_usage"] and each["scenario"] == "faq" for each in capped)
    assert [arm["succeeded"] for arm in found["arms"]] == [3, 3]
