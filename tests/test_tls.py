"""TLS at both ends: who is believed, who is refused, and what is said of it. Real handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from router import config, discovery, tls
from router.commands import tour
from router.config import Backend, Server
from router.doctor.asking import Asker, NoAnswer
from router.programlog import Seldom
from router.tomlfile import FileFault
from tests.clients.demo import await_fact
from tests.support.certificates import Authority, Pair
from tests.support.product import ROOT, Product, write_toml
from tests.support.prometheus import Page
from tests.support.rawclient import HOST, exchange, request_bytes
from tests.support.script import DONE, END, chat_ok, delta, stream_head
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
MODEL = "m"
POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
STREAM = [stream_head(), delta(content="The "), delta(content="Rhine."), DONE, END]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def ca(certificates: Path) -> Authority:
    return Authority(certificates)


@pytest.fixture(scope="module")
def others(certificates: Path) -> Authority:
    return Authority(certificates, "others")


@pytest.fixture(scope="module")
def server(ca: Authority) -> Pair:
    return ca.issue("server", HOST, "localhost")


@pytest.fixture(scope="module")
def somebody(ca: Authority) -> Pair:
    return ca.issue("somebody", "somebody.example")


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([chat_ok("The Rhine.")]) as running:
        yield running


def start(
    folder: Path,
    *backends: Mapping[str, Any],
    trust: ssl.SSLContext | None = None,
    **server: Any,
) -> Product:
    product = Product.start(
        folder,
        {
            "server": server,
            "backends": [{"model": MODEL, **backend} for backend in backends],
            "log": {"flush_ms": 10},
            "policy": {"settle_ms": 20},
            "health": {"interval_s": 60},
        },
        policy=POLICY,
    )
    product.trust = trust
    return product


def edge(pair: Pair, **more: Any) -> dict[str, Any]:
    return {"tls_cert": str(pair.cert), "tls_key": str(pair.key), **more}


def post(product: Product, body: Any = ASK, **options: Any) -> httpx.Response:
    verify: Any = product.trust or True
    return httpx.post(product.url + CHAT, json=body, verify=verify, timeout=20, **options)


def sdk(product: Product) -> openai.OpenAI:
    assert product.trust is not None
    return openai.OpenAI(
        base_url=f"{product.url}/v1",
        api_key="EMPTY",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=product.trust),
    )


def log_line(product: Product, *words: str) -> str:
    """A line of the program's own log that has all of these words."""
    return await_fact(
        lambda: next((line for line in product.output if all(w in line for w in words)), "")
    )


def serial(port: int, trust: ssl.SSLContext, host: str = HOST) -> str:
    """Of the certificate that is shown at this port."""
    with (
        socket.create_connection((host, port), 10) as raw,
        trust.wrap_socket(raw, server_hostname=host) as sock,
    ):
        return str((sock.getpeercert() or {})["serialNumber"])


# --- our edge ---------------------------------------------------------------------------------


def test_clients_speak_https_to_an_edge_with_a_certificate(
    backend: ScriptedBackend, ca: Authority, server: Pair, tmp_path: Path
) -> None:
    with start(
        tmp_path, {"name": "one", "url": backend.url}, trust=ca.trust(), **edge(server)
    ) as p:
        assert p.url.startswith("https://127.0.0.1:")
        assert p.url in tour.lines_to_paste(p.url, [], has_keys=False)
        with sdk(p) as client:
            whole = client.chat.completions.create(**ASK)
            assert whole.choices[0].message.content == "The Rhine."
            backend.set_script(STREAM)
            pieces = client.chat.completions.create(**ASK, stream=True)
            assert "".join(p.choices[0].delta.content or "" for p in pieces) == "The Rhine."
        # A page of aiohttp's on the same port, lent our transport.
        told = p.get("/router/status")["tls"]
        assert told["edge"]["names"] == [HOST, "localhost"]
        assert told["edge"]["fault"] is None
        assert told["edge"]["ends_at"] > time.time()
        assert told["last_error"] is None


