"""docs/threat-model.md and docs/security.md say what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from router import config as configs
from router import policy as policies
from router import tomlfile
from router.commands import VERBS
from router.config import Config

ROOT = Path(__file__).resolve().parents[1]
MODEL = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def lines() -> list[tuple[str, list[tuple[str, str]]]]:
    """Each line of the tables of threats: the threat, and the tests that it names."""
    found = []
    is_inside = False
    for line in MODEL.splitlines():
        if not line.startswith("|"):
            is_inside = False
        elif line.startswith("| threat | what stops it | test |"):
            is_inside = True
        elif is_inside and not line.startswith("|---"):
            threat, stop, tests = (cell.strip() for cell in line.strip("|").split(" | "))
            assert threat
            assert stop
            found.append((threat, TEST.findall(tests)))
    return found


def test_every_line_of_the_threat_model_names_tests_that_are_run() -> None:
    """Collected as `make test` collects them: no other name, no file that is left out."""
    named = lines()
    assert len(named) > 40
    assert [threat for threat, tests in named if not tests] == []
    files = sorted({name for _, tests in named for name, _ in tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, *(f"tests/{name}" for name in files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    collected = {line.partition("[")[0] for line in ran.stdout.splitlines() if "::" in line}
    wanted = {f"tests/{name}::{test}" for _, tests in named for name, test in tests}
    assert sorted(wanted - collected) == []


def test_every_test_of_a_threat_stands_in_the_threat_model() -> None:
    """Who adds an attack adds its line; helpers of these files are no attacks."""
    named = {test for _, tests in lines() for _, test in tests}
    beside = {
        # what the tests themselves stand on
        "test_two_requests_in_a_row_are_two",
        "test_a_connection_of_a_plain_answer_is_used_again",
        "test_every_route_that_changes_something_is_among_those",
        "test_pages_that_are_allowed_may_ask_and_operators_have_visitors_looked_at_too",
        "test_a_name_that_somebody_may_own",
        "test_without_keys_a_session_is_called_as_ever",
        "test_a_name_cannot_be_made_to_look_like_another_keys",
        "test_what_is_left_out_for_its_letters_is_said",
        "test_ollama_hears_no_louder_word_than_ours",
        "test_names_of_a_clients_own_fill_no_memory_and_no_log",
        "test_half_characters_are_the_clients_error_or_go_on_as_they_are",
        "test_the_key_is_not_left_behind",
    }
    files = [*ROOT.glob("tests/test_threat_*.py"), ROOT / "tests/dashboard/test_page_threats.py"]
    ours = {
        name
        for path in files
        if path.name != Path(__file__).name
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M)
    }

    assert sorted(ours - named - beside) == []
    assert sorted(beside - ours) == []


def test_what_stays_is_named() -> None:
    """A model without what it does not stop would be a lie."""
    assert MODEL.count("\n- **") >= 5
    assert len(MODEL.splitlines()) < 130


# --- security.md --------------------------------------------------------------------------


def test_every_setting_that_the_security_page_names_exists_with_that_default() -> None:
    rows = re.findall(r"^\| `\[(\w+)\] (\w+)` \| `([^`]+)` \|", SECURITY, re.M)
    assert len(rows) >= 10
    fresh = Config.model_validate({"backends": [{"name": "a", "url": "http://a:1"}]})
    for table, name, told in rows:
        value = getattr(getattr(fresh, table), name)
        written = {None: "unset", (): "[]", True: "true", False: "false"}.get(value, str(value))
        assert written == told, f"[{table}] {name}"


@pytest.mark.parametrize(
    "text", re.findall(r"^```toml\n(.*?)^```$", SECURITY, re.M | re.S), ids=lambda text: text[:20]
)
def test_what_the_security_page_says_to_write_is_sound(text: str) -> None:
    if "[scenarios" in text:
        policies.parse(text, "security.md")
        return
    value = tomlfile.table(text, "security.md")
    value.setdefault("backends", [{"name": "a", "url": "http://127.0.0.1:8000"}])
    hardened = tomlfile.model(Config, value, text, "security.md")
    assert configs.exposed(hardened) == []


def test_every_command_and_file_that_the_security_page_names_exists() -> None:
    for verb in re.findall(r"`?scenario-router (\w+)", SECURITY):
        assert verb in VERBS, verb
    for page in (MODEL, SECURITY):
        for link in re.findall(r"\]\(([^)#]+)\)", page):
            if "://" not in link:
                assert (ROOT / "docs" / link).exists(), link
