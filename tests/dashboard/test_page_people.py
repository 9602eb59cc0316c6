"""The page for everyone: two languages, light and dark, by keyboard alone, on a phone."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect

from tests.dashboard import vendor
from tests.dashboard.conftest import Log, Watch
from tests.dashboard.test_page_views import NAMES, VIEWS, opened, settled

STATIC = vendor.VENDOR.parent
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
#: narrow enough for the smallest phones in use
PHONE: ViewportSize = {"width": 360, "height": 740}
#: all of them once; in the other colours those about colours
RULES: dict[str, dict[str, Any]] = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]},
}
STRAY = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@asynccontextmanager
async def visitor(browser: Browser, watch: Watch, **kind: Any) -> AsyncIterator[Page]:
    """Somebody with another browser; it has nothing to complain of either."""
    context = await browser.new_context(reduced_motion="reduce", **kind)
    page = await context.new_page()
    watch.follow(page)
    yield page
    await context.close()
    assert watch.complaints == []


# --- words ---


def _words(name: str) -> dict[str, str]:
    lines = (STATIC / "lang" / f"{name}.js").read_text(encoding="utf-8").splitlines()
    entries = [line.strip().rstrip(",") for line in lines if re.match(r'\s*"[^"]+": "', line)]
    found = [json.loads("{" + entry + "}") for entry in entries]
    words = {key: text for entry in found for key, text in entry.items()}
    assert len(words) == len(found), "a key twice"
    return words


def _sources() -> str:
    files = [*STATIC.glob("*.js"), *STATIC.glob("views/*.js")]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def test_both_languages_say_everything_with_the_same_blanks() -> None:
    en, zh = _words("en"), _words("zh")
    assert en.keys() == zh.keys()
    for key in en:
        assert sorted(re.findall(r"\{\w+\}", en[key])) == sorted(re.findall(r"\{\w+\}", zh[key]))
        assert zh[key].strip(), key


def test_every_word_is_known_and_none_is_left_over() -> None:
    en, source = _words("en"), _sources()
    asked = set(re.findall(r'\bt\("([^"]+)"', source))
    asked |= set(re.findall(r't\([^()"]+\? "([^"]+)" :', source))
    assert asked <= en.keys()
    families = set(re.findall(r"[`(]([a-z.-]+)\.\$\{", source))
    families |= set(re.findall(r'(?:said|words)\("([a-z.]+)"', source))
    quoted = set(re.findall(r'"([a-z0-9.-]+)"', source))
    for key in en:
        is_in_family = any(key.startswith((f"{family}.", family)) for family in families)
        assert key in quoted or is_in_family or "range-" in key, f"{key} is said nowhere"


def test_libraries_are_those_that_the_readme_names() -> None:
    assert vendor.checksums_in((vendor.VENDOR / "README.md").read_text(encoding="utf-8")) == {
        path.name: vendor.checksum(path) for path in vendor.shipped()
    }


async def test_the_language_follows_the_browser_and_a_choice_is_remembered(
    browser: Browser, log: Log, watch: Watch
) -> None:
    async with visitor(browser, watch, locale="zh-CN") as page:
        await opened(page, log, "?view=scenarios")
        await expect(page.locator("html")).to_have_attribute("lang", "zh")
        await expect(page.get_by_role("heading", level=1)).to_have_text("场景")
        await expect(page.get_by_role("columnheader", name="首个词元")).to_be_visible()
        for number, view in enumerate(VIEWS, 1):
            await page.keyboard.press(str(number))
            await expect(page.locator("#view")).to_have_attribute("data-view", view)
            await settled(page)
            words = await page.locator("body").inner_text()
            english = set(NAMES) & set(re.findall(r"[A-Z][a-z]+", words))
            assert english == set(), f"{view} has English in it"
        await page.get_by_role("button", name="English").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Requests")
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Requests")


async def test_the_colours_follow_the_system_and_a_choice_is_remembered(
    browser: Browser, log: Log, watch: Watch
) -> None:
    async with visitor(browser, watch, locale="en-GB", color_scheme="dark") as page:
        await opened(page, log)
        dark = await _ground(page)
        button = page.get_by_role("button", name="Colours:")
        await button.click()
        assert await _ground(page) != dark
        await page.reload()
        await settled(page)
        assert await _ground(page) != dark
        await button.click()
        assert await _ground(page) == dark


async def _ground(page: Page) -> str:
    return str(await page.evaluate("getComputedStyle(document.body).backgroundColor"))


# --- without a mouse ---


async def test_all_is_reached_by_keyboard_alone(page: Page, log: Log) -> None:
    await opened(page, log)
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#view")).to_be_focused()

    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)

    await page.keyboard.press("7")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Requests")
    await settled(page)
    await page.keyboard.press("/")
    await expect(page.locator("#filter")).to_be_focused()
    await page.keyboard.type("scenario: faq")
    await page.keyboard.press("Enter")
    await expect(page.locator(".chip")).to_contain_text("faq")
    await settled(page)
    await _tab_to(page, ".row-link")
    first = await _focused_row(page)
    await page.keyboard.press("ArrowDown")
    second = await _focused_row(page)
    assert first != second
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog", name=second)).to_be_visible()
    await expect(page.locator("#request-title")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.locator(f'tr[data-key="{second}"] .row-link')).to_be_focused()


async def _tab_to(page: Page, selector: str) -> None:
    """Go on by the tabulator until something of this kind has the focus; it must be seen."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await page.evaluate(outline) != "none"
        if await page.evaluate("s => document.activeElement.matches(s)", selector):
            return
    raise AssertionError(f"{selector} is not reached")


async def _focused_row(page: Page) -> str:
    return str(await page.evaluate("document.activeElement.closest('tr').dataset.key"))


# --- small ---


async def test_nothing_strays_on_a_phone(browser: Browser, log: Log, watch: Watch) -> None:
    kind = {"viewport": PHONE, "has_touch": True, "is_mobile": True, "locale": "en-GB"}
    async with visitor(browser, watch, **kind) as page:
        for view in VIEWS:
            await opened(page, log, f"?view={view}&scenario=faq")
            assert await page.evaluate(STRAY) <= 0, view
            nav = page.get_by_role("navigation", name="Views").locator("[aria-current]")
            await expect(nav).to_be_in_viewport()
        await page.locator("#view tbody tr").first.tap()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await expect(page.locator(".drawer .params")).to_be_visible()
        assert await page.evaluate(STRAY) <= 0
        await page.get_by_role("button", name="Close").tap()
        await expect(page.get_by_role("dialog")).to_have_count(0)


# --- for those who see or hear it otherwise ---


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_barrier(browser: Browser, log: Log, watch: Watch, scheme: str) -> None:
    kind = {"color_scheme": scheme, "locale": "en-GB", "viewport": {"width": 1280, "height": 800}}
    async with visitor(browser, watch, **kind) as page:
        await opened(page, log)
        await page.evaluate(AXE.read_text(encoding="utf-8"))
        for number, view in enumerate(VIEWS, 1):
            await page.keyboard.press(str(number))
            await expect(page.locator("#view")).to_have_attribute("data-view", view)
            await settled(page)
            if view == "requests":
                await page.locator("#view tbody tr", has_text="keyword").first.click()
                await expect(page.locator(".drawer .params")).to_be_visible()
            found = await page.evaluate(f"axe.run({json.dumps(RULES[scheme])})")
            assert [_told(one) for one in found["violations"]] == [], view


def _told(violation: dict[str, Any]) -> str:
    places = [f"{node['target']} {node['failureSummary']}" for node in violation["nodes"][:4]]
    return f"{violation['id']}: {violation['help']} {places}"
