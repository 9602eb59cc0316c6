"""The dashboard behind a real router: passed on, started and ended, and never in the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router import commands
from tests.support import trying
from tests.support.logs import await_true, is_record, lines_in, pack
from tests.support.pool import Pool, ask, held, pool_of, question, where
from tests.support.product import Product
from tests.support.rawclient import exchange
from tests.support.script import chat_ok

MODULE = b"router.dashboard"


@pytest.fixture
def pool() -> Iterator[Pool]:
    with pool_of("a", "b") as found:
        yield found


@pytest.fixture
def product(pool: Pool, tmp_path: Path) -> Iterator[Product]:
    with pool.start(tmp_path, env=own_cache(tmp_path)) as started:
        yield started


def own_cache(folder: Path) -> dict[str, str]:
    return {"SCENARIO_ROUTER_CACHE": str(folder / "cache")}


def api(product: Product, view: str, **query: str) -> Any:
    reply = httpx.get(f"{product.url}/dashboard/api/{view}", params=query, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()


def dashboards(folder: Path) -> list[int]:
    """Processes of a dashboard whose socket is in this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if MODULE in command and os.fsencode(folder) in command:
            found.append(int(place.name))
    return found


def test_the_views_count_what_was_asked(product: Product) -> None:
    answered = [where(ask(product, f"s{number % 3}")) for number in range(12)]
    product.wait_records(12)
    await_true(lambda: api(product, "requests")["total"] == 12, "twelve requests")

    rows = {row["backend"]: row for row in api(product, "backends")["rows"]}
    for name in ("a", "b"):
        assert rows[name]["requests"] == answered.count(name)
        assert rows[name]["live"]["state"] == "up"
        assert rows[name]["live"]["in_flight"] == 0
    assert api(product, "sessions")["total"] == 3
    meta = api(product, "meta")
    assert meta["offline"] is False
    assert meta["policy"] == product.get("/version")["policy"]
    assert meta["bodies"] == "off"
    one = api(product, "requests", limit="1")["rows"][0]["request_id"]
    assert api(product, f"requests/{one}")["record"]["request_id"] == one
    export = httpx.get(f"{product.url}/dashboard/api/export?format=csv", timeout=30)
    assert len(export.text.splitlines()) == 13


def test_the_page_is_there_with_all_that_it_loads(product: Product) -> None:
    page = httpx.get(product.url + "/dashboard", timeout=30)
    assert page.status_code == 200
    assert page.headers["x-router-policy"] == product.get("/version")["policy"]
    assert page.headers["server"] == "scenario-router"
    style = httpx.get(product.url + "/dashboard/static/style.css", timeout=30)
    assert style.headers["content-type"].startswith("text/css")
    assert style.headers["content-encoding"] == "gzip"
    again = httpx.get(
        product.url + "/dashboard/static/style.css",
        headers={"If-None-Match": style.headers["etag"]},
        timeout=30,
    )
    assert again.status_code == 304


def test_live_says_what_is_under_way(product: Product) -> None:
    with httpx.stream("GET", product.url + "/dashboard/api/live", timeout=30) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        assert '"in_flight":0' in next(lines)
        assert '"waiting":0' in next(lines)


def test_a_stream_of_events_does_not_hold_a_router_up_that_is_to_end(product: Product) -> None:
    with httpx.stream("GET", product.url + "/dashboard/api/live", timeout=30) as reply:
        next(reply.iter_lines())
        assert product.stop(15) == 0


def test_another_site_may_not_write_through_a_router(product: Product) -> None:
    reply = httpx.post(
        f"{product.url}/dashboard/api/requests/x/label",
        json={"scenario": "faq"},
        headers={"Origin": "https://evil.example"},
        timeout=30,
    )
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "cross_origin")


def test_a_client_cannot_speak_for_the_router(product: Product) -> None:
    reply = httpx.get(
        f"{product.url}/dashboard/api/meta",
        headers={"X-Router-Live": '{"policy": "forged"}'},
        timeout=30,
    )
    assert reply.json()["policy"] == product.get("/version")["policy"]


