"""One pass over all knobs of a dialect, from the most to the least important to a policy."""

from __future__ import annotations

import msgspec

from router.capabilities import Thought
from router.dialects import Dialect
from router.doctor import answers, nonsense, sampling, thinking
from router.doctor.asking import Asker, DoctorError
from router.doctor.knobs import Findings, Knob
from router.doctor.probing import CAP, Prober
from router.doctor.reply import Reply

_JUNK = "scenario_router_probe"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    knobs: tuple[Knob, ...]
    thought: Thought | None
    opens_in_prompt: bool
    notes: tuple[str, ...]
    requests: int  # chat requests that it took
    is_whole: bool  # all was asked


def run(asker: Asker, dialect: Dialect, model: str) -> Found:
    """Raises DoctorError where it answers no chat request at all."""
    f = Findings(Prober(asker, dialect, model))
    plain = _plain(f)
    sampling.limit(f, plain, _base(f))
    greedy, again = _greedy(f)
    seen = sampling.Texts(greedy, is_steady=greedy.is_ok and greedy.said == again.said)
    thought = thinking.look(f, plain, greedy)
    seen = sampling.draws(f, seen)
    sampling.penalties(f, seen)
    sampling.stop(f, seen)
    notes = sampling.frozen(f)
    answers.cache(f, again)
    answers.unseen(f)
    nonsense.close(f)
    answers.stream(f)
    answers.structure(f, seen.greedy)
    answers.tools(f, greedy)
    answers.shapes(f)
    return Found(
        knobs=f.table(),
        thought=thought.where,
        opens_in_prompt=thought.opens_in_prompt,
        notes=notes,
        requests=f.p.count,
        is_whole=not f.p.is_cut_short,
    )


def _plain(f: Findings) -> Reply:
    """Nothing but the question and a limit: what the server does by itself.

    It comes first, too: some servers keep the sampling of the first request for all that
    follow, and then it had better be the model's own.
    """
    f.p.base = {"max_new_tokens": CAP} if f.p.can_say("max_new_tokens", CAP) else {}
    reply = f.p.ask()
    if not reply.is_ok and not reply.is_rejected:
        if not _may_be_endless(f, reply):
            raise DoctorError(_no_chat(reply.told))
        f.p.always = {"max_tokens": CAP}
        reply = f.p.ask()
    return reply


def _base(f: Findings) -> Reply:
    """The richest request that is accepted, the base of all that follow.

    What had to be left out was refused.
    """
    wanted = {"max_new_tokens": 4, "temperature": 0, "thinking": False}
    wanted = {name: value for name, value in wanted.items() if f.p.can_say(name, value)}
    dropped, why = "", ""
    while True:
        f.p.base = wanted
        reply = f.p.ask()
        if reply.is_ok:
            break
        if not reply.is_rejected:
            raise DoctorError(_no_chat(reply.told))
        if not wanted:
            raise DoctorError(f"refuses a plain chat request: {reply.told}")
        # What the server names goes first, else the most special one.
        named = [name for name in wanted if f.p.names(reply, name)]
        dropped, why = (named or list(wanted))[-1], reply.told
        wanted = {name: value for name, value in wanted.items() if name != dropped}
        if named:
            f.settle(dropped, "refused", why)
    if dropped:
        f.settle(dropped, "unknown", f"not accepted, without its name: {why}")
    f.p.base = {**wanted, **({"max_new_tokens": CAP} if "max_new_tokens" in wanted else {})}
    return reply


def _may_be_endless(f: Findings, reply: Reply) -> bool:
    """Whether the silence may be a limit that is ignored, and another word may be heard."""
    has_other_word = f.p.spelling("max_new_tokens") not in (None, "max_tokens")
    return reply.is_silence and has_other_word and not f.p.always


def _no_chat(told: str) -> str:
    if told.startswith(("401", "403")):
        return f"wants a key (--key-env): {told}"
    return f"does not answer a chat request: {told}"


def _greedy(f: Findings) -> tuple[Reply, Reply]:
    """The same request twice; the second time with a member that no server knows."""
    greedy = f.p.ask()
    again = f.p.ask(members={_JUNK: 1})
    if again.is_ok:
        is_same = "the same text" if again.said == greedy.said else "another text"
        f.settle("unknown_members", "ignored", f"{_JUNK}: 1 is accepted, {is_same}")
    elif again.is_rejected:
        f.settle("unknown_members", "refused", again.told)
        again = f.p.ask()
    else:
        f.settle("unknown_members", "unknown", again.told)
    return greedy, again
