"""A policy's life: taken whole or not at all, by whatever way it comes, under whatever load."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import config as configs
from router import policy as policies
from router.app import App
from router.files import Signature, signature_of
from router.keeping import Settling
from router.policy import Policy
from tests.clients.demo import await_fact, record_of
from tests.support.filewrites import write_file
from tests.support.product import Product, write_toml
from tests.support.rawclient import RawConnection, RawReply, exchange, request_bytes
from tests.support.script import DONE, END, chat_ok, delta, pause, stream_head
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
RELOAD = request_bytes("POST", "/router/policy/reload")
BROKEN_PROMISE = '[[tests]]\nprompt = "A refund?"\nscenario = "chat"\n'


def text_of(temperature: float, more: str = "") -> str:
    """A policy that forces this temperature on every request."""
    return (
        'schema = 1\ndefault_scenario = "chat"\n'
        f"[scenarios.chat.preset]\ntemperature = {temperature}\n"
        f'[scenarios.faq.match]\nkeywords = ["refund"]\n{more}'
    )


def hash_of(text: str) -> str:
    return policies.parse(text).hash


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([chat_ok("The Rhine.")]) as running:
        yield running


def in_front_of(backend: ScriptedBackend, **policy: Any) -> dict[str, Any]:
    one = {"name": "one", "url": backend.url, "model": "qwen3-0.6b"}
    # On a busy machine a check may come late: a warm-up would be one request more than was sent.
    health = {"warm_up": False}
    return {"backends": [one], "log": {"flush_ms": 10}, "policy": policy, "health": health}


def ask(product: Product, request_id: str = "", **members: Any) -> RawReply:
    headers = {"x-request-id": request_id} if request_id else None
    return exchange(product.port, request_bytes("POST", CHAT, headers, {**ASK, **members}))


def in_force(product: Product) -> str:
    return str(product.get("/version")["policy"])


def metric(product: Product, name: str) -> float:
    page = exchange(product.port, request_bytes("GET", "/metrics")).text
    [line] = [line for line in page.splitlines() if line.startswith(f"scenario_router_{name} ")]
    return float(line.split()[1])


# --- when a file is read ----------------------------------------------------------------------

#: signatures of a file that one letter stands for, in transcripts
FILES: dict[str, Signature] = {
    "-": ((), (7,)),
    "a": ((1, 10), (7,)),
    "b": ((2, 10), (7,)),
    "c": ((2, 10), ()),  # a file that the policy names is gone
}


def reads(looks: str, settle_s: float, taken: Signature = FILES["a"]) -> str:
    """A look a second; a capital letter wherever the file was read then."""
    settling = Settling(taken, settle_s, now=0.0)
    return "".join(
        look.upper() if settling.has_settled(FILES[look], now) else look
        for now, look in enumerate(looks, start=1)
    )


@pytest.mark.parametrize(
    ("settle_s", "transcript"),
    [
        (2, "aaaaaa"),  # nothing happens
        (2, "aabbBbb"),  # renamed into place
        (2, "aabcbcbcbcbccCcc"),  # written bit by bit
        (2, "aa---bbBb"),  # deleted, then created
        (2, "aa--aaaa"),  # away for a moment
        (2, "aabaaaa"),  # put back before anybody looked
        (2, "aabbBbaaA"),  # back to the first: that is a change as well
        (0, "aabBbb"),  # even then it was seen twice
        (2, "------"),
    ],
)
def test_a_file_is_read_once_it_has_stood_still(settle_s: float, transcript: str) -> None:
    assert reads(transcript.lower(), settle_s) == transcript


@given(st.text(alphabet="-abc", max_size=40), st.integers(0, 4))
def test_what_is_read_stood_still_is_there_and_is_new(looks: str, settle_s: int) -> None:
    transcript = reads(looks, settle_s)

    taken = "a"
    for index, read in enumerate(transcript):
        if read.isupper():
            still = looks[max(0, index - settle_s) : index + 1]
            assert set(still) == {read.lower()}
            assert index == 0 or looks[index - 1] == looks[index]
            assert read.lower() not in ("-", taken)
            taken = read.lower()
    if len(set(looks[-settle_s - 2 :])) == 1 and len(looks) > settle_s + 1:
        assert looks[-1] in ("-", taken)  # nothing that stood still was passed over


# --- one keeper -------------------------------------------------------------------------------


@asynccontextmanager
async def app_in(folder: Path, text: str) -> AsyncIterator[App]:
    """The router's inside, without an edge."""
    (folder / "policy.toml").write_text(text, encoding="utf-8")
    deployed = {
        "policy": {"file": "policy.toml"},
        "backends": [{"name": "one", "url": "http://127.0.0.1:9"}],
    }
    path = write_toml(folder / "config.toml", deployed)
    running = App(configs.load(path, environ={}), path)
    try:
        yield running
    finally:
        await running.close()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with app_in(tmp_path, text_of(0.1)) as running:
        yield running


