"""What showed no effect is sent as nonsense: who turns that down has read it.

As few questions as it takes: all at once, and who is named in a refusal needs no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router import params
from router.doctor.knobs import Findings
from router.doctor.reply import Reply


def close(f: Findings) -> None:
    """A verdict for everything that is still open."""
    for if_read in ("honoured", "unknown"):
        bad = {
            name: _nonsense_for(name)
            for name, seen in f.open.items()
            if name not in f.found and seen.if_read == if_read
        }
        while len(bad) > 1:
            reply = _ask(f, bad)
            settled = [name for name in bad if reply.is_ok or _names(f, reply, name)]
            if not settled:
                break
            for name in settled:
                _judge(f, name, bad.pop(name), reply)
        for name, value in bad.items():
            _judge(f, name, value, _ask(f, {name: value}))


def _ask(f: Findings, bad: Mapping[str, Any]) -> Reply:
    # Where nothing is drawn, some look at nothing that says how to draw.
    heat = {"temperature": 1.0} if "temperature" in f.p.base else {}
    return f.p.ask(**{**heat, **bad})


def _names(f: Findings, reply: Reply, name: str) -> bool:
    return reply.is_rejected and f.p.names(reply, name)


def _judge(f: Findings, name: str, value: Any, reply: Reply) -> None:
    seen = f.open[name]
    if reply.is_ok and seen.is_unchanged:
        f.settle(name, "ignored", f"{seen.told}, nor is {value!r} refused")
    elif reply.is_rejected:
        why = reply.line_with(f.p.words(name))
        f.settle(name, seen.if_read, f"{seen.told}; {value!r} is refused ({why})")
    else:
        also = f"{value!r} is accepted" if reply.is_ok else reply.told
        f.settle(name, "unknown", f"{seen.told}; {also}")


def _nonsense_for(name: str) -> Any:
    match params.PARAMS[name].kind:
        case "text" | "texts":
            return 5
        case _:
            return "x"