def test_every_event_of_a_stream_goes_out_by_itself_through_tls_on_both_sides(
    ca: Authority, server: Pair, tmp_path: Path
) -> None:
    # The backend says nothing more until its peer leaves, so what the client reads was not held.
    steps = [stream_head(), delta(content="one"), {"do": "wait_disconnect", "max_ms": 60_000}]
    with (
        ScriptedBackend(steps, tls=server.context()) as backend,
        start(
            tmp_path,
            {"name": "one", "url": backend.url, "ca_file": str(ca.file)},
            trust=ca.trust(),
            **edge(server),
        ) as product,
        httpx.Client(verify=ca.trust(), timeout=20) as client,
        client.stream("POST", product.url + CHAT, json={**ASK, "stream": True}) as reply,
    ):
        assert any('"one"' in line for line in reply.iter_lines())
        reply.close()
        # ... and the client's leaving goes through to the backend at once.
        assert backend.requests[0].wait_peer_closed() is not None


def test_the_edge_speaks_tls_1_2_and_http_1_1_at_least_and_at_most(
    backend: ScriptedBackend, ca: Authority, server: Pair, tmp_path: Path
) -> None:
    with start(tmp_path, {"name": "one", "url": backend.url}, **edge(server)) as product:
        trust = ca.trust()
        trust.set_alpn_protocols(["h2", "http/1.1"])
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            trust.minimum_version = trust.maximum_version = version
            with (
                socket.create_connection((HOST, product.port), 10) as raw,
                trust.wrap_socket(raw, server_hostname=HOST) as sock,
            ):
                assert sock.selected_alpn_protocol() == "http/1.1"
                assert sock.version() == version.name.replace("v1_", "v1.")
        with socket.create_connection((HOST, product.port), 10) as raw:
            raw.sendall(_HELLO_OF_TLS_1_1)
            # An alert about the version (70), not a connection that only stops.
            assert raw.recv(64)[-1] == 70
        log_line(product, "TLS handshake failed", "TLS 1.2 is the least")


#: a client's hello that offers nothing newer: version 3.2, one cipher, no compression
_HELLO_OF_TLS_1_1 = bytes.fromhex(f"160301002d 01000029 0302 {'00' * 32} 00 0002c013 0100")


def test_plain_http_at_the_tls_port_is_told_so(
    backend: ScriptedBackend, server: Pair, tmp_path: Path
) -> None:
    with start(tmp_path, {"name": "one", "url": backend.url}, **edge(server)) as product:
        reply = exchange(product.port, request_bytes("POST", CHAT, None, ASK), timeout_s=10)

        assert reply.status == 400
        assert "https://" in reply.text
        assert reply.ended_properly
        log_line(product, "TLS handshake failed", "the client must use https://")
    assert backend.requests == []


def test_tls_at_a_plain_port_is_told_so(backend: ScriptedBackend, tmp_path: Path) -> None:
    with start(tmp_path, {"name": "one", "url": backend.url}) as product:
        with (
            socket.create_connection((HOST, product.port), 10) as raw,
            pytest.raises(ssl.SSLError, match=r"WRONG_VERSION_NUMBER|wrong version"),
        ):
            ssl.create_default_context().wrap_socket(raw, server_hostname=HOST)
        log_line(product, "a client speaks TLS to a port of plain HTTP")
        (record,) = product.wait_records(1)
        assert (record["status"], record["error_code"]) == (400, "tls_on_plain_port")


def test_clients_must_show_a_certificate_where_one_is_asked_for(
    backend: ScriptedBackend,
    ca: Authority,
    others: Authority,
    server: Pair,
    somebody: Pair,
    tmp_path: Path,
) -> None:
    asked = edge(server, tls_client_ca=str(ca.file))
    with start(tmp_path, {"name": "one", "url": backend.url}, **asked) as product:
        product.trust = ca.trust(somebody)
        assert post(product).status_code == 200
        assert product.get("/router/status")["tls"]["edge"]["asks_clients"] is True

        product.trust = ca.trust()
        with pytest.raises(httpx.TransportError, match=r"(?i)certificate required"):
            post(product)
        log_line(product, "TLS handshake failed", "the client has no certificate")

        product.trust = ca.trust(others.issue("stranger", "stranger.example"))
        with pytest.raises(httpx.TransportError, match=r"(?i)unknown ca|decrypt error"):
            post(product)
        log_line(product, "TLS handshake failed", "is not one of tls_client_ca's")
    assert len(backend.requests) == 1


