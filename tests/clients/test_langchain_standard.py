"""LangChain's standard suite through the router: it fails nothing that works without.

What the demo model cannot do at all is run without the router as well, and must fail
there, so that the list in `standard.py` never outlives its reasons.
"""

from __future__ import annotations

import pytest

from tests.clients.demo import DemoBackend
from tests.clients.standard import CANNOT, NOT_OFFERED, Standard
from tests.support.product import Product

# LangChain warns about what the suite itself does: pydantic v1, parsed messages.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class TestThroughTheRouter(Standard):
    is_failure_certain = False

    @pytest.fixture(autouse=True)
    def _address(self, router: Product) -> None:
        self.base_url, self.model_name = router.url + "/v1", "auto"


class TestWithoutTheRouter(Standard):
    is_failure_certain = True

    @classmethod
    def wants(cls, test: str) -> bool:
        return test in CANNOT

    @pytest.fixture(autouse=True)
    def _address(self, demo_backend: DemoBackend) -> None:
        self.base_url, self.model_name = demo_backend.url + "/v1", demo_backend.model


def test_the_lists_name_tests_of_the_suite() -> None:
    assert {*CANNOT, *NOT_OFFERED} <= set(dir(Standard))
    assert not CANNOT.keys() & NOT_OFFERED.keys()
