"""The page among strangers: hostile records, a key, a router that goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from router import record
from tests.dashboard import traffic
from tests.dashboard.conftest import Watch
from tests.dashboard.test_page_views import VIEWS, settled
from tests.support.product import ROOT, Product

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
ID = "req-hostile-1"
PLAIN = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
POLICY = f'{PLAIN}[scenarios.faq]\nmatch.keywords = ["refund"]\npreset.thinking = false\n'


@contextmanager
def offline(folder: Path, *, port: int = 0) -> Iterator[str]:
    """`scenario-router dashboard` over a folder; its address."""
    command = [sys.executable, "-m", "router", "dashboard", "--json", "--no-open"]
    policy = folder.with_name("policy.toml")
    policy.write_text(POLICY, encoding="utf-8")
    process = subprocess.Popen(
        [*command, "--log-dir", str(folder), "--port", str(port), "--policy", str(policy)],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(60, process.kill)
    guard.start()
    try:
        assert process.stdout is not None
        told = next((line for line in process.stdout if line.startswith('{"dashboard"')), "")
        assert told, "the dashboard did not start"
        yield str(json.loads(told)["dashboard"]).rstrip("/").removesuffix("/dashboard")
    finally:
        guard.cancel()
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def hostile_folder(folder: Path) -> Path:
    """A log in which every word tries to be markup, with one prompt that was kept."""
    now = time.time()
    hour = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H")
    line: dict[str, Any] = {
        **json.loads(record.line(record.Record())),
        "ts": record.timestamp(now),
        "request_id": ID,
        "turns": 1,
        "status": 200,
        "outcome": "ok",
        "stream": True,
        "thinking": True,
        "confidence": 0.5,
        "total_ms": 12.5,
        "ttft_ms": 3.0,
        "output_tokens": 5,
        "affinity": "moved",
        "endpoint": "chat.completions",
        "params": {HOSTILE: [HOSTILE, HOSTILE, HOSTILE]},
        "signals": [HOSTILE],
        "warnings": [HOSTILE],
        "cache_miss": HOSTILE,
        "cache_hint": HOSTILE,
    }
    for name in ("scenario", "source", "session", "key", "client_model", "backend", "policy"):
        line[name] = HOSTILE
    for name in ("backend_model", "dialect", "pool", "experiment", "arm", "lang", "trace_id"):
        line[name] = HOSTILE
    for name in ("finish_reason", "error_code", "moved_because"):
        line[name] = HOSTILE
    again = {**line, "request_id": f"{ID}-shadow", "shadow": True}
    folder.mkdir(parents=True)
    lines = f"{json.dumps(line)}\n{json.dumps(again)}\n"
    (folder / f"requests-{hour}.jsonl").write_text(lines, encoding="utf-8")
    body = {
        "request_id": ID,
        "ts": line["ts"],
        "prompt": [
            {"role": "system", "text": HOSTILE, "parts": [HOSTILE]},
            {"role": "user", "text": "Where is my refund?", "parts": []},
        ],
        "answer": HOSTILE,
        "redacted": {"email": 2},
        "cut": False,
    }
    (folder / f"bodies-{hour}.jsonl").write_text(json.dumps(body) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A dashboard over hostile records, and their folder."""
    folder = hostile_folder(tmp_path_factory.mktemp("stranger") / "logs")
    with offline(folder) as url:
        yield url, folder


async def test_what_a_log_says_stays_text(page: Page, stranger: tuple[str, Path]) -> None:
    url, _ = stranger
    for view in VIEWS:
        await page.goto(f"{url}/dashboard?view={view}&scenario={HOSTILE}")
        await settled(page)
        await expect(page.locator(".chip")).to_contain_text(HOSTILE)
        assert await page.locator("img[src=x], #app script").count() == 0, view
    await page.locator("#view tbody tr").click()
    drawer = page.get_by_role("dialog")
    for part in (".signals", ".warnings", ".params", ".answer-text", ".facts"):
        await expect(drawer.locator(part).filter(has_text=HOSTILE).first).to_be_visible()
    assert await page.locator("img[src=x], #app script").count() == 0


