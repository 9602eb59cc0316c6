"""A router's life: backends come, go, change and are drained, and no request pays for it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import commands, discovery, tomlfile
from router import config as configs
from router.app import App
from router.config import Backend, Config
from router.discovery import Resolver, Sightings
from router.drains import Drains
from router.keeping import taken_from
from router.tomlfile import FileFault
from router.verdict import Slot
from tests.clients.demo import await_fact, record_of
from tests.support.product import Product, write_toml
from tests.support.rawclient import RawConnection, RawReply, exchange, request_bytes
from tests.support.script import DONE, END, chat_ok, delta, pause, stream_head
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
STREAM = {**ASK, "stream": True}
RELOAD = request_bytes("POST", "/router/policy/reload")
POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
#: more than all buffers on the way hold: it cannot end before the client reads
LONG = {"do": "repeat", "times": 400, "steps": [delta(content="x" * 100_000)]}
LONG_CHARS = 40_000_000


def called(name: str, backend: ScriptedBackend, **settings: Any) -> dict[str, Any]:
    return {"name": name, "url": backend.url, "model": "qwen3-0.6b", **settings}


def deployed(*backends: Mapping[str, Any], **tables: Any) -> dict[str, Any]:
    return {
        "backends": list(backends),
        "log": {"flush_ms": 10},
        "policy": {"settle_ms": 20},
        "health": {"interval_s": 0.2, "slow_start_s": 0},
        **tables,
    }


def save(product: Product, config: Mapping[str, Any]) -> None:
    """Another configuration in the place of the one it runs with, which the harness completed."""
    old = tomlfile.table(product.config_path.read_text(encoding="utf-8"), "config.toml")
    whole = {**old, **{k: {**old.get(k, {}), **v} for k, v in config.items() if k != "backends"}}
    draft = write_toml(product.folder / "config.new", {**whole, "backends": config["backends"]})
    draft.replace(product.config_path)


def ask(product: Product, request_id: str = "", **members: Any) -> RawReply:
    headers = {"x-request-id": request_id} if request_id else None
    return exchange(product.port, request_bytes("POST", CHAT, headers, {**ASK, **members}))


def post(product: Product, path: str) -> RawReply:
    return exchange(product.port, request_bytes("POST", path))


def status(product: Product) -> dict[str, Any]:
    found = product.get("/router/status")
    assert isinstance(found, dict)
    return found


def in_use(product: Product) -> list[str]:
    return [backend["name"] for backend in status(product)["backends"]]


def await_in_use(product: Product, *names: str) -> None:
    await_fact(lambda: sorted(in_use(product)) == sorted(names))


def is_ready(product: Product) -> RawReply:
    return exchange(product.port, request_bytes("GET", "/ready"))


def labels_of(product: Product, gauge: str) -> dict[str, float]:
    page = exchange(product.port, request_bytes("GET", "/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith(f"scenario_router_{gauge}{{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


@pytest.fixture
def backends() -> Iterator[list[ScriptedBackend]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ScriptedBackend([chat_ok(f"I am {n}.")])) for n in range(3)]


# --- what a name resolved to ------------------------------------------------------------------

ADDRESSES = st.integers(1, 12).map(lambda n: str(IPv4Address(0x0A000000 + n)))


def test_what_is_missing_from_one_answer_stays_and_from_two_is_gone() -> None:
    seen = Sightings()
    after = []
    for answer in (["a"], ["a", "b"], ["a"], ["a"], [], [], ["b"], ["a"], ["b"], ["b"]):
        seen.saw([{"a": "10.0.0.1", "b": "10.0.0.2"}[name] for name in answer])
        after.append("".join("ab"[int(address[-1]) - 1] for address in seen.addresses))

    assert after == ["a", "ab", "ab", "a", "a", "a", "ab", "ab", "ab", "b"]


@given(st.lists(st.lists(ADDRESSES, max_size=6), max_size=12))
def test_all_of_the_last_two_answers_are_known_and_nothing_else(answers: list[list[str]]) -> None:
    seen = Sightings()
    for answer in answers:
        seen.saw(answer)

    told = [set(answer) for answer in answers if answer]
    assert set(seen.addresses) == set().union(*told[-2:])
    assert list(seen.addresses) == sorted(seen.addresses, key=IPv4Address)


def test_a_server_in_a_network_of_both_kinds_is_one_server() -> None:
    assert discovery.usable(["::1", "127.0.0.1", "127.0.0.2", "127.0.0.1"]) == {
        "127.0.0.1",
        "127.0.0.2",
    }
    assert discovery.usable(["fe80::1%eth0", "fe80::1"]) == {"fe80::1"}


def test_each_address_is_a_backend_with_the_settings_of_its_name() -> None:
    found = Backend(name="gpu", url="http://models:8000/v1", weight=2, discover=True)
    fixed = Backend(name="gpu-10.0.0.2", url="http://elsewhere:9000")

    all_of_them = discovery.expanded(
        [found, fixed], {"models": ["10.0.0.1", "10.0.0.2", "2001:db8::7"]}
    )

    told = {name: (backend.url, origin) for name, (backend, origin) in all_of_them.items()}
    assert told == {
        "gpu-10.0.0.2": ("http://elsewhere:9000", "gpu-10.0.0.2"),  # a given name is not taken
        "gpu-10.0.0.1": ("http://10.0.0.1:8000/v1", "gpu"),
        "gpu-2001_db8__7": ("http://[2001:db8::7]:8000/v1", "gpu"),
    }
    assert all_of_them["gpu-10.0.0.1"][0].weight == 2
    for backend, _ in all_of_them.values():
        Backend.model_validate(backend.model_dump())


def test_what_is_started_here_is_not_looked_for() -> None:
    with pytest.raises(ValueError, match="run elsewhere"):
        Backend.model_validate(
            {"name": "gpu", "url": "http://models:8000", "discover": True, "launch": {}}
        )


async def test_the_system_is_asked_for_addresses() -> None:
    resolve = discovery.system_resolver(asyncio.get_running_loop())

    assert list(await resolve("127.0.0.2")) == ["127.0.0.2"]
    assert discovery.usable(await resolve("localhost")) <= {"127.0.0.1", "::1"}


# --- a router without an edge -----------------------------------------------------------------


class Names:
    """A name server that answers when the test says so; OSError where it says nothing."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[Sequence[str]] = asyncio.Queue()

    async def resolve(self, host: str) -> Sequence[str]:
        answer = await self._answers.get()
        if not answer:
            raise OSError(f"{host} is not known")
        return answer

    def answer(self, *addresses: str) -> None:
        self._answers.put_nowait(addresses)


