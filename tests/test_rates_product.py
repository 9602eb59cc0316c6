"""Limits of keys as their owners meet them: real routers, the OpenAI SDK, a real Redis."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from router import config as configs
from router.tomlfile import FileFault
from tests.clients.demo import await_fact
from tests.support.product import ROOT, Product
from tests.support.prometheus import page_of
from tests.support.rawclient import RawConnection, RawReply, exchange, request_bytes, sse_events
from tests.support.redisstand import RedisStand
from tests.support.script import Step, chat_ok, delta, reply_json, stream_head
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
"""
#: a stream that says something and then nothing until its reader leaves
HANGS: list[Step] = [
    stream_head(),
    delta(content="So far so good."),
    {"do": "wait_disconnect", "max_ms": 30_000},
]


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": "Hello."}], **more}


def post(product: Product, key: str, body: Any = None, path: str = CHAT) -> RawReply:
    asked = ask() if body is None else body
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    return exchange(product.port, request_bytes("POST", path, headers, asked))


def limits_in(reply: RawReply) -> dict[str, str]:
    """The headers that tell of limits."""
    head = "x-ratelimit-"
    return {name[len(head) :]: value for name, value in reply.headers if name.startswith(head)}


def sdk(product: Product, key: str, retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=product.url + "/v1", api_key=key, max_retries=retries)


def create(client: openai.OpenAI) -> str | None:
    answer = client.chat.completions.create(
        model="auto", messages=[{"role": "user", "content": "Hello."}]
    )
    return answer.choices[0].message.content


@pytest.fixture(scope="module")
def shared() -> Iterator[ScriptedBackend]:
    with ScriptedBackend() as running:
        yield running


@pytest.fixture
def backend(shared: ScriptedBackend) -> ScriptedBackend:
    shared.set_script([chat_ok("Good day.")])  # 9 and 2 tokens
    shared.requests.clear()
    return shared


