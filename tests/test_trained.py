"""Weights are fitted once, in a process of its own, and kept; and what happens where they can't.

The child is the real one where a test is about the child, and a fit in the test's own
process where it is about the cache.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from router import app as apps
from router import fit, lesson, policy, trained
from router.classify.weights import FORMAT, Weights
from router.policy import Policy
from router.tomlfile import FileFault
from tests.support import taught
from tests.support.product import ROOT, Product, write_toml
from tests.support.rawclient import exchange, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
POLICY = taught.policy_of()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    path = tmp_path / "cache"
    monkeypatch.setenv("SCENARIO_ROUTER_CACHE", str(path))
    return path


class Child:
    """Stands before the child's start and counts."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.starts = 0

    def __call__(self, *args: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
        self.starts += 1
        return self._run(*args, **options)


@pytest.fixture
def real_child(monkeypatch: pytest.MonkeyPatch) -> Child:
    child = Child(subprocess.run)
    monkeypatch.setattr(subprocess, "run", child)
    return child


def here(args: list[str], *, input: bytes, **_: Any) -> subprocess.CompletedProcess[bytes]:
    """What the child does, in this process."""
    made = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input)))
        patch.setattr(sys, "stdout", io.TextIOWrapper(made))
        fit.main()
        return subprocess.CompletedProcess(args, 0, made.getvalue(), b"")


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    """A child that is none: the same task is done here, so as not to wait for a process."""
    child = Child(here)
    monkeypatch.setattr(subprocess, "run", child)
    return child


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def python_that(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put something else in the interpreter's place."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


# --- fitted once ----------------------------------------------------------------------


def test_the_first_call_fits_in_a_child_and_the_second_reads(
    folder: Path, real_child: Child
) -> None:
    first = trained.weights(POLICY)
    second = trained.weights(POLICY)

    assert real_child.starts == 1
    assert first == second == fit.fit(POLICY)
    assert [path.suffix for path in files(folder)] == [".weights"]


def test_the_child_is_told_all_that_the_fit_reads(folder: Path, real_child: Child) -> None:
    rich = taught.policy_of(
        classify={"keyword": 2.5, "head_chars": 150, "tail_chars": 30},
        thinking={"keywords": ["prove"], "patterns": ["证.明?"], "weight": 2.0},
        scenarios={
            "code": {"priority": 3, "match": {"keywords": ["python"], "examples": ["git log"]}},
            "support": {"match": {"patterns": ["order\\s*\\d+"], "turns": {"max": 9}}},
            "chat": {"preset": {"temperature": 0.5}},
        },
    )

    assert trained.weights(rich) == fit.fit(rich)
    assert real_child.starts == 1


def test_without_examples_there_is_no_child_and_nothing_is_kept(folder: Path, child: Child) -> None:
    assert trained.weights(taught.policy_of(examples={})) is None

    assert child.starts == 0
    assert files(folder) == []


def test_that_there_is_too_little_to_learn_is_kept_as_well(folder: Path, real_child: Child) -> None:
    poor = taught.policy_of(examples={"code": taught.EXAMPLES["code"]})

    assert trained.weights(poor) is None
    assert trained.weights(poor) is None
    assert real_child.starts == 1


# --- the cache ------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 200, -1])
def test_a_file_cut_short_is_made_again(folder: Path, child: Child, length: int) -> None:
    trained.weights(POLICY)
    [path] = files(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:length])

    assert trained.weights(POLICY) == taught.taught()
    assert child.starts == 2
    assert [file.read_bytes() for file in files(folder)] == [whole]


def of_another_format() -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(taught.taught(), format=FORMAT + 1))


@pytest.mark.parametrize(
    "content",
    [of_another_format(), msgspec.msgpack.encode({"format": 0}), b"\xff\xff", b"weights"],
    ids=["another format", "another shape", "garbage", "text"],
)
def test_a_file_that_is_not_ours_is_made_again(folder: Path, child: Child, content: bytes) -> None:
    trained.weights(POLICY)
    [path] = files(folder)
    path.write_bytes(content)

    assert trained.weights(POLICY) == taught.taught()
    assert child.starts == 2


