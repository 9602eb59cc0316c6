"""Every view of the dashboard, asked by a client, beside counts made from the log's lines."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from router import capabilities
from router.commands import run
from router.dashboard import export
from router.dashboard.again import Again
from router.evaluation import rows_of
from router.record import Record
from tests.support.logs import await_true, dashboard, made, records_in, write

POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.faq]
match.keywords = ["parcel"]
preset.thinking = { fill = false }
preset.max_new_tokens = { cap = 64 }
[scenarios.chat]
[scenarios.code]
"""
CONFIG = """
[policy]
file = "policy.toml"
[[backends]]
name = "a"
url = "http://127.0.0.1:9"
dialect = "auto"
model = "m"
"""
COUNT = 2400
#: requests that were asked once more in the background
REPEATS = 5
JSON = {"Content-Type": "application/json"}
Row = dict[str, Any]


def body(number: int, text: str, **fields: Any) -> bytes:
    told = {
        "schema": 1,
        "ts": "",
        "request_id": f"req-{number:06d}",
        "scenario": "faq",
        "prompt": [{"role": "user", "text": text, "parts": []}],
        "answer": "tomorrow <b>&",
        "reasoning": None,
        "cut": False,
        "redacted": {},
    }
    return msgspec.json.encode({**told, **fields}) + b"\n"


def repeat(number: int) -> Record:
    """Of a request, later than all of them and at a backend that has no other."""
    fields: Row = {"experiment": "pace", "arm": "slow", "backend": "z", "scenario": "faq"}
    name = f"req-{number:06d}-shadow"
    return made(number, ago_s=0, request_id=name, shadow=True, **fields)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dashboard")


@pytest.fixture(scope="module")
def logs(place: Path) -> Path:
    folder = place / "logs"
    found = [made(number) for number in range(COUNT)]
    found.append(
        made(COUNT, request_id="<script>alert(1)</script>", client_model="../../etc/passwd")
    )
    fields: Row = {"scenario": "faq", "endpoint": "embeddings", "params": {}, "confidence": None}
    found.append(made(COUNT + 1, ago_s=5, **fields))
    found += [repeat(number) for number in range(REPEATS)]
    write(folder, found)
    for number in (4, 8, 12, 16):
        record = found[number]
        hour = record.ts[:13].replace("-", "")
        with (folder / f"bodies-{hour}.jsonl").open("ab") as file:
            more = {"cut": True, "redacted": {"email": 1}} if number == 8 else {}
            file.write(body(number, "Where is my parcel?", **more))
    # A packed hour, and lines that are nobody's.
    oldest = min(folder.glob("requests-*.jsonl"))
    oldest.with_name(oldest.name + ".gz").write_bytes(gzip.compress(oldest.read_bytes()))
    oldest.unlink()
    newest = max(folder.glob("requests-*.jsonl"))
    with newest.open("ab") as file:
        file.write(b'{"torn": \n')
    return folder


@pytest.fixture(scope="module")
def client(place: Path, logs: Path) -> Iterator[httpx.Client]:
    (place / "config.toml").write_text(CONFIG)
    (place / "policy.toml").write_text(POLICY)
    config = str(place / "config.toml")
    with dashboard(logs, "--config", config, cache=place / "cache") as found:
        await_true(
            lambda: found.get("meta").json()["log"]["records"] == COUNT + 2 + REPEATS,
            "all of it is read",
        )
        yield found


@pytest.fixture(scope="module")
def rows(logs: Path) -> list[Row]:
    """What counts."""
    return [row for row in records_in([logs]) if not row["shadow"]]


def ask(client: httpx.Client, view: str, **query: Any) -> Any:
    reply = client.get(view, params={"from": "-1d", **query})
    assert reply.status_code == 200, reply.text
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"
    return reply.json()


def is_error(row: Row) -> bool:
    return row["outcome"] not in ("ok", "client_disconnect")


