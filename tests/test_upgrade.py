"""An upgrade loses nothing: files, records and what routers share, as earlier versions wrote them.

`tests/upgrades/<version>` holds files as that version took them, with every key that it knew, and
a line of its log. What they came to was seen by running that version, and is not to change.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from router import capabilities, commands, config, migrated, migration, parse, policy, record
from router.affinity import Memory
from router.affinity_redis import RedisAffinity
from router.balance import Candidate, home
from router.capabilities import Capabilities
from router.chat import Endpoint
from router.classify.weights import FORMAT, Weights
from router.dashboard.store import Store
from router.keeping import tell_if_outdated
from router.migration import Kind, Table
from router.recordfiles import Skipped, records, segments
from router.tomlfile import FileFault
from router.trained import weights
from tests.support.clocks import HandClock
from tests.support.logs import await_true
from tests.support.product import ROOT

OLDER = ROOT / "tests" / "upgrades"
VERSIONS = sorted(path.name for path in OLDER.iterdir())
SECRETS = {
    "ADMIN_KEY": "a",
    "GPU_KEY": "b",
    "KEYS": "app=c",
    "REDIS_URL": "redis://127.0.0.1:1",
}
FILES = sorted(path for path in OLDER.glob("*/*.toml") if path.name != "examples.toml")


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, Any]:
    """A command's exit code and what it tells in JSON."""
    code = commands.run([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


# --- files of earlier versions ----------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_files_of_an_earlier_version_are_sound(
    version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, told = run(capsys, "check", "--config", OLDER / version / "config.toml")

    faults = [each for each in told["findings"] if each["severity"] == "fault"]
    assert [each for each in faults if "launch" not in each["path"]] == []
    assert told["policy"]


def message(text: str) -> str:
    return f'"messages": [{{"role": "user", "content": "{text}"}}]'


QWEN = '{"model": "Qwen/Qwen3-0.6B", '
OFF = '"chat_template_kwargs":{"enable_thinking":false}}'


@pytest.mark.parametrize(
    ("version", "text", "scenario", "begin", "end"),
    [
        ("0.1", "I want a refund for 订单号 4711", "faq", QWEN,
         f',"max_tokens":64,"temperature":0.2,"top_p":0.8,{OFF}'),
        ("0.1", "A stack trace in python", "code", QWEN,
         f',"top_a":0.1,"temperature":0.7,"top_p":0.8,{OFF}'),
        ("0.1", "Hello there", "chat", QWEN, f',"temperature":0.7,"top_p":0.8,{OFF}'),
        ("0.2", "I want a refund", "faq", '{"model": "auto", ', f',"max_tokens":64,{OFF}'),
        ("0.2", "Hello there", "chat", '{"model": "auto", ', "}"),
    ],
)  # fmt: skip
def test_a_policy_of_an_earlier_version_still_sends_what_it_sent(
    version: str, text: str, scenario: str, begin: str, end: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = OLDER / version / "config.toml"

    code, told = run(capsys, "explain", "--config", path, "--text", text)

    assert (code, told["scenario"]) == (0, scenario)
    assert told["body"] == f"{begin}{message(text)}{end}"


# --- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_migrating_changes_nothing_of_what_a_file_says(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(path.parent, tmp_path, dirs_exist_ok=True)
    mine = tmp_path / path.name
    mine.chmod(0o640)
    before = mine.read_text(encoding="utf-8")

    code, told = run(capsys, "migrate", mine)
    assert (code, mine.read_text(encoding="utf-8")) == (0, before)
    code, told = run(capsys, "migrate", mine, "--write")
    assert code == 0

    [one] = told["files"]
    after = mine.read_text(encoding="utf-8")
    added = "" if one["stated"] else "schema = 1\n\n"
    assert sorted(after.splitlines()) == sorted((before + added).splitlines())
    assert mine.stat().st_mode & 0o777 == 0o640
    assert one["schema"] == one["newest"] == 1
    if one["written"]:
        assert Path(one["kept"]).read_text(encoding="utf-8") == before
    _, again = run(capsys, "migrate", mine, "--write")
    assert (again["files"][0]["stated"], again["files"][0]["written"]) == (True, False)


def test_left_alone_it_takes_the_configuration_and_its_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(OLDER / "0.1", tmp_path, dirs_exist_ok=True)

    assert commands.run(["migrate", "--config", str(tmp_path / "config.toml"), "--diff"]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("config, no schema, which is 1: the line `schema = 1` would be "
                             "added, with --write")  # fmt: skip
    assert "+schema = 1" in shown
    assert shown[-1].endswith("policy.toml: policy, schema 1, which is the present one")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('schema = 2\nbackends = 1\n', ["line 1: schema", "knows up to 1", "later version"]),
        ('schema = "1"\nbackends = 1\n', ["'1' is no schema"]),
        ("schema = true\nscenarios = 1\n", ["True is no schema"]),
        ("schema = 0\nscenarios = 1\n", ["0 is no schema"]),
        ("backends = 1\n", ["backends"]),
        ("[other]\n", ["no configuration", "or keys"]),
        ("[other\n", ["not valid TOML"]),
        (None, ["cannot be read"]),
    ],
)  # fmt: skip
def test_what_cannot_be_migrated_is_told_and_left(
    text: str | None, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.toml"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    assert commands.run(["migrate", "--write", str(path)]) == 1

    told = capsys.readouterr().err
    assert [each for each in words if each not in told] == []
    assert text is None or path.read_text(encoding="utf-8") == text
    assert len(list(tmp_path.iterdir())) == (text is not None)


def test_a_newer_file_is_refused_in_a_sentence_wherever_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('schema = 9\n[[backends]]\nfuture = "x"\n')
    (tmp_path / "policy.toml").write_text('schema = 9\nfuture = "x"\n')
    wanted = r"line 1: schema: this file has schema 9, and version \S+ of the router knows up to 1"

    with pytest.raises(FileFault, match=wanted) as told:
        config.load(tmp_path / "config.toml", environ={})
    assert len(told.value.mistakes) == 1
    with pytest.raises(FileFault, match=wanted) as told:
        policy.load(tmp_path / "policy.toml")
    assert len(told.value.mistakes) == 1


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[[backends]]\n", ["schema = 1", "", "[[backends]]"]),
        ("# all of it\n[[backends]]\n", ["# all of it", "schema = 1", "", "[[backends]]"]),
        (
            "# all of it\n\n# one\n[[backends]]\n",
            ["# all of it", "", "schema = 1", "", "# one", "[[backends]]"],
        ),
        ("# all of it\n\n[[backends]]\n", ["# all of it", "", "schema = 1", "", "[[backends]]"]),
    ],
)
def test_the_schema_is_written_before_the_first_table_and_its_comment(
    text: str, lines: list[str]
) -> None:
    rest = 'name = "a"\nurl = "http://127.0.0.1:1"\n'

    found = migrated.migrated(text + rest, "config.toml", Path())

    assert found.text.splitlines() == [*lines, *rest.splitlines()]


def test_a_link_and_the_line_ends_of_a_file_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_bytes(b'[[backends]]\r\nname = "a"\r\nurl = "http://127.0.0.1:1"\r\n')
    link = tmp_path / "config.toml"
    link.symlink_to(real.name)

    assert commands.run(["migrate", "--write", str(link)]) == 0

    assert link.is_symlink()
    assert real.read_bytes().startswith(b"schema = 1\r\n\r\n[[backends]]\r\n")


# --- steps: two that are made up, since there is no older schema yet ---------------------------


def prio_is_called_priority(table: Table) -> list[str]:
    found = [
        scenario
        for scenario in table["scenarios"].values()
        if isinstance(scenario, MutableMapping) and "prio" in scenario
    ]
    for scenario in found:
        scenario["priority"] = scenario.pop("prio")
    return ["prio is called priority"] if found else []


def the_pool_main_is_called_default(table: Table) -> list[str]:
    found = [s for s in table["scenarios"].values() if s.get("pool") == "main"]
    for scenario in found:
        scenario["pool"] = "default"
    return ["the pool main is called default"] if found else []


OLD_POLICY = """\
# Ours.
schema = 1
default_scenario = "chat" # what is left

[scenarios.faq]
prio = 7 # ties
pool = "main" # the first
match.keywords = ["refund"]

[scenarios.chat]
"""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = (prio_is_called_priority, the_pool_main_is_called_default)
    monkeypatch.setitem(migration.STEPS, "policy", made_up)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(
    ("schema", "changes"),
    [
        (1, ["prio is called priority", "the pool main is called default"]),
        (2, ["the pool main is called default"]),
        (3, []),
    ],
)
def test_a_file_of_any_age_comes_through_the_steps_that_it_lacks(
    schema: int, changes: list[str]
) -> None:
    text = OLD_POLICY.replace("schema = 1", f"schema = {schema}")
    text = text.replace("prio =", "prio =" if schema < 2 else "priority =")
    text = text.replace('"main"', '"main"' if schema < 3 else '"default"')

    taken = policy.parse(text)
    found = migrated.migrated(text, "policy.toml", Path())

    assert (taken.scenarios["faq"].priority, taken.scenarios["faq"].pool) == (7, "default")
    assert found.changes == tuple(changes)
    assert (found.schema, taken.file.schema_) == (schema, 3)
    assert policy.parse(found.text).file == taken.file
    for comment in ("# Ours.", "# what is left", "# ties", "# the first"):
        assert comment in found.text
    assert (found.text == text) == (schema == 3)


@pytest.mark.usefixtures("steps")
def test_an_older_file_is_told_of_until_it_is_migrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(OLD_POLICY, encoding="utf-8")
    (tmp_path / "config.toml").write_text(
        '[policy]\nfile = "policy.toml"\n[[backends]]\nname = "a"\nurl = "http://127.0.0.1:1"\n'
    )
    at = ("--config", tmp_path / "config.toml")

    code, told = run(capsys, "check", *at)
    [note] = [each for each in told["findings"] if each["path"] == "schema"]
    assert (code, note["severity"], note["line"]) == (0, "note", 2)
    assert "schema 1 is read as 3 (prio is called priority; the pool" in note["message"]
    with structlog.testing.capture_logs() as logged:
        tell_if_outdated("policy", path)
    assert [(each["event"], each["file"]) for each in logged] == [
        ("a file has an older schema", str(path))
    ]

    code, told = run(capsys, "migrate", path)
    assert (code, told["files"][0]["outdated"], path.read_text()) == (1, True, OLD_POLICY)
    code, told = run(capsys, "migrate", path, "--write")
    assert (code, told["files"][0]["written"]) == (0, True)
    assert Path(told["files"][0]["kept"]).read_text() == OLD_POLICY

    assert "schema = 3" in path.read_text()
    code, told = run(capsys, "check", *at)
    assert [each for each in told["findings"] if each["path"] == "schema"] == []
    with structlog.testing.capture_logs() as logged:
        tell_if_outdated("policy", path)
    assert logged == []


@pytest.mark.parametrize("kind", ["config", "policy"])
def test_the_schemas_number_is_that_of_the_steps_and_of_what_we_ship(kind: Kind) -> None:
    shipped = {"config": ROOT / "config.toml", "policy": ROOT / "policies" / "default.toml"}[kind]

    assert f"\nschema = {migration.current(kind)}" in shipped.read_text(encoding="utf-8")


# --- an upgrade from a version that kept all records ---------------------------------------------


def test_check_tells_of_records_that_would_be_removed_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    plain = '[log]\nqueue = 500\n[[backends]]\nname = "a"\nurl = "http://127.0.0.1:1"\n'
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "requests-20250101T10.jsonl").write_text("")

    def removals(text: str) -> list[Any]:
        path.write_text(text)
        _, told = run(capsys, "check", "--config", path)
        return [each for each in told["findings"] if each["path"] == "log.keep_days"]

    [note] = removals(plain)
    assert (note["severity"], note["file"], note["line"]) == ("note", str(path), 1)
    assert "1 files of the log" in note["message"]
    assert removals(plain.replace("queue = 500", "keep_days = 30")) == []
    assert removals(plain.replace("queue = 500", "enabled = false")) == []
    (tmp_path / "logs" / "requests-20250101T10.jsonl").unlink()
    assert removals(plain) == []


