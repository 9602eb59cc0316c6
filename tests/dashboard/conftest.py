"""A real browser, a router with traffic behind it, and a folder of hostile records."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.dashboard import traffic
from tests.support.product import Product

#: of a busy machine; what is waited for comes in a moment
expect.set_options(timeout=15_000)
_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ROUNDS = 12


@dataclass
class Log:
    """A router that has answered requests, and the records of them, read from its files."""

    product: Product
    records: list[dict[str, Any]]

    @property
    def url(self) -> str:
        return f"{self.product.url}/dashboard"

    def of(self, **wanted: Any) -> list[dict[str, Any]]:
        return [
            record
            for record in self.records
            if all(record[name] == value for name, value in wanted.items())
        ]


@dataclass
class Watch:
    """What a browser complained of, and what it asked for."""

    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def follow(self, page: Page) -> None:
        page.on(
            "console",
            lambda said: (
                self.complaints.append(f"{said.type}: {said.text}")
                if said.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: self.complaints.append(f"thrown: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.asked.append(request.url))

    def views(self) -> list[str]:
        """The parts of the API that were asked, in order."""
        paths = [urlsplit(url).path for url in self.asked]
        return [path.rpartition("/api/")[2] for path in paths if "/api/" in path]


def _chromium() -> str | None:
    """The system's browser; None: Playwright's own."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    return None


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=_chromium(), args=_ARGUMENTS)
        yield running
        await running.close()


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """Two backends and a bit more than two pages of requests."""
    folder = tmp_path_factory.mktemp("dashboard")
    with traffic.backend() as one, traffic.backend() as two:
        config = traffic.config({"one": one, "two": two})
        with Product.start(folder, config, policy=traffic.POLICY) as product:
            sent = traffic.play(product, ROUNDS)
            yield Log(product, product.wait_records(sent))


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    made = await browser.new_context(
        locale="en-GB", viewport={"width": 1440, "height": 900}, reduced_motion="reduce"
    )
    yield made
    await made.close()


@pytest.fixture
async def page(context: BrowserContext, watch: Watch) -> AsyncIterator[Page]:
    """A page that must have nothing to complain of when its test is over."""
    made = await context.new_page()
    watch.follow(made)
    yield made
    if folder := os.environ.get("TEST_SCREENSHOTS"):
        name = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].split(" ")[0]
        await made.screenshot(path=Path(folder) / f"{name}.png")
    assert watch.complaints == []
