"""A name with several addresses, as the system's own resolver tells it: a headless service."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.demo import await_fact
from tests.support.pool import POLICY, ask, where
from tests.support.product import Product
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

NAME = "models.test"
#: a mount namespace, in which the router has a table of hosts of its own
APART = ["unshare", "--map-root-user", "--mount"]
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


@pytest.fixture
def pods() -> Iterator[dict[str, ScriptedBackend]]:
    """Servers on one port, each at an address of its own."""
    first = ScriptedBackend([chat_ok("I am here.")], host=ADDRESSES[0])
    others = [
        ScriptedBackend([chat_ok("I am here.")], host=address, port=first.port)
        for address in ADDRESSES[1:]
    ]
    everybody = [first, *others]
    for pod in everybody:
        pod.start()
    yield {pod.host: pod for pod in everybody}
    for pod in everybody:
        pod.stop()


def write_hosts(path: Path, *addresses: str) -> None:
    """In place: it is the file itself that the router's table is mounted from."""
    path.write_text("".join(f"{address} {NAME}\n" for address in addresses), encoding="ascii")


def backends(product: Product) -> set[str]:
    return {backend["name"] for backend in product.get("/router/status")["backends"]}


@pytest.mark.skipif(
    subprocess.run([*APART, "true"], capture_output=True).returncode != 0,
    reason="no namespace of our own can be had here, so no table of hosts either",
)
def test_replicas_come_and_go_with_the_addresses_of_their_name(
    pods: dict[str, ScriptedBackend], tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    two, three, four = ADDRESSES
    write_hosts(hosts, two, three)
    port = pods[two].port
    service = {"name": "pod", "url": f"http://{NAME}:{port}", "model": "m", "discover": True}
    own_hosts = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    with Product.start(
        tmp_path / "router",
        {"backends": [{**service, "discover_s": 0.1}], "health": {"interval_s": 0.2}},
        policy=POLICY,
        within=[*APART, "sh", "-c", own_hosts, "sh"],
    ) as product:
        assert backends(product) == {f"pod-{two}", f"pod-{three}"}
        asked = [ask(product, f"session-{number}") for number in range(30)]
        assert {where(reply) for reply in asked} == {f"pod-{two}", f"pod-{three}"}
        homes = {f"session-{number}": where(reply) for number, reply in enumerate(asked)}

        write_hosts(hosts, two, three, four)
        await_fact(lambda: f"pod-{four}" in backends(product))
        stayed = {session: where(ask(product, session, turns=2)) for session in homes}
        assert all(stayed[s] in (homes[s], f"pod-{four}") for s in homes)
        assert f"pod-{four}" in {where(ask(product, f"late-{number}")) for number in range(30)}

        write_hosts(hosts, three, four)
        await_fact(lambda: f"pod-{two}" not in backends(product))
        before = len(pods[two].requests)
        after = {session: where(ask(product, session, turns=3)) for session in homes}
        assert len(pods[two].requests) == before
        assert all(after[s] == stayed[s] for s in homes if stayed[s] != f"pod-{two}")

        # A resolver that knows nothing for a while says nothing of who is there.
        write_hosts(hosts)
        known = backends(product)
        assert {ask(product, session).status for session in homes} == {200}
        assert backends(product) == known