# --- records ----------------------------------------------------------------------------------

LATER = (
    b'{"schema":1,"ts":"2026-11-01T10:00:01.000Z","request_id":"later-1","outcome":"ok",'
    b'"total_ms":5.0,"a_field_of_later":{"x":[1]},"scenario":"faq"}\n'
)
ANOTHER = b'{"schema":2,"ts":"2026-11-01T10:00:02.000Z","request_id":"other-1","outcome":"ok"}\n'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A folder that routers of several versions have written to."""
    older = [path.read_bytes().strip() + b"\n" for path in sorted(OLDER.glob("*/*.jsonl"))]
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "requests-20261101T10.jsonl").write_bytes(b"".join([*older, LATER, ANOTHER]))
    return folder


def test_records_of_earlier_and_of_slightly_later_versions_are_read(log: Path) -> None:
    skipped = Skipped()

    found = list(records(segments(log), skipped))

    assert [each.request_id for each in found] == ["old-0.1", "old-0.2", "later-1"]
    assert [(each.tried, each.shadow, each.cache_miss) for each in found] == [((), False, None)] * 3
    assert (skipped.foreign, skipped.torn) == (1, 0)


def test_the_commands_read_records_of_other_versions(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run(["logs", "--log-dir", str(log), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == ["old-0.1", "old-0.2", "later-1"]
    assert json.loads(lines[-1])["a_field_of_later"] == {"x": [1]}

    assert commands.run(["logs", "--log-dir", str(log), "--summary"]) == 0
    assert "faq" in capsys.readouterr().out


def test_the_dashboard_counts_records_of_other_versions(log: Path) -> None:
    store = Store([log], None)
    store.start()
    try:
        store.fresh(10, age_s=0)
        await_true(lambda: store.progress.is_whole, str(store.progress))
        store.fresh(10, age_s=0)
        rows = store.query("SELECT request_id, shadow, rescued, total_ms FROM requests ORDER BY 1")
        skipped = store.progress.skipped
    finally:
        store.close()

    assert rows == [
        ("later-1", False, None, 5.0),
        ("old-0.1", False, None, 250.0),
        ("old-0.2", False, False, 250.0),
    ]
    assert skipped == 1


def test_a_record_holds_all_that_an_earlier_version_wrote() -> None:
    names = set(record.Record.__struct_fields__)
    for path in OLDER.glob("*/*.jsonl"):
        assert set(json.loads(path.read_bytes())) <= names, path


# --- what routers of two versions share ---------------------------------------------------------


def test_a_session_is_called_the_same_by_every_version() -> None:
    """Keys in Redis, homes and the log's `session` hang on it: another hash moves all sessions."""
    asked = parse.chat_request(
        Endpoint.CHAT,
        b'{"model":"auto","messages":[{"role":"user","content":"x"}],"user":"someone"}',
        {},
    )

    assert asked.session is not None
    assert asked.session.hash == "6114d5d0a6ac3254"
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    backends = [Candidate(name, weight, 0, 10, True) for name, weight in weights.items()]
    homes = [home(backends, f"session-{number}") for number in range(12)]
    assert homes == [2, 0, 0, 2, 0, 2, 1, 0, 0, 1, 2, 0]