def test_a_dashboard_that_is_killed_is_started_again(product: Product, tmp_path: Path) -> None:
    ask(product)
    product.wait_records(1)
    await_true(lambda: api(product, "requests")["total"] == 1, "the first request")
    (first,) = dashboards(tmp_path)
    os.kill(first, signal.SIGKILL)

    assert where(ask(product)) in ("a", "b")
    product.wait_records(2)
    await_true(lambda: api(product, "requests")["total"] == 2, "both requests")
    assert dashboards(tmp_path) != [first]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_dashboard_ends_with_its_router(
    pool: Pool, tmp_path: Path, number: signal.Signals
) -> None:
    with pool.start(tmp_path, env=own_cache(tmp_path)) as product:
        api(product, "meta")
        assert len(dashboards(tmp_path)) == 1
        product.signal(number)
        await_true(lambda: not dashboards(tmp_path), "the dashboard ends")


def test_no_query_is_made_on_a_serving_process(product: Product, tmp_path: Path) -> None:
    api(product, "scenarios")
    (child,) = dashboards(tmp_path)
    loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in (product.process.pid, child)]
    assert ["duckdb" in maps for maps in loaded] == [False, True]
    assert os.getpriority(os.PRIO_PROCESS, child) > os.getpriority(
        os.PRIO_PROCESS, product.process.pid
    )


def test_workers_share_one_dashboard(pool: Pool, tmp_path: Path) -> None:
    with pool.start(tmp_path, env=own_cache(tmp_path), server={"workers": 3}) as product:
        ask(product)
        product.wait_records(1)
        with held(product, [f"s{number}" for number in range(8)]) as places:
            asked = [(name, places.count(name)) for name in ("a", "b")]

            def told() -> list[tuple[str, int]]:
                rows = api(product, "backends")["rows"]
                return sorted((row["backend"], row["live"]["in_flight"]) for row in rows)

            await_true(lambda: told() == asked, "all workers' requests in flight")
            for _ in range(12):  # each on a connection of its own, so on any worker
                assert told() == asked
                assert api(product, "now")["in_flight"] == 8
        assert len(dashboards(tmp_path)) == 1