def start(
    folder: Path,
    backend: ScriptedBackend,
    keys: Mapping[str, str],
    env: Mapping[str, str] | None = None,
    **tables: Any,
) -> Product:
    """A router with these keys, whose names are what they are; each with its limits as TOML."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        f'[keys.{name}]\nhash = "sha256:{hashlib.sha256(name.encode()).hexdigest()}"\n{limits}\n'
        for name, limits in keys.items()
    ]
    (folder / "keys.toml").write_text("schema = 1\n" + "\n".join(entries), encoding="utf-8")
    config = {
        "backends": [{"name": "one", "url": backend.url, "model": "tiny"}],
        "auth": {"keys_file": "keys.toml"},
        "log": {"flush_ms": 10},
        **tables,
    }
    return Product.start(folder, config, policy=POLICY, env=env)


KEYS = {
    "three": "requests_per_minute = 3",
    "minute": "requests_per_minute = 60",
    "budget": "tokens_per_day = 20",
    "tokens": "tokens_per_minute = 1000",
    "one": "streams = 1",
    "free": "",
    "all": "requests_per_minute = 100\ntokens_per_minute = 50000\ntokens_per_day = 1000000",
    "left": "tokens_per_day = 100000",
    "wrong": "requests_per_minute = 50",
}


@pytest.fixture(scope="module")
def product(shared: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with start(tmp_path_factory.mktemp("rates"), shared, KEYS) as running:
        yield running


def used(product: Product, key: str) -> dict[str, Any]:
    told: dict[str, Any] = product.get("/router/status")["rates"]["keys"][key]
    return told


def records_of(product: Product, key: str, count: int) -> list[dict[str, Any]]:
    """The records of a key, once there are so many; there are no more."""

    def found() -> list[dict[str, Any]]:
        mine = [record for record in product.records() if record["key"] == key]
        return mine if len(mine) >= count else []

    mine = await_fact(found)
    assert len(mine) == count
    return mine


# --- what clients see ---------------------------------------------------------------------


def test_the_request_over_the_limit_is_a_rate_limit_error(
    product: Product, backend: ScriptedBackend
) -> None:
    with sdk(product, "three") as client:
        assert [create(client) for _ in range(3)] == ["Good day."] * 3
        with pytest.raises(openai.RateLimitError) as refused:
            create(client)

    assert refused.value.code == "rate_limit_exceeded"
    headers = refused.value.response.headers
    assert 1 <= int(headers["retry-after"]) <= 20
    assert 0 < int(headers["retry-after-ms"]) <= 20_000
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert "3 requests a minute" in str(refused.value)
    assert len(backend.requests) == 3
    *served, last = records_of(product, "three", 4)
    assert [record["limit"] for record in served] == [None] * 3
    assert (last["status"], last["outcome"]) == (429, "rejected")
    assert (last["error_code"], last["limit"]) == ("rate_limit_exceeded", "requests")
    command = [sys.executable, "-m", "router", "status", "--url", product.url]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "three has used up its requests_per_minute" in told
    page = page_of(product)
    assert page.value("key_limited_total", key="three", limit="requests") == 1
    assert page.sum("rejected_total", reason="key_limit") >= 1


def test_the_sdk_comes_back_when_it_is_told_to(product: Product, backend: ScriptedBackend) -> None:
    for _ in range(60):
        assert post(product, "minute").status == 200
    backend.requests.clear()

    with sdk(product, "minute", retries=4) as client:
        assert create(client) == "Good day."

    assert len(backend.requests) == 1
    outcomes = [record["outcome"] for record in product.records() if record["key"] == "minute"]
    assert "rejected" in outcomes


def test_who_has_used_up_the_day_is_told_once(product: Product, backend: ScriptedBackend) -> None:
    with sdk(product, "budget", retries=3) as client:
        assert create(client) == "Good day."  # 11 of 20
        await_fact(lambda: used(product, "budget")["tokens_per_day"]["used"] == 11)
        assert create(client) == "Good day."
        await_fact(lambda: used(product, "budget")["tokens_per_day"]["used"] == 22)
        with pytest.raises(openai.RateLimitError) as refused:
            create(client)

    assert refused.value.code == "insufficient_quota"
    assert refused.value.type == "insufficient_quota"
    headers = refused.value.response.headers
    assert headers["x-should-retry"] == "false"
    assert headers["x-ratelimit-limit-tokens-day"] == "20"
    assert headers["x-ratelimit-remaining-tokens-day"] == "0"
    assert int(headers["retry-after"]) <= 86_400
    last = records_of(product, "budget", 3)[-1]  # it did not try again
    assert (last["error_code"], last["limit"]) == ("insufficient_quota", "budget")


def test_tokens_are_reserved_and_what_was_not_used_is_given_back(
    product: Product, backend: ScriptedBackend
) -> None:
    backend.set_script(HANGS)
    with RawConnection(product.port) as first:
        first.send(
            request_bytes(
                "POST", CHAT, {"Authorization": "Bearer tokens"}, ask(stream=True, max_tokens=900)
            )
        )
        backend.wait_requests(1)
        refused = post(product, "tokens", ask(max_tokens=900))
        assert (refused.status, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "1000 tokens a minute" in refused.json()["error"]["message"]
        assert int(refused.header("x-ratelimit-remaining-tokens") or -1) < 100

    # Whoever leaves pays for the prompt and for what was answered until then.
    await_fact(lambda: used(product, "tokens")["tokens_per_minute"]["left"] > 900)
    backend.set_script([chat_ok("Good day.")])
    served = post(product, "tokens", ask(max_tokens=900))

    assert served.status == 200
    assert limits_in(served)["limit-tokens"] == "1000"
    records = records_of(product, "tokens", 3)
    assert sorted(str(record["limit"]) for record in records) == ["None", "None", "tokens"]


def test_one_that_leaves_early_pays_by_the_routers_own_count(
    product: Product, backend: ScriptedBackend
) -> None:
    backend.set_script(HANGS)
    body = ask(stream=True)
    with RawConnection(product.port) as client:
        client.send(request_bytes("POST", CHAT, {"Authorization": "Bearer left"}, body))
        backend.wait_requests(1)
        await_fact(lambda: used(product, "left")["streams"]["used"] == 1)

    records = records_of(product, "left", 1)

    assert records[0]["outcome"] == "client_disconnect"
    assert records[0]["output_tokens"] is None
    await_fact(lambda: used(product, "left")["streams"]["used"] == 0)
    # a token for each four bytes of the request, and of the answer as far as it came
    await_fact(lambda: 15 <= used(product, "left")["tokens_per_day"]["used"] <= 40)


def test_a_place_is_free_as_soon_as_its_client_has_left(
    product: Product, backend: ScriptedBackend
) -> None:
    backend.set_script(HANGS)
    for round_ in range(1, 4):
        with RawConnection(product.port) as client:
            client.send(
                request_bytes("POST", CHAT, {"Authorization": "Bearer one"}, ask(stream=True))
            )
            backend.wait_requests(round_)
            refused = post(product, "one", ask(stream=True))
            assert (refused.status, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert "may have at once: 1" in refused.json()["error"]["message"]
            assert refused.header("retry-after")
        await_fact(lambda: used(product, "one")["streams"]["used"] == 0)

    backend.set_script([chat_ok("Good day.")])
    with sdk(product, "one") as client_:
        assert [create(client_) for _ in range(10)] == ["Good day."] * 10  # one behind the other


# --- the headers ----------------------------------------------------------------------------


def test_every_answer_of_a_key_with_limits_tells_of_them(
    product: Product, backend: ScriptedBackend
) -> None:
    names = {
        *("limit-requests", "remaining-requests", "reset-requests"),
        *("limit-tokens", "remaining-tokens", "reset-tokens"),
        *("limit-tokens-day", "remaining-tokens-day"),
    }
    whole = post(product, "all")
    stream = post(product, "all", ask(stream=True))
    wrong = post(product, "all", b"{nonsense")
    backend.set_script([reply_json({"error": {"message": "no", "code": None}}, status=500)])
    broken = post(product, "all")
    embedded = {"object": "list", "data": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}}
    theirs = {"x-ratelimit-limit-requests": "1", "x-ratelimit-remaining-images": "2"}
    backend.set_script([reply_json(embedded, headers=theirs)])
    passed = post(product, "all", {"model": "tiny", "input": "x"}, "/v1/embeddings")

    replies = [whole, stream, wrong, broken, passed]
    assert [reply.status for reply in replies] == [200, 200, 400, 500, 200]
    for reply in replies:
        assert set(limits_in(reply)) == names
        assert len(reply.all("x-ratelimit-limit-requests")) == 1
        assert reply.header("x-ratelimit-limit-requests") == "100"
    assert sse_events(stream.body)
    left = [int(reply.header("x-ratelimit-remaining-requests") or 0) for reply in replies]
    assert left[:2] == [99, 98]
    assert limits_in(whole)["reset-requests"].endswith("ms")

    headers = {"Authorization": "Bearer all", "Content-Encoding": "gzip", "X-Request-Id": "cut"}
    unread = exchange(product.port, request_bytes("POST", CHAT, headers, b"no gzip"))
    assert unread.status == 400
    assert set(limits_in(unread)) == names
    await_fact(
        lambda: [r for r in product.records() if (r["request_id"], r["key"]) == ("cut", "all")]
    )

    free = post(product, "free", {"model": "tiny", "input": "x"}, "/v1/embeddings")
    assert limits_in(free) == {"limit-requests": "1", "remaining-images": "2"}


def test_a_request_that_cannot_be_read_is_not_counted(
    product: Product, backend: ScriptedBackend
) -> None:
    told = [post(product, "wrong", b"{nonsense") for _ in range(5)]

    assert {reply.status for reply in told} == {400}
    assert {reply.header("x-ratelimit-remaining-requests") for reply in told} == {"50"}
    assert used(product, "wrong")["requests_per_minute"] == {"limit": 50, "left": 50}
    assert backend.requests == []


def test_a_key_without_limits_is_told_and_asked_nothing(
    product: Product, backend: ScriptedBackend
) -> None:
    reply = post(product, "free")

    assert (reply.status, limits_in(reply)) == (200, {})
    assert "free" not in product.get("/router/status")["rates"]["keys"]


# --- the default, and reloads ----------------------------------------------------------------


def test_a_default_is_for_each_key_that_says_nothing(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    keys = {"plain": "", "more": "requests_per_minute = 5"}
    env = {"SOME_KEYS": "spelt=spelt"}
    tables = {
        "auth": {"keys_file": "keys.toml", "keys_env": "SOME_KEYS"},
        "limits": {"requests_per_minute": 2},
    }
    with start(tmp_path, backend, keys, env, **tables) as product:
        told = {
            key: [post(product, key).status for _ in range(6)] for key in ("plain", "more", "spelt")
        }

        assert told == {
            "plain": [200] * 2 + [429] * 4,
            "more": [200] * 5 + [429],
            "spelt": [200] * 2 + [429] * 4,
        }


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            "streams = 2",
            r"limits.*streams is a limit of each client's key, and \[auth\] names no keys",
        ),
        ("requests_per_minute = 0", r"limits\.requests_per_minute"),
        ('store = "redis"', r"REDIS_URL is not set"),
    ],
)
def test_limits_that_could_not_hold_are_mistakes(tmp_path: Path, text: str, mistake: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[limits]\n{text}\n[[backends]]\nname = "a"\nurl = "http://127.0.0.1:1"\n')

    with pytest.raises(FileFault, match=mistake):
        configs.load(path, environ={})


# --- the next start ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_budget_is_for_the_day_whenever_the_router_was_started(
    backend: ScriptedBackend, tmp_path: Path, workers: int
) -> None:
    keys = {"budget": "tokens_per_day = 20", "three": "requests_per_minute = 3"}
    env = {"SCENARIO_ROUTER_CACHE": str(tmp_path / "cache")}
    told: list[list[int | None]] = []
    for _ in range(2):
        with start(tmp_path, backend, keys, env, server={"workers": workers}) as product:
            budget = [post(product, "budget").status]
            await_fact(lambda: used(product, "budget")["tokens_per_day"]["used"] % 11 == 0)
            told.append([*budget, *(post(product, "three").status for _ in range(4))])
    with start(tmp_path, backend, keys, env) as product:
        assert post(product, "budget").json()["error"]["code"] == "insufficient_quota"

    assert told == [[200, 200, 200, 200, 429]] * 2  # what is a minute's begins anew


def test_a_folder_that_cannot_be_written_costs_no_request(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file, and no folder")
    env = {"SCENARIO_ROUTER_CACHE": str(tmp_path / "cache")}
    with start(tmp_path, backend, {"budget": "tokens_per_day = 20"}, env) as product:
        assert post(product, "budget").status == 200

        assert product.stop() == 0
        assert any("budgets begin anew with a restart" in line for line in product.output)


# --- several processes -----------------------------------------------------------------------


def at_once(products: Sequence[Product], key: str, count: int) -> list[int | None]:
    """The statuses of so many requests at the same time, each over a connection of its own."""
    found: list[int | None] = [None] * count

    def one(number: int) -> None:
        found[number] = post(products[number % len(products)], key).status

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_workers_of_one_router_count_together(backend: ScriptedBackend, tmp_path: Path) -> None:
    keys = {"ten": "requests_per_minute = 10"}
    with start(tmp_path, backend, keys, server={"workers": 3}) as product:
        told = at_once([product], "ten", 30)

        assert sorted(map(str, told)) == ["200"] * 10 + ["429"] * 20
        await_fact(lambda: page_of(product).sum("key_limited_total", key="ten") == 20)


if shutil.which("redis-server"):  # runs where a Redis is offered

    def test_two_routers_with_one_redis_count_together_and_without_it_each_alone(
        backend: ScriptedBackend, tmp_path: Path
    ) -> None:
        keys = {"ten": "requests_per_minute = 10", "free": "", "other": "streams = 9"}
        with RedisStand(tmp_path / "redis") as stand:
            env = {"REDIS_URL": stand.url}
            limits = {"store": "redis"}
            affinity = {"timeout_ms": 500}
            with (
                start(
                    tmp_path / "1", backend, keys, env, limits=limits, affinity=affinity
                ) as first,
                start(
                    tmp_path / "2", backend, keys, env, limits=limits, affinity=affinity
                ) as second,
            ):
                assert {post(first, "free").status for _ in range(3)} == {200}
                assert stand.keys() == {}

                told = at_once([first, second], "ten", 30)

                assert sorted(map(str, told)) == ["200"] * 10 + ["429"] * 20
                assert list(stand.keys()) == ["scenario-router:rate:ten"]
                assert first.get("/router/status")["affinity"]["store"] == "memory"

                stand.stop()
                assert {post(router, "free").status for router in (first, second)} == {200}
                assert post(first, "ten").status == 429  # it knows
                assert post(first, "other").status == 200
                await_fact(lambda: not first.get("/router/status")["rates"]["is_ok"])
                assert page_of(first).value("redis_up") == 0
                assert any("rates are not shared" in line for line in first.output)

    def test_without_redis_requests_are_decided_on_here_and_counted(
        backend: ScriptedBackend, tmp_path: Path
    ) -> None:
        keys = {"ten": "requests_per_minute = 10"}
        with RedisStand(tmp_path / "redis") as stand:
            env = {"REDIS_URL": stand.url}
            with start(tmp_path / "1", backend, keys, env, affinity={"store": "redis"}) as product:
                stand.stop()

                told = [post(product, "ten").status for _ in range(12)]

                assert told == [200] * 10 + [429] * 2
                await_fact(lambda: page_of(product).value("rates_local_total") >= 10)
