"""A winner's preset written into its policy, and whatever else a person had written kept.

In: a policy's text. Out: another text, comments, order and layout as they were. Nothing is
given back that would not serve as the arm did: the new text is read and compared.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, cast

import tomlkit
from tomlkit.items import Table

from router import policy as policies
from router import trials
from router.experiment import TABLES, Arm
from router.policy import Policy
from router.tomlfile import FileFault

_HEADER = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]")


class NotPromoted(Exception):
    """The text cannot be changed so that it serves as the arm does; says why."""


def promoted(policy: Policy, experiment: str, arm: str, folder: Path = Path()) -> str:
    """The policy's text with this arm's preset in its scenarios, and the experiment ended.

    `folder` is where the files that it names are. Raises NotPromoted.
    """
    written = policy.file.experiments[experiment]
    text = policy.text
    for name in written.scenarios:
        for table in TABLES:
            rules = getattr(written.arms[arm], table)
            if rules and table not in _table(text, name):
                text = _with_table(text, ["scenarios", name, table], rules)
    document = tomlkit.parse(text)
    for name in written.scenarios:
        _put(_inner(_inner(document, "scenarios"), name), written.arms[arm])
    _inner(_inner(document, "experiments"), experiment)["state"] = "stopped"
    text = tomlkit.dumps(document)
    wanted = _by_name(trials.variant(policy, written, arm))
    try:
        is_it = _by_name(policies.parse(text, policy.name, folder, lightly=True)) == wanted
    except FileFault:
        is_it = False
    if not is_it:
        raise NotPromoted(
            "written into the file, the preset would not come to what the arm served: "
            "this file has to be edited by hand"
        )
    return text


def with_state(policy: Policy, experiment: str, state: str, folder: Path = Path()) -> str:
    """The policy's text with the experiment running or stopped. Raises FileFault."""
    document = tomlkit.parse(policy.text)
    _inner(_inner(document, "experiments"), experiment)["state"] = state
    text = tomlkit.dumps(document)
    policies.parse(text, policy.name, folder, lightly=True)
    return text


def _put(scenario: MutableMapping[str, Any], arm: Arm) -> None:
    """An arm's rules go before the scenario's own: those of its preset for either mode, too."""
    told = {table: dict(getattr(arm, table)) for table in TABLES}
    for table, rules in told.items():
        for param, rule in rules.items():
            if table == "preset":
                for mode in ("direct", "thinking"):
                    if mode in scenario:
                        _drop(scenario[mode], param, rule)
            _set(_inner(scenario, table), param, rule)


def _set(table: MutableMapping[str, Any], param: str, rule: Any) -> None:
    if param == "extra" and isinstance(rule, dict) and "extra" in table:
        for name, inner in rule.items():
            table["extra"][name] = _inline(inner)
        return
    table[param] = _inline(rule)


def _drop(table: MutableMapping[str, Any], param: str, rule: Any) -> None:
    if param == "extra" and isinstance(rule, dict) and isinstance(table.get("extra"), dict):
        for name in rule:
            table["extra"].pop(name, None)
    else:
        table.pop(param, None)


def _inline(rule: Any) -> Any:
    """A rule on one line, as people write it."""
    return tomlkit.value(_said(rule))


def _said(rule: Any) -> str:
    if not isinstance(rule, Mapping):
        return str(tomlkit.item(rule).as_string())
    return "{ " + ", ".join(f"{name} = {_said(inner)}" for name, inner in rule.items()) + " }"


def _table(text: str, scenario: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = tomllib.loads(text)["scenarios"][scenario]
    return found


def _with_table(text: str, path: Sequence[str], rules: Mapping[str, Any]) -> str:
    """The text with a table at the end of those that it belongs with.

    By hand: tomlkit would put it behind the comment that introduces the next one.
    """
    lines = text.splitlines(keepends=True)
    end, is_here = None, False
    for number, line in enumerate(lines):
        if header := _HEADER.match(line):
            parts = [part.strip().strip("\"'") for part in header[1].split(".")]
            is_here = parts[: len(path) - 1] == list(path[:-1])
        if is_here and line.strip() and not line.lstrip().startswith("#"):
            end = number + 1
    if end is None:
        return text
    if not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    entries = "".join(f"{name} = {_said(rule)}\n" for name, rule in rules.items())
    lines.insert(end, f"\n[{'.'.join(path)}]\n{entries}")
    return "".join(lines)


def _inner(table: MutableMapping[str, Any], name: str) -> MutableMapping[str, Any]:
    """The table of this name, made where there is none."""
    if name not in table:
        made: Table = tomlkit.table()
        table[name] = made
    return cast("MutableMapping[str, Any]", table[name])


def _by_name(policy: Policy) -> dict[tuple[str, bool | None], dict[str, Any]]:
    """The presets, whatever order their rules stand in."""
    return {
        key: {entry.name: (entry.rule, entry.default) for entry in entries}
        for key, entries in policy.presets.items()
    }
