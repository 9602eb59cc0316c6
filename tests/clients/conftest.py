"""A router in front of a scripted backend, and how the standard suite is run.

The suite runs as `standard.py` says: the chosen tests, the expected failures. A skip
would hide what was not tested, so inside the suite it counts as a failure.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.clients.standard import Standard
from tests.support.product import Product
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend


@pytest.fixture(scope="session")
def scripted() -> Iterator[ScriptedBackend]:
    """A backend that keeps every request; a test sets what it answers."""
    with ScriptedBackend([chat_ok("The Rhine.")]) as running:
        yield running


@pytest.fixture(scope="session")
def scripted_router(
    scripted: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    backend = {"name": "scripted", "url": scripted.url, "model": "qwen3-0.6b"}
    with Product.start(tmp_path_factory.mktemp("scripted"), {"backends": [backend]}) as running:
        yield running


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not _is_wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _is_wanted(item)]
    for item in items:
        if suite := _suite(item):
            _expect(item, suite)


def _is_wanted(item: pytest.Item) -> bool:
    suite = _suite(item)
    return suite is None or suite.wants(_name(item))


def _expect(item: pytest.Item, suite: type[Standard]) -> None:
    reason = suite.cannot.get(_name(item))
    if reason is not None:
        item.add_marker(
            pytest.mark.xfail(
                reason=reason, raises=suite.fails_with, strict=suite.is_failure_certain
            )
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _suite(item) and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped without being listed: {report.longrepr}"
    return report


def _suite(item: pytest.Item) -> type[Standard] | None:
    found = getattr(item, "cls", None)
    return found if isinstance(found, type) and issubclass(found, Standard) else None


def _name(item: pytest.Item) -> str:
    return str(getattr(item, "originalname", item.name))