@pytest.mark.parametrize("asks_clients", [False, True])
def test_the_health_check_of_the_image_speaks_tls_where_the_configuration_does(
    asks_clients: bool, backend: ScriptedBackend, server: Pair, ca: Authority, tmp_path: Path
) -> None:
    asked = edge(server, **({"tls_client_ca": str(ca.file)} if asks_clients else {}))
    with start(tmp_path, {"name": "one", "url": backend.url}, **asked) as product:
        command = [
            *(sys.executable, "-I", str(ROOT / "docker/healthcheck.py")),
            str(tmp_path / "config.toml"),
        ]
        env = {"SCENARIO_ROUTER_SERVER__PORT": str(product.port)}

        alive = subprocess.run(command, env=env, check=False)
        assert product.stop() == 0
        dead = subprocess.run(command, env=env, check=False)

    assert (alive.returncode, dead.returncode) == (0, 1)


def days_left(client: httpx.Client, product: Product) -> float:
    """Of the certificate in force, as the page of metrics has it."""
    page = Page(client.get(product.url + "/metrics").text)
    return (page.value("tls_certificate_expiry_timestamp_seconds") - time.time()) / 86_400


def test_a_certificate_that_no_client_takes_has_ended_for_the_alert(
    backend: ScriptedBackend, ca: Authority, tmp_path: Path
) -> None:
    over = ca.issue("over", HOST, days=-1)
    with start(tmp_path, {"name": "one", "url": backend.url}, **edge(over)) as product:
        page = Page(httpx.get(product.url + "/metrics", verify=False).text)

    assert page.value("tls_certificate_expiry_timestamp_seconds") == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_renewed_certificate_is_taken_while_streams_go_on(
    backend: ScriptedBackend, ca: Authority, tmp_path: Path, workers: int
) -> None:
    shown = ca.issue(f"shown-{workers}", HOST, days=5)
    backend.set_script(
        [stream_head(), delta(content="one"), {"do": "wait_disconnect", "max_ms": 60_000}]
    )
    with (
        start(
            tmp_path,
            {"name": "one", "url": backend.url},
            trust=ca.trust(),
            workers=workers,
            **edge(shown),
        ) as product,
        httpx.Client(verify=ca.trust(), timeout=20) as client,
    ):
        with client.stream("POST", product.url + CHAT, json={**ASK, "stream": True}) as reply:
            lines = reply.iter_lines()
            assert any('"one"' in line for line in lines)
            before = serial(product.port, ca.trust())
            assert days_left(client, product) == pytest.approx(5, abs=0.1)
            shown.replace_by(ca.issue(f"next-{workers}", HOST))

            # Whichever worker is asked: by then all have taken it.
            await_fact(lambda: before not in {serial(product.port, ca.trust()) for _ in range(8)})

            assert backend.requests[0].peer_closed_at is None
            await_fact(lambda: days_left(client, product) == pytest.approx(90, abs=0.1))
        backend.set_script([chat_ok("The Rhine.")])
        assert post(product).status_code == 200


def test_a_certificate_that_is_no_good_leaves_the_one_before_in_force(
    backend: ScriptedBackend, ca: Authority, tmp_path: Path
) -> None:
    shown = ca.issue("kept", HOST)
    with start(
        tmp_path, {"name": "one", "url": backend.url}, trust=ca.trust(), **edge(shown)
    ) as product:
        before = serial(product.port, ca.trust())
        good = shown.key.read_bytes()
        shown.key.write_bytes(ca.issue("elsewhere", HOST).key.read_bytes())
        product.signal(signal.SIGHUP)

        fault = await_fact(lambda: product.get("/router/status")["tls"]["last_error"])
        assert "server.tls_key" in fault
        assert "not the key of the certificate" in fault
        assert serial(product.port, ca.trust()) == before
        assert post(product).status_code == 200

        shown.key.write_bytes(good)
        await_fact(lambda: product.get("/router/status")["tls"]["last_error"] is None)


def test_a_worker_that_replaces_a_dead_one_has_the_certificates_of_the_start(
    backend: ScriptedBackend, ca: Authority, tmp_path: Path
) -> None:
    shown = ca.issue("inherited", HOST)
    one = {"name": "one", "url": backend.url}
    with start(tmp_path, one, trust=ca.trust(), workers=2, **edge(shown)) as product:
        before = serial(product.port, ca.trust())
        shown.cert.write_text("half a certificate", encoding="utf-8")
        pids = {worker["pid"] for worker in product.get("/router/status")["workers"]}
        os.kill(pids.pop(), signal.SIGKILL)

        def are_two() -> bool:
            try:
                now = {worker["pid"] for worker in product.get("/router/status")["workers"]}
            except OSError:  # what the dead one had not yet taken goes with it
                return False
            return len(now) == 2 and pids < now

        await_fact(are_two)
        assert {serial(product.port, ca.trust()) for _ in range(8)} == {before}
        assert post(product).status_code == 200


