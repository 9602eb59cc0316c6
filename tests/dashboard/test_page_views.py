"""The page as people use it: in a real browser, before a router that answers requests."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import signal
from collections import Counter
from datetime import datetime
from typing import Any

from playwright.async_api import Browser, Locator, Page, Route, expect

from tests.dashboard import traffic
from tests.dashboard.conftest import ROUNDS, Log, Watch

VIEWS = ("now", "scenarios", "savings", "backends", "sessions", "experiments", "requests")
NAMES = ("Now", "Scenarios", "Savings", "Backends", "Sessions", "Experiments", "Requests")
_PAGE_SIZE = 50
#: the page asks again after it; the page calls a stream stale after it
_REFRESH_MS, _SILENCE_MS = 5_100, 6_100


async def opened(page: Page, log: Log, query: str = "") -> None:
    """The page, once its view has an answer."""
    await page.goto(log.url + query)
    await settled(page)


async def settled(page: Page) -> None:
    await expect(page.locator("#view .panel").first).to_be_visible()
    await expect(page.locator(".waiting")).to_have_count(0)
    await expect(page.locator(".is-old:not(.tiles)")).to_have_count(0)


async def row_of(page: Page, name: str) -> list[str]:
    """The words in the cells of a table's row, the first line of each."""
    row = page.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True))
    cells = await row.locator("th, td").all_inner_texts()
    return [cell.split("\n")[0].strip() for cell in cells]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def rows(page: Page) -> Locator:
    return page.locator("#view tbody tr")


async def total(page: Page) -> int:
    """How many rows there are on all pages together."""
    words = await page.locator(".pages .note").inner_text()
    return number(words.split(" of ")[1].split()[0])


# --- all views ---


async def test_every_view_opens_by_a_click_and_has_an_address(
    page: Page, log: Log, watch: Watch
) -> None:
    await opened(page, log)
    await expect(page.locator(".live-state")).to_have_text("live")
    for view, name in zip(VIEWS, NAMES, strict=True):
        await page.get_by_role("navigation", name="Views").get_by_role("link", name=name).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(name)
        await settled(page)
        assert (f"view={view}" in page.url) == (view != "now")
        await expect(page.locator(".fault")).to_have_count(0)
    await page.go_back()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Experiments")
    assert {path.split("?")[0] for path in watch.views()} >= {"meta", "live", "series", *VIEWS[1:]}


async def test_only_the_view_that_is_seen_asks(page: Page, log: Log, watch: Watch) -> None:
    await opened(page, log, "?view=scenarios")
    await page.keyboard.press("r")
    await expect(page.locator(".loading-bar.busy")).to_have_count(0)

    assert set(watch.views()) == {"meta", "scenarios"}


# --- numbers ---


async def test_the_numbers_are_those_of_the_log(page: Page, log: Log) -> None:
    await opened(page, log, "?view=scenarios")
    for name, requests in Counter(record["scenario"] for record in log.records).items():
        cells = await row_of(page, name or "unclassified")
        of_it = log.of(scenario=name)
        assert number(cells[1]) == requests
        assert cells[2] == _percent(requests / len(log.records))
        assert number(cells[6]) == sum(record["output_tokens"] or 0 for record in of_it)
        cut_off = sum(record["finish_reason"] == "length" for record in of_it)
        assert number(cells[8]) == cut_off
        assert number(cells[11]) == sum(_is_error(record) for record in of_it)
    assert number(await page.locator("tfoot td").first.inner_text()) == len(log.records)

    await opened(page, log)
    summed = page.locator("[data-sum=requests] b")
    await expect(summed.nth(0)).to_have_text(f"{len(log.records):,}")
    await expect(summed.nth(1)).to_have_text(str(sum(map(_is_error, log.records))))


async def test_a_median_is_the_median_of_the_log(page: Page, log: Log) -> None:
    await opened(page, log, "?view=scenarios&scenario=faq")
    shown = (await row_of(page, "faq"))[4]
    times = sorted(record["total_ms"] for record in log.of(scenario="faq"))
    middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2

    assert shown.endswith("ms")
    assert abs(float(shown.split("\u00a0")[0]) - middle) <= 0.5