@asynccontextmanager
async def app_in(
    folder: Path, config: Mapping[str, Any], resolve: Resolver | None = None
) -> AsyncIterator[App]:
    """The router's inside, looking after its backends."""
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    path = write_toml(
        folder / "config.toml", {**config, "policy": {"file": "policy.toml", "watch": False}}
    )
    running = App(configs.load(path), path, resolve=resolve)
    await running.start([])
    try:
        yield running
    finally:
        await running.close()


def names_of(app: App) -> list[str]:
    return [slot.name for slot in app.slots]


async def until(look: Callable[[], bool]) -> None:
    """Once it is so; whatever brings it about runs on this loop."""
    async with asyncio.timeout(20):
        while not look():  # noqa: ASYNC110  # no event tells of it
            await asyncio.sleep(0)


async def test_the_addresses_of_a_name_come_and_go_as_backends(tmp_path: Path) -> None:
    names = Names()
    gpu = {"name": "gpu", "url": "http://models:9", "discover": True, "discover_s": 0.001}
    names.answer("127.0.0.1")
    async with app_in(tmp_path, {"backends": [gpu]}, names.resolve) as app:
        assert names_of(app) == ["gpu-127.0.0.1"]
        [first] = app.slots

        names.answer("127.0.0.1", "127.0.0.2")
        await until(lambda: names_of(app) == ["gpu-127.0.0.1", "gpu-127.0.0.2"])
        assert app.slots[0] is first  # whoever stays is not disturbed
        assert app.slots[1].health.is_known  # whoever comes was looked at before

        names.answer()  # the name server is away
        names.answer("127.0.0.2")
        names.answer("127.0.0.2")
        await until(lambda: names_of(app) == ["gpu-127.0.0.2"])
        assert first.is_draining


