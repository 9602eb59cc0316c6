"""The file of client keys: read, checked, changed. What it says, typed.

In: TOML text, hashes in place of keys. Out: a `Keyring`, or every mistake with its line. A
change keeps comments and order, and the text is read again before it is given back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from router import migration, tomlfile
from router.files import write_whole
from router.keyring import Allowance, Grant, Keyring, digest_of
from router.tables import Field, Table, field_validator, model_validator
from router.tomlfile import FileFault, Mistake

#: what a key begins with, so that people and scanners of secrets know one when they see it
PREFIX = "sr-"
_KEY_BYTES = 32
_HASH = "sha256:"
_NEW_FILE = """\
# Keys of clients, by name. What stands here are hashes: a key is shown once, when it is made.
# `scenario-router keys add|list|revoke|rotate` keeps this file; a change is taken while running.
schema = 1
"""

_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


class Key(Table):
    """One client's key."""

    hash: str = Field(
        pattern=r"^sha256:[0-9a-f]{64}$", description="sha256: and the hex digest of the key."
    )
    created: datetime | None = Field(default=None, description="When it was made.")
    expires: datetime | None = Field(
        default=None, description="From then on it is refused; left out: never."
    )
    scenarios: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="What it may get; of others, the best of these. Left out: all.",
    )
    pools: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="Whose backends it may reach. Left out: all."
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="Left out: as [limits] says."
    )
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="Prompt and answer. Left out: as [limits] says."
    )
    tokens_per_day: int | None = Field(
        default=None, ge=1, description="A budget. Left out: as [limits] says."
    )
    streams: int | None = Field(
        default=None, ge=1, description="Requests under way at once. Left out: as [limits] says."
    )

    @field_validator("created", "expires")
    @classmethod
    def _has_a_zone(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("needs a time zone, as in 2026-11-30T12:00:00Z")
        return value

    def grant(self, name: str) -> Grant:
        allowance = Allowance(
            self.requests_per_minute, self.tokens_per_minute, self.tokens_per_day, self.streams
        )
        return Grant(
            name,
            self.scenarios,
            frozenset(self.pools) if self.pools is not None else None,
            allowance if any(limit is not None for limit in allowance) else None,
            self.expires.timestamp() if self.expires is not None else None,
        )


class KeyFile(Table):
    """A whole file of keys."""

    schema_: int = Field(
        alias="schema",
        description="Version of this format; an older one is read as what it is now.",
    )
    keys: Mapping[str, Key] = Field(
        default_factory=dict,
        description="By the name that the log shows.",
        json_schema_extra={"propertyNames": {"pattern": f"^{_NAME}$"}},
    )

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        names: dict[str, str] = {}
        for name, key in self.keys.items():
            if key.hash in names:
                raise ValueError(f"{names[key.hash]!r} and {name!r} have the same key")
            names[key.hash] = name
        return self


# --- reading --------------------------------------------------------------------------


def load(path: Path) -> KeyFile:
    """The file; raises FileFault with all that is wrong."""
    return parse(tomlfile.read(path), str(path))


def parse(text: str, name: str) -> KeyFile:
    table = tomlfile.table(text, name)
    migration.upgrade(table, "keys", text, name)
    written = tomlfile.model(KeyFile, table, text, name)
    message = (
        "is no name for a key: a letter or digit first, letters, digits and _ . - in it, at most 64"
    )
    mistakes = [
        tomlfile.mistake(text, ("keys", key), message)
        for key in written.keys
        if not re.fullmatch(_NAME, key)
    ]
    if mistakes:
        raise FileFault(name, mistakes)
    return written


def keyring(path: Path | None, keys_env: str | None, environ: Mapping[str, str]) -> Keyring:
    """The keys of both sources. Raises FileFault.

    `path` is the file of keys, `keys_env` the variable that holds `name=key,name2=key2`.
    """
    grants: dict[bytes, Grant] = {}
    if keys_env is not None:
        grants = {digest_of(key): Grant(name) for name, key in spelled_out(keys_env, environ)}
    if path is not None:
        text = tomlfile.read(path)
        written = parse(text, str(path))
        taken = {grant.name for grant in grants.values()}
        mistakes = []
        for name, key in written.keys.items():
            digest = bytes.fromhex(key.hash.removeprefix(_HASH))
            if name in taken or digest in grants:
                what = "name" if name in taken else "key"
                message = f"{keys_env} has this {what}, too: one of them has to go"
                mistakes.append(tomlfile.mistake(text, ("keys", name), message))
            grants[digest] = key.grant(name)
        if mistakes:
            raise FileFault(str(path), mistakes)
    return Keyring(grants)


def spelled_out(variable: str, environ: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """(name, key) of an environment variable. What is wrong is told without a key."""
    names: set[str] = set()
    keys: set[str] = set()
    entries = [entry for entry in environ.get(variable, "").split(",") if entry.strip()]
    for number, entry in enumerate(entries, start=1):
        name, _, key = (part.strip() for part in entry.partition("="))
        if not name or not key:
            raise _of_variable(variable, f"entry {number} is no name=key")
        if name in names or key in keys:
            what = "name" if name in names else "key"
            raise _of_variable(variable, f"entry {number} has the {what} of one before it")
        names.add(name)
        keys.add(key)
        yield name, key.encode("utf-8", "surrogateescape")


def _of_variable(variable: str, message: str) -> FileFault:
    return FileFault("environment", [Mistake(variable, None, message)])


def strangers(keyring: Keyring, scenarios: Collection[str]) -> Iterator[tuple[str, str]]:
    """(key, scenario) of scenarios that no policy has, or not yet."""
    for grant in keyring.grants:
        for scenario in grant.scenarios or ():
            if scenario not in scenarios:
                yield grant.name, scenario


def findings(
    written: KeyFile, text: str, scenarios: Collection[str], pools: Collection[str]
) -> Iterator[Mistake]:
    """What the file names that is not there."""
    for name, key in written.keys.items():
        for what, named, known in (
            ("scenario", key.scenarios, scenarios),
            ("pool", key.pools, pools),
        ):
            for entry in named or ():
                if entry not in known:
                    hint = tomlfile.suggestion(entry, tuple(known))
                    where = ("keys", name, f"{what}s")
                    yield tomlfile.mistake(text, where, f"no such {what}{hint}")


# --- changing -------------------------------------------------------------------------


class NoSuchKey(Exception):
    """The file has no key of that name; says which there are."""


def new_key() -> str:
    """A key: 256 random bits, in letters that need no quoting anywhere."""
    return PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def added(text: str, file: str, name: str, key: str, now: datetime, said: Mapping[str, Any]) -> str:
    """The text with one more key. `said`: what else is to stand in its table. Raises FileFault."""
    written = parse(text, file)
    if name in written.keys:
        mistake = tomlfile.mistake(
            text, ("keys", name), "is there already; `keys rotate` renews it"
        )
        raise FileFault(file, [mistake])
    entry = {"hash": _hashed(key), "created": _second(now), **said}
    tomlfile.model(KeyFile, {"schema": 1, "keys": {name: entry}}, text, file)
    import tomlkit  # who reads keys does not change them

    document = tomlkit.parse(text)
    if "keys" not in document:
        document["keys"] = tomlkit.table(is_super_table=True)
    table = tomlkit.table()
    for field, value in entry.items():
        table[field] = value
    document["keys"][name] = table  # a table, as it was read as one
    return _read_again(tomlkit.dumps(document), file)


def revoked(text: str, file: str, name: str) -> str:
    """The text without this key. Raises FileFault, NoSuchKey."""
    _must_have(parse(text, file), name)
    import tomlkit  # who reads keys does not change them

    document = tomlkit.parse(text)
    del document["keys"][name]  # a table, as it was read as one
    return _read_again(tomlkit.dumps(document), file)


def rotated(text: str, file: str, name: str, key: str, now: datetime) -> str:
    """The text with another key under this name, and all else of it as it was."""
    _must_have(parse(text, file), name)
    import tomlkit  # who reads keys does not change them

    document = tomlkit.parse(text)
    table: Any = document["keys"][name]  # a table, as it was read as one
    table["hash"] = _hashed(key)
    table["created"] = _second(now)
    return _read_again(tomlkit.dumps(document), file)


def change(path: Path, edit: Callable[[str], str]) -> None:
    """Put an edited text in the file's place, whole; one change at a time. Raises OSError.

    A new file is for its owner alone; one that is there keeps its owner and its mode, so that
    root can add a key to a file that the service reads.
    """
    path = path.resolve()
    with _alone_in(path.parent):
        try:
            text, before = tomlfile.read(path), path.stat()
        except FileFault:
            if path.exists():
                raise
            text, before = _NEW_FILE, None
        edited = edit(text).encode()
        if before is None:
            write_whole(path, edited, mode=0o600)
        else:
            owner = (before.st_uid, before.st_gid)
            write_whole(path, edited, mode=stat.S_IMODE(before.st_mode), owner=owner)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two commands at once would each write what it read, and one change be lost."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read_again(text: str, file: str) -> str:
    parse(text, file)
    return text


def _must_have(written: KeyFile, name: str) -> None:
    if name not in written.keys:
        there = ", ".join(written.keys) or "none"
        raise NoSuchKey(f"there is no key {name!r}; there are: {there}")


def _hashed(key: str) -> str:
    return _HASH + digest_of(key.encode()).hex()


def _second(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(microsecond=0)
