"""The book that an examination keeps: what was seen of each knob, and what that comes to.

honoured  seen to work, or nonsense is turned down where sense is accepted
ignored   nonsense is accepted, and nothing changes
refused   turned down with the knob's name
unknown   none of these could be seen
"""

from __future__ import annotations

import msgspec

from router import params
from router.capabilities import Verdict
from router.doctor.probing import Prober
from router.doctor.reply import Reply


class Knob(msgspec.Struct, frozen=True):
    name: str
    said_as: str | None  # the member it is said in; None: the dialect has no word for it
    verdict: Verdict
    evidence: str
    by_itself: bool | None = None  # what the server does anyway, where that was seen


class Open(msgspec.Struct, frozen=True):
    """Accepted, and no effect seen yet: nonsense decides."""

    told: str  # what was seen
    is_unchanged: bool  # nothing changes; False: it could not be compared
    if_read: Verdict = "honoured"  # what being read comes to


class Findings:
    """Verdicts, the first of each knob for good; and what is left open."""

    def __init__(self, prober: Prober) -> None:
        self.p = prober
        self.found: dict[str, tuple[Verdict, str]] = {}
        self.open: dict[str, Open] = {}
        self.by_itself: dict[str, bool] = {}
        self.has_effect: set[str] = set()  # seen to change an answer

    def can(self, name: str) -> bool:
        return name not in self.found and self.p.spelling(name) is not None

    def verdict(self, name: str) -> Verdict | None:
        return self.found[name][0] if name in self.found else None

    def accepted(self, name: str, reply: Reply, word: str = "") -> bool:
        """Whether a probe was answered; else the verdict is settled."""
        if reply.is_ok:
            return True
        is_named = self.p.names(reply, name) or bool(word and word in reply.whole)
        self.settle(name, "refused" if reply.is_refused and is_named else "unknown", reply.told)
        return False

    def settle(self, name: str, verdict: Verdict, evidence: str) -> None:
        self.found.setdefault(name, (verdict, evidence))

    def shows(self, name: str, evidence: str) -> None:
        """An effect on an answer was seen."""
        if name not in self.found:
            self.has_effect.add(name)
        self.settle(name, "honoured", evidence)

    def table(self) -> tuple[Knob, ...]:
        """All that is the server's to do, in the order of the parameters' table, then the rest."""
        theirs = [name for name in params.PARAMS if not self.p.is_ours(name)]
        shapes = [name for name in self.found if name not in params.PARAMS]
        return tuple(self._knob(name) for name in [*theirs, *shapes])

    def _knob(self, name: str) -> Knob:
        spelling = self.p.spelling(name) if name in params.PARAMS else name
        verdict, evidence = self.found.get(name, ("unknown", "nothing was found out"))
        if name not in self.found and spelling is None:
            evidence = self._unsaid(name)
        return Knob(name, spelling, verdict, evidence, self.by_itself.get(name))

    def _unsaid(self, name: str) -> str:
        if name in self.p.dialect.quiet:
            return "nothing is said of it to this server"
        return f"cannot be said to {self.p.dialect.title}"
