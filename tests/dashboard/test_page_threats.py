"""The page under attack, in a real browser: scripts in every field that a client controls, pages
of other sites, frames."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.dashboard.conftest import Watch
from tests.dashboard.test_page_views import VIEWS, settled
from tests.support.product import Product
from tests.support.rawclient import exchange, request_bytes
from tests.support.script import reply_json
from tests.support.scripted import ScriptedBackend

#: each runs `planted`, if it runs
PLANTED = (
    "<script>planted()</script>",
    "\"'><img src=x onerror=planted()>",
    "<svg/onload=planted()>",
    "</script><script>planted()</script>",
    "javascript:planted()",
    "${planted()}",
    "<iframe srcdoc='<script>parent.planted()</script>'></iframe>",
)
SCRIPT = PLANTED[1]
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
[scenarios.faq]
match.keywords = ["refund"]
"""
CHAT = "/v1/chat/completions"


def answer(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "reasoning_content": text}
    choice = {"index": 0, "message": message, "finish_reason": SCRIPT}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": SCRIPT, "model": SCRIPT, "choices": [choice], "usage": usage}


@pytest.fixture(scope="module")
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([reply_json(answer(" ".join(PLANTED)))], models=[SCRIPT]) as running:
        yield running


@pytest.fixture(scope="module")
def product(
    backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """A router without keys, behind it requests that hold scripts wherever a client can put one."""
    folder = tmp_path_factory.mktemp("threats")
    config = {
        "backends": [{"name": "a", "url": backend.url, "dialect": "transformers"}],
        "policy": {"aliases": list(PLANTED)},
        "log": {"flush_ms": 5, "bodies": "on"},
    }
    env = {"SCENARIO_ROUTER_CACHE": str(folder / "cache")}
    with Product.start(folder, config, policy=POLICY, env=env) as running:
        for number, text in enumerate(PLANTED):
            body = {
                "model": text,
                "messages": [
                    {"role": "system", "content": text},
                    {"role": "user", "content": f"refund {text}", "name": text},
                ],
                "user": text,
                "session_id": text,
                "stop": [text],
                text: text,
                "tools": [{"type": "function", "function": {"name": "f", "description": text}}],
                "metadata": {"session_id": text},
            }
            headers = {"x-request-id": f"r{number}{''.join(text.split())}", "x-session-id": text}
            raw = request_bytes("POST", CHAT, headers, body)
            assert exchange(running.port, raw).status == 200
            wrong = {**body, "model": f"no{text}"}
            exchange(running.port, request_bytes("POST", CHAT, headers, wrong))
        running.wait_records(2 * len(PLANTED))
        yield running


async def watched(page: Page) -> None:
    """Note whoever calls `planted`, before anything of the page runs."""
    await page.add_init_script("window.calls = 0; window.planted = () => { window.calls += 1 }")


async def test_no_script_that_a_client_planted_runs(page: Page, product: Product) -> None:
    await watched(page)
    for view in VIEWS:
        query = f"view={view}&model={PLANTED[0]}" if view == "requests" else f"view={view}"
        await page.goto(f"{product.url}/dashboard?{query}")
        await settled(page)
        assert await page.evaluate("window.calls") == 0, view
    await page.goto(f"{product.url}/dashboard?view=requests&q=r")
    await settled(page)
    rows = page.locator("#view tbody tr")
    await expect(rows).to_have_count(2 * len(PLANTED))
    for number in range(2 * len(PLANTED)):
        await rows.nth(number).click()
        await expect(page.get_by_role("dialog")).to_contain_text("r")
        await expect(page.get_by_role("dialog").locator(".waiting")).to_have_count(0)
        await page.keyboard.press("Escape")
    assert await page.evaluate("window.calls") == 0
    scripts = "#app script, img[src=x], iframe, #app svg[onload], a[href^=javascript]"
    assert await page.locator(scripts).count() == 0


async def test_the_page_would_not_run_a_script_that_got_in(
    page: Page, watch: Watch, product: Product
) -> None:
    """Were one written into the page after all, its policy stops it."""
    await watched(page)
    await page.goto(f"{product.url}/dashboard")
    await settled(page)
    await page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "planted()";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<a id=p href='javascript:planted()'>");
            document.getElementById("p").click();
            document.body.insertAdjacentHTML("beforeend", "<img id=i onerror='planted()'>");
            const image = document.getElementById("i");
            const broken = new Promise((done) => image.addEventListener("error", () => done()));
            image.src = "data:,";
            return broken;
        }"""
    )

    assert await page.evaluate("window.calls") == 0
    assert any("Content Security Policy" in said for said in watch.complaints)
    watch.complaints.clear()


@contextmanager
def another_site(pages: dict[str, str]) -> Iterator[str]:
    """A site of a stranger's; its name is not the router's, so it is another one to a browser."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: Any) -> None:
            """Nobody reads it."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join(5)


async def test_another_sites_page_can_neither_ask_nor_change_nor_read(
    browser: Browser, product: Product, backend: ScriptedBackend
) -> None:
    """A form, a fetch that no one has to allow, one that wants to read, and a preflight."""
    asked = len(backend.requests)
    told = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "Hi."}]})
    script = f"""
        const url = "{product.url}";
        const blind = {{method: "POST", mode: "no-cors", body: {json.dumps(told)}}};
        const read = (path, how) => fetch(url + path, how).then((r) => r.text(), () => "kept out");
        window.found = Promise.all([
            fetch(url + "{CHAT}", blind).then((reply) => reply.type),
            fetch(url + "/router/backends/a/drain", blind).then((reply) => reply.type),
            read("{CHAT}", {{method: "POST", body: {json.dumps(told)}}}),
            read("/router/status"),
            read("/dashboard/api/requests"),
            read("/v1/models"),
            read("/router/policy/reload", {{method: "POST", headers: {{"x-y": "1"}}}}),
        ]);
    """
    form = f'<form method=post action="{product.url}/router/backends/a/drain"></form>'
    frame = f'<iframe src="{product.url}/dashboard"></iframe>'
    pages = {
        "/fetch": f"<script>{script}</script>",
        "/form": f"{form}<script>document.forms[0].submit()</script>",
        "/frame": frame,
    }
    with another_site(pages) as site:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{site}/fetch")
        found = await page.evaluate("window.found")
        assert found == ["opaque", "opaque", *["kept out"] * 5]

        async with page.expect_response("**/drain") as answered:
            await page.goto(f"{site}/form", wait_until="commit")
        assert (await answered.value).status == 403

        other = await context.new_page()
        await other.goto(f"{site}/frame")
        framed = other.frames[1]
        assert await framed.locator("#app").count() == 0  # an empty page in its place
        await context.close()

    assert len(backend.requests) == asked
    assert product.get("/router/status")["backends"][0]["draining"] is False


async def test_the_key_is_not_left_behind(page: Page, product: Product) -> None:
    """In no address, no cookie and nothing that outlives the tab."""
    await page.goto(f"{product.url}/dashboard")
    await settled(page)

    assert await page.evaluate("document.cookie") == ""
    assert await page.evaluate("localStorage.getItem('key')") is None
    assert "key" not in page.url
    headers = exchange(product.port, request_bytes("GET", "/dashboard"))
    assert headers.header("referrer-policy") == "no-referrer"