async def test_without_uvloop_a_client_of_plain_http_is_told_as_well(
    server: Pair, tmp_path: Path
) -> None:
    holder = tls.Contexts(tmp_path / "config.toml").for_edge(Server(**edge(server)))
    assert holder is not None
    loop = asyncio.get_running_loop()
    assert type(loop).__module__.startswith("asyncio")
    opened = await loop.create_server(asyncio.Protocol, HOST, 0, ssl=holder.context)
    async with opened:
        port = opened.sockets[0].getsockname()[1]
        reply = await asyncio.to_thread(exchange, port, request_bytes("GET", "/health"))

    assert (reply.status, reply.ended_properly) == (400, True)


# --- backends ---------------------------------------------------------------------------------


def secure(backend: ScriptedBackend, ca: Authority, **more: Any) -> dict[str, Any]:
    return {"name": "one", "url": backend.url, "ca_file": str(ca.file), **more}


def test_a_backend_is_spoken_to_that_the_named_authority_vouches_for(
    ca: Authority, server: Pair, tmp_path: Path
) -> None:
    with (
        ScriptedBackend([chat_ok("The Rhine.")], tls=server.context()) as backend,
        start(tmp_path, secure(backend, ca)) as product,
    ):
        assert post(product).json()["choices"][0]["message"]["content"] == "The Rhine."
        backend.set_script(STREAM)
        assert "Rhine." in post(product, {**ASK, "stream": True}).text
        assert product.get("/ready")["status"] == "ready"


def test_a_servers_own_certificate_can_be_trusted_by_itself(
    ca: Authority, others: Authority, server: Pair, tmp_path: Path
) -> None:
    with (
        ScriptedBackend([chat_ok("The Rhine.")], tls=server.context()) as backend,
        start(tmp_path, {**secure(backend, others), "ca_file": str(server.cert)}) as product,
    ):
        assert post(product).status_code == 200


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("another authority", "certificate is not accepted: unable to get local issuer"),
        ("this system", "certificate is not accepted: unable to get local issuer"),
        ("expired", "certificate is not accepted: certificate has expired"),
        ("another name", "certificate is for another name"),
    ],
)
def test_a_backend_that_cannot_be_believed_is_not_asked(
    ca: Authority, others: Authority, server: Pair, tmp_path: Path, what: str, words: str
) -> None:
    shown = {
        "expired": lambda: ca.issue("over", HOST, days=-1),
        "another name": lambda: ca.issue("another", "models.example"),
    }.get(what, lambda: server)()
    with ScriptedBackend([chat_ok("The Rhine.")], tls=shown.context()) as backend:
        told = secure(backend, others if what == "another authority" else ca)
        if what == "this system":
            del told["ca_file"]
        with start(tmp_path, told) as product:
            reply = post(product)

            assert reply.status_code == 502
            error = reply.json()["error"]
            assert error["code"] == "backend_tls_error"
            assert words in error["message"]
            assert HOST not in error["message"]
            (record,) = product.wait_records(1)
            assert (record["status"], record["outcome"], record["error_code"]) == (
                *(502, "upstream_error"),
                "backend_tls_error",
            )
            slot = product.get("/router/status")["backends"][0]
            assert not slot["up"]
            assert words in slot["reason"]
        assert backend.requests == []


def test_a_backend_that_speaks_no_tls_is_told_of(
    backend: ScriptedBackend, ca: Authority, tmp_path: Path
) -> None:
    with (
        start(tmp_path / "plain", {"name": "one", "url": backend.url}) as plain,
        start(
            tmp_path / "secure", {"name": "one", "url": f"https://{HOST}:{plain.port}"}
        ) as product,
    ):
        reply = post(product)

        assert reply.status_code == 502
        assert "does not speak TLS there" in reply.json()["error"]["message"]


def test_the_name_on_a_certificate_can_be_named(ca: Authority, tmp_path: Path) -> None:
    shown = ca.issue("by-name", "models.example")
    with (
        ScriptedBackend([chat_ok("The Rhine.")], tls=shown.context()) as backend,
        start(tmp_path, secure(backend, ca, tls_server_name="models.example")) as product,
    ):
        assert post(product).status_code == 200


