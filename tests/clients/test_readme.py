"""The README's blocks, run as written against a real model; only the address is this test's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.product import ROOT, Product
from tests.test_docs import blocks

ADDRESS = "http://127.0.0.1:8088"


@pytest.mark.parametrize("text", [text for _, text in blocks("python")])
def test_a_python_block_runs_and_gets_an_answer(text: str, router: Product) -> None:
    before = len(router.records())
    assert ADDRESS in text

    exec(compile(text.replace(ADDRESS, router.url), "README.md", "exec"), {})

    assert router.wait_records(before + 1)[-1]["outcome"] == "ok"


def test_the_curl_line_gets_an_answer(router: Product) -> None:
    lines = [
        line
        for _, text in blocks("sh")
        for line in text.splitlines()
        if line.startswith("curl ") and "/v1/chat/completions" in line
    ]
    assert lines
    for line in lines:
        ran = subprocess.run(
            ["bash", "-c", line.replace(ADDRESS, router.url)],
            cwd=Path(ROOT),
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(ran.stdout)["choices"][0]["message"]["content"]