async def test_a_name_without_an_address_is_a_pool_without_a_backend(tmp_path: Path) -> None:
    names = Names()
    gpu = {"name": "gpu", "url": "http://models:9", "discover": True, "discover_s": 0.001}
    names.answer()
    async with app_in(tmp_path, {"backends": [gpu]}, names.resolve) as app:
        assert names_of(app) == []
        assert list(app.pipeline.live.pools) == ["default"]
        assert app.is_ready() == (
            False,
            "no backend is usable (gpu: the name models has no address)",
        )

        names.answer("127.0.0.1")
        await until(lambda: names_of(app) == ["gpu-127.0.0.1"])
        assert "cannot be reached" in app.is_ready()[1]


async def test_a_drained_name_drains_what_is_found_later_too(tmp_path: Path) -> None:
    names = Names()
    gpu = {"name": "gpu", "url": "http://models:9", "discover": True, "discover_s": 0.001}
    names.answer("127.0.0.1")
    async with app_in(tmp_path, {"backends": [gpu]}, names.resolve) as app:

        def drained() -> dict[str, bool]:
            return {slot.name: slot.is_draining for slot in app.slots}

        app.fleet.drain("gpu")
        names.answer("127.0.0.1", "127.0.0.2")
        await until(lambda: len(app.slots) == 2)
        assert drained() == {"gpu-127.0.0.1": True, "gpu-127.0.0.2": True}
        app.fleet.undrain("gpu")
        assert drained() == {"gpu-127.0.0.1": False, "gpu-127.0.0.2": False}

        app.fleet.drain("gpu-127.0.0.2")
        assert drained() == {"gpu-127.0.0.1": False, "gpu-127.0.0.2": True}
        # Whoever comes to this address when it was gone is another one.
        names.answer("127.0.0.1")
        names.answer("127.0.0.1")
        await until(lambda: len(app.slots) == 1)
        names.answer("127.0.0.1", "127.0.0.2")
        await until(lambda: len(app.slots) == 2)
        assert drained() == {"gpu-127.0.0.1": False, "gpu-127.0.0.2": False}


async def test_a_policy_that_was_built_meanwhile_does_not_bring_old_backends_back(
    tmp_path: Path,
) -> None:
    names = Names()
    gpu = {"name": "gpu", "url": "http://models:9", "discover": True, "discover_s": 0.001}
    names.answer("127.0.0.1")
    async with app_in(tmp_path, {"backends": [gpu]}, names.resolve) as app:
        path = app.keeper.path
        path.unlink()
        os.mkfifo(path)  # reading waits for us to write
        reload = asyncio.ensure_future(app.keeper.reload())
        pipe = await asyncio.to_thread(os.open, path, os.O_WRONLY)
        names.answer("127.0.0.2")
        names.answer("127.0.0.2")
        await until(lambda: names_of(app) == ["gpu-127.0.0.2"])
        os.write(pipe, (POLICY + "preset.temperature = 0.3\n").encode())
        os.close(pipe)

        assert await reload is None
        assert app.pipeline.live.policy.text.endswith("0.3\n")
        assert names_of(app) == ["gpu-127.0.0.2"]