def test_another_backend_answers_for_one_that_is_not_believed(
    ca: Authority, others: Authority, server: Pair, tmp_path: Path
) -> None:
    with (
        ScriptedBackend([chat_ok("I am false.")], tls=server.context()) as false,
        ScriptedBackend([chat_ok("I am good.")], tls=server.context()) as good,
        start(
            tmp_path,
            {**secure(false, others), "name": "false"},
            {**secure(good, ca), "name": "good"},
        ) as product,
    ):
        for _ in range(4):
            assert "I am good." in post(product).text
        assert false.requests == []
        tried = [record["tried"] for record in product.wait_records(4) if record["tried"]]
        assert all(found == [["false", "untrusted"]] for found in tried)


def test_a_backend_that_asks_for_our_certificate_gets_it(
    ca: Authority, server: Pair, somebody: Pair, tmp_path: Path
) -> None:
    ours = {"client_cert": str(somebody.cert), "client_key": str(somebody.key)}
    asking = server.context(asks=ca.file)
    with (
        ScriptedBackend([chat_ok("The Rhine.")], tls=asking) as backend,
        start(tmp_path, secure(backend, ca, **ours)) as product,
    ):
        assert post(product).status_code == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shows_one", [False, True])
def test_a_backend_that_does_not_accept_our_certificate_is_told_of(
    ca: Authority,
    others: Authority,
    server: Pair,
    tmp_path: Path,
    version: ssl.TLSVersion,
    shows_one: bool,
) -> None:
    asking = server.context(asks=ca.file)
    asking.maximum_version = version
    ours = others.issue("unknown", "unknown.example")
    told = {"client_cert": str(ours.cert), "client_key": str(ours.key)} if shows_one else {}
    with (
        refusing(asking) as port,
        start(
            tmp_path,
            {"name": "one", "url": f"https://{HOST}:{port}", "ca_file": str(ca.file), **told},
        ) as product,
    ):
        reply = post(product)

        assert reply.status_code == 502
        error = reply.json()["error"]
        assert error["code"] == "backend_tls_error"
        assert "it refuses our side of TLS" in error["message"]
        (record,) = product.wait_records(1)
        assert record["error_code"] == "backend_tls_error"


@contextlib.contextmanager
def refusing(context: ssl.SSLContext) -> Iterator[int]:
    """A server that shakes hands and does nothing else; it says why not, unlike asyncio's."""

    def run() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), client:
                client.settimeout(10)
                context.wrap_socket(client, server_side=True).close()

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_our_certificate_is_renewed_without_a_restart(
    ca: Authority, others: Authority, server: Pair, tmp_path: Path
) -> None:
    ours = others.issue("to-be-renewed", "somebody.example")
    told = {"client_cert": str(ours.cert), "client_key": str(ours.key), "keepalive_s": 0}
    with (
        ScriptedBackend([chat_ok("The Rhine.")], tls=server.context(asks=ca.file)) as backend,
        start(tmp_path, secure(backend, ca, **told)) as product,
    ):
        assert post(product).status_code == 502
        ours.replace_by(ca.issue("renewed", "somebody.example"))
        await_fact(lambda: post(product).status_code == 200)


def test_an_authority_can_be_changed_with_the_configuration(
    ca: Authority, others: Authority, server: Pair, tmp_path: Path
) -> None:
    with (
        ScriptedBackend([chat_ok("The Rhine.")], tls=server.context()) as backend,
        start(tmp_path, secure(backend, others)) as product,
    ):
        assert post(product).status_code == 502
        text = product.config_path.read_text(encoding="utf-8")
        gone = text.replace(str(others.file), str(tmp_path / "gone.pem"))
        product.config_path.write_text(gone, encoding="utf-8")
        fault = await_fact(lambda: product.get("/router/status")["config"]["last_error"])
        assert "backends.one.ca_file" in fault
        assert "cannot be read" in fault

        good = text.replace(str(others.file), str(ca.file))
        product.config_path.write_text(good, encoding="utf-8")
        await_fact(lambda: post(product).status_code == 200)
        assert product.get("/router/status")["config"]["last_error"] is None


