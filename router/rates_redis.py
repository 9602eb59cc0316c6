"""What each key has used, in Redis, where several workers and routers count together.

One script a request asks and charges in one step; what earlier requests turned out to have used
goes along with it. All is written through one connection, in order, so that each process is the
only one to say how many requests it has under way: a process that dies is left out of the sum
when it has not been heard of for some time.

Nobody waits longer than a deadline. What Redis does not answer in time, and all while it fails,
is decided by what this process knows: the last answers, and its own requests since.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from hashlib import sha1
from typing import Any, NamedTuple
from urllib.parse import quote

import structlog

from router import config, ratebook, redisurl
from router.keyring import Allowance
from router.ports import Clock, Rates
from router.ratebook import MemoryRates
from router.rates import REFUSALS, Standing
from router.redisclient import Answer, Client, Command, RedisClient, RedisFault
from router.redislink import CONNECT_S, PAUSE_S, Link, blurred
from router.toll import Toll

log = structlog.get_logger(__name__)

_BATCH = 256
_WAITING = 4096  # questions at once; with more, nobody waits for an answer
_LEASE_S = 30.0  # others count a process's requests for so long after they last heard of it
_SIGN_OF_LIFE_S = 10.0
_FAREWELL_S = 1.0
_LONGEST_BACKOFF_S = 5.0  # after a refusal nobody is kept waiting for the next one

#: rates.py in Redis' own words; a test holds both to the same answers. The moments of buckets are
#: in `r` and `t`, the day and what was spent in it in `d` and `u`, and in `s:<process>` how many
#: requests it has under way and when it said so, where there is a limit on that. Numbers are
#: written with %.0f, since Lua's own way ends at 14 digits. The clock is the server's: those of
#: the routers differ. A key that has nothing left to say stays a minute, so that it is not made
#: anew for each request. Numbers come and go as one text, `-` for none: for the library, each
#: argument and each part of an answer is as much work as the whole text.
SCRIPT = """
local told = {}
for word in string.gmatch(ARGV[1], '%S+') do
  told[#told + 1] = tonumber(word) or false
end
local ask, tokens, requests_limit, tokens_limit, budget, streams, due, due_day, due_spent, mine,
  lease, now = unpack(told)
local me = ARGV[2]
local MINUTE, DAY = 60000000, 86400000000
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function spacing(amount, limit)
  return math.floor(amount * MINUTE / limit)
end

local function write(number)
  return string.format('%.0f', number)
end

local fields, others, stored = {}, 0, 0
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local name, value = all[i], all[i + 1]
  if string.sub(name, 1, 2) ~= 's:' then
    fields[name] = tonumber(value)
  else
    local count, at = string.match(value, '^(%d+) (%d+)$')
    if name == me then
      stored = tonumber(count) or 0
    elseif count and now - tonumber(at) < lease then
      others = others + count
    else
      redis.call('HDEL', KEYS[1], name)
    end
  end
end
mine = mine or stored
local requests_at, tokens_at = math.max(fields.r or 0, now), math.max(fields.t or 0, now)
local day = math.floor(now / DAY)
local spent = fields.d == day and fields.u or 0

if tokens_limit and due ~= 0 then
  local shift = spacing(math.abs(due), tokens_limit)
  tokens_at = tokens_at + (due > 0 and shift or -shift)
end
if due_day == day then
  spent = math.max(0, spent + due_spent)
end

local refused, wait = 0, 0
if ask == 1 then
  local requests_then, tokens_then = requests_at, tokens_at
  if requests_limit then
    requests_then = requests_then + spacing(1, requests_limit)
    wait = math.max(0, requests_then - now - MINUTE)
    if wait > 0 then refused = 1 end
  end
  tokens_then = math.max(tokens_then, now)
  if tokens_limit then
    tokens_then = tokens_then + spacing(math.min(tokens, tokens_limit), tokens_limit)
    if tokens_then - now - MINUTE > wait then
      refused, wait = 2, tokens_then - now - MINUTE
    end
  end
  if budget and spent >= budget then
    refused, wait = 3, (day + 1) * DAY - now
  end
  if refused == 0 and streams and mine + others >= streams then
    refused = 4
  end
  if refused == 0 then
    requests_at, tokens_at = requests_then, tokens_then
    spent, mine = spent + tokens, mine + 1
  end
end

redis.call('HSET', KEYS[1], 'r', write(requests_at), 't', write(tokens_at),
  'd', write(day), 'u', write(spent))
if streams and mine > 0 then
  redis.call('HSET', KEYS[1], me, write(mine) .. ' ' .. write(now))
else
  redis.call('HDEL', KEYS[1], me)
end
local last = math.max(requests_at, tokens_at) - now
if streams and mine + others > 0 then last = math.max(last, lease) end
if spent > 0 then last = math.max(last, (day + 1) * DAY - now) end
redis.call('PEXPIRE', KEYS[1], write(math.ceil(last / 1000) + 60000))
local standing = {refused, wait, math.max(0, requests_at - now), math.max(0, tokens_at - now), day,
  spent, mine + others}
for place, number in ipairs(standing) do
  standing[place] = write(number)
end
return table.concat(standing, ' ')
"""
_DIGEST = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


def opened(settings: config.Affinity, clock: Clock, environ: Mapping[str, str]) -> Rates:
    """The shared store at the address that sessions are shared at, too; not started yet."""
    address = redisurl.parse(environ[settings.url_env])

    def connect() -> Client:
        return RedisClient(address, connections=1, connect_s=CONNECT_S)

    return RedisRates(connect, settings, clock)


class _Due:
    """What is still to be told of one key."""

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance  # as last known
        self.tokens = 0  # to be taken; below 0: to be given back
        self.day = 0
        self.spent = 0  # of that day


class _Errand(NamedTuple):
    """One run of the script for a key: what is asked, what is told, or both."""

    name: str
    question: Question | None
    owed: _Due | None
    is_first: bool  # of this key in a round trip; what follows counts on from there


class RedisRates:
    """The store that is shared."""

    is_shared = True

    def __init__(
        self,
        connect: Callable[[], Client],
        settings: config.Affinity,
        clock: Clock,
        *,
        now_us: Callable[[], int] | None = None,
    ) -> None:
        """`now_us`: the time of day in place of the server's, for those who make it pass."""
        self._clock = clock
        self._local = MemoryRates(clock)
        self._prefix = settings.prefix
        self._timeout_s = settings.timeout_ms / 1000
        self._me = f"s:{os.urandom(8).hex()}"  # unlike that of any other process
        self._now_us = now_us
        self._to_ask: dict[Question, None] = {}  # in order
        self._waiting = 0  # of these, and of those that are being asked
        self._due: dict[str, _Due] = {}
        self._underway: dict[str, Allowance] = {}  # keys whose requests others have to count
        self._has_work = asyncio.Event()
        self._is_told = asyncio.Event()  # nothing is left to be told
        self._is_told.set()
        self._is_known_script = False
        self._quiet_until = 0.0  # after a refusal
        self._backoff_s = PAUSE_S
        self.local = 0
        self._link = Link(
            connect,
            clock,
            timeout_s=self._timeout_s,
            connections=1,
            prefix=settings.prefix,
            on_down=self._answer_all,
            what="rates",
        )

    # ------------------------------------------------------------------ what requests need

    def look(self, toll: Toll) -> Standing:
        return self._local.look(toll)

    def ask(self, toll: Toll, then: Callable[[Toll], None]) -> Question | None:
        if not self._may_ask() or self._waiting >= _WAITING:
            self._decide_here(toll)
            then(toll)
            return None
        question = Question(self, toll, then)
        question.timer = asyncio.get_running_loop().call_later(self._timeout_s, question.miss)
        self._to_ask[question] = None
        self._waiting += 1
        self._wake()
        return question

    def over(self, toll: Toll) -> None:
        self._local.over(toll)

    def settle(self, toll: Toll, tokens: int) -> None:
        assert toll.standing is not None
        self._local.settle(toll, tokens)
        taken, reserved = (toll.taken, toll.tokens) if toll.is_shared else (0, 0)
        self._owe(toll, toll.standing.day, tokens - taken, tokens - reserved)

    def status(self) -> dict[str, Any]:
        link = self._link
        return ratebook.status(
            "redis",
            is_ok=link.is_ok,
            faults=link.faults,
            last_fault=link.last_fault,
            latency_ms=None if link.latency_ms is None else round(link.latency_ms, 3),
            local=self.local,
        )

    async def start(self) -> None:
        """Waits for the first try to connect, not for its success."""
        await self._link.start(self._work, self._give_signs_of_life)

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                if self._link.is_ok:
                    await self._is_told.wait()  # what has just ended is still to be told
        await self._link.close()
        self._answer_all()

    # ------------------------------------------------------------------ without Redis

    def _may_ask(self) -> bool:
        return self._link.is_up and self._clock.ticks() >= self._quiet_until

    def _decide_here(self, toll: Toll) -> None:
        self.local += 1
        self._local.ask(toll, _nothing)

    def missed(self, question: Question) -> None:
        """It waited in vain; should its answer still come, that is no longer of use."""
        self._to_ask.pop(question, None)
        self._waiting -= 1
        self._decide_here(question.toll)
        self._link.missed()

    def dropped(self, question: Question) -> None:
        """Nobody waits for it any more."""
        self._to_ask.pop(question, None)
        self._waiting -= 1

    def _answer_all(self) -> None:
        """Redis fails: nobody waits any longer."""
        waiting, self._to_ask = self._to_ask, {}
        for question in waiting:
            self._answer_here(question)

    def _answer_here(self, question: Question) -> None:
        if question.is_open:
            self._waiting -= 1
            self._decide_here(question.toll)
            question.tell()

    # ------------------------------------------------------------------ with it

    def _wake(self) -> None:
        self._has_work.set()
        self._is_told.clear()

    async def _work(self) -> None:
        """One round trip: what is to be told, and with it what is asked."""
        await self._has_work.wait()
        await self._link.until_up()
        if (pause_s := self._quiet_until - self._clock.ticks()) > 0:
            await asyncio.sleep(pause_s)
        questions = [question for question, _ in zip(self._to_ask, range(_BATCH), strict=False)]
        for question in questions:
            del self._to_ask[question]
        names = dict.fromkeys(question.toll.name for question in questions)
        names |= dict.fromkeys(list(self._due)[:_BATCH])
        due = {name: self._due.pop(name, None) for name in names}
        if not self._to_ask and not self._due:
            self._has_work.clear()
        errands = [self._errand(question, due) for question in questions]
        errands += [
            _Errand(name, None, owed, is_first=True)
            for name, owed in due.items()
            if owed is not None
        ]
        if errands:
            answers = await self._run([self._command(errand) for errand in errands])
            if answers is not None:
                self._take(errands, answers)
            else:
                for errand in errands:
                    self._fell_through(errand)
        if not self._has_work.is_set():
            self._is_told.set()

    def _errand(self, question: Question, due: dict[str, _Due | None]) -> _Errand:
        """What is owed goes with the first question of its key, and is then not `due` any more."""
        name = question.toll.name
        is_first = name in due
        return _Errand(name, question, due.pop(name, None), is_first=is_first)

    def _command(self, errand: _Errand) -> Command:
        """The script's arguments."""
        question, owed = errand.question, errand.owed
        if question is not None:
            asked, allowance = question.toll.tokens, question.toll.allowance
        else:
            assert owed is not None
            asked, allowance = 0, owed.allowance
        numbers = (
            0 if question is None else 1,
            asked,
            *allowance,
            owed.tokens if owed is not None else 0,
            owed.day if owed is not None else -1,
            owed.spent if owed is not None else 0,
            self._local.of(errand.name).underway if errand.is_first else None,
            int(_LEASE_S * 1e6),
            self._now_us() if self._now_us is not None else None,
        )
        text = " ".join(["-" if number is None else str(number) for number in numbers])
        return f"{self._prefix}:rate:{quote(errand.name, safe='')}", text, self._me

    def _fell_through(self, errand: _Errand) -> None:
        """It did not arrive, or nobody knows."""
        if errand.owed is not None:
            self._owe_again(errand.name, errand.owed)
        if errand.question is not None:
            self._answer_here(errand.question)

    async def _run(self, commands: list[Command]) -> list[Answer] | None:
        """The script, by its name once the server knows it: a script is sent once, and not more."""
        if self._is_known_script:
            answers = await self._link.run([("EVALSHA", _DIGEST, 1, *rest) for rest in commands])
            if answers is None:
                return None
            unknown = [
                number
                for number, answer in enumerate(answers)
                if isinstance(answer, RedisFault) and answer.kind == "no_script"
            ]
            if not unknown:
                return answers
            # Another server, or one that was started anew. None of these was done.
            again = await self._link.run(
                [("EVAL", SCRIPT, 1, *commands[number]) for number in unknown]
            )
            if again is None:
                return None
            for number, answer in zip(unknown, again, strict=True):
                answers[number] = answer
            return answers
        answers = await self._link.run([("EVAL", SCRIPT, 1, *rest) for rest in commands])
        self._is_known_script = answers is not None
        return answers

    def _take(self, errands: list[_Errand], answers: list[Answer]) -> None:
        refusal: RedisFault | None = None
        for errand, answer in zip(errands, answers, strict=True):
            if not isinstance(answer, RedisFault):
                if errand.question is not None:
                    self._learn(errand.question, _standing(answer))
            elif answer.kind == "wrong_type":  # a key of somebody else's: nothing is told there
                self._link.note(answer)
                if errand.question is not None:
                    self._answer_here(errand.question)
            else:
                refusal = answer
                self._fell_through(errand)
        if refusal is None:
            self._link.accepted()
            self._backoff_s = PAUSE_S
        else:
            self._link.refused(refusal)
            self._quiet_until = self._clock.ticks() + blurred(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S)
            self._answer_all()

    def _learn(self, question: Question, standing: Standing) -> None:
        """What the store says of a key; where nobody waits for it any more, it is given back."""
        toll = question.toll
        used, now = self._local.of(toll.name), self._local.ticks_us()
        used.requests_at, used.tokens_at = now + standing.requests_us, now + standing.tokens_us
        used.day, used.spent = standing.day, standing.spent
        if question.is_open:
            self._waiting -= 1
            toll.standing = standing
            if not standing.refused:
                toll.is_shared = toll.is_underway = True
                used.underway += 1
                if toll.allowance.streams is not None:
                    self._underway[toll.name] = toll.allowance
            question.tell()
        elif not standing.refused:
            if toll.is_granted and not toll.is_settled:
                toll.is_shared = True  # it was let in without this answer, and will be settled
            else:
                self._owe(toll, standing.day, -toll.taken, -toll.tokens)

    def _owe(self, toll: Toll, day: int, tokens: int, spent: int) -> None:
        owed = self._due.setdefault(toll.name, _Due(toll.allowance))
        owed.allowance = toll.allowance
        owed.tokens += tokens
        if day > owed.day:
            owed.day, owed.spent = day, 0  # yesterday's is of no use any more
        if day == owed.day:
            owed.spent += spent
        self._wake()

    def _owe_again(self, name: str, owed: _Due) -> None:
        """What was to be told is still to be told, with what has come meanwhile."""
        newer = self._due.get(name)
        if newer is None:
            self._due[name] = owed
        else:
            newer.tokens += owed.tokens
            if newer.day == owed.day:
                newer.spent += owed.spent
        self._wake()

    async def _give_signs_of_life(self) -> None:
        """Again and again, or others would take this process for dead."""
        await asyncio.sleep(_SIGN_OF_LIFE_S)
        self.give_sign_of_life()

    def give_sign_of_life(self) -> None:
        """Say once more what is under way here."""
        for name, allowance in list(self._underway.items()):
            if self._local.of(name).underway:
                self._due.setdefault(name, _Due(allowance))
                self._wake()
            else:
                del self._underway[name]


class Question:
    """One request that waits."""

    __slots__ = ("_store", "_then", "is_cancelled", "timer", "toll")
    timer: asyncio.TimerHandle

    def __init__(self, store: RedisRates, toll: Toll, then: Callable[[Toll], None]) -> None:
        self._store = store
        self._then: Callable[[Toll], None] | None = then
        self.toll = toll
        self.is_cancelled = False

    @property
    def is_open(self) -> bool:
        """Somebody waits for the answer."""
        return self._then is not None

    def cancel(self) -> None:
        """Nobody wants to know any more; nothing happens where it was told already."""
        if self._then is not None:
            self._then = None
            self.is_cancelled = True
            self.timer.cancel()
            self._store.dropped(self)

    def miss(self) -> None:
        self._store.missed(self)
        self.tell()

    def tell(self) -> None:
        then, self._then = self._then, None
        self.timer.cancel()
        if then is None:
            return
        try:
            then(self.toll)
        except Exception:  # the others are still to be told
            log.exception("a request failed on what it was told of its key's limits")


def _standing(answer: Answer) -> Standing:
    assert isinstance(answer, bytes)
    refused, *numbers = map(int, answer.split())
    return Standing(REFUSALS[refused], *numbers)


def _nothing(toll: Toll) -> None:
    """What becomes of it the question tells."""