def test_lost_records_of_all_workers_are_told(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the place of the folder")
    log = {"flush_ms": 10, "queue": 100}
    with pool.start(tmp_path, env=own_cache(tmp_path), log=log, server={"workers": 2}) as product:

        def lost() -> int:
            return int(product.get("/router/status")["log"]["dropped"])

        for _ in range(30):
            if lost():
                break
            for _ in range(20):
                assert where(ask(product)) in ("a", "b")
        assert lost()
        await_true(lambda: api(product, "meta")["log"]["dropped"] == lost(), "those of all workers")


def test_experiments_are_told_as_the_router_finds_them(tmp_path: Path) -> None:
    with trying.paced_backend() as backend, trying.start(tmp_path, backend, workers=2) as product:
        backend.set_script([chat_ok("The Danube.")])
        before = api(product, "experiments")["rows"]
        assert [(row["arm"], row["requests"]) for row in before] == [
            ("control", 0),
            ("slow", 0),
            ("same", 0),
        ]
        for number in range(24):
            trying.ask(product, f"s-{number}")
        post = httpx.post(f"{product.url}/router/experiments/pace/stop?arm=slow", timeout=30)
        assert post.status_code == 200
        product.wait_records(24)

        await_true(
            lambda: sum(row["requests"] for row in api(product, "experiments")["rows"]) == 24,
            "all records",
        )
        counted = trying.arms(product)
        for row in api(product, "experiments")["rows"]:
            arm, live = counted[row["arm"]], row["live"]
            assert (live["effect"], live["verdict"]) == (arm["effect"], arm["verdict"])
            assert (live["requests"], live["sessions"]) == (arm["requests"], arm["sessions"])
            is_out = row["arm"] == "slow"
            assert live["state"] == ("stopped" if is_out else "running")
            assert live["stopped_because"] == ("stopped by command" if is_out else None)
            assert live["control"] == (row["arm"] == "control")
        named = api(product, "experiments", arm="same", scenario="nothing-of-it")["rows"]
        assert [(row["arm"], row["requests"]) for row in named] == [("same", 0)]
        reply = httpx.get(
            f"{product.url}/dashboard/api/export?view=experiments&format=json", timeout=30
        )
        assert [row["live"]["state"] for row in reply.json()] == ["running", "stopped", "running"]

        product.policy_path.write_text(
            trying.POLICY.replace("[experiments.pace]", '[experiments.pace]\nstate = "stopped"')
        )
        product.signal(signal.SIGHUP)
        await_true(
            lambda: (
                [row["live"]["state"] for row in api(product, "experiments")["rows"]]
                == ["off", "stopped", "off"]
            ),
            "it is off",
        )


def test_a_kept_prompt_is_labelled_for_eval_and_suggest_and_explained(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = {"flush_ms": 10, "bodies": "on"}
    with pool.start(tmp_path, env=own_cache(tmp_path), log=log) as product:
        product.policy_path.write_text(
            'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
            '[scenarios.faq]\nmatch.keywords = ["refund"]\n'
        )
        product.signal(signal.SIGHUP)
        told = "/router/policy"
        await_true(lambda: "refund" in httpx.get(product.url + told, timeout=30).text, "the policy")
        abouts = (
            *("my invoice", "an invoice in euro", "the invoice of May, for me@example.org"),
            *("the tax on an invoice", "an invoice that is wrong", "rivers", "songs", "the sea"),
        )
        asked = [exchange(product.port, question(about=about)) for about in abouts]
        ids = [str(reply.header("x-request-id")) for reply in asked]
        product.wait_records(len(ids))
        await_true(lambda: api(product, f"requests/{ids[2]}")["body"] is not None, "its prompt")

        meta = api(product, "meta")
        assert (meta["bodies"], meta["can_label"], meta["can_explain"]) == ("on", True, True)
        opened = api(product, f"requests/{ids[2]}")
        assert opened["why_not"] == {"explain": None, "label": None}
        (message,) = opened["body"]["prompt"]
        assert "the invoice of May" in message["content"]
        assert "me@example.org" not in message["content"]
        place = f"{product.url}/dashboard/api/requests"
        explained = httpx.post(f"{place}/{ids[2]}/explain", json={}, timeout=30).json()
        assert (explained["now"]["scenario"], explained["differs"]) == ("chat", [])
        assert explained["notes"] == ["redacted"]
        for about, request_id in zip(abouts, ids, strict=True):
            label = {"scenario": "faq" if "invoice" in about else "chat"}
            reply = httpx.post(f"{place}/{request_id}/label", json=label, timeout=30)
            assert reply.status_code == 201, reply.text
        assert api(product, f"requests/{ids[0]}")["labels"][0]["scenario"] == "faq"

        labels, config = str(product.log_dir / "labels.jsonl"), str(product.config_path)
        assert commands.run(["eval", "--json", "--config", config, labels]) == 0
        measured = json.loads(capsys.readouterr().out)
        assert measured["rows"] == len(ids)
        assert commands.run(["suggest", "--config", config, labels]) == 0
        proposed = capsys.readouterr().out
        assert f"5 mistakes in {len(ids)} rows" in proposed
        assert "invoice" in proposed


def test_a_prompt_that_was_not_kept_cannot_be_labelled(product: Product) -> None:
    ask(product)
    product.wait_records(1)
    await_true(lambda: api(product, "requests")["total"] == 1, "one request")
    (row,) = api(product, "requests")["rows"]
    opened = api(product, f"requests/{row['request_id']}")
    assert opened["why_not"] == {"explain": "no_body", "label": "no_body"}
    assert api(product, "meta")["can_label"] is False


def test_an_hour_that_is_packed_meanwhile_is_counted_once(product: Product) -> None:
    for _ in range(5):
        ask(product)
    product.wait_records(5)
    await_true(lambda: api(product, "requests")["total"] == 5, "five requests")
    for path in product.log_dir.glob("requests-*.jsonl"):
        pack(path)
    ask(product)
    await_true(lambda: api(product, "requests")["total"] == 6, "six requests")
    assert sum(map(is_record, lines_in([product.log_dir]))) in (1, 6)
    assert api(product, "meta")["log"]["fault"] is None


def test_without_duckdb_there_is_a_page_that_says_so(pool: Pool, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "duckdb.py").write_text("raise ModuleNotFoundError('hidden', name='duckdb')\n")
    env = {**own_cache(tmp_path), "PYTHONPATH": str(hidden)}
    with pool.start(tmp_path, env=env) as product:
        page = httpx.get(product.url + "/dashboard", timeout=30)
        assert page.status_code == 503
        assert page.headers["content-type"].startswith("text/html")
        assert "pip install duckdb" in page.text
        reply = httpx.get(product.url + "/dashboard/api/meta", timeout=30)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "dashboard_unavailable"
        assert where(ask(product)) in ("a", "b")


def test_without_a_private_place_for_its_socket_it_finds_another(
    pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    env = {"SCENARIO_ROUTER_CACHE": str(tmp_path / "file")}
    with pool.start(tmp_path, env=env) as product:
        ask(product)
        product.wait_records(1)
        await_true(lambda: api(product, "requests")["total"] == 1, "one request")