def test_a_key_in_redis_is_called_the_same_by_every_version() -> None:
    settings = config.Affinity(store="redis", prefix="shop")
    store = RedisAffinity(lambda: pytest.fail("not asked"), settings, HandClock())
    key = "a pool", "6114d5d0a6ac3254"
    known = Memory(HandClock(), ttl_s=60, limit=9).served(key, "gpu-2", is_home=False)
    known.is_unsaved = True

    assert store._news(key, known) == ("SET", "shop:a%20pool:6114d5d0a6ac3254", "gpu-2", "EX", 3600)


def test_what_another_version_saw_of_a_backend_is_seen_anew(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    seen = Capabilities(url="u", time="t", engine="e", version=None, model="m", dialect="vllm")
    capabilities.write(path, seen)
    assert capabilities.read(path) == seen

    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "a_field_of_later": 1}))
    assert capabilities.read(path) == seen
    path.write_text(json.dumps({**told, "schema": 2}))
    assert capabilities.read(path) is None


def test_weights_of_another_format_are_fitted_anew(tmp_path: Path) -> None:
    text = (OLDER / "0.2" / "policy.toml").read_text(encoding="utf-8")
    taken = policy.parse(text, "p", OLDER / "0.2")
    made = weights(taken, tmp_path)
    assert made is not None
    [kept] = tmp_path.glob("*.weights")

    later = msgspec.structs.replace(made, format=FORMAT + 1)
    kept.write_bytes(msgspec.msgpack.encode(later))

    assert weights(taken, tmp_path) == made
    assert msgspec.msgpack.decode(kept.read_bytes(), type=Weights).format == FORMAT


# --- the document -----------------------------------------------------------------------------


def test_the_document_tells_of_every_format_and_version() -> None:
    text = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")

    assert [version for version in VERSIONS if f"### From {version}" not in text] == ["0.3"]
    for command in ("scenario-router migrate", "scenario-router check"):
        assert command in text