def quantile(values: list[float], share: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def told(rows: list[Row], name: str) -> list[Any]:
    return [row[name] for row in rows if row[name] is not None]


# --- views -------------------------------------------------------------------------


def test_meta_says_what_there_is(client: httpx.Client, rows: list[Row], logs: Path) -> None:
    meta = ask(client, "meta")
    log = meta["log"]

    lines = len(rows) + REPEATS
    assert (log["records"], log["skipped_lines"], log["fault"]) == (lines, 1, None)
    assert log["dropped"] is None
    assert log["reading"]["done"] == log["reading"]["total"] > 0
    assert log["first"] == min(row["ts"] for row in rows)
    assert log["last"] == max(row["ts"] for row in rows)
    assert meta["offline"] is True
    assert meta["bodies"] == "on"
    assert meta["can_explain"] is True
    assert meta["can_label"] is True
    for name, field in (
        ("scenarios", "scenario"),
        ("backends", "backend"),
        ("outcomes", "outcome"),
        ("sources", "source"),
        ("keys", "key"),
    ):
        assert meta[name] == sorted(set(told(rows, field)))
    await_true(
        lambda: ask(client, "meta")["policy_scenarios"] == ["faq", "chat", "code"], "the policy"
    )


def test_scenarios_are_counted_and_timed(client: httpx.Client, rows: list[Row]) -> None:
    answer = {row["scenario"]: row for row in ask(client, "scenarios")["rows"]}

    assert sum(row["requests"] for row in answer.values()) == len(rows)
    for name in ("faq", "chat", "code", None):
        mine = [row for row in rows if row["scenario"] == name]
        got = answer[name]
        assert got["requests"] == len(mine)
        assert got["share"] == pytest.approx(len(mine) / len(rows))
        assert got["ttft_p50"] == pytest.approx(quantile(told(mine, "ttft_ms"), 0.5))
        assert got["total_p95"] == pytest.approx(quantile(told(mine, "total_ms"), 0.95))
        assert got["output_tokens"] == sum(told(mine, "output_tokens"))
        assert got["reasoning_tokens"] == sum(told(mine, "reasoning_tokens"))
        assert got["thinking_share"] == pytest.approx(fmean(told(mine, "thinking")))
        assert got["truncated"] == sum(row["finish_reason"] == "length" for row in mine)
        assert got["errors"] == sum(map(is_error, mine))
        bins = Counter(min(int(sure * 10 + 1e-9), 9) for sure in told(mine, "confidence"))
        assert got["confidence"] == [bins[number] for number in range(10)]
        assert got["sources"] == Counter(told(mine, "source"))


def test_a_series_adds_up(client: httpx.Client, rows: list[Row]) -> None:
    answer = ask(client, "series", points=48)

    assert len(answer["t"]) == 48
    assert answer["t"][1] - answer["t"][0] == pytest.approx(answer["step_s"], abs=0.002)
    assert sum(answer["requests"]) == len(rows)
    assert sum(answer["errors"]) == sum(map(is_error, rows))
    assert sum(answer["output_tokens"]) == sum(told(rows, "output_tokens"))
    assert sum(map(sum, answer["by_scenario"].values())) == len(rows)
    for requests, ttft in zip(answer["requests"], answer["ttft_p50"], strict=True):
        assert (ttft is None) == (requests == 0)
    fullest = max(range(48), key=lambda at: answer["requests"][at])
    begin, end = answer["t"][fullest], answer["t"][fullest] + answer["step_s"]
    mine = [row for row in rows if begin <= datetime.fromisoformat(row["ts"]).timestamp() < end]
    assert abs(answer["requests"][fullest] - len(mine)) <= 2  # `from` moves with the clock


def test_backends_say_where_requests_went(client: httpx.Client, rows: list[Row]) -> None:
    answer = ask(client, "backends")

    assert [row["backend"] for row in answer["rows"]] == ["a", "b"]
    for got in answer["rows"]:
        mine = [row for row in rows if row["backend"] == got["backend"]]
        assert got["requests"] == len(mine)
        assert got["errors"] == sum(map(is_error, mine))
        assert {k: n for k, n in got["affinity"].items() if n} == Counter(told(mine, "affinity"))
        cached = sum(told(mine, "cached_tokens")) / sum(told(mine, "input_tokens"))
        assert got["cached_share"] == pytest.approx(cached)
        assert got["tpot_p50"] == 5.0
        assert got["live"] is None


def test_sessions_are_paged_and_sorted(client: httpx.Client, rows: list[Row]) -> None:
    turns = Counter(told(rows, "session"))
    whole = ask(client, "sessions", sort="turns")
    assert whole["total"] == len(turns)
    assert [row["turns"] for row in whole["rows"]] == sorted(turns.values(), reverse=True)
    paged = [
        row["session"]
        for offset in range(0, 9, 3)
        for row in ask(client, "sessions", sort="session", order="asc", limit=3, offset=offset)[
            "rows"
        ]
    ]
    assert paged == sorted(turns)
    (one,) = ask(client, "sessions", session="s3")["rows"]
    mine = [row for row in rows if row["session"] == "s3"]
    assert one["scenarios"] == Counter(told(mine, "scenario"))
    assert one["backends"] == sorted(set(told(mine, "backend")))
    assert one["moved"] == sum(row["affinity"] == "moved" for row in mine)
    assert (one["first"], one["last"]) == (min(r["ts"] for r in mine), max(r["ts"] for r in mine))
    beyond = ask(client, "sessions", offset=1000)
    assert (beyond["total"], beyond["rows"]) == (len(turns), [])


def test_requests_are_sorted_by_any_column_with_none_last(
    client: httpx.Client, rows: list[Row]
) -> None:
    for sort in ("ts", "ttft_ms", "total_ms", "scenario", "backend", "output_tokens", "confidence"):
        for order in ("asc", "desc"):
            answer = ask(client, "requests", sort=sort, order=order, limit=500)
            assert answer["total"] == len(rows)
            got = [row[sort] for row in answer["rows"]]
            known = sorted(told(rows, sort), reverse=order == "desc")
            expected = [*known, *[None] * (len(rows) - len(known))]
            assert got == expected[:500]


def test_pages_of_requests_are_the_whole_once(client: httpx.Client, rows: list[Row]) -> None:
    seen = [
        row["request_id"]
        for offset in range(0, len(rows), 500)
        for row in ask(client, "requests", sort="confidence", limit=500, offset=offset)["rows"]
    ]
    assert Counter(seen) == Counter(row["request_id"] for row in rows)


FILTERS: list[tuple[dict[str, Any], Callable[[Row], bool]]] = [
    ({"scenario": "faq"}, lambda r: r["scenario"] == "faq"),
    ({"scenario": ["faq", "code"]}, lambda r: r["scenario"] in ("faq", "code")),
    ({"scenario": ["faq", "(none)"]}, lambda r: r["scenario"] in ("faq", None)),
    ({"backend": "(none)"}, lambda r: r["backend"] is None),
    ({"outcome": "upstream_error"}, lambda r: r["outcome"] == "upstream_error"),
    ({"source": "learned"}, lambda r: r["source"] == "learned"),
    ({"model": "=cmd()"}, lambda r: r["client_model"] == "=cmd()"),
    ({"session": "s3"}, lambda r: r["session"] == "s3"),
    ({"key": "web"}, lambda r: r["key"] == "web"),
    ({"stream": "true"}, lambda r: r["stream"]),
    ({"thinking": "false"}, lambda r: r["thinking"] is False),
    ({"finish_reason": "length"}, lambda r: r["finish_reason"] == "length"),
    ({"slow_ms": "500"}, lambda r: r["total_ms"] >= 500),
    ({"q": "req-0001"}, lambda r: r["request_id"].startswith("req-0001")),
    ({"q": "<script>"}, lambda r: r["request_id"].startswith("<script>")),
    ({"scenario": "nobody's"}, lambda r: False),
    ({"scenario": "' OR 1=1 --"}, lambda r: False),
    (
        {"scenario": "faq", "stream": "true", "slow_ms": "300"},
        lambda r: r["scenario"] == "faq" and r["stream"] and r["total_ms"] >= 300,
    ),
]


@pytest.mark.parametrize(("query", "fits"), FILTERS, ids=[str(query) for query, _ in FILTERS])
def test_a_filter_is_the_same_on_every_view(
    client: httpx.Client, rows: list[Row], query: dict[str, Any], fits: Callable[[Row], bool]
) -> None:
    mine = [row for row in rows if fits(row)]

    assert ask(client, "requests", **query)["total"] == len(mine)
    assert sum(row["requests"] for row in ask(client, "scenarios", **query)["rows"]) == len(mine)
    assert sum(ask(client, "series", **query)["requests"]) == len(mine)
    with_backend = [row for row in mine if row["backend"] is not None]
    found = ask(client, "backends", **query)["rows"]
    assert sum(row["requests"] for row in found) == len(with_backend)
    assert ask(client, "sessions", **query)["total"] == len(set(told(mine, "session")))
    assert ask(client, "savings", **query)["total"]["requests"] == len(mine)


def test_repeats_count_in_no_view_but_are_found(client: httpx.Client, rows: list[Row]) -> None:
    assert ask(client, "experiments")["rows"] == []
    assert ask(client, "requests", q="req-000001-")["total"] == 0
    found = ask(client, "requests", shadow="true", sort="ts", order="asc")
    assert {row["request_id"] for row in found["rows"]} == {
        f"req-{number:06d}-shadow" for number in range(REPEATS)
    }
    assert all(row["shadow"] for row in found["rows"])
    assert ask(client, "requests", shadow=["true", "false"])["total"] == len(rows) + REPEATS
    (arm,) = ask(client, "experiments", shadow="true")["rows"]
    assert (arm["arm"], arm["requests"], arm["live"]) == ("slow", REPEATS, None)

    one = ask(client, "requests/req-000004-shadow")
    assert one["record"]["shadow"] is True
    assert one["why_not"] == {"explain": "repeat", "label": "repeat"}


def test_a_range_has_its_ends(client: httpx.Client, rows: list[Row]) -> None:
    times = sorted(row["ts"] for row in rows)
    begin, end = times[100], times[-100]
    answer = ask(client, "requests", **{"from": begin, "to": end})
    assert answer["total"] == sum(begin <= at <= end for at in times)
    with_zone = begin.replace("Z", "+00:00")
    assert ask(client, "requests", **{"from": with_zone, "to": end})["total"] == answer["total"]


@pytest.mark.parametrize(
    ("view", "query", "param"),
    [
        ("requests", {"from": "yesterday"}, "from"),
        ("requests", {"to": "-99999999d"}, "to"),
        ("requests", {"from": "now", "to": "-1h"}, "from"),
        ("requests", {"limit": "many"}, "limit"),
        ("requests", {"offset": "-1"}, "offset"),
        ("requests", {"sort": "1; DROP TABLE requests"}, "sort"),
        ("requests", {"order": "up"}, "order"),
        ("requests", {"stream": "maybe"}, "stream"),
        ("requests", {"slow_ms": "nan"}, "slow_ms"),
        ("requests", {"scenario": "x" * 301}, "scenario"),
        ("series", {"points": "2.5"}, "points"),
        ("export", {"view": "../secrets"}, "view"),
        ("export", {"format": "exe"}, "format"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_name(
    client: httpx.Client, view: str, query: dict[str, str], param: str
) -> None:
    reply = client.get(view, params=query)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_live_is_about_the_last_seconds(client: httpx.Client, logs: Path) -> None:
    events = []
    with client.stream("GET", "live") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        for line in reply.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
            if len(events) == 2:
                break
    assert events[1]["t"] > events[0]["t"]
    assert events[0]["window_s"] == 30
    assert events[0]["in_flight"] is None
    assert set(events[0]["ttft_ms"]) == {"p50", "p95"}


# --- one request -------------------------------------------------------------------


def test_a_request_is_opened_with_its_whole_line(client: httpx.Client, rows: list[Row]) -> None:
    answer = ask(client, "requests/req-000004")
    assert answer["record"] == next(row for row in rows if row["request_id"] == "req-000004")
    (message,) = answer["body"]["prompt"]
    assert message == {"role": "user", "content": "Where is my parcel?", "parts": []}
    assert answer["body"]["answer"] == "tomorrow <b>&"
    assert answer["why_not"] == {"explain": None, "label": None}
    without = ask(client, "requests/req-000005")
    assert without["body"] is None
    assert without["why_not"] == {"explain": "no_body", "label": "no_body"}
    packed = min(rows, key=lambda row: row["ts"])
    assert ask(client, f"requests/{quote(packed['request_id'], safe='')}")["record"] == packed


@pytest.mark.parametrize(
    "name", ["nobody", "..%2F..%2Fetc%2Fpasswd", "%00", "x" * 5000, "%ff%fe", "*"]
)
def test_an_id_that_is_none_leads_nowhere(client: httpx.Client, name: str) -> None:
    for reply in (
        client.get(f"requests/{name}"),
        client.post(f"requests/{name}/explain", headers=JSON),
    ):
        assert reply.status_code == 404, reply.text
        assert reply.json()["error"]["code"] == "not_found"


def test_text_of_clients_is_data(client: httpx.Client) -> None:
    reply = client.get("requests/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["record"]["client_model"] == "../../etc/passwd"


def test_a_label_is_a_row_that_eval_reads(
    client: httpx.Client, logs: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {"scenario": "chat", "thinking": False, "note": "=not a formula"}
    reply = client.post("requests/req-000012/label", json=wanted)
    assert reply.status_code == 201, reply.text

    (row,) = rows_of((logs / "labels.jsonl").read_bytes())
    assert (row.id, row.labels, row.think, row.source) == (
        "req-000012",
        ("chat",),
        False,
        "dashboard",
    )
    assert row.messages == ({"role": "user", "content": "Where is my parcel?"},)
    (label,) = ask(client, "requests/req-000012")["labels"]
    assert {**label, "ts": ""} == {**wanted, "ts": ""}
    assert ask(client, "requests/req-000004")["labels"] == []
    config = str(place / "config.toml")
    assert run(["eval", "--json", "--config", config, str(logs / "labels.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 1


@pytest.mark.parametrize(
    ("request_id", "sent", "status", "code"),
    [
        ("req-000005", {"scenario": "faq"}, 409, "no_body"),
        ("req-000004", {"scenario": ""}, 400, "invalid_value"),
        ("req-000004", {"scenario": 7}, 400, "invalid_value"),
        ("req-000004", {"scenario": "faq", "file": "/etc/passwd"}, 400, "invalid_value"),
        ("req-000004", ["faq"], 400, "invalid_value"),
        ("req-000004", {"scenario": "faq", "note": "x" * 70_000}, 413, "request_too_large"),
    ],
)
def test_a_label_that_cannot_be_made_says_why(
    client: httpx.Client, request_id: str, sent: Any, status: int, code: str
) -> None:
    reply = client.post(f"requests/{request_id}/label", json=sent)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


def test_a_request_is_decided_again_by_the_policy_on_the_disk(
    client: httpx.Client, place: Path
) -> None:
    def explained(number: int) -> Any:
        reply = client.post(f"requests/req-{number:06d}/explain", headers=JSON)
        assert reply.status_code == 200, reply.text
        return reply.json()

    first = explained(4)
    assert first["then"]["scenario"] == "faq"
    assert first["now"]["scenario"] == "faq"
    assert first["now"]["source"] == "keyword"
    assert first["now"]["params"]["max_new_tokens"] == [None, 64, "cap"]
    assert first["now"]["params"]["thinking"] == [None, False, "fill"]
    assert "params.thinking" in first["differs"]
    assert "scenario" not in first["differs"]
    assert first["notes"] == []
    assert explained(8)["notes"] == ["cut", "redacted"]

    (place / "policy.toml").write_text(POLICY.replace("parcel", "refund"))
    try:
        second = explained(4)
        assert second["now"]["scenario"] == "chat"
        assert "scenario" in second["differs"]
        assert second["now"]["policy"] != first["now"]["policy"]
        (place / "policy.toml").write_text("schema = 1\nnonsense")
        reply = client.post("requests/req-000004/explain", headers=JSON)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "bad_policy")
    finally:
        (place / "policy.toml").write_text(POLICY)
    assert explained(4)["now"]["policy"] == first["now"]["policy"]


@pytest.mark.parametrize(("model", "sent"), [("m", None), ("another", 64)])
def test_it_is_said_to_the_server_as_it_was_examined(
    client: httpx.Client, place: Path, model: str, sent: int | None
) -> None:
    """Request 12 was at a backend whose dialect is found out."""
    seen = capabilities.Capabilities(
        url="http://127.0.0.1:9",
        time="",
        engine="vllm",
        version=None,
        model=model,
        dialect="vllm",
        knobs={"max_new_tokens": "ignored"},
    )
    path = capabilities.path_for(seen.url, place / "cache")
    path.parent.mkdir(parents=True, exist_ok=True)
    capabilities.write(path, seen)
    try:
        reply = client.post("requests/req-000012/explain", headers=JSON)
    finally:
        path.unlink()
    assert reply.json()["now"]["params"]["max_new_tokens"] == [None, sent, "cap"]


def test_what_cannot_be_explained_says_why(client: httpx.Client, rows: list[Row]) -> None:
    for request_id, code in (
        ("req-000005", "no_body"),
        (f"req-{COUNT + 1:06d}", "not_classified"),
        ("req-000003", "not_classified"),
    ):
        reply = client.post(f"requests/{request_id}/explain", headers=JSON)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, code)


# --- export ------------------------------------------------------------------------


def test_an_export_is_what_is_shown(client: httpx.Client, rows: list[Row]) -> None:
    query = {"from": "-1d", "scenario": "faq", "sort": "total_ms"}
    as_json = client.get("export", params={**query, "view": "requests", "format": "json"})
    as_csv = client.get("export", params={**query, "view": "requests", "format": "csv"})

    shown = ask(client, "requests", limit=500, **query)
    assert as_json.json()[:500] == shown["rows"]
    assert len(as_json.json()) == shown["total"] == int(as_json.headers["x-export-total"])
    assert "x-export-cut" not in as_json.headers
    assert as_csv.headers["content-disposition"].startswith("attachment; filename=")
    lines = list(csv.DictReader(io.StringIO(as_csv.text)))
    assert [line["request_id"] for line in lines] == [row["request_id"] for row in as_json.json()]
    for view in ("scenarios", "backends", "sessions", "experiments", "series", "savings"):
        for kind in ("csv", "json"):
            reply = client.get("export", params={"from": "-1d", "view": view, "format": kind})
            assert reply.status_code == 200
            if kind == "json" and view in ("scenarios", "backends", "sessions"):
                assert reply.json() == ask(client, view)["rows"]


def test_no_cell_is_a_formula(client: httpx.Client) -> None:
    reply = client.get("export", params={"from": "-1d", "model": "=cmd()", "format": "csv"})
    models = {line["client_model"] for line in csv.DictReader(io.StringIO(reply.text))}
    assert models == {"'=cmd()"}


def test_an_export_of_nothing_is_whole() -> None:
    assert export.whole([], "json") == b"[]"
    assert json.loads(export.whole([{"a": None, "b": [1]}], "json")) == [{"a": None, "b": [1]}]
    assert export.whole([{"a": None, "b": [1], "c": -5}], "csv") == b"a,b,c\r\n,[1],-5\r\n"


# --- who may ask -------------------------------------------------------------------


def test_another_site_may_not_write(client: httpx.Client) -> None:
    place = "requests/req-000004/label"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        reply = client.post(place, json={"scenario": "faq"}, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "cross_origin")
    reply = client.post(
        place, content=b'{"scenario": "faq"}', headers={"Content-Type": "text/plain"}
    )
    assert (reply.status_code, reply.json()["error"]["code"]) == (415, "not_json")


def test_alone_it_answers_to_its_own_address_only(client: httpx.Client) -> None:
    reply = client.get("meta", headers={"Host": "rebound.example"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "wrong_host")


def test_the_page_may_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    base = str(client.base_url).removesuffix("api/")
    page = client.get(base.rstrip("/"))
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    again = client.get(base.rstrip("/"), headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    moved = client.get(base + "?view=requests")
    assert moved.status_code == 302
    assert moved.headers["location"] == "../dashboard?view=requests"
    for name in ("nothing.js", "../api.py", "%2e%2e/api.py", "..%2fapi.py", "__init__.py"):
        assert client.get(base + "static/" + name).status_code == 404


def test_an_hour_that_is_deleted_is_gone_from_the_views(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write(logs, [made(number, ago_s=5) for number in range(20)])
    write(logs, [made(number, ago_s=7200) for number in range(30)])
    with dashboard(logs, cache=tmp_path / "cache") as client:
        await_true(lambda: ask(client, "requests")["total"] == 50, "all hours")
        min(logs.glob("requests-*.jsonl")).unlink()
        await_true(lambda: ask(client, "requests")["total"] == 20, "the hour that is left")


def test_a_view_says_what_it_took_unless_nothing_has_come_since(client: httpx.Client) -> None:
    asked = {"from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"}
    first, again = (client.get("scenarios", params=asked) for _ in range(2))
    assert float(first.headers["server-timing"].removeprefix("view;dur=")) > 0
    assert "server-timing" not in again.headers
    assert first.content == again.content


def test_without_a_configuration_there_is_no_policy_to_read() -> None:
    again = Again(None, None)
    again.warm_up()
    assert again.scenarios is None