async def test_backends_and_sessions_are_counted(page: Page, log: Log) -> None:
    await opened(page, log, "?view=backends")
    for name in ("one", "two"):
        card = page.locator(f"[data-backend={name}]")
        of_it = log.of(backend=name)
        await expect(card.locator(".badge").first).to_have_text("up")
        await expect(card.locator(".fact", has_text="Requests").locator("dd")).to_have_text(
            str(len(of_it))
        )
        stays = Counter(record["affinity"] for record in of_it)
        words = await card.get_by_role("img", name="Sessions").get_attribute("aria-label")
        assert f"stayed {stays['hit']} " in (words or "")

    await opened(page, log, "?view=sessions")
    assert await total(page) == len({record["session"] for record in log.records} - {None})


async def test_what_was_saved_is_said_with_its_ground_or_not_at_all(page: Page, log: Log) -> None:
    thoughts = sum(bool(record["thinking"]) for record in log.records)
    assert thoughts < 20, "with so few there is nothing to compare with"
    await opened(page, log, "?view=savings")

    await expect(page.locator("[data-headline=tokens] .headline-number")).to_have_text("not known")
    assert "at least 20 are needed" in " ".join(await row_of(page, "faq"))
    await expect(page.locator(".how")).to_contain_text("turned off")


# --- requests ---


async def test_filters_narrow_and_can_be_taken_away(page: Page, log: Log) -> None:
    await opened(page, log, "?view=requests")
    assert await total(page) == len(log.records)

    await page.keyboard.press("/")
    await page.keyboard.type("outcome:")
    await page.get_by_role("option", name="backend error").click()
    failed = log.of(outcome="upstream_error")
    await expect(page.locator(".pages .note")).to_contain_text(f"of {len(failed)} ")
    assert "outcome=upstream_error" in page.url

    await page.keyboard.press("/")
    await page.keyboard.type("scenario:nobody-has-this")
    await page.keyboard.press("Enter")
    await expect(page.locator(".empty")).to_contain_text("No request matches")
    await page.get_by_role("button", name="Clear filters").first.click()
    await expect(page.locator(".pages .note")).to_contain_text(f"of {len(log.records)} ")


async def test_columns_sort_and_pages_turn(page: Page, log: Log) -> None:
    await opened(page, log, "?view=requests")
    await page.get_by_role("button", name="Total time").click()
    await expect(page.get_by_role("columnheader", name="Total time")).to_have_attribute(
        "aria-sort", "descending"
    )
    await settled(page)
    slowest = sorted(log.records, key=lambda record: -record["total_ms"])
    await expect(rows(page).first).to_have_attribute("data-key", _as_slow_as(slowest[0], slowest))
    await page.get_by_role("button", name="Total time").click()
    await expect(rows(page).first).to_have_attribute("data-key", _as_slow_as(slowest[-1], slowest))

    first = await rows(page).first.get_attribute("data-key")
    assert first is not None
    await page.get_by_role("button", name="Next page").click()
    await expect(page.locator(".pages")).to_contain_text("2 of 3")
    await expect(rows(page).first).not_to_have_attribute("data-key", first)
    keys = [await row.get_attribute("data-key") for row in await rows(page).all()]
    assert len(keys) == _PAGE_SIZE
    assert keys[0] not in {record["request_id"] for record in slowest[-_PAGE_SIZE:]}
    await page.reload()
    await settled(page)
    assert [await row.get_attribute("data-key") for row in await rows(page).all()] == keys


