"""What a server was seen to do, kept and read again; a dialect fitted to it and to no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import capabilities, params
from router.capabilities import CARRIED, Capabilities
from router.dialects import DIALECTS, Dialect, Place

SEEN = Capabilities(
    url="http://127.0.0.1:8100",
    time="2026-01-01T00:00:00+00:00",
    engine="vLLM",
    version="0.32.0",
    model="m",
    dialect="vllm",
    started="1.5e9",
    context=4096,
    thought="reasoning",
    knobs={"thinking_budget": "honoured"},
)
HOSTS = ["[::1]", "[::2]", "..a", "a", "b/c", "b-80", "b", "b_c"]
VERDICTS = st.sampled_from(["honoured", "ignored", "refused", "unknown"])
KNOBS = st.dictionaries(st.sampled_from([*params.PARAMS, "n", "tools"]), VERDICTS)


def seen(**differently: Any) -> Capabilities:
    return msgspec.structs.replace(SEEN, **differently)


@st.composite
def servers(draw: st.DrawFn) -> Capabilities:
    return seen(
        dialect=draw(st.sampled_from(sorted(DIALECTS))),
        knobs=draw(KNOBS),
        thought=draw(st.sampled_from([None, "none", "inline", "reasoning", "reasoning_content"])),
        opens_in_prompt=draw(st.booleans()),
        context=draw(st.none() | st.integers(1, 10**6)),
    )


# --- the file --------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "file.json"

    capabilities.write(path, SEEN)
    capabilities.write(path, seen(version="9"))

    assert capabilities.read(path) == seen(version="9")
    assert [found.name for found in path.parent.iterdir()] == ["file.json"]


@given(server=servers())
def test_any_server_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, server: Capabilities
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"

    capabilities.write(path, server)

    assert capabilities.read(path) == server


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema": 1}',
        msgspec.json.encode(seen(schema=2)),
        msgspec.json.encode(SEEN).replace(b'"honoured"', b'"great"'),
        msgspec.json.encode(SEEN) + b" " * 2_000_000,
    ],
)
def test_what_cannot_be_understood_is_not_there(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(text)

    assert capabilities.read(path) is None


def test_nothing_is_read_from_nowhere(tmp_path: Path) -> None:
    assert capabilities.read(tmp_path / "none.json") is None
    assert capabilities.read(tmp_path) is None
    assert capabilities.read(Path("\0")) is None


def test_a_member_of_tomorrow_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b'{"tomorrow": [1], ' + msgspec.json.encode(SEEN)[1:])

    assert capabilities.read(path) == SEEN


def test_a_file_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder is wanted")

    with pytest.raises(OSError, match="taken"):
        capabilities.write(tmp_path / "taken" / "file.json", SEEN)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:8100", "127.0.0.1-8100.json"),
        ("http://127.0.0.1:8100/v1/", "127.0.0.1-8100.json"),
        ("https://llm.example", "llm.example-443.json"),
        ("http://LLM.example", "llm.example-80.json"),
    ],
)
def test_a_file_is_named_after_host_and_port(url: str, name: str) -> None:
    assert capabilities.path_for(url, Path("cache")) == Path("cache/capabilities") / name


@given(hosts=st.lists(st.sampled_from(HOSTS), unique=True))
def test_two_servers_never_share_a_file(hosts: list[str]) -> None:
    paths = [capabilities.path_for(f"http://{host}", Path("cache")) for host in hosts]

    assert len(set(paths)) == len(hosts)
    assert all(path.parent == Path("cache/capabilities") for path in paths)
    assert not any(path.name.startswith(".") for path in paths)


# --- whom it speaks of -----------------------------------------------------------------------

TOLD = {"dialect": "vllm", "version": "0.32.0", "model": "m", "started": "1.5e9"}


@pytest.mark.parametrize("name", TOLD)
def test_another_server_is_not_the_one_that_was_seen(name: str) -> None:
    assert capabilities.is_for(SEEN, **TOLD)
    assert not capabilities.is_for(SEEN, **{**TOLD, name: "another"})


@pytest.mark.parametrize("name", ["version", "model", "started"])
def test_what_is_not_told_contradicts_nothing(name: str) -> None:
    told: dict[str, Any] = {**TOLD, name: None}

    assert capabilities.is_for(SEEN, **told)


# --- a dialect that fits ---------------------------------------------------------------------


def fitted(dialect: Dialect, server: Capabilities) -> Dialect:
    return capabilities.fitted(dialect, server)


def test_what_only_some_servers_have_is_used_where_it_was_seen() -> None:
    table = DIALECTS["vllm"]

    native = fitted(table, SEEN)

    assert native.places["thinking_budget"] == table.optional["thinking_budget"]
    assert "thinking_budget" not in native.quiet
    assert fitted(table, seen(knobs={"thinking_budget": "refused"}, context=None)) is table


@pytest.mark.parametrize("verdict", ["ignored", "refused"])
def test_what_is_not_heard_is_no_longer_said(verdict: str) -> None:
    dialect = fitted(
        DIALECTS["transformers"], seen(dialect="transformers", knobs={"stop": verdict})
    )

    assert "stop" not in dialect.places
    assert "stop" not in dialect.quiet


@pytest.mark.parametrize("name", sorted(CARRIED & DIALECTS["llamacpp"].places.keys()))
def test_what_another_carries_is_no_loss(name: str) -> None:
    dialect = fitted(DIALECTS["llamacpp"], seen(dialect="llamacpp", knobs={name: "ignored"}))

    assert name not in dialect.places
    assert name in dialect.quiet


@pytest.mark.parametrize(
    ("verdict", "thought", "stays"),
    [
        ("ignored", "none", True),
        ("ignored", None, True),
        ("ignored", "inline", False),
        ("refused", "none", False),
    ],
)
def test_a_model_that_never_thinks_may_be_told_so(
    verdict: str, thought: str | None, stays: bool
) -> None:
    dialect = fitted(DIALECTS["vllm"], seen(knobs={"thinking": verdict}, thought=thought))

    assert ("thinking" in dialect.places) is stays


def test_the_length_and_the_tag_are_taken_over() -> None:
    dialect = fitted(DIALECTS["vllm"], seen(context=77, opens_in_prompt=True))

    assert (dialect.context, dialect.opens_in_prompt) == (77, True)


def test_what_another_kind_of_server_does_changes_nothing() -> None:
    assert fitted(DIALECTS["sglang"], SEEN) is DIALECTS["sglang"]


@given(server=servers())
def test_fitting_never_invents(server: Capabilities) -> None:
    table = DIALECTS[server.dialect]
    places: dict[str, Place] = {**table.optional, **table.places}

    dialect = fitted(table, server)

    assert all(places[name] is place for name, place in dialect.places.items())
    joined = dialect.places.keys() - table.places.keys()
    assert all(server.knobs[name] == "honoured" for name in joined)
    left = table.places.keys() - dialect.places.keys()
    assert all(server.knobs[name] in ("ignored", "refused") for name in left)
    assert not dialect.quiet & dialect.places.keys() - table.quiet
    assert (dialect.name, dialect.allowed, dialect.finish) == (
        table.name,
        table.allowed,
        table.finish,
    )


@given(server=servers())
def test_fitting_twice_is_fitting_once(server: Capabilities) -> None:
    dialect = fitted(DIALECTS[server.dialect], server)

    assert fitted(dialect, server) == dialect


@given(server=servers(), other=servers())
def test_a_variant_names_what_was_changed(server: Capabilities, other: Capabilities) -> None:
    one, two = (fitted(DIALECTS[each.dialect], each) for each in (server, other))

    def changes(dialect: Dialect) -> tuple[Any, ...]:
        return frozenset(dialect.places), dialect.opens_in_prompt

    assert (one.variant == "") == (changes(one) == changes(DIALECTS[server.dialect]))
    if one.name == two.name:
        assert (one.variant == two.variant) == (changes(one) == changes(two))


def test_a_variant_is_the_same_in_every_process() -> None:
    # Workers share what they learned by it, and sets have another order in each process.
    knobs = {"thinking_budget": "honoured", "stop": "ignored", "top_k": "refused"}

    assert fitted(DIALECTS["vllm"], seen(knobs=knobs)).variant == "2b4263a9"
