"""What one server was seen to honour, kept in a file, and its dialect fitted to that.

In: what `doctor` found out. Out: a Dialect as the table has it, with the places that this very
server has and without those it was seen not to hear. Decides nothing about requests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from router.dialects import Dialect
from router.files import write_whole

SCHEMA = 1
_FOLDER = "capabilities"
_SIZE_LIMIT = 1 << 20

Verdict = Literal["honoured", "ignored", "refused", "unknown"]
#: where a thought arrives when nothing else is said: a member of the message, tags in its text
Thought = Literal["reasoning", "reasoning_content", "inline", "none"]

#: without a place of their own they are not lost: the limit of the whole answer carries the
#: thought's budget, and the router itself moves thoughts and keeps sessions
CARRIED = frozenset({"thinking_budget", "reasoning_output", "session_id"})


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """One server as it was seen."""

    schema: int = SCHEMA
    url: str
    time: str  # RFC 3339, UTC
    engine: str
    version: str | None
    model: str
    dialect: str
    #: something that is another after each start of the server, where it tells such a thing
    started: str | None = None
    context: int | None = None  # tokens that one conversation may have
    thought: Thought | None = None  # None: could not be seen
    opens_in_prompt: bool = False
    knobs: Mapping[str, Verdict] = {}


_decode = msgspec.json.Decoder(Capabilities).decode


def path_for(url: str, cache: Path) -> Path:
    """Where the file of a server is kept, in the folder that `trained.folder()` gives."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    plain = f"{parts.hostname or ''}-{port}{path}"
    name = re.sub(r"[^0-9A-Za-z._-]", "_", plain)
    if name != plain or name.startswith("."):  # two servers might come to one name
        name = f"{name.lstrip('.')}-{_digest([plain])}"
    return cache / _FOLDER / f"{name}.json"


def read(path: Path) -> Capabilities | None:
    """What a file tells; None where there is none, or none that can be understood."""
    try:
        if path.stat().st_size > _SIZE_LIMIT:
            return None
        found = _decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if found.schema == SCHEMA else None


def write(path: Path, capabilities: Capabilities) -> None:
    """Keep it, whole or not at all. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(capabilities))
    write_whole(path, text + b"\n")


def is_for(
    capabilities: Capabilities,
    *,
    dialect: str,
    version: str | None,
    model: str | None,
    started: str | None,
) -> bool:
    """Whether it still speaks of the server that says this of itself; what it does not say
    (None) contradicts nothing."""
    told = (
        (capabilities.version, version),
        (capabilities.model, model),
        (capabilities.started, started),
    )
    agrees = all(then is None or now is None or then == now for then, now in told)
    return capabilities.dialect == dialect and agrees


def fitted(dialect: Dialect, capabilities: Capabilities) -> Dialect:
    """The dialect as this server was seen to understand it; the table's own where nothing differs.

    Only what was seen counts: `unknown` leaves the table as it is.
    """
    if capabilities.dialect != dialect.name:
        return dialect
    joining = {
        name: place
        for name, place in dialect.optional.items()
        if name not in dialect.places and capabilities.knobs.get(name) == "honoured"
    }
    leaving = set(_leaving(dialect, capabilities))
    opens = capabilities.opens_in_prompt
    changed = [f"+{name}" for name in joining] + [f"-{name}" for name in leaving]
    if opens != dialect.opens_in_prompt:
        changed.append(f"opens_in_prompt={opens}")
    context = capabilities.context or dialect.context
    if not changed and context == dialect.context:
        return dialect
    kept = {name: place for name, place in dialect.places.items() if name not in leaving}
    return msgspec.structs.replace(
        dialect,
        places={**kept, **joining},
        quiet=(dialect.quiet - joining.keys()) | (leaving & CARRIED),
        opens_in_prompt=opens,
        context=context,
        variant=_digest([dialect.variant, *sorted(changed)]) if changed else dialect.variant,
    )


def as_examined(dialect: Dialect, url: str, model: str | None, cache: Path) -> Dialect:
    """As the router would speak to the server at `url`, which is not asked, where somebody has
    examined it: what it is now and since when it runs is taken to be as it was then."""
    found = read(path_for(url, cache))
    if found is None or not is_for(
        found, dialect=dialect.name, version=None, model=model, started=None
    ):
        return dialect
    return fitted(dialect, found)


def _leaving(dialect: Dialect, capabilities: Capabilities) -> Iterator[str]:
    """Parameters that this server does not hear: no longer said, and named in the warnings."""
    for name in dialect.places:
        verdict = capabilities.knobs.get(name)
        if verdict == "ignored" and name == "thinking" and capabilities.thought in (None, "none"):
            # A model that never thinks does not mind the switch; told off, it obeys anyway.
            continue
        if verdict in ("ignored", "refused"):
            yield name


def _digest(texts: list[str]) -> str:
    return hashlib.blake2s("\0".join(texts).encode(), digest_size=4).hexdigest()