async def test_a_request_opens_with_all_that_was_decided(page: Page, log: Log) -> None:
    slogans = [one for one in log.of(scenario="copywriting") if one["finish_reason"] == "length"]
    record = slogans[-1]
    await opened(page, log, "?view=requests&scenario=copywriting")
    await page.locator(f'tr[data-key="{record["request_id"]}"] td').nth(3).click()
    drawer = page.get_by_role("dialog", name=record["request_id"])
    await expect(drawer).to_be_visible()
    assert f"open={record['request_id']}" in page.url

    await expect(drawer.locator(".signals").first).to_contain_text(record["signals"][0])
    shown = drawer.locator(".params tbody tr")
    await expect(shown).to_have_count(len(record["params"]))
    for at, (name, (client, sent, _)) in enumerate(record["params"].items()):
        cells = await shown.nth(at).locator("th, td").all_inner_texts()
        assert [cells[0], _value(cells[1]), _value(cells[2])] == [name, client, sent]
    capped = shown.filter(has_text="max_new_tokens")
    await expect(capped).to_contain_text("capped")
    words = await drawer.get_by_role("img", name="Where the time went").get_attribute("aria-label")
    assert "until the first token" in (words or "")
    await drawer.locator("summary").click()
    assert json.loads(await drawer.locator(".raw pre").inner_text()) == record

    await page.reload()
    await expect(drawer).to_be_visible()
    await settled(page)
    await page.keyboard.press("j")
    await expect(drawer).to_have_count(0)
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_request_that_is_not_there_says_so(page: Page, log: Log, watch: Watch) -> None:
    await page.goto(f"{log.url}?view=requests&open=no-such-request")
    await expect(page.locator(".drawer .fault")).to_contain_text("no-such-request")
    # The browser itself tells of the 404 that the page has just explained.
    assert all("404" in said for said in watch.complaints)
    watch.complaints.clear()


# --- now ---


async def test_what_happens_is_seen_as_it_happens_and_can_be_paused(
    browser: Browser, page: Page, log: Log, watch: Watch
) -> None:
    await page.clock.install()  # waiting is left out, and nothing else
    await opened(page, log)
    await expect(page.locator(".live-state")).to_have_text("live")
    tile = page.locator("[data-tile=requests_per_s] .tile-number")
    summed = page.locator("[data-sum=requests] b").first
    before = number(await summed.inner_text())
    sent = traffic.play(log.product, 1)
    log.records = log.product.wait_records(before + sent)
    for _ in range(30):  # what was read a second ago is new enough for the server
        await page.clock.fast_forward(_REFRESH_MS)
        with contextlib.suppress(AssertionError):
            await expect(summed).to_have_text(f"{before + sent:,}", timeout=500)
            break
    await expect(summed).to_have_text(f"{before + sent:,}")
    await expect(tile).not_to_have_text(re.compile(r"^(0|–)$"))

    await page.keyboard.press("p")
    await expect(page.locator("#refresh-state")).to_have_text("Paused")
    await expect(page.locator(".live-state")).to_have_text("paused")
    asked = len(watch.asked)
    log.records = log.product.wait_records(len(log.records) + traffic.play(log.product, 1))
    assert [url for url in watch.asked[asked:] if "/meta" not in url] == []
    async with page.expect_request("**/api/series?points=120*", timeout=2000):
        await page.get_by_role("button", name="Go on").click()
    await expect(page.locator(".live-state")).to_have_text("live")


async def test_what_takes_long_is_asked_for_less_often(page: Page, log: Log) -> None:
    await page.clock.install()
    asked = 0

    async def slowly(route: Route) -> None:
        nonlocal asked
        asked += 1
        reply = await route.fetch()
        headers = {**reply.headers, "server-timing": "view;dur=1000.0"}
        await route.fulfill(response=reply, headers=headers)

    await page.route("**/api/scenarios?*", slowly)
    await opened(page, log, "?view=scenarios")
    assert asked == 1
    await page.clock.fast_forward(2 * _REFRESH_MS)
    await page.evaluate("fetch('dashboard/api/meta').then((reply) => reply.text())")
    assert asked == 1  # what was asked before this would have come before it
    async with page.expect_request("**/api/scenarios?*"):
        await page.clock.fast_forward(20_000)


async def test_numbers_that_are_old_are_not_shown_as_the_present(page: Page, log: Log) -> None:
    await page.clock.install()
    await opened(page, log)
    await expect(page.locator(".live-state")).to_have_text("live")
    log.product.signal(signal.SIGSTOP)
    try:
        await page.clock.fast_forward(_SILENCE_MS)
        await expect(page.locator(".live-state")).to_contain_text("stale")
    finally:
        log.product.signal(signal.SIGCONT)
    await expect(page.locator(".live-state")).to_have_text("live")