def write(app: App, text: str) -> None:
    app.policy_path.write_text(text, encoding="utf-8")


def policy_of(app: App) -> Policy:
    return app.pipeline.live.policy


def counted(app: App) -> dict[str, int]:
    loads = app.metrics.counted().counters["policy_reload_total"]
    return {labels[0]: count for labels, count in loads.items() if count}


async def test_the_watch_begins_with_the_files_as_they_were_read(tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text("", encoding="utf-8")
    text = 'examples_files = ["more.toml"]\n' + text_of(0.1)

    async with app_in(tmp_path, text) as app:
        assert app.keeper.files == (tmp_path / "policy.toml", tmp_path / "more.toml")
        assert app.keeper.taken == signature_of(app.keeper.files)
        assert all(app.keeper.taken)


async def test_a_touched_but_identical_file_changes_nothing(app: App) -> None:
    before = app.pipeline.live
    app.policy_path.touch()

    assert await app.keeper.reload() is None

    assert app.pipeline.live is before  # with all that it remembers
    assert counted(app) == {"ok": 1}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_text(""), "default_scenario"),
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
        (lambda path: path.write_text(text_of(0.2)[:30]), "TOML"),
        (lambda path: path.write_text(text_of(9.0)), "[0, 2]"),
        (
            lambda path: path.write_text(text_of(0.2, '[scenarios.faq]\npool = "gpu"\n')),
            "line 8: scenarios.faq.pool: scenario 'faq' wants the pool 'gpu'",
        ),
        (
            lambda path: path.write_text(text_of(0.2, BROKEN_PROMISE)),
            'line 7: tests[0]: "A refund?" wants chat, got faq with thinking left to the backend '
            "by keyword with confidence 0.82 (keyword refund)",
        ),
    ],
)
async def test_what_cannot_be_taken_leaves_the_old_in_force_and_says_why(
    app: App, spoil: Callable[[Path], object], words: str
) -> None:
    before = app.pipeline.live
    spoil(app.policy_path)

    error = await app.keeper.reload()

    assert error is not None
    assert words in error
    assert (app.keeper.last_error, app.pipeline.live) == (error, before)
    assert counted(app) == {"failed": 1}

    write(app, text_of(0.1))  # put back as it was
    assert await app.keeper.reload() is None
    assert app.keeper.last_error is None


async def test_an_error_that_nobody_thought_of_leaves_the_old_in_force_too(app: App) -> None:
    before = app.pipeline.live
    app.keeper.path = Path("\0")  # opening it is a ValueError

    error = await app.keeper.reload()

    assert error is not None
    assert "its log says more" in error
    assert (app.keeper.last_error, app.pipeline.live) == (error, before)


async def test_a_policy_whose_tests_hold_is_taken(app: App) -> None:
    write(app, text_of(0.2, BROKEN_PROMISE.replace('"chat"', '"faq"')))

    assert await app.keeper.reload() is None
    assert len(policy_of(app).file.tests) == 1


