"""The image's configuration and command, run as the image would: what its probes see, how it ends.

There is no engine for containers here; `tests/support/container.py` says what stands in for one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.demo import await_fact
from tests.support import dockerfile
from tests.support.container import can_contain, first_process, run_contained
from tests.support.product import ROOT, Product
from tests.support.rawclient import RawConnection, exchange, request_bytes
from tests.support.script import DONE, END, chat_ok, delta, pause, stream_head
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
ASK = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
IMAGE = dockerfile.read(ROOT / "docker" / "Dockerfile")
CONFIG = ROOT / "docker" / "config" / "image" / "config.toml"
KEYS = {"ROUTER_KEYS": "app=secret", "ROUTER_ADMIN_KEY": "operator"}
BEARER = {"Authorization": "Bearer secret"}

pytestmark = pytest.mark.skipif(
    not can_contain(), reason="no namespaces of our own can be had here"
)


@pytest.fixture(scope="module")
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([chat_ok("The Danube.")]) as running:
        yield running


def contained(backend: ScriptedBackend, etc: Path) -> subprocess.Popen[str]:
    """The image's command with the image's settings, but for the port and where the model is.

    The policy is mounted, as a user might: our environment has no installed one beside the code.
    """
    folder = etc / "scenario-router"
    folder.mkdir(parents=True)
    text = CONFIG.read_text(encoding="utf-8")
    assert "http://host.docker.internal:8000" in text
    (folder / "config.toml").write_text(
        text.replace("http://host.docker.internal:8000", backend.url)
        + "\n[health]\nexamine = false\ninterval_s = 0.2\n",
        encoding="utf-8",
    )
    shutil.copytree(ROOT / "policies", folder / "policies")
    assert IMAGE.entrypoint == ["scenario-router"]
    settings = {name: value for name, value in IMAGE.env.items() if name != "PATH"}
    return run_contained(
        [sys.executable, "-m", "router", *IMAGE.command],
        etc=etc,
        volumes=IMAGE.volumes,
        env={**settings, **KEYS, "SCENARIO_ROUTER_SERVER__PORT": "0"},
    )


@pytest.fixture
def product(backend: ScriptedBackend, tmp_path: Path) -> Iterator[Product]:
    process = contained(backend, tmp_path / "etc")
    running = Product.serving(process, tmp_path)
    # Its addresses are those of every interface; ours is this one.
    running.url = running.url.replace("0.0.0.0", "127.0.0.1")
    yield running
    running.kill()


def status_of(product: Product, path: str) -> int | None:
    return exchange(product.port, request_bytes("GET", path)).status


def check_health(product: Product) -> int:
    """The image's health check, at the port that this one has."""
    there = {target: str(ROOT / source) for source, target in IMAGE.copied.items()}
    there |= {
        "python": sys.executable,
        "/etc/scenario-router/config.toml": str(product.folder / "etc/scenario-router/config.toml"),
    }
    return subprocess.run(
        [there.get(word, word) for word in IMAGE.healthcheck],
        env={"SCENARIO_ROUTER_SERVER__PORT": str(product.port)},
        capture_output=True,
    ).returncode


def test_the_image_serves_from_a_read_only_root_and_ends_its_streams_when_told(
    product: Product, backend: ScriptedBackend
) -> None:
    inside = first_process(product.process)
    told = Path(f"/proc/{inside}/status").read_text()
    assert "CapEff:\t0000000000000000" in told
    assert "NoNewPrivs:\t1" in told
    assert check_health(product) == 0
    assert status_of(product, "/health") == 200
    await_fact(lambda: status_of(product, "/ready") == 200)
    assert exchange(product.port, request_bytes("POST", CHAT, {}, ASK)).status == 401
    assert exchange(product.port, request_bytes("POST", CHAT, BEARER, ASK)).status == 200
    assert exchange(product.port, request_bytes("GET", "/router/status", BEARER)).status == 401
    volume = Path(f"/proc/{inside}/root") / IMAGE.env["SCENARIO_ROUTER_LOG__DIR"].lstrip("/")
    operator = {"Authorization": "Bearer operator"}
    rows = request_bytes("GET", "/dashboard/api/requests", operator)
    await_fact(lambda: b'"scenario"' in exchange(product.port, rows).body, 20)
    await_fact(lambda: "".join(path.read_text() for path in volume.iterdir()))
    assert list((volume.parents[1] / "cache" / "scenario-router").glob("*.weights"))

    slow = [stream_head(), delta(content="The "), pause(1000), delta(content="Danube.")]
    backend.set_script([*slow, delta("stop"), DONE, END])
    backend.requests.clear()
    with RawConnection(product.port) as client:
        client.send(request_bytes("POST", CHAT, BEARER, {**ASK, "stream": True}))
        await_fact(lambda: backend.requests and backend.requests[0].frames)
        os.kill(inside, signal.SIGTERM)
        reply = client.read()

    assert reply.body.rstrip().endswith(b"data: [DONE]")
    assert b"Danube." in reply.body
    assert product.process.wait(10) == 0
    assert check_health(product) != 0


def test_told_to_stop_while_it_starts_the_first_process_of_a_container_stops(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    process = contained(backend, tmp_path / "etc")
    assert process.stdout is not None
    with process.stdout as lines:
        started = next(line for line in lines)
        assert "learning from the policy's examples" in started

        os.kill(first_process(process), signal.SIGTERM)

        try:
            code = process.wait(15)
        finally:
            process.kill()
        rest = lines.read()

    assert code == 0
    assert "listening" not in rest