def test_without_a_place_to_keep_them_there_are_weights_all_the_same(
    tmp_path: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SCENARIO_ROUTER_CACHE", str(tmp_path / "file" / "cache"))

    assert trained.weights(POLICY) == trained.weights(POLICY) == taught.taught()
    assert child.starts == 2
    assert (tmp_path / "file").read_text() == "in the way"


def test_only_the_latest_few_are_kept(
    folder: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "_KEPT_FILES", 3)
    names: list[Path] = []
    for number in range(5):
        trained.weights(taught.policy_of(conversation={"follow_ups": [f"go {number}"]}))
        [new] = set(files(folder)) - set(names)
        os.utime(new, (number, number))  # so that the clock's resolution does not matter
        names.append(new)
        assert len(files(folder)) == min(number + 1, 3)

    assert set(files(folder)) == set(names[-3:])


def test_other_files_beside_the_weights_are_left_alone(
    folder: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "_KEPT_FILES", 1)
    folder.mkdir()
    (folder / "notes.txt").write_text("somebody's")

    for word in ("a", "b"):
        trained.weights(taught.policy_of(conversation={"follow_ups": [word]}))

    assert (folder / "notes.txt").read_text() == "somebody's"
    assert len(files(folder)) == 2


def with_one_example_more() -> Policy:
    code = {**taught.EXAMPLES["code"], "thinking": ["one more"]}
    return taught.policy_of(examples={**taught.EXAMPLES, "code": code})


@pytest.mark.parametrize(
    "changed",
    [
        with_one_example_more(),
        taught.policy_of(conversation={"follow_ups": ["go on"]}),
        taught.policy_of(classify={"keyword": 7.5}),
        taught.policy_of(thinking={"keywords": ["prove"]}),
        taught.policy_of(
            scenarios={"support": {"match": {"keywords": ["refund"]}}, "code": {}, "chat": {}}
        ),
    ],
    ids=["an example", "a follow-up", "what a word is worth", "a thinking word", "a keyword"],
)
def test_what_the_fit_depends_on_is_in_the_files_name(
    changed: Policy, folder: Path, child: Child
) -> None:
    trained.weights(POLICY)
    trained.weights(changed)

    assert child.starts == 2
    assert len(files(folder)) == 2


@pytest.mark.parametrize(
    "changed",
    [
        taught.policy_of(
            scenarios={
                "support": {"title": "Support", "preset": {"temperature": 0.1}, "priority": 5},
                "code": {"match": {"turns": {"max": 3}}},
                "chat": {},
            }
        ),
        taught.policy_of(defaults={"direct": {"top_p": 0.8}}),
        taught.policy_of(tests=[{"prompt": "hi", "scenario": "chat"}]),
    ],
    ids=["a preset", "the defaults", "a test"],
)
def test_what_the_fit_does_not_read_asks_for_no_other(
    changed: Policy, folder: Path, child: Child
) -> None:
    trained.weights(POLICY)
    trained.weights(changed)

    assert child.starts == 1
    assert len(files(folder)) == 1


def test_other_code_would_make_other_weights(
    folder: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.weights(POLICY)
    monkeypatch.setattr(lesson, "_code_digest", lambda: "changed")
    trained.weights(POLICY)

    assert len(files(folder)) == 2


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCENARIO_ROUTER_CACHE", "/a/b")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert trained.folder() == Path("/a/b")

    monkeypatch.setenv("SCENARIO_ROUTER_CACHE", "")
    assert trained.folder() == Path("/c/scenario-router")

    monkeypatch.delenv("XDG_CACHE_HOME")
    assert trained.folder() == Path.home() / ".cache" / "scenario-router"


# --- examples in files of their own ---------------------------------------------------


def in_files(folder: Path) -> Path:
    """The policy with its examples in two files beside it."""
    bare = taught.table(examples_files=["support.toml", "more.toml"])
    examples, conversation = bare.pop("examples"), bare.pop("conversation")
    support = {"examples": {"support": examples.pop("support")}}
    write_toml(folder / "support.toml", support)
    write_toml(folder / "more.toml", {"examples": examples, "conversation": conversation})
    return write_toml(folder / "policy.toml", bare)


@pytest.mark.parametrize("lightly", [False, True])
def test_what_files_teach_is_what_the_policy_itself_would(
    folder: Path, child: Child, tmp_path: Path, lightly: bool
) -> None:
    assert trained.weights(policy.load(in_files(tmp_path), lightly=lightly)) == taught.taught()


def test_reading_the_files_oneself_asks_for_no_other_weights(
    folder: Path, child: Child, tmp_path: Path
) -> None:
    path = in_files(tmp_path)

    light = trained.weights(policy.load(path, lightly=True))
    whole = trained.weights(policy.load(path))

    assert light == whole
    assert child.starts == 1


def test_a_change_in_a_file_asks_for_other_weights(
    folder: Path, child: Child, tmp_path: Path
) -> None:
    path = in_files(tmp_path)
    trained.weights(policy.load(path, lightly=True))
    write_toml(tmp_path / "support.toml", {"examples": {"support": {"direct": ["refund?"]}}})

    trained.weights(policy.load(path, lightly=True))

    assert child.starts == 2


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("\n[examples.suport]\ndirect = ['x']\n", 2, "did you mean 'support'?"),
        ("[examples.support]\ndirect = 5\n", 2, ""),
        ("[examples.support\n", 1, "not valid TOML"),
    ],
)
def test_a_file_that_is_wrong_is_told_whoever_reads_it(
    folder: Path, real_child: Child, tmp_path: Path, content: str, line: int, message: str
) -> None:
    path = in_files(tmp_path)
    (tmp_path / "more.toml").write_text(content, encoding="utf-8")

    with pytest.raises(FileFault) as whole:
        policy.load(path)
    with pytest.raises(FileFault) as light:
        trained.weights(policy.load(path, lightly=True))

    assert str(light.value) == str(whole.value)
    assert (light.value.name, light.value.mistakes) == (whole.value.name, whole.value.mistakes)
    [mistake] = light.value.mistakes
    assert mistake.line == line
    assert message in mistake.message
    assert files(folder) == []