def test_the_doctor_asks_a_backend_as_the_router_does(
    ca: Authority, somebody: Pair, tmp_path: Path
) -> None:
    shown = ca.issue("for-the-doctor", "models.example")
    backend = Backend(
        name="one",
        url="https://h",
        ca_file=str(ca.file),
        tls_server_name="models.example",
        client_cert=str(somebody.cert),
        client_key=str(somebody.key),
    )
    holder = tls.Contexts(tmp_path / "config.toml").for_backend(backend)
    assert holder is not None
    with ScriptedBackend(tls=shown.context(asks=ca.file), models=["m"]) as running:
        named = {"trust": holder.context, "tls_name": backend.tls_name}
        with Asker(running.url, **named) as asker:  # type: ignore[arg-type]  # names of its own
            assert asker.get("/v1/models").json()["data"][0]["id"] == "m"
        with Asker(running.url) as asker, pytest.raises(NoAnswer, match="CERTIFICATE_VERIFY"):
            asker.get("/v1/models")


def test_each_address_of_a_name_must_have_a_certificate_for_that_name() -> None:
    found = Backend(name="gpu", url="https://models:8000", discover=True)
    named = found.model_copy(update={"tls_server_name": "models.example"})

    assert discovery.at(found, "10.0.0.1").tls_name == "models"
    assert discovery.at(named, "10.0.0.1").tls_name == "models.example"
    Backend.model_validate(discovery.at(found, "10.0.0.1").model_dump())


# --- files and settings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls_key": "a"}, "tls_key is of no use without tls_cert"),
        ({"tls_client_ca": "a"}, "tls_client_ca is of no use without tls_cert"),
    ],
)
def test_certificates_of_the_edge_go_together(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Server.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "http://h", "ca_file": "a"}, "ca_file is for a url with https"),
        ({"url": "http://h", "tls_server_name": "a"}, "tls_server_name is for a url with https"),
        ({"url": "https://h", "client_key": "a"}, "client_key is of no use without client_cert"),
        ({"url": "https://h", "tls_server_name": "a b"}, "pattern"),
    ],
)
def test_certificates_for_a_backend_go_together(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Backend.model_validate({"name": "a", **settings})


def _encrypted(pair: Pair, folder: Path) -> Path:
    from cryptography.hazmat.primitives import serialization as forms

    key = forms.load_pem_private_key(pair.key.read_bytes(), None)
    kept = forms.BestAvailableEncryption(b"secret")
    path = folder / "encrypted.key"
    path.write_bytes(
        key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.TraditionalOpenSSL, kept)
    )
    return path


@pytest.mark.parametrize(
    ("what", "key", "words"),
    [
        ("no file", "server.tls_cert", "cannot be read: No such file"),
        ("no certificate", "server.tls_cert", "holds no certificate"),
        ("no key", "server.tls_key", "holds no private key"),
        ("another key", "server.tls_key", "is not the key of the certificate"),
        ("encrypted key", "server.tls_key", "is encrypted"),
        ("no authority", "server.tls_client_ca", "holds no certificate"),
    ],
)
def test_a_file_that_is_no_good_is_told_with_its_key_before_anything_listens(
    server: Pair, somebody: Pair, backend: ScriptedBackend, tmp_path: Path,
    what: str, key: str, words: str,
) -> None:  # fmt: skip
    (tmp_path / "text").write_text("this is no PEM", encoding="utf-8")
    changes: dict[str, Path] = {
        "no file": {"tls_cert": tmp_path / "gone"},
        "no certificate": {"tls_cert": tmp_path / "text"},
        "no key": {"tls_key": tmp_path / "text"},
        "another key": {"tls_key": somebody.key},
        "encrypted key": {"tls_key": _encrypted(server, tmp_path)},
        "no authority": {"tls_client_ca": tmp_path / "text"},
    }[what]
    told = {**edge(server), **{name: str(path) for name, path in changes.items()}}

    with pytest.raises(FileFault) as raised:
        tls.Contexts(tmp_path / "config.toml").for_edge(Server(**told))

    (mistake,) = raised.value.mistakes
    assert mistake.path == key
    assert words in mistake.message
    if what == "encrypted key":  # nobody is asked on the terminal either
        path = _written(tmp_path, backend, told)
        ran = _run("serve", "--config", str(path))
        assert ran.returncode == 1
        assert "server.tls_key" in ran.stderr


