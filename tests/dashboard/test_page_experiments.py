"""Experiments in the browser: what the router makes of the arms, in both languages."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from playwright.async_api import Locator, Page, expect

from tests.dashboard.test_page_people import AXE, PHONE, RULES, STRAY
from tests.dashboard.test_page_views import settled
from tests.support import trying
from tests.support.logs import await_true
from tests.support.product import Product
from tests.support.rawclient import exchange, request_bytes
from tests.support.script import chat_ok, pause

_REQUESTS = 60
#: enough for an interval; the rail does not stop what it is not shown enough of
POLICY = trying.POLICY.replace("total_ratio = 1.01", "total_ratio = 1.01\nmin_requests = 1000")


def percent(ratio: float) -> str:
    """As the page says it, without its sign."""
    change = abs(ratio - 1)
    digits = 1 if 0 < change < 0.1 or 0.9 < change < 1 else 0
    return f"{change:,.{digits}%}"


def played(product: Product) -> dict[str, dict[str, Any]]:
    """The arms, once all requests are counted and one of them was stopped by hand."""
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda n: trying.ask(product, f"s-{n}"), range(_REQUESTS)))
    stop = request_bytes("POST", "/router/experiments/pace/stop?arm=same")
    assert exchange(product.port, stop).status == 200

    def read() -> int:
        rows = product.get("/dashboard/api/experiments")["rows"]
        return sum(row["requests"] for row in rows)

    await_true(lambda: read() == _REQUESTS, "all of the log is read")
    return trying.arms(product)


async def test_verdict_effect_and_why_an_arm_was_stopped_are_shown(
    page: Page, tmp_path: Path
) -> None:
    with trying.paced_backend() as backend:
        slowly = [pause(30), chat_ok("The Danube.")]
        rules = [{**rule, "steps": slowly} for rule in trying.answering()]
        backend.set_script([chat_ok("The Danube.")], rules=rules)
        with trying.start(tmp_path, backend, POLICY) as product:
            await page.goto(f"{product.url}/dashboard?view=experiments")
            await settled(page)
            await expect(_arm(page, "slow")).to_contain_text("too little seen yet")
            arms = played(product)
            await page.keyboard.press("r")
            await _is_told(page, arms, stopped="stopped by command")
            await expect(_arm(page, "slow")).to_contain_text("worse")
            await expect(page.locator("#view")).to_contain_text("experiment promote NAME")
            await _is_for_everybody(page)
            await page.get_by_role("button", name="中文").click()
            await _is_told(page, arms, stopped="由命令停止")
            await expect(_arm(page, "slow")).to_contain_text("更差")


async def _is_for_everybody(page: Page) -> None:
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    for scheme, rules in RULES.items():
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        found = await page.evaluate(f"axe.run('#view', {json.dumps(rules)})")
        assert [one["id"] for one in found["violations"]] == [], scheme
    wide = page.viewport_size
    assert wide is not None
    await page.set_viewport_size(PHONE)
    assert await page.evaluate(STRAY) <= 0
    await page.set_viewport_size(wide)


def _arm(page: Page, name: str) -> Locator:
    return page.locator(f"[data-experiment=pace] [data-arm={name}]")


async def _is_told(page: Page, arms: dict[str, dict[str, Any]], *, stopped: str) -> None:
    effect = arms["slow"]["effect"]
    assert arms["slow"]["verdict"] == "worse", effect
    for ratio in (effect["ratio"], effect["low"], effect["high"]):
        await expect(_arm(page, "slow")).to_contain_text(f"+{percent(ratio)}")
    await expect(_arm(page, "same")).to_contain_text(stopped)
    counts = page.locator("[data-experiment=pace] [data-arm] td:nth-child(4)")
    names = ("control", "slow", "same")  # control is first
    await expect(counts).to_have_text([str(arms[name]["requests"]) for name in names])
