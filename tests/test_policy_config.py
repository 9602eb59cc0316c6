"""Files that people write: what is wrong in them is told with its place and a hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import config, policy, tomlfile
from router.params import PARAMS
from router.policy import PolicyFile, Rule
from router.tomlfile import FileFault, Mistake

POLICY = """\
schema = 1
default_scenario = "chat"

[scenarios.faq]
priority = 40
match.keywords = ["refund"]

[scenarios.faq.preset]
temperature = 0.2
top_p = { fill = 0.75 }

[scenarios.chat]
"""
CONFIG = """\
[server]
port = 9000

[[backends]]
name = "a"
url = "http://127.0.0.1:8001"

[[backends]]
name = "b"
url = "http://127.0.0.1:8002/v1"
dialect = "llamacpp"
"""


def mistakes_of(text: str) -> tuple[Mistake, ...]:
    with pytest.raises(FileFault) as caught:
        policy.parse(text, "p.toml")
    assert all(line.startswith("p.toml: ") for line in str(caught.value).splitlines())
    return caught.value.mistakes


# --- policies -------------------------------------------------------------------------------


def test_a_sound_policy_is_taken_with_a_hash_of_its_text() -> None:
    first, second = policy.parse(POLICY), policy.parse(POLICY + "\n# another\n")

    assert list(first.scenarios) == ["faq", "chat"]
    assert len(first.hash) == 12
    assert first.hash != second.hash
    assert first.hash == policy.parse(POLICY).hash


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "words"),
    [
        ("schema = 1", "schema = 2", 1, "schema", "1"),
        ("schema = 1", "shema = 1", 1, "shema", "did you mean 'schema'"),
        ('"chat"', '"chatt"', 2, "default_scenario", "did you mean 'chat'"),
        ("priority", "priorty", 5, "scenarios.faq.priorty", "did you mean 'priority'"),
        ("40", '"high"', 5, "scenarios.faq.priority", "integer"),
        ("match.keywords", "match.keyword", 6, "scenarios.faq.match.keyword", "'keywords'"),
        ('["refund"]', '["refund", " * "]', 6, "scenarios.faq.match.keywords", "empty"),
        ("keywords = [", "patterns = ['(', ", 6, "scenarios.faq.match.patterns", "RE2"),
        ("keywords = [", "patterns = ['(?=a)', ", 6, "scenarios.faq.match.patterns", "RE2"),
        ("keywords = [", "patterns = ['(a)\\1', ", 6, "scenarios.faq.match.patterns", "RE2"),
        ('keywords = ["refund"]', 'has = ["tool"]', 6, "scenarios.faq.match.has", "'tools'"),
        (
            'keywords = ["refund"]',
            "turns = {min = 3, max = 2}",
            6,
            "scenarios.faq.match.turns",
            "min",
        ),
        ("temperature", "temperatur", 9, "scenarios.faq.preset.temperatur", "'temperature'"),
        ("0.2", "2.5", 9, "scenarios.faq.preset.temperature", "[0, 2]"),
        ("0.2", "true", 9, "scenarios.faq.preset.temperature", "number"),
        ("0.2", '"hot"', 9, "scenarios.faq.preset.temperature", "number"),
        ("0.2", "nan", 9, "scenarios.faq.preset.temperature", ""),
        ("fill = 0.75", "fil = 0.75", 10, "scenarios.faq.preset.top_p", "did you mean 'fill'"),
        ("fill = 0.75", "fill = 0.0", 10, "scenarios.faq.preset.top_p", "(0, 1]"),
        ("fill = 0.75", "cap = 0.1, floor = 0.5", 10, "scenarios.faq.preset.top_p", "above cap"),
        ("fill = 0.75", "fill = 0.9, cap = 0.5", 10, "scenarios.faq.preset.top_p", "outside"),
        ("fill = 0.75", "fill = 0.1, floor = 0.5", 10, "scenarios.faq.preset.top_p", "outside"),
        ("fill = 0.75", "force = 0.1, fill = 0.5", 10, "scenarios.faq.preset.top_p", "alone"),
        ("fill = 0.75", "strip = true, fill = 0.5", 10, "scenarios.faq.preset.top_p", "alone"),
        ("fill = 0.75", 'strip = "yes"', 10, "scenarios.faq.preset.top_p", "true or false"),
        ("temperature = 0.2", "thinking = {cap = 1}", 9, "scenarios.faq.preset.thinking", "number"),
        ("temperature = 0.2", 'thinking = "yes"', 9, "scenarios.faq.preset.thinking", "true"),
        ("temperature = 0.2", "stop = {cap = 1}", 9, "scenarios.faq.preset.stop", "number"),
        ("temperature = 0.2", 'stop = ["", "x"]', 9, "scenarios.faq.preset.stop", "empty"),
        ("temperature = 0.2", "top_k = 1.5", 9, "scenarios.faq.preset.top_k", "whole"),
        ("temperature = 0.2", "max_new_tokens = 0", 9, "scenarios.faq.preset.max_new_tokens", "[1"),
        ("temperature = 0.2", "seed = 1" + "0" * 400, 9, "scenarios.faq.preset.seed", ""),
        ("temperature = 0.2", "extra.x = nan", 9, "scenarios.faq.preset.extra", ""),
        ("temperature = 0.2", "extra.x = {cap = 'a'}", 9, "scenarios.faq.preset.extra", ""),
        ("temperature = 0.2", "extra = 5", 9, "scenarios.faq.preset.extra", ""),
        (
            "faq.preset",
            "faq.direct]\nthinking = true\n[scenarios.faq.preset",
            9,
            "scenarios.faq.direct.thinking",
            "preset",
        ),
        (
            "[scenarios.chat]",
            "[scenarios.chat]\n[scenarios.Chat]",
            13,
            "scenarios.Chat",
            "lower-case",
        ),
        ("[scenarios.chat]", "[scenarios.chat", 12, "", "TOML"),
    ],
)
def test_a_mistake_is_told_with_line_path_and_hint(
    old: str, new: str, line: int, path: str, words: str
) -> None:
    assert POLICY.count(old)
    mistakes = mistakes_of(POLICY.replace(old, new, 1))

    assert [
        m for m in mistakes if m.line == line and m.path.startswith(path) and words in m.message
    ]


def test_all_mistakes_are_told_at_once() -> None:
    text = POLICY.replace("0.2", "9").replace("0.75", "7").replace('"chat"', '"chatt"')

    assert {mistake.line for mistake in mistakes_of(text)} == {2, 9, 10}


@pytest.mark.parametrize("text", ["", "schema = 1", 'schema = 1\ndefault_scenario = "a"'])
def test_a_policy_needs_a_scenario(text: str) -> None:
    assert any("scenario" in str(mistake) for mistake in mistakes_of(text))


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("1", Rule(force=1)),
        ("{ force = 1 }", Rule(force=1)),
        ("{ fill = 1 }", Rule(fill=1)),
        ("{ cap = 1 }", Rule(cap=1)),
        ("{ floor = 1 }", Rule(floor=1)),
        ("{ fill = 2, cap = 3, floor = 1 }", Rule(fill=2, cap=3, floor=1)),
        ("{ strip = true }", Rule(strip=True)),
        ("{ strip = false }", Rule()),
    ],
)
def test_every_rule_word_is_read(written: str, rule: Rule) -> None:
    table = tomlfile.table(f"top_k = {written}", "t")

    assert policy.rules(table) == {"top_k": rule}


def test_a_bare_default_fills_and_an_extra_is_a_parameter_by_its_dotted_name() -> None:
    table = tomlfile.table(
        'top_p = 0.8\nextra.a = 1\n[extra.b]\ncap = 2\n[extra.c]\nx = "y"\n', "t"
    )

    assert policy.rules(table, bare="fill") == {
        "top_p": Rule(fill=0.8),
        "extra.a": Rule(fill=1),
        "extra.b": Rule(cap=2),
        "extra.c": Rule(fill={"x": "y"}),
    }


@given(st.text(max_size=80))
def test_any_text_is_a_policy_or_a_fault(text: str) -> None:
    with pytest.raises(FileFault):
        policy.parse(text)


@given(
    st.sampled_from([*PARAMS, "extra.x", "wrong"]),
    st.sampled_from(
        ["1", "-1", "0.5", '"x"', "true", "[]", '["a"]', "{}", "nan", "inf", "1e9", "2020-01-01"]
    )
    | st.lists(
        st.tuples(
            st.sampled_from(["fill", "force", "cap", "floor", "strip", "other"]),
            st.sampled_from(["1", "0.5", '"x"', "true", "[1]", "nan", "{}"]),
        ),
        max_size=3,
        unique_by=lambda pair: pair[0],
    ).map(lambda pairs: "{" + ", ".join(f"{word} = {value}" for word, value in pairs) + "}"),
    st.sampled_from(["scenarios.chat.preset", "scenarios.faq.direct", "defaults.thinking"]),
)
def test_any_rule_is_taken_or_told_of_and_what_is_taken_can_be_sent(
    name: str, rule: str, table: str
) -> None:
    try:
        taken = policy.parse(f"{POLICY}\n[{table}]\n{name} = {rule}\n")
    except FileFault as fault:
        told, presets = [mistake.message for mistake in fault.mistakes], {}
    else:
        told, presets = [], dict(taken.presets)
    assert bool(told) != bool(presets)
    assert all(told)
    for entries in presets.values():
        for entry in entries:
            for given_rule in filter(None, (entry.rule, entry.default)):
                if not entry.name.startswith("extra."):
                    json.dumps([given_rule.force, given_rule.fill], allow_nan=False)
                for bound in filter(None, (given_rule.cap, given_rule.floor)):
                    assert isinstance(bound, (int, float))


def test_the_rules_of_a_mode_are_over_those_of_the_preset_and_the_defaults_below_both() -> None:
    taken = policy.parse(
        POLICY + "[scenarios.faq.thinking]\ntemperature = 0.6\n[defaults.thinking]\ntop_k = 20\n"
    )
    rules = {entry.name: entry for entry in taken.presets["faq", True]}

    assert rules["temperature"].rule == Rule(force=0.6)
    assert rules["top_p"].rule == Rule(fill=0.75)
    assert rules["top_k"].default == Rule(fill=20)
    assert "top_k" not in {entry.name for entry in taken.presets["faq", False]}


@pytest.mark.parametrize("broken", [b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path, broken: bytes | None) -> None:
    path = tmp_path / "p.toml"
    if broken is not None:
        path.write_bytes(broken)

    with pytest.raises(FileFault, match=r"p\.toml: cannot be read"):
        policy.load(path)


# --- configurations ---------------------------------------------------------------------------


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(path: Path, environ: dict[str, str] | None = None) -> tuple[Mistake, ...]:
    with pytest.raises(FileFault) as caught:
        config.load(path, environ=environ or {})
    return caught.value.mistakes


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    loaded = config.load(write(tmp_path, CONFIG), environ={})

    assert (loaded.server.host, loaded.server.port) == ("127.0.0.1", 9000)
    assert (loaded.server.body_limit_mb, loaded.server.workers) == (32, 1)
    assert (loaded.policy.file, loaded.policy.watch) == ("policies/default.toml", True)
    assert [(b.name, b.pool, b.port) for b in loaded.backends] == [
        ("a", "default", 8001),
        ("b", "default", 8002),
    ]
    assert config.Server().port == 8088


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, CONFIG)
    environ = {"SCENARIO_ROUTER_SERVER__PORT": "9001", "SCENARIO_ROUTER_SERVER__GRACE_S": "1.5"}

    from_file = config.load(path, environ={})
    from_environment = config.load(path, environ=environ)
    from_flag = config.load(path, environ=environ, flags={("server", "port"): 9002})

    ports = [loaded.server.port for loaded in (from_file, from_environment, from_flag)]
    assert ports == [9000, 9001, 9002]
    assert (from_file.server.grace_s, from_environment.server.grace_s) == (30, 1.5)


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("SERVER__HOST", "0.0.0.0", ("server", "host"), "0.0.0.0"),
        ("SERVER__HOST", "localhost", ("server", "host"), "localhost"),
        ("SERVER__WORKERS", "auto", ("server", "workers"), "auto"),
        ("POLICY__WATCH", "false", ("policy", "watch"), False),
        ("POLICY__ALIASES", '["gpt-4o"]', ("policy", "aliases"), ("gpt-4o",)),
        ("LOG__DIR", "/var/log/router", ("log", "dir"), "/var/log/router"),
        ("LOG__DIR", "2026", ("log", "dir"), "2026"),
        ("LOG__DIR", "true", ("log", "dir"), "true"),
        ("server__port", "9001", ("server", "port"), 9000),  # only in capitals
        ("SERVER_PORT", "9001", ("server", "port"), 9000),
    ],
)
def test_the_environment_says_any_kind_of_value(
    tmp_path: Path, name: str, text: str, key: tuple[str, str], value: Any
) -> None:
    prefix = "SCENARIO_ROUTER_" if name.isupper() else "scenario_router_"

    loaded = config.load(write(tmp_path, CONFIG), environ={prefix + name: text, "OTHER": "x"})

    assert getattr(getattr(loaded, key[0]), key[1]) == value


@pytest.mark.parametrize(
    "name",
    ["BACKENDS__0__URL", "BACKENDS__URL", "SERVER__PORT__X", "NONSENSE__KEY", "SERVER__PROT"],
)
def test_an_environment_variable_that_fits_nowhere_is_a_mistake(tmp_path: Path, name: str) -> None:
    assert faults_of(write(tmp_path, CONFIG), {f"SCENARIO_ROUTER_{name}": "9"})


@pytest.mark.parametrize("text", [f"server = 5\n{CONFIG[23:]}", "backends = 1\n"])
def test_a_table_that_is_none_is_a_mistake_even_where_the_environment_adds_to_it(
    tmp_path: Path, text: str
) -> None:
    environ = {"SCENARIO_ROUTER_SERVER__PORT": "9001", "SCENARIO_ROUTER_BACKENDS__URL": "x"}

    assert faults_of(write(tmp_path, text), environ)


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "words"),
    [
        ("port", "prot", 2, "server.prot", "did you mean 'port'"),
        ("9000", "70000", 2, "server.port", "65535"),
        ("9000", "9000\nworkers = 0", 3, "server.workers", "at least one worker"),
        ("[server]", "[servr]", 1, "servr", "did you mean 'server'"),
        ("dialect", "dialekt", 11, "backends[1].dialekt", "did you mean 'dialect'"),
        ('"llamacpp"', '"lamacpp"', 11, "backends[1].dialect", "'llamacpp'"),
        ('"b"', '"b b"', 9, "backends[1].name", ""),
        ('"b"', '"a"', None, "", "two backends are called 'a'"),
        ("http://127.0.0.1:8002/v1", "127.0.0.1:8002", 10, "backends[1].url", "http://host:port"),
        ("http://127.0.0.1:8002/v1", "http://h:8002/api", 10, "backends[1].url", "base URL"),
        ("http://127.0.0.1:8002/v1", "http://h:99999", 10, "backends[1].url", ""),
        ("http://127.0.0.1:8002/v1", "http://h:port", 10, "backends[1].url", ""),
        ("http://127.0.0.1:8002/v1", "http://[::1", 10, "backends[1].url", ""),
        ("http://127.0.0.1:8002/v1", "http://u:p@h:1", 10, "backends[1].url", "no user"),
        (
            "[[backends]]\nname",
            "[[backends]]\nmax_inflight = 0\nname",
            5,
            "backends[0].max_inflight",
            "1",
        ),
    ],
)
def test_a_mistake_in_a_configuration_is_told_with_line_path_and_hint(
    tmp_path: Path, old: str, new: str, line: int | None, path: str, words: str
) -> None:
    assert CONFIG.count(old)
    mistakes = faults_of(write(tmp_path, CONFIG.replace(old, new, 1)))

    assert [
        m for m in mistakes if m.line == line and m.path.startswith(path) and words in m.message
    ]


def test_a_mistake_in_a_second_backends_own_table_is_told_where_it_stands(tmp_path: Path) -> None:
    text = CONFIG.replace('8001"\n', '8001"\n[backends.launch]\nengine = "vllm"\n')
    text += '[backends.launch]\nengine = "vlm"\n'

    (mistake,) = faults_of(write(tmp_path, text))

    assert mistake.path.startswith("backends[1].launch.engine")
    assert mistake.line == len(text.splitlines())


def test_a_configuration_needs_a_backend(tmp_path: Path) -> None:
    assert any("backends" in mistake.path for mistake in faults_of(write(tmp_path, "")))


def test_a_secret_that_is_not_there_is_told_by_the_name_of_its_variable(tmp_path: Path) -> None:
    text = CONFIG + 'api_key_env = "BACKEND_KEY"\n[auth]\nkeys_env = "KEYS"\n'
    path = write(tmp_path, text)

    messages = [str(mistake) for mistake in faults_of(path, {"KEYS": ""})]

    assert len(messages) == 2
    assert any("BACKEND_KEY" in message for message in messages)
    assert config.load(path, environ={"KEYS": "a=b", "BACKEND_KEY": "x"}).auth.keys_env == "KEYS"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    assert config.beside(tmp_path / "config.toml", "logs") == tmp_path / "logs"
    assert config.beside(tmp_path / "config.toml", "/var/log") == Path("/var/log")


def test_a_backends_address_is_taken_apart() -> None:
    plain = config.Backend(name="a", url="http://h")
    secure = config.Backend(name="a", url="https://[::1]/v1/")

    assert (plain.host, plain.port, plain.is_tls) == ("h", 80, False)
    assert (secure.host, secure.port, secure.is_tls) == ("::1", 443, True)


# --- schemas ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "alias"), [(PolicyFile, "schema"), (config.Config, "server")])
def test_a_schema_can_be_made_of_every_file_and_names_what_it_describes(
    kind: type[PolicyFile] | type[config.Config], alias: str
) -> None:
    schema = kind.model_json_schema()

    assert alias in schema["properties"]
    json.dumps(schema)
    tables = [table for table in schema["$defs"].values() if "properties" in table]
    assert tables
    for table in tables:
        assert table["additionalProperties"] is False
        for name, field in table["properties"].items():
            assert field.get("description") or "$ref" in field or "default" in field, name


def test_the_policy_that_was_installed_serves_where_none_is_named_or_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "default_policy.toml").touch()
    monkeypatch.setattr(config, "__file__", str(installed / "config.py"))
    here = tmp_path / "config.toml"
    backends = {"backends": [{"name": "a", "url": "http://127.0.0.1:1"}]}
    open_ = config.Config.model_validate(backends)
    named = config.Config.model_validate({**backends, "policy": {"file": "policies/default.toml"}})

    assert config.policy_path(here, open_) == installed / "default_policy.toml"
    assert config.policy_path(here, named) == tmp_path / "policies" / "default.toml"
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.toml").touch()
    assert config.policy_path(here, open_) == tmp_path / "policies" / "default.toml"


def test_a_text_that_is_nested_without_end_is_a_fault() -> None:
    with pytest.raises(FileFault, match="nested too deep"):
        policy.parse("x = " + "[" * 100_000, "policy", Path.cwd())