def test_what_no_folder_can_keep_holds_for_this_worker(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    drains = Drains(tmp_path / "file", tmp_path / "config.toml")

    fault = drains.add("gpu")

    assert fault is not None
    assert "Not a directory" in fault
    assert drains.names() == {"gpu"}
    drains.discard("gpu")
    assert drains.names() == set()


def test_each_configuration_file_has_its_own_drains(tmp_path: Path) -> None:
    one, again, other = (
        Drains(tmp_path, tmp_path / name) for name in ("one.toml", "one.toml", "other.toml")
    )

    assert one.add("gpu") is None

    assert (again.names(), other.names()) == (frozenset({"gpu"}), frozenset())


# --- what a running router takes of a configuration -------------------------------------------

BARE = Config(backends=(Backend(name="one", url="http://127.0.0.1:9"),))


def test_what_cannot_change_while_running_stays_and_is_named() -> None:
    told = Config.model_validate(
        {
            "server": {"port": 9, "grace_s": 7, "workers": 3},
            "policy": {"file": "other.toml", "aliases": ["gpt-4o"]},
            "health": {"interval_s": 9},
            "log": {"dir": "elsewhere"},
            "backends": [{"name": "two", "url": "http://127.0.0.1:10"}],
        }
    )

    taken, waiting = taken_from(told, BARE)

    assert sorted(waiting) == ["log.dir", "policy.file", "server.port", "server.workers"]
    assert (taken.server.port, taken.server.grace_s) == (8088, 7)
    assert (taken.policy.file, taken.policy.aliases) == ("policies/default.toml", ("gpt-4o",))
    assert (taken.health, taken.backends) == (told.health, told.backends)
    assert taken_from(BARE, BARE) == (BARE, ())


def slot_called(app: App, name: str) -> Slot:
    return next(slot for slot in app.slots if slot.name == name)


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({}, True),
        ({"weight": 3, "max_inflight": 2, "timeout_s": 5, "pool": "other"}, True),
        ({"url": "http://127.0.0.1:10"}, False),
        ({"dialect": "llamacpp"}, False),
        ({"model": "another"}, False),
    ],
)
async def test_the_same_server_keeps_what_is_known_of_it(
    tmp_path: Path, change: dict[str, Any], is_kept: bool
) -> None:
    one = {"name": "one", "url": "http://127.0.0.1:9", "model": "qwen3-0.6b"}
    two = {"name": "two", "url": "http://127.0.0.1:11"}
    async with app_in(tmp_path, {"backends": [one, two]}) as app:
        before, bystander = slot_called(app, "one"), slot_called(app, "two")
        changed = {**one, **change}
        write_toml(
            tmp_path / "config.toml", {"policy": {"watch": False}, "backends": [changed, two]}
        )

        assert await app.config_keeper.reload() is None

        after = slot_called(app, "one")
        assert (after is before) == is_kept
        assert before.is_draining == (not is_kept)
        assert after.upstream.backend == app.config.backends[0]
        assert after in app.pipeline.live.pools[changed.get("pool", "default")]
        assert slot_called(app, "two") is bystander


def test_engines_that_up_has_started_are_not_changed_under_it(tmp_path: Path) -> None:
    from argparse import Namespace

    from router.commands import up

    engine = {"name": "own", "url": "http://127.0.0.1:9", "launch": {"replicas": 2}}
    other = {"name": "other", "url": "http://127.0.0.1:10"}
    path = write_toml(tmp_path / "config.toml", {"backends": [engine]})
    before = configs.load(path)
    started = configs.expanded(before, lambda count: [11] * count)
    args = Namespace(config=path)

    write_toml(path, {"backends": [other, engine]})
    now = up._read(args, before, started)
    assert [backend.name for backend in now.backends] == ["own-1", "own-2", "other"]

    write_toml(path, {"backends": [{**engine, "launch": {"replicas": 3}}]})
    with pytest.raises(FileFault, match="restart it"):
        up._read(args, before, started)


# --- a running router -------------------------------------------------------------------------