def test_weights_may_be_made_before_they_are_needed(folder: Path, child: Child) -> None:
    trained.prepare(POLICY)
    trained.prepare(POLICY)
    assert child.starts == 1

    assert trained.weights(POLICY) == taught.taught()
    assert child.starts == 1


def test_a_failure_to_prepare_is_left_to_whoever_needs_the_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_that("exit 1", tmp_path, monkeypatch)

    trained.prepare(POLICY)

    with pytest.raises(trained.FitFailed):
        trained.weights(POLICY)


# --- failures -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo first >&2; echo last words >&2; exit 3", "last words"),
        ("printf 'caf\\351\\n' >&2; exit 1", "caf�"),
        ("exit 1", "killed"),
        ("kill -9 $$", "killed"),
        ("echo weights", ".*"),
    ],
)
def test_a_child_that_dies_is_told_by_its_last_words(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    python_that(script, tmp_path, monkeypatch)

    with pytest.raises(trained.FitFailed, match=f": {reason}$"):
        trained.weights(POLICY)

    assert files(folder) == []


def test_an_interpreter_that_cannot_be_started_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))

    with pytest.raises(trained.FitFailed, match="nowhere"):
        trained.weights(POLICY)


def test_a_child_that_takes_too_long_is_given_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_that("exec sleep 60", tmp_path, monkeypatch)
    monkeypatch.setattr(trained, "_TIMEOUT_S", 0.01)

    with pytest.raises(trained.FitFailed, match="timed out"):
        trained.weights(POLICY)


