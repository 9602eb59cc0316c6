"""Files are checked in a process of their own, and the one that serves stays without pydantic."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from router import config as configs
from router import policy as policies
from router import reading
from router.config import Config
from router.policy import Policy
from router.tomlfile import FileFault
from tests.support.product import Product
from tests.support.rawclient import exchange, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat.preset]\ntemperature = 0.5\n'
CONFIG = '[[backends]]\nname = "a"\nurl = "http://127.0.0.1:1"\n[policy]\nfile = "policy.toml"\n'
WRONG = CONFIG + "[server]\nprot = 1\nworkers = 0\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "policy.toml").write_text(POLICY)
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def test_what_is_read_elsewhere_is_what_would_be_read_here(place: Path) -> None:
    flags: dict[tuple[str, ...], object] = {("server", "port"): 9000}

    config, _, policy = reading.elsewhere(reading.deployment, place, flags)

    assert config == configs.load(place, flags=flags)
    assert policy == policies.load(place.with_name("policy.toml"), lightly=True)
    # Whether anybody named the policy is remembered too.
    bare = place.with_name("bare.toml")
    bare.write_text(CONFIG.partition("[policy]")[0])
    found = reading.elsewhere(configs.load, bare)
    assert configs.policy_path(bare, found) == configs.policy_path(bare, configs.load(bare))
    assert isinstance(found.policy.file, configs.Unsaid)


def test_all_that_is_wrong_is_told_with_its_line(place: Path) -> None:
    place.write_text(WRONG)

    with pytest.raises(FileFault) as caught:
        reading.elsewhere(reading.deployment, place)

    with pytest.raises(FileFault) as here:
        configs.load(place)
    assert caught.value.mistakes == here.value.mistakes
    assert {mistake.line for mistake in caught.value.mistakes} == {7, 8}


def test_a_policy_that_is_wrong_does_not_hide_the_configuration(place: Path) -> None:
    place.with_name("policy.toml").write_text(POLICY + "nonsense = 1\n")

    config, _, policy = reading.elsewhere(reading.deployment, place)

    assert isinstance(config, Config)
    assert isinstance(policy, FileFault)


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false", "/bin/cat"])
def test_where_no_process_can_be_had_files_are_read_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    monkeypatch.setattr(sys, "executable", python)

    config, _, policy = reading.elsewhere(reading.deployment, place)

    assert config == configs.load(place)
    assert isinstance(policy, Policy)


def test_a_policy_is_known_by_its_files(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('examples_files = ["more.toml"]\n' + POLICY)
    more = tmp_path / "more.toml"
    more.write_text('[examples.chat]\ndirect = ["a"]\n')
    read = policies.load(path, lightly=True)

    assert policies.is_as_read(read, path)
    more.write_text('[examples.chat]\ndirect = ["b"]\n')
    assert not policies.is_as_read(read, path)
    more.unlink()
    assert not policies.is_as_read(read, path)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
def test_who_serves_never_loads_what_checks_files(tmp_path: Path) -> None:
    with ScriptedBackend([chat_ok("The Rhine.")]) as backend:
        one = {"name": "one", "url": backend.url, "dialect": "vllm", "model": "m"}
        config = {"backends": [one], "server": {"workers": 1}}
        with Product.start(tmp_path, config, policy=POLICY) as product:
            ask = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
            assert exchange(product.port, request_bytes("POST", "/v1/chat/completions", {}, ask))
            for path in ("/router/policy/reload", "/router/explain", "/router/policy/validate"):
                body = ask if path == "/router/explain" else POLICY.encode()
                told = exchange(product.port, request_bytes("POST", path, {}, body))
                assert told.status == 200, (path, told.text)
            loaded = Path(f"/proc/{product.process.pid}/maps").read_text()

    assert "pydantic" not in loaded
    assert "msgspec" in loaded