def _written(folder: Path, backend: ScriptedBackend, server: Mapping[str, Any]) -> Path:
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    one = {"name": "one", "url": backend.url, "model": MODEL, "dialect": "openai"}
    whole = {"server": {"port": 0, **server}, "policy": {"file": "policy.toml"}, "backends": [one]}
    return write_toml(folder / "config.toml", whole)


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "router", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.mark.parametrize(
    ("days", "words", "code"),
    [
        (90, "sound", 0),
        (5, "note: {path}: server.tls_cert: this certificate ends in 5.0 days", 0),
        (-1, "fault: {path}: server.tls_cert: no client will accept this certificate", 1),
    ],
)
def test_check_says_when_a_certificate_ends(
    ca: Authority, backend: ScriptedBackend, tmp_path: Path, days: float, words: str, code: int
) -> None:
    path = _written(tmp_path, backend, edge(ca.issue(f"for-{days}-days", HOST, days=days)))

    ran = _run("check", "--config", str(path))

    assert ran.returncode == code, ran.stdout + ran.stderr
    assert words.format(path=path) in ran.stdout
    if days == 90:
        assert "certificate" not in ran.stdout


def test_check_finds_all_files_that_are_no_good(backend: ScriptedBackend, tmp_path: Path) -> None:
    path = _written(tmp_path, backend, {"tls_cert": "gone.crt"})
    text = path.read_text(encoding="utf-8").replace("http://", "https://")
    text = text.replace('name = "one"', 'name = "one", ca_file = "gone.pem"')
    path.write_text(text, encoding="utf-8")
    assert config.load(path).backends[0].ca_file == "gone.pem"

    ran = _run("check", "--config", str(path), "--json")

    assert ran.returncode == 1
    found = [each["path"] for each in json.loads(ran.stdout)["findings"]]
    assert found[:2] == ["server.tls_cert", "backends.one.ca_file"]


def test_commands_ask_a_router_of_whom_they_are_told_who_vouches_for_it(
    backend: ScriptedBackend, ca: Authority, server: Pair, somebody: Pair, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(somebody.cert.read_bytes() + somebody.key.read_bytes())
    asked = edge(server, tls_client_ca=str(ca.file))
    with start(tmp_path, {"name": "one", "url": backend.url}, **asked) as product:
        told = ["status", "--url", product.url, "--json"]
        assert _run(*told).returncode == 1
        shown = ["--ca-file", str(ca.file), "--client-cert", str(both)]
        ran = _run(*told, *shown)
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["ready"] is True
        said = _run(*told[:-1], *shown).stdout
        assert re.search(
            r"certificate: for 127.0.0.1, localhost until \d{4}-\d\d-\d\d, clients must", said
        )
        assert _run(*told, "--ca-file", str(tmp_path / "gone")).returncode == 1


async def test_the_tour_asks_the_server_that_was_started_whatever_name_it_has(
    ca: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ca.issue("for-the-world", "router.example")
    with ScriptedBackend(STREAM) as backend:
        for number, asked in enumerate(({}, {"tls_client_ca": str(ca.file)})):
            one = {"name": "one", "url": backend.url}
            with start(tmp_path / str(number), one, **edge(shown, **asked)) as product:
                path = product.config_path
                await tour.give(product.url, config.load(path), path)
                said = capsys.readouterr().out
            assert f'base_url="{product.url}/v1"' in said
            assert ("The Rhine." in said, "no tour" in said) == (not asked, bool(asked))


_MAPPED = """
import ctypes, sys
from router import app
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
if sys.argv[1] == "mapped":
    app._map_large_blocks()
libc.free(libc.malloc(16 << 20))  # from this glibc learns
before = libc.mallinfo2().d  # hblks: blocks that are mappings
block = libc.malloc(16 << 20)
print(libc.mallinfo2().d - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not glibc's malloc")
@pytest.mark.parametrize(("how", "mappings"), [("mapped", "1"), ("as it comes", "0")])
def test_what_a_tls_connection_reads_into_is_given_back_when_it_ends(
    how: str, mappings: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _MAPPED, how], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (ran.stdout.strip(), ran.stderr) == (mappings, "")


def test_a_line_that_strangers_can_cause_is_written_seldom() -> None:
    now = 0.0
    seldom = Seldom(10.0, lambda: now)

    assert [seldom.due("a"), seldom.due("a"), seldom.due("a"), seldom.due("b")] == [
        0,
        None,
        None,
        0,
    ]
    now = 10.0
    assert [seldom.due("a"), seldom.due("a")] == [2, None]


def test_no_setting_turns_verification_off() -> None:
    fields = {*Backend.names(), *Server.names()}

    # `insecure` is of keys: it lets a router start that asks for none.
    assert not [name for name in fields - {"insecure"} if re.search("verify|insecure|skip", name)]