async def test_a_chart_can_be_read_as_a_table(page: Page, log: Log) -> None:
    await opened(page, log, "?from=-15m")
    await page.get_by_role("button", name="Requests by scenario as a table").click()
    table = page.get_by_role("group", name="Requests by scenario").locator("tbody tr td")
    counts = [int(text.replace(",", "")) for text in await table.all_inner_texts()]
    assert sum(counts) == len(log.records)


# --- taking it along ---


async def test_what_is_shown_can_be_saved(page: Page, log: Log) -> None:
    await opened(page, log, "?view=requests&scenario=faq&sort=total_ms&order=asc")
    faq = sorted(log.of(scenario="faq"), key=lambda record: record["total_ms"])
    assert len(faq) >= 2 * ROUNDS

    text = await _saved(page, "Save what is shown as CSV")
    table = list(csv.DictReader(text.splitlines()))
    assert [row["request_id"] for row in table] == [record["request_id"] for record in faq]
    listed = json.loads(await _saved(page, "Save what is shown as JSON"))
    assert [row["total_ms"] for row in listed] == [record["total_ms"] for record in faq]

    await page.get_by_role("navigation", name="Views").get_by_role("link", name="Now").click()
    series = json.loads(await _saved(page, "Save what is shown as JSON"))
    assert sum(row["requests"] for row in series) == len(faq)


async def test_a_link_shows_the_same_later(browser: Browser, page: Page, log: Log) -> None:
    await opened(page, log, "?view=requests&scenario=faq&from=-15m")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.get_by_role("button", name="Copy a link").click()
    await expect(page.locator(".toast")).to_contain_text("Link copied")
    link = str(await page.evaluate("navigator.clipboard.readText()"))
    assert "view=requests" in link
    begin, end = (_moment(link, name) for name in ("from", "to"))
    assert 890 <= (end - begin).total_seconds() <= 901

    await page.goto(link)
    await settled(page)
    await expect(page.locator(".chip")).to_contain_text("faq")
    await expect(page.locator("#refresh-state")).to_contain_text("Every")


async def test_a_time_of_ones_own_is_taken(page: Page, log: Log) -> None:
    await opened(page, log, "?view=requests")
    await page.get_by_role("button", name="Own", exact=True).click()
    await page.get_by_label("From").fill("2020-01-01T00:00")
    await page.get_by_label("To", exact=True).fill("2019-01-01T00:00")
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("later than the beginning")
    await page.get_by_label("To", exact=True).fill("2020-01-02T00:00")
    await page.get_by_role("button", name="Show", exact=True).click()
    await expect(page.locator(".empty")).to_contain_text("No request in this time")
    await page.get_by_role("button", name="Show last hour").click()
    await expect(page.locator(".pages .note")).to_contain_text(f"of {len(log.records)} ")


async def _saved(page: Page, button: str) -> str:
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name=button).click()
    path = await (await downloading.value).path()
    return path.read_text(encoding="utf-8")


def _as_slow_as(one: dict[str, Any], records: list[dict[str, Any]]) -> re.Pattern[str]:
    """The ids of those: some took the same time to a microsecond."""
    same = [each["request_id"] for each in records if each["total_ms"] == one["total_ms"]]
    return re.compile("|".join(map(re.escape, same)))


def _moment(link: str, name: str) -> datetime:
    found = re.search(rf"[?&]{name}=([^&]+)", link)
    assert found is not None
    return datetime.fromisoformat(found[1].replace("%3A", ":").replace("Z", "+00:00"))


def _is_error(record: dict[str, Any]) -> bool:
    return record["outcome"] not in ("ok", "client_disconnect")


def _percent(share: float) -> str:
    digits = 1 if 0 < share < 0.1 or 0.9 < share < 1 else 0
    return f"{share:.{digits}%}"


def _value(text: str) -> Any:
    return None if text == "–" else json.loads(text)