async def test_who_asks_during_a_reload_gets_one_that_began_later_and_shares_it(app: App) -> None:
    first_text, second_text = text_of(0.2), text_of(0.3)
    app.policy_path.unlink()
    os.mkfifo(app.policy_path)  # reading waits for us to write
    try:
        async with asyncio.timeout(20):
            first = asyncio.ensure_future(app.keeper.reload())
            others = [asyncio.ensure_future(app.keeper.reload()) for _ in range(3)]
            await asyncio.to_thread(write, app, first_text)
            assert await first is None
            assert policy_of(app).hash == hash_of(first_text)
            assert not any(other.done() for other in others)

            await asyncio.to_thread(write, app, second_text)
            assert await asyncio.gather(*others) == [None] * 3
    finally:
        _release(app.policy_path)
    assert policy_of(app).hash == hash_of(second_text)
    assert counted(app) == {"ok": 2}


async def test_a_reload_that_nobody_waits_for_any_more_swaps_nothing(app: App) -> None:
    before = app.pipeline.live
    app.policy_path.unlink()
    os.mkfifo(app.policy_path)
    try:
        async with asyncio.timeout(20):
            gone = asyncio.ensure_future(app.keeper.reload())
            pipe = await asyncio.to_thread(os.open, app.policy_path, os.O_WRONLY)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            os.write(pipe, text_of(0.2).encode())
            os.close(pipe)
            app.policy_path.unlink()
            write(app, text_of(0.3))
            assert app.pipeline.live is before

            assert await app.keeper.reload() is None
    finally:
        _release(app.policy_path)
    assert policy_of(app).hash == hash_of(text_of(0.3))


def _release(path: Path) -> None:
    """Let go who still waits at a pipe, if anybody does."""
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


# --- a running router -------------------------------------------------------------------------


