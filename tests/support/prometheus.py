"""A page of metrics as Prometheus reads it: by its own client's parser."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.product import Product
from tests.support.rawclient import exchange, request_bytes

PREFIX = "scenario_router_"


class Page:
    """Samples by name, without our prefix. Two of the same name and labels are an error."""

    def __init__(self, text: str) -> None:
        assert text.endswith("\n")
        self.families: dict[str, Metric] = {}
        self.samples: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self.families, family.name
            assert family.type != "unknown", family.name
            self.families[family.name] = family
            for sample in family.samples:
                assert sample.name.startswith(PREFIX)
                found = self.samples.setdefault(sample.name.removeprefix(PREFIX), {})
                labels = frozenset(sample.labels.items())
                assert labels not in found, sample
                found[labels] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """Of the one sample with these labels, and maybe others."""
        (found,) = self._with(name, labels)
        return found

    def sum(self, name: str, **labels: str) -> float:
        """Over all samples with these labels; 0 where there is none."""
        return sum(self._with(name, labels))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by the values of a label."""
        found: dict[str, float] = {}
        for labels, value in self.samples.get(name, {}).items():
            key = dict(labels).get(label, "")
            found[key] = found.get(key, 0) + value
        return found

    @property
    def series(self) -> int:
        return sum(map(len, self.samples.values()))

    def _with(self, name: str, wanted: dict[str, str]) -> list[float]:
        samples = self.samples.get(name, {})
        return [value for labels, value in samples.items() if wanted.items() <= labels]


def page_of(product: Product) -> Page:
    """A connection of its own, so that any worker may be the one that is asked."""
    return Page(exchange(product.port, request_bytes("GET", "/metrics")).text)
