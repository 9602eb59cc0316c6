"""What an earlier version has left, as `check` tells of it: older files, and records it kept."""

from __future__ import annotations

import time
from pathlib import Path

from router import config as configs
from router import migration, recordfiles, tomlfile
from router.config import Config
from router.migration import Kind
from router.policycheck import Finding


def findings(config: Config, path: Path) -> list[Finding]:
    """All there is to say of the configuration at this path."""
    return [*outdated("config", path), *_removals(config, path)]


def outdated(kind: Kind, path: Path) -> list[Finding]:
    """Whether a file is read as another schema than the one that it was written for."""
    text = tomlfile.read(path)
    told = migration.outdated(text, kind, str(path))
    if told is None:
        return []
    mistake = tomlfile.mistake(text, (migration.KEY,), told)
    return [Finding("note", mistake, str(path) if kind == "config" else None)]


def _removals(config: Config, path: Path) -> list[Finding]:
    """Records that a start would remove although nobody asked for it: 0.2 kept all for ever."""
    log = config.log
    if not log.enabled or not log.keep_days or configs.is_said(path, ("log", "keep_days")):
        return []
    before = time.time() - log.keep_days * 86_400
    try:
        kept = recordfiles.segments(configs.beside(path, log.dir))
    except OSError:  # not ours to read: nothing is known of it
        return []
    old = [found for found in kept if found.begins + recordfiles.HOUR_S < before]
    if not old:
        return []
    message = (
        f"left out, so {log.keep_days:g} days: {len(old)} files of the log in {log.dir} are older "
        "and are removed when the router runs; keep_days = 0 keeps all"
    )
    text = tomlfile.read(path)
    return [Finding("note", tomlfile.mistake(text, ("log", "keep_days"), message), str(path))]
