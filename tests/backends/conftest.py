"""An engine, the router in front of it, and a client: one of each at a time, all real."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.engines import NAMES, Engine, param
from tests.backends.policy import policy
from tests.backends.talk import Talk
from tests.support.product import Product


@pytest.fixture(scope="session", params=[param(name) for name in NAMES])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    with Engine(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="session")
def front(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    backend = {"name": engine.name, "url": engine.url, "model": engine.model}
    with Product.start(
        tmp_path_factory.mktemp("front"),
        {"backends": [{**backend, "dialect": engine.name}]},
        policy=policy(),
    ) as running:
        yield running


@pytest.fixture(scope="session")
def talk(front: Product) -> Iterator[Talk]:
    with Talk(front.url) as talking:
        yield talking