def test_a_first_policy_that_fails_its_own_tests_serves_and_is_told_of(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    config, broken = in_front_of(backend, watch=False), text_of(0.2, BROKEN_PROMISE)
    with Product.start(tmp_path, config, policy=broken) as product:
        assert ask(product).header("x-router-policy") == hash_of(broken)
        assert backend.requests[0].json["temperature"] == 0.2
        status = product.get("/router/status")["policy"]
        assert 'tests[0]: "A refund?" wants chat, got faq' in status["last_error"]
        assert metric(product, "policy_last_reload_successful") == 0
        await_fact(lambda: [line for line in product.output if "test of the policy" in line])

        again = exchange(product.port, RELOAD)
        assert (again.status, again.json()["reloaded"]) == (400, False)
        assert again.json()["error"] == status["last_error"]

        product.policy_path.write_text(text_of(0.3), encoding="utf-8")
        mended = exchange(product.port, RELOAD)
        assert (mended.status, mended.json()["hash"]) == (200, hash_of(text_of(0.3)))
        assert metric(product, "policy_last_reload_successful") == 1
        assert product.get("/router/status")["policy"]["last_error"] is None


def test_validating_runs_the_tests_and_tells_what_check_tells(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    with Product.start(tmp_path, in_front_of(backend), policy=text_of(0.2)) as product:

        def validate(text: str) -> RawReply:
            return exchange(
                product.port, request_bytes("POST", "/router/policy/validate", None, text)
            )

        kept = validate(text_of(0.3, BROKEN_PROMISE.replace('"chat"', '"faq"')))
        broken = validate(text_of(0.3, BROKEN_PROMISE))
        homeless = validate(text_of(0.3, '[scenarios.faq]\npool = "gpu"\n'))
        noted = validate(text_of(0.3).replace('"refund"', '"refund", "Refund"'))

        assert (kept.status, kept.json()["tests"], kept.json()["findings"]) == (200, 1, [])
        assert (broken.status, broken.json()["valid"]) == (400, False)
        [mistake] = broken.json()["mistakes"]
        assert (mistake["path"], mistake["line"]) == ("tests[0]", 7)
        assert "wants chat, got faq" in mistake["message"]
        assert homeless.json()["mistakes"][0]["path"] == "scenarios.faq.pool"
        assert noted.status == 200
        [finding] = noted.json()["findings"]
        assert (finding["severity"], finding["path"]) == (
            "note",
            "scenarios.faq.match.keywords[1]",
        )
        assert in_force(product) == hash_of(text_of(0.2))


def test_every_way_to_save_a_file_is_noticed_again_and_again(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    config = in_front_of(backend, settle_ms=50)
    ways = [
        *("rename", "rename", "in_place", "delete_create", "delete_create"),
        *("symlink_swap", "symlink_swap", "rename"),
    ]
    with Product.start(tmp_path, config, policy=text_of(0.01)) as product:
        for number, way in enumerate(ways, start=2):
            write_file(product.policy_path, text_of(number / 100), {"how": way})
            wanted = hash_of(text_of(number / 100))
            await_fact(lambda wanted=wanted: in_force(product) == wanted)  # type: ignore[misc]

        old = in_force(product)
        product.policy_path.write_text("", encoding="utf-8")
        await_fact(lambda: product.get("/router/status")["policy"]["last_error"])
        assert in_force(product) == old
        assert metric(product, "policy_last_reload_successful") == 0


def test_a_mounted_folder_that_is_swapped_by_its_link_is_noticed(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    mount = tmp_path / "mounted"
    mount.mkdir()

    def publish(version: int) -> str:
        """As Kubernetes updates a ConfigMap: a new folder, the link to it, the old one gone."""
        text = text_of(version / 100)
        folder = mount / f"..{version}"
        folder.mkdir()
        (folder / "policy.toml").write_text(text, encoding="utf-8")
        link = mount / "..data_tmp"
        link.symlink_to(folder.name)
        link.replace(mount / "..data")
        shutil.rmtree(mount / f"..{version - 1}", ignore_errors=True)
        return hash_of(text)

    first = publish(1)
    (mount / "policy.toml").symlink_to("..data/policy.toml")
    config = in_front_of(backend, file=str(mount / "policy.toml"), settle_ms=50)
    with Product.start(tmp_path, config, policy="") as product:
        assert in_force(product) == first
        for version in (2, 3, 4):
            wanted = publish(version)
            await_fact(lambda wanted=wanted: in_force(product) == wanted)  # type: ignore[misc]


def test_a_file_that_the_policy_names_is_watched_as_well_and_waited_for(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    more = tmp_path / "more.toml"
    more.write_text('[examples.faq]\ndirect = ["Where is it?"]\n', encoding="utf-8")
    text = 'examples_files = ["more.toml"]\n' + text_of(0.2)

    def is_taken() -> bool:
        return in_force(product) == policies.parse(text, folder=tmp_path).hash

    with Product.start(tmp_path, in_front_of(backend, settle_ms=50), policy=text) as product:
        assert is_taken()
        more.write_text('[examples.faq]\ndirect = ["Where was it?"]\n', encoding="utf-8")
        await_fact(is_taken)

        text = text.replace("more.toml", "other.toml")
        product.policy_path.write_text(text, encoding="utf-8")
        error = await_fact(lambda: product.get("/router/status")["policy"]["last_error"])
        assert "other.toml: cannot be read" in error
        more.rename(tmp_path / "other.toml")
        await_fact(is_taken)
        assert product.get("/router/status")["policy"]["last_error"] is None


def test_a_stream_ends_under_the_policy_it_began_with(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    # More than all buffers on the way hold: it cannot end before the client reads.
    filling = {"do": "repeat", "times": 400, "steps": [delta(content="x" * 100_000)]}
    backend.set_script([stream_head(), filling, delta("stop"), DONE, END])
    old, new = text_of(0.2), text_of(0.4)
    with Product.start(tmp_path, in_front_of(backend, watch=False), policy=old) as product:
        with RawConnection(product.port) as connection:
            body = {**ASK, "stream": True}
            connection.send(request_bytes("POST", CHAT, {"x-request-id": "begun"}, body))
            backend.wait_requests(1)
            product.policy_path.write_text(new, encoding="utf-8")
            assert exchange(product.port, RELOAD).json()["hash"] == hash_of(new)
            backend.set_script([chat_ok("The Rhine.")])
            later = ask(product)
            reply = connection.read()

        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert reply.header("x-router-policy") == hash_of(old)
        assert later.header("x-router-policy") == hash_of(new)
        assert [seen.json["temperature"] for seen in backend.requests] == [0.2, 0.4]
        record = record_of(product, "begun")
        assert (record["policy"], record["outcome"]) == (hash_of(old), "ok")
        assert record["params"]["temperature"][1] == 0.2


def test_under_load_no_request_fails_and_none_sees_half_of_a_policy(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    texts = [text_of(number / 100) for number in range(1, 16)]
    temperatures = {hash_of(text): number / 100 for number, text in enumerate(texts, start=1)}
    enough = threading.Event()
    # A moment before each answer: so some requests are under way whenever a policy is swapped.
    backend.set_script([pause(5), chat_ok("The Rhine.")])

    def client(product: Product, name: str) -> list[tuple[str, RawReply]]:
        """Ask until it is enough, and once more."""
        replies = []
        with RawConnection(product.port) as connection:
            for number in range(100_000):
                is_last = enough.is_set()
                request_id = f"{name}-{number}"
                body = {**ASK, "stream": number % 2 == 1}
                connection.send(request_bytes("POST", CHAT, {"x-request-id": request_id}, body))
                replies.append((request_id, connection.read()))
                if is_last:
                    break
        return replies

    # The watch, the endpoint and the signal all take the same file, and at the same time.
    config = in_front_of(backend, settle_ms=0)
    with (
        Product.start(tmp_path, config, policy=texts[0]) as product,
        ThreadPoolExecutor(4) as threads,
    ):
        asking = [threads.submit(client, product, f"client-{n}") for n in range(4)]
        try:
            for number, text in enumerate(texts[1:]):
                backend.wait_requests(len(backend.requests) + 8)  # under each of the policies
                write_file(product.policy_path, text, {"how": ("rename", "in_place")[number % 2]})
                if number % 3 == 0:
                    product.signal(signal.SIGHUP)
                reloaded = exchange(product.port, RELOAD)
                assert (reloaded.status, reloaded.json()["hash"]) == (200, hash_of(text))
        finally:
            enough.set()
        replies = [reply for done in asking for reply in done.result()]
        records = {record["request_id"]: record for record in product.wait_records(len(replies))}

    sent = {seen.header("x-request-id"): seen.json["temperature"] for seen in backend.requests}
    failed = [reply for _, reply in replies if reply.status != 200 or not reply.ended_properly]
    assert failed == []
    for request_id, reply in replies:
        seen_hash = str(reply.header("x-router-policy"))
        assert sent[request_id] == temperatures[seen_hash]
        assert records[request_id]["policy"] == seen_hash
        assert records[request_id]["params"]["temperature"][1] == temperatures[seen_hash]
    assert {str(reply.header("x-router-policy")) for _, reply in replies} == set(temperatures)


def test_the_reload_command_says_why_a_policy_is_not_taken(
    backend: ScriptedBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from router import commands

    config = in_front_of(backend, watch=False)
    with Product.start(tmp_path, config, policy=text_of(0.2)) as product:
        product.policy_path.write_text(text_of(0.3, BROKEN_PROMISE), encoding="utf-8")
        refused = commands.run(["reload", "--url", product.url])
        why = capsys.readouterr().err
        product.policy_path.write_text(text_of(0.3), encoding="utf-8")
        taken = commands.run(["reload", "--url", product.url, "--json"])
        answer = json.loads(capsys.readouterr().out)

    assert (refused, taken) == (1, 0)
    assert '"A refund?" wants chat, got faq' in why
    assert (answer["reloaded"], answer["hash"]) == (True, hash_of(text_of(0.3)))
    assert answer["config"] == {"reloaded": True, "error": None, "waiting": []}