def test_a_failure_is_logged_and_words_alone_classify(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_that("echo no luck >&2; exit 1", tmp_path, monkeypatch)

    with capture_logs() as said:
        assert apps.learned_from(POLICY) is None

    [line] = said
    assert line["log_level"] == "error"
    assert "no luck" in line["reason"]


def test_nothing_to_learn_from_is_no_failure(folder: Path, child: Child) -> None:
    with capture_logs() as said:
        assert apps.learned_from(taught.policy_of(examples={})) is None

    assert said == []


def without_numpy(folder: Path) -> dict[str, str]:
    """An environment in which whoever imports numpy fails."""
    (folder / "numpy.py").write_text("raise ImportError('no numpy here')\n")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path}


def test_a_router_that_cannot_learn_serves_by_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (tmp_path / "file").write_text("in the way")
    env = {**without_numpy(broken), "SCENARIO_ROUTER_CACHE": str(tmp_path / "file")}
    worded = taught.table(
        scenarios={"support": {"match": {"keywords": ["refund"]}}, "code": {}, "chat": {}}
    )

    with ScriptedBackend([chat_ok("Soon.")]) as backend:
        one = {"name": "one", "url": backend.url, "model": "qwen3-0.6b"}
        with Product.start(tmp_path, {"backends": [one]}, policy=worded, env=env) as product:
            told = []
            for text in ("My refund please.", "Write a Python function that reads a csv file."):
                body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
                reply = exchange(
                    product.port, request_bytes("POST", "/v1/chat/completions", None, body)
                )
                assert reply.status == 200
                told.append(reply.header("x-router-scenario"))

    assert told == ["support", "chat"]
    assert any("no numpy here" in line for line in product.output)


# --- what serves has no numpy ---------------------------------------------------------

SERVES = """
import sys
from pathlib import Path
from router import app, config, policy
from router.offline import Unconnected

backend = {"name": "a", "url": "http://127.0.0.1:9"}
deployed = config.Config.model_validate({"backends": [backend]})
live = app.live_of(
    deployed, policy.load(Path(sys.argv[1])), app.slots_of(deployed, Unconnected)
)
print(live.classifier.learned is not None, "numpy" in sys.modules)
"""


def test_what_serves_imports_no_numpy(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY.text, encoding="utf-8")
    assert trained.weights(policy.load(path)) is not None  # and now it is in the cache

    done = subprocess.run(
        [sys.executable, "-c", SERVES, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout.split(), done.stderr) == (["True", "False"], "")


def test_a_policy_as_it_serves_holds_no_examples_and_classifies_the_same(
    folder: Path, child: Child
) -> None:
    weights: Weights = taught.taught()
    listed = taught.policy_of(
        scenarios={"support": {"match": {"examples": ["x y z"]}}, "code": {}, "chat": {}}
    )

    light = policy.without_examples(listed)

    assert lesson.has_examples(listed)
    assert not lesson.has_examples(light)
    assert light.file.conversation.follow_ups == ()
    assert light.hash == listed.hash
    assert apps.learned_from(listed) is not None
    assert weights.scenarios == tuple(light.scenarios)


def test_a_file_that_is_no_utf8_is_told_whoever_reads_it(
    folder: Path, child: Child, tmp_path: Path
) -> None:
    path = in_files(tmp_path)
    (tmp_path / "more.toml").write_bytes(b"[examples.code]\ndirect = ['caf\xe9']\n")

    with pytest.raises(FileFault):
        policy.load(path)
    with pytest.raises(FileFault):
        trained.weights(policy.load(path, lightly=True))


def test_a_draft_that_cannot_be_put_in_place_is_not_left(folder: Path, child: Child) -> None:
    trained.weights(taught.policy_of())
    [place] = folder.iterdir()
    place.unlink()
    place.mkdir()

    trained.weights(taught.policy_of())

    assert list(folder.iterdir()) == [place]