def test_a_stream_outlives_the_backend_that_is_taken_away(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    old, new, _ = backends
    old.set_script([stream_head(), LONG, delta("stop"), DONE, END])
    with Product.start(tmp_path, deployed(called("old", old)), policy=POLICY) as product:
        with RawConnection(product.port) as connection:
            connection.send(request_bytes("POST", CHAT, {"x-request-id": "begun"}, STREAM))
            old.wait_requests(1)
            save(product, deployed(called("new", new)))
            await_in_use(product, "new")
            assert labels_of(product, "backend_up") == {"new": 1}
            later = ask(product)
            reply = connection.read()

        assert (later.status, later.header("x-router-backend")) == (200, "new")
        assert reply.body.endswith(b"data: [DONE]\n\n")
        record = record_of(product, "begun")
        assert (record["backend"], record["outcome"]) == ("old", "ok")
        assert record["answer_chars"] == LONG_CHARS
        # Only when its last stream is over, it is let go.
        await_fact(lambda: [line for line in product.output if '"backend gone"' in line])


def test_a_backend_that_is_taken_away_has_its_deadlines_still(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    hung, new, _ = backends
    hung.set_script(
        [stream_head(), delta(content="a"), {"do": "wait_disconnect", "max_ms": 60_000}]
    )
    config = deployed(called("hung", hung, stall_timeout_s=1))
    with (
        Product.start(tmp_path, config, policy=POLICY) as product,
        RawConnection(product.port) as connection,
    ):
        connection.send(request_bytes("POST", CHAT, {"x-request-id": "begun"}, STREAM))
        hung.wait_requests(1)
        save(product, deployed(called("new", new)))
        await_in_use(product, "new")

        assert "[DONE]" not in connection.read().text
        assert record_of(product, "begun")["outcome"] == "upstream_timeout"


def test_a_name_that_gets_another_address_moves_and_a_weight_does_not(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    old, new, _ = backends
    old.set_script([stream_head(), LONG, delta("stop"), DONE, END])
    with (
        Product.start(tmp_path, deployed(called("one", old)), policy=POLICY) as product,
        RawConnection(product.port) as connection,
    ):
        connection.send(request_bytes("POST", CHAT, None, STREAM))
        old.wait_requests(1)
        save(product, deployed(called("one", old, weight=3)))
        await_fact(lambda: status(product)["backends"][0]["weight"] == 3)
        assert status(product)["backends"][0]["inflight"] == 1
        save(product, deployed(called("one", new)))
        await_fact(lambda: status(product)["backends"][0]["url"] == new.url)
        assert ask(product).status == 200
        assert len(new.requests) == 1
        assert connection.read().body.endswith(b"data: [DONE]\n\n")


def test_under_load_backends_come_and_go_and_no_request_fails(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    by_name = dict(zip("abc", backends, strict=True))
    for backend in backends:
        # A moment before each answer: so requests are under way at every change.
        backend.set_script([pause(5), chat_ok("The Rhine.")])
    enough = threading.Event()

    def client(product: Product) -> list[RawReply]:
        """Ask until it is enough, and once more."""
        replies: list[RawReply] = []
        with RawConnection(product.port) as connection:
            while True:
                is_last = enough.is_set()
                body = {**ASK, "stream": len(replies) % 2 == 1}
                connection.send(request_bytes("POST", CHAT, None, body))
                replies.append(connection.read())
                if is_last:
                    return replies

    def config_of(names: str) -> dict[str, Any]:
        return deployed(*(called(name, by_name[name]) for name in names))

    with (
        Product.start(tmp_path, config_of("a"), policy=POLICY) as product,
        ThreadPoolExecutor(4) as threads,
    ):
        asking = [threads.submit(client, product) for _ in range(4)]
        try:
            for number, names in enumerate(("ab", "b", "bc", "ca", "abc", "c", "b", "a")):
                newest = by_name[names[-1]]
                before = len(newest.requests)
                save(product, config_of(names))
                if number % 2:
                    assert exchange(product.port, RELOAD).json()["config"]["reloaded"]
                await_in_use(product, *names)
                newest.wait_requests(before + 8)
                assert sorted(labels_of(product, "backend_inflight")) == sorted(names)
        finally:
            enough.set()
        replies = [reply for done in asking for reply in done.result()]
        records = product.wait_records(len(replies))

    failed = [reply for reply in replies if reply.status != 200 or not reply.ended_properly]
    assert failed == []
    assert {reply.header("x-router-backend") for reply in replies} == {"a", "b", "c"}
    assert {record["outcome"] for record in records} == {"ok"}


def test_a_new_backend_that_is_not_up_yet_costs_no_request(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    one, late, _ = backends
    late.set_listen("refuse")
    with Product.start(tmp_path, deployed(called("one", one)), policy=POLICY) as product:
        save(product, deployed(called("one", one), called("late", late)))
        await_in_use(product, "one", "late")
        assert labels_of(product, "backend_up") == {"one": 1, "late": 0}
        assert [ask(product).status for _ in range(8)] == [200] * 8
        assert late.requests == []

        late.set_listen("normal")
        await_fact(lambda: labels_of(product, "backend_up")["late"])
        await_fact(lambda: ask(product).header("x-router-backend") == "late")


def test_a_broken_configuration_is_refused_with_its_line_and_the_old_one_stays(
    backends: list[ScriptedBackend], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, _ = backends
    with Product.start(tmp_path, deployed(called("one", one)), policy=POLICY) as product:
        sound = product.config_path.read_text(encoding="utf-8")
        broken = sound.replace("flush_ms", "flush_mss")
        line = 1 + next(n for n, text in enumerate(broken.splitlines()) if "flush_mss" in text)
        product.config_path.write_text(broken, encoding="utf-8")

        # Emptied and then written: on a busy machine the time between may be told of first.
        told = f"line {line}: log.flush_mss: unknown key"
        await_fact(lambda: told in (status(product)["config"]["last_error"] or ""))
        error = status(product)["config"]["last_error"]
        assert "did you mean 'flush_ms'?" in error
        assert (in_use(product), ask(product).status) == (["one"], 200)
        reloaded = exchange(product.port, RELOAD)
        assert (reloaded.status, reloaded.json()["reloaded"]) == (200, True)  # the policy
        assert reloaded.json()["config"]["error"] == error
        assert commands.run(["reload", "--url", product.url]) == 1
        assert error in capsys.readouterr().err
        assert commands.run(["status", "--url", product.url]) == 0
        assert "last change refused" in capsys.readouterr().out
        page = exchange(product.port, request_bytes("GET", "/metrics")).text
        assert "scenario_router_config_last_reload_successful 0" in page

        save_as = write_toml(
            product.folder / "whole",
            {**tomlfile.table(sound, ""), "backends": [called("two", two)]},
        )
        save_as.replace(product.config_path)
        await_in_use(product, "two")
        assert status(product)["config"]["last_error"] is None


def test_settings_that_need_a_restart_are_named_and_the_rest_is_taken(
    backends: list[ScriptedBackend], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, _ = backends
    config = deployed(called("one", one), policy={"watch": False})
    with Product.start(tmp_path, config, policy=POLICY) as product:
        wanted = deployed(
            called("two", two), server={"port": 1}, policy={"settle_ms": 50, "aliases": ["gpt-4o"]}
        )
        save(product, wanted)
        product.signal(signal.SIGHUP)

        await_in_use(product, "two")
        found = status(product)["config"]
        assert (found["last_error"], found["waiting"]) == (
            None,
            ["server.port", "policy.settle_ms"],
        )
        assert ask(product, model="gpt-4o").status == 200
        assert commands.run(["status", "--url", product.url]) == 0
        assert "wait for a restart: server.port" in capsys.readouterr().out


def test_a_policy_that_waits_for_a_pool_is_taken_with_it_and_the_other_way_round(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    one, two, _ = backends
    small, big = called("one", one), called("two", two, pool="big")

    def refused(what: str) -> str:
        error = str(status(product)[what]["last_error"])
        return error if "has no backend" in error else ""

    def are_both_taken() -> bool:
        told = status(product)
        return told["policy"]["last_error"] is None and told["config"]["last_error"] is None

    with Product.start(tmp_path, deployed(small), policy=POLICY) as product:
        product.policy_path.write_text(POLICY + 'pool = "big"\n', encoding="utf-8")
        assert "wants the pool 'big'" in await_fact(lambda: refused("policy"))
        save(product, deployed(small, big))
        await_fact(are_both_taken)
        assert ask(product).header("x-router-backend") == "two"

        save(product, deployed(small))
        assert "wants the pool 'big'" in await_fact(lambda: refused("config"))
        assert ask(product).header("x-router-backend") == "two"
        product.policy_path.write_text(POLICY, encoding="utf-8")
        await_fact(are_both_taken)
        await_in_use(product, "one")
        assert ask(product).header("x-router-backend") == "one"


# --- drains -----------------------------------------------------------------------------------


def test_a_drained_backend_finishes_what_it_has_and_gets_nothing_new(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    one, two, _ = backends
    one.set_script([stream_head(), LONG, delta("stop"), DONE, END])
    config = deployed(called("one", one), called("two", two))
    with Product.start(tmp_path, config, policy=POLICY) as product:
        with RawConnection(product.port) as connection:
            await_fact(lambda: post(product, "/router/backends/two/drain").status == 200)
            connection.send(request_bytes("POST", CHAT, {"x-request-id": "begun"}, STREAM))
            one.wait_requests(1)
            post(product, "/router/backends/two/undrain")

            drained = post(product, "/router/backends/one/drain")
            assert drained.json()["backends"] == [{"name": "one", "draining": True, "inflight": 1}]
            assert drained.json()["warning"] is None
            replies = [ask(product) for _ in range(8)]
            assert {reply.header("x-router-backend") for reply in replies} == {"two"}
            assert labels_of(product, "backend_draining") == {"one": 1, "two": 0}
            assert connection.read().body.endswith(b"data: [DONE]\n\n")
        assert record_of(product, "begun")["outcome"] == "ok"

        one.set_script([chat_ok("The Rhine.")])
        assert (
            post(product, "/router/backends/one/undrain").json()["backends"][0]["draining"] is False
        )
        assert {ask(product).header("x-router-backend") for _ in range(8)} == {"one", "two"}

        nobody = post(product, "/router/backends/three/drain")
        assert (nobody.status, nobody.json()["error"]["code"]) == (404, "not_found")
        assert "one, two" in nobody.json()["error"]["message"]


def test_where_all_are_drained_there_is_a_reason_and_no_readiness(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    config = deployed(called("one", backends[0]))
    with Product.start(tmp_path, config, policy=POLICY) as product:
        await_fact(lambda: is_ready(product).status == 200)
        post(product, "/router/backends/one/drain")

        assert is_ready(product).status == 503
        assert "one: drained" in is_ready(product).json()["reason"]
        refused = ask(product)
        assert (refused.status, refused.json()["error"]["code"]) == (503, "no_healthy_backend")
        assert backends[0].requests == []


def test_all_workers_hear_of_a_drain_and_it_outlives_them(
    backends: list[ScriptedBackend], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, _ = backends
    config = deployed(called("one", one), called("two", two), server={"workers": 2})

    def workers(product: Product) -> dict[int, list[bool]]:
        """What each of the workers says, once both have been asked."""
        found: dict[int, list[bool]] = {}
        while len(found) < 2:
            told = status(product)
            found[told["pid"]] = [backend["draining"] for backend in told["backends"]]
        return found

    def all_say(product: Product, *draining: bool) -> bool:
        return all(told == list(draining) for told in workers(product).values())

    with Product.start(tmp_path, config, policy=POLICY) as product:
        assert commands.run(["drain", "one", "--url", product.url]) == 0
        assert "one: takes nothing new, 0 in flight" in capsys.readouterr().out
        await_fact(lambda: all_say(product, True, False))
        replies = [ask(product) for _ in range(12)]
        assert {reply.header("x-router-backend") for reply in replies} == {"two"}
        assert commands.run(["drain", "none", "--url", product.url]) == 1
        assert "There are: one, two" in capsys.readouterr().err

    config["server"]["workers"] = 1
    with Product.start(tmp_path, config, policy=POLICY) as product:
        assert [backend["draining"] for backend in status(product)["backends"]] == [True, False]
        assert commands.run(["status", "--url", product.url]) == 0
        assert "one: up, drained" in capsys.readouterr().out
        assert commands.run(["drain", "one", "--undo", "--json", "--url", product.url]) == 0
        assert status(product)["backends"][0]["draining"] is False


# --- the beginning and the end ----------------------------------------------------------------


def test_with_nothing_up_it_says_why_and_is_ready_when_a_backend_comes(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    backend = backends[0]
    backend.set_listen("refuse")
    with Product.start(tmp_path, deployed(called("one", backend)), policy=POLICY) as product:
        await_fact(lambda: "cannot be reached" in is_ready(product).text)
        assert is_ready(product).status == 503
        refused = ask(product)
        assert (refused.status, refused.json()["error"]["code"]) == (503, "no_healthy_backend")
        assert refused.header("retry-after")

        backend.set_listen("normal")
        await_fact(lambda: is_ready(product).status == 200)
        assert await_fact(lambda: ask(product).status == 200)


def test_a_name_is_resolved_by_the_system(backends: list[ScriptedBackend], tmp_path: Path) -> None:
    backend = backends[0]
    found = {**called("gpu", backend, discover=True), "url": f"http://localhost:{backend.port}"}
    with Product.start(tmp_path, deployed(found), policy=POLICY) as product:
        assert ask(product).header("x-router-backend") == "gpu-127.0.0.1"
        [told] = status(product)["backends"]
        assert (told["configured"], told["url"]) == ("gpu", backend.url)


def test_workers_finish_their_streams_and_the_log_before_they_end(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    backend = backends[0]
    backend.set_script([stream_head(), LONG, delta("stop"), DONE, END])
    config = deployed(called("one", backend), server={"workers": 2}, log={"flush_ms": 60_000})
    with Product.start(tmp_path, config, policy=POLICY) as product, ExitStack() as stack:
        streams = [stack.enter_context(RawConnection(product.port)) for _ in range(4)]
        for stream in streams:
            stream.send(request_bytes("POST", CHAT, None, STREAM))
        backend.wait_requests(4)
        product.signal(signal.SIGTERM)
        await_fact(lambda: is_ready(product).refused)
        replies = [stream.read() for stream in streams]
        assert product.process.wait(30) == 0

    assert [reply.body.endswith(b"data: [DONE]\n\n") for reply in replies] == [True] * 4
    told = [(record["outcome"], record["answer_chars"]) for record in product.records()]
    assert told == [("ok", LONG_CHARS)] * 4


def test_a_worker_in_the_place_of_one_that_died_takes_the_files_as_they_are(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    one, two, _ = backends
    config = deployed(called("one", one), server={"workers": 2})
    with Product.start(tmp_path, config, policy=POLICY) as product:
        save(product, deployed(called("two", two)))
        # No router would start with it; one that runs must not lose its workers by it.
        product.policy_path.write_text("schema =", encoding="utf-8")
        first: dict[int, list[str]] = {}

        def all_have_it() -> bool:
            first[status(product)["pid"]] = in_use(product)
            return len(first) == 2 and set(map(tuple, first.values())) == {("two",)}

        await_fact(all_have_it)
        os.kill(next(iter(first)), signal.SIGKILL)

        def newcomer() -> list[str] | None:
            try:
                told = status(product)
            except OSError:  # whoever was connected to the one that died
                return None
            names = [backend["name"] for backend in told["backends"]]
            return names if told["pid"] not in first and names == ["two"] else None

        assert await_fact(newcomer) == ["two"]
        assert "TOML" in status(product)["policy"]["last_error"]


def test_told_to_stop_while_a_worker_is_missing_nobody_is_left_behind(
    backends: list[ScriptedBackend], tmp_path: Path
) -> None:
    config = deployed(called("one", backends[0]), server={"workers": 2})
    with Product.start(tmp_path, config, policy=POLICY) as product:
        os.kill(status(product)["pid"], signal.SIGKILL)
        await_fact(lambda: [line for line in product.output if '"worker died"' in line])

        assert product.stop() == 0