async def test_a_label_is_written_and_shown(page: Page, stranger: tuple[str, Path]) -> None:
    url, folder = stranger
    await page.goto(f"{url}/dashboard?view=requests&open={ID}")
    form = page.locator(".label-form")
    await form.get_by_label("Scenario").select_option("faq")
    await form.get_by_label("Thinking").select_option("false")
    await form.get_by_label("Note").fill(HOSTILE)
    await form.get_by_role("button", name="Write it down").click()
    await expect(page.locator("#label")).to_contain_text("Written")
    await expect(page.locator(".labels")).to_contain_text(HOSTILE)

    written = (folder / "labels.jsonl").read_text(encoding="utf-8").splitlines()
    (row,) = map(json.loads, written)
    assert (row["label"], row["think"], row["note"]) == ("faq", False, HOSTILE)
    assert row["messages"][1]["content"] == "Where is my refund?"
    await page.reload()
    await expect(page.locator(".labels")).to_contain_text("faq")


async def test_it_is_explained_again_by_the_policy_on_disk(
    page: Page, stranger: tuple[str, Path]
) -> None:
    url, _ = stranger
    await page.goto(f"{url}/dashboard?view=requests&open={ID}")
    await page.get_by_role("button", name="Explain again").click()
    table = page.locator(".explained")
    await expect(table.locator("tr", has_text="Scenario")).to_contain_text("faq")
    await expect(table.locator("tr", has_text="Scenario")).to_contain_text("differs")
    await expect(page.locator("#explain")).to_contain_text("keyword refund")


async def test_a_repeat_is_found_by_a_filter_and_leads_to_its_request(
    page: Page, stranger: tuple[str, Path]
) -> None:
    url, _ = stranger
    await page.goto(f"{url}/dashboard?view=requests")
    await settled(page)
    await expect(page.locator(".pages .note")).to_contain_text("of 1 ")
    await page.keyboard.press("/")
    await page.keyboard.type("repeat")
    await page.get_by_role("option", name="Repeat").click()
    row = page.locator(f'tr[data-key="{ID}-shadow"]')
    await expect(row.locator(".badge", has_text="repeat")).to_be_visible()
    await row.click()
    drawer = page.get_by_role("dialog")
    await expect(drawer.locator(".notice").first).to_contain_text("in the background")
    await expect(drawer.locator("#label")).to_contain_text("no prompt of its own")
    await drawer.get_by_role("link", name=ID, exact=True).click()
    await expect(page.get_by_role("dialog", name=ID)).to_be_visible()
    await expect(page.locator(".label-form")).to_be_visible()


async def test_without_an_answer_it_says_so_and_comes_back(
    page: Page, watch: Watch, tmp_path: Path
) -> None:
    folder = hostile_folder(tmp_path / "logs")
    with offline(folder) as url:
        await page.goto(f"{url}/dashboard?view=requests")
        await settled(page)
    await page.keyboard.press("r")
    await expect(page.locator(".fault")).to_contain_text("does not answer")
    await expect(page.locator("#view tbody tr")).to_have_count(1)
    with offline(folder, port=int(url.rsplit(":", 1)[1])):
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".fault")).to_have_count(0)
    # The browser itself tells of each request that found nobody.
    assert all("ERR_CONNECTION_REFUSED" in said for said in watch.complaints)
    watch.complaints.clear()


async def test_the_key_is_asked_for_and_kept_for_the_tab(
    page: Page, watch: Watch, tmp_path: Path
) -> None:
    with traffic.backend() as backend:
        config = traffic.config({"one": backend})
        config["server"] = {"admin_key_env": "DASHBOARD_KEY"}
        env = {"DASHBOARD_KEY": "right"}
        with Product.start(tmp_path, config, policy=PLAIN, env=env) as product:
            traffic.ask(product, "Hello?")
            product.wait_records(1)
            await page.goto(f"{product.url}/dashboard?view=requests")
            field = page.get_by_label("Admin key")
            await field.fill("wrong")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("alert")).to_contain_text("not the admin key")
            await field.fill("right")
            await page.keyboard.press("Enter")
            await expect(page.locator(".pages .note")).to_contain_text("of 1 ")
            await page.reload()
            await settled(page)
            assert await page.evaluate("localStorage.length") == 0
            async with page.expect_download() as downloading:
                await page.get_by_role("button", name="Save what is shown as JSON").click()
            path = await (await downloading.value).path()
            assert len(json.loads(path.read_text(encoding="utf-8"))) == 1
    assert all("401" in said for said in watch.complaints)
    watch.complaints.clear()
