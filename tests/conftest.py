"""What several test files share: a real small model, and the router in front of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.clients.demo import DemoBackend
from tests.support.product import Product

# How long an example takes is the machine's business; what it gives is ours. In CI the examples
# are the same each time: a change is judged by what it did, new finds are for people's own runs.
settings.register_profile("router", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("router")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of our own, shared by all routers: each policy is learned from once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each has a folder in that of the run
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCENARIO_ROUTER_CACHE", str(folder / "cache"))
        yield


@pytest.fixture(scope="session")
def demo_backend() -> Iterator[DemoBackend]:
    with DemoBackend() as running:
        yield running


@pytest.fixture(scope="session")
def router(
    demo_backend: DemoBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """The router with the shipped policy."""
    backend = {
        "name": "demo",
        "url": demo_backend.url,
        "dialect": "llamacpp",
        "model": demo_backend.model,
    }
    folder = tmp_path_factory.mktemp("router")
    with Product.start(folder, {"backends": [backend]}) as running:
        yield running
