"""A case from start to verdict: carried out, judged, and again where only time was short."""

from __future__ import annotations

from pathlib import Path

from tests.support import checks_backend, checks_client, checks_product
from tests.support.casefile import Case
from tests.support.casejudge import Finding, judged
from tests.support.caserun import ProductProxy, StartProxy, performed

__all__ = ["checks_backend", "checks_client", "checks_product", "verify", "verify_patiently"]


def verify(
    case: Case,
    folder: Path,
    start: StartProxy = ProductProxy,
) -> list[Finding]:
    """Carry a case out and judge it."""
    wanted = [
        (kind, index, check)
        for kind, checks in (("must", case.must), ("should", case.should))
        for index, check in enumerate(checks)
    ]
    with performed(case, folder, start) as run:
        found = list(judged(run, [entry for entry in wanted if entry[2]["at"] != "log"]))
        # The log is whole once the process has ended.
        codes = [(proxy.stop(), proxy) for proxy in run.proxies]
        found += [
            Finding("end", 0, {"exit": code}, "".join(proxy.output[-30:]))
            for code, proxy in codes
            if code
        ]
        found += judged(run, [entry for entry in wanted if entry[2]["at"] == "log"])
    return found


def verify_patiently(
    case: Case,
    folder: Path,
    start: StartProxy = ProductProxy,
    *,
    tries: int = 3,
) -> list[Finding]:
    """As `verify`; a run in which nothing but a time bound fails is repeated.

    A machine with other work misses a bound of 50 ms now and then. A product that
    holds frames back misses it every time.
    """
    found: list[Finding] = []
    for attempt in range(tries):
        found = verify(case, folder / f"try-{attempt + 1}", start)
        if not found or not all(finding.is_timed for finding in found):
            break
    return found
