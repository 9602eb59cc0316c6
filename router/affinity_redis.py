"""Sessions that several workers and routers share, in Redis; each knows most of them itself.

Nobody waits for Redis longer than a deadline, and while it fails nobody waits at all: a session
is then where this process knows it to be, else at its home. What could not be told is told
later. Only what a process does not know is asked on a request's path; what it knows for some
seconds already is used, and asked again behind the request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import structlog

from router import affinity, config, redisurl
from router.affinity import Key, Known, Memory, MemoryAffinity
from router.ports import Affinity, Clock
from router.redisclient import Answer, Client, Command, RedisClient, RedisFault
from router.redislink import CONNECT_S, PAUSE_S, Link, blurred

log = structlog.get_logger(__name__)

Then = Callable[[str | None], None]

_READERS = 3  # batches under way at once: a question does not wait for the answer to another
_CONNECTIONS = _READERS + 1  # one for what is written, so that it arrives in order
_BATCH = 256
_WAITING = 4096  # questions at once; with more, nobody waits for an answer

_FRESH_S = 2.0  # younger knowledge is not asked again
_EXCEPTION_S = 60.0  # older knowledge is not used before it was asked again: of an exception
_NONE_S = 30.0  # ... and of there being none
_LONGEST_BACKOFF_S = 5.0  # between tries to tell what was refused


def opened(settings: config.Affinity, clock: Clock, environ: Mapping[str, str]) -> Affinity:
    """The store that is configured, not started yet."""
    if settings.store == "memory":
        return MemoryAffinity(clock, ttl_s=settings.ttl_s, limit=settings.max_sessions)
    address = redisurl.parse(environ[settings.url_env])

    def connect() -> Client:
        return RedisClient(address, connections=_CONNECTIONS, connect_s=CONNECT_S)

    return RedisAffinity(connect, settings, clock)


class RedisAffinity:
    """The store that is shared."""

    is_shared = True

    def __init__(
        self, connect: Callable[[], Client], settings: config.Affinity, clock: Clock
    ) -> None:
        self._clock = clock
        self._prefix = settings.prefix
        self._ttl_s = settings.ttl_s
        self._limit = settings.max_sessions
        self._memory = Memory(clock, ttl_s=settings.ttl_s, limit=settings.max_sessions)
        self._questions = Questions(settings.timeout_ms / 1000, self._missed)
        self._to_ask: dict[Key, None] = {}  # in order, each once
        self._asking: set[Key] = set()
        self._to_tell: dict[Key, None] = {}
        self._has_questions = asyncio.Event()
        self._has_news = asyncio.Event()
        self._backoff_s = PAUSE_S
        self._link = Link(
            connect,
            clock,
            timeout_s=settings.timeout_ms / 1000,
            connections=_CONNECTIONS,
            prefix=settings.prefix,
            on_down=self._send_all_home,
        )

    # ------------------------------------------------------------------ what requests need

    def find(self, pool: str, session: str, then: Then) -> Question | None:
        key = pool, session
        known = self._memory.get(key)
        if not self._must_ask(key, known):
            then(None if known is None else known.exception)
            return None
        question = self._questions.put(key, then)
        self._ask(key)
        return question

    def last(self, pool: str, session: str) -> str | None:
        return self._memory.last((pool, session))

    def served(self, pool: str, session: str, backend: str, *, is_home: bool) -> None:
        key = pool, session
        before = self._memory.get(key)
        changes = 0 if before is None else before.changes
        known = self._memory.served(key, backend, is_home=is_home)
        if known.changes != changes:
            known.is_unsaved = True
            self._tell(key)
        elif known.exception is not None and self._age(known.renewed) > self._ttl_s / 10:
            self._tell(key)

    def status(self) -> dict[str, Any]:
        link = self._link
        return affinity.status(
            "redis",
            len(self._memory),
            is_ok=link.is_ok,
            faults=link.faults,
            last_fault=link.last_fault,
            latency_ms=None if link.latency_ms is None else round(link.latency_ms, 3),
        )

    async def start(self) -> None:
        """Waits for the first try to connect, not for its success."""
        await self._link.start(self._tell_some, *[self._ask_some] * _READERS)

    async def close(self) -> None:
        await self._link.close()
        self._send_all_home()

    # ------------------------------------------------------------------ asking

    def _must_ask(self, key: Key, known: Known | None) -> bool:
        """Whether the request has to wait; what is not young is asked again in any case."""
        if not self._link.is_up or len(self._questions) >= _WAITING:
            return False
        if known is None:
            return True
        if known.is_unsaved:
            return False  # nobody knows better
        age = self._age(known.confirmed)
        if age > (_NONE_S if known.exception is None else _EXCEPTION_S):
            return True
        if age > _FRESH_S:
            self._ask(key)
        return False

    def _age(self, ticks: float) -> float:
        return self._clock.ticks() - ticks

    def _ask(self, key: Key) -> None:
        if key not in self._asking:
            self._to_ask[key] = None
            self._has_questions.set()

    async def _ask_some(self) -> None:
        """One round trip."""
        await self._has_questions.wait()
        batch = _taken(self._to_ask)
        if not self._to_ask:
            self._has_questions.clear()
        if not batch:
            return  # another one was faster
        self._asking.update(batch)
        asked = [_version(self._memory.get(key)) for key in batch]
        answers = await self._link.run([("GET", self._name(key)) for key in batch])
        if answers is None:
            return
        self._asking.difference_update(batch)
        for key, version, answer in zip(batch, asked, answers, strict=True):
            if isinstance(answer, RedisFault) and answer.kind != "wrong_type":
                self._link.fail(answer)
                return
            self._learn(key, version, answer)

    def _learn(self, key: Key, version: int | None, answer: Answer) -> None:
        """What the store says of a session, unless ours has changed since it was asked."""
        if isinstance(answer, RedisFault):
            self._link.note(answer)
        known = self._memory.get(key) or self._memory.touch(key)
        if version is not None and _version(known) == version:
            known.exception = _backend(answer)
            known.confirmed = self._clock.ticks()
        self._questions.answer(key, known.exception)

    def _missed(self) -> None:
        self._link.missed()

    def _send_all_home(self) -> None:
        """The store fails: nobody waits any longer."""
        self._to_ask.clear()
        self._asking.clear()
        for key in self._questions.sessions:
            known = self._memory.get(key)
            self._questions.answer(key, None if known is None else known.exception)

    # ------------------------------------------------------------------ telling

    def _tell(self, key: Key) -> None:
        self._to_tell[key] = None
        if len(self._to_tell) > self._limit:
            del self._to_tell[next(iter(self._to_tell))]
        self._has_news.set()

    async def _tell_some(self) -> None:
        """One round trip of news; after a refusal some time passes before the next."""
        await self._has_news.wait()
        await self._link.until_up()
        news = [
            (key, known, known.changes)
            for key in _taken(self._to_tell)
            if (known := self._memory.get(key)) is not None
        ]
        if not self._to_tell:
            self._has_news.clear()
        answers = await self._link.run([self._news(key, known) for key, known, _ in news])
        if answers is None:
            for key, _, _ in news:
                self._tell(key)
            return
        refusal: RedisFault | None = None
        for (key, known, changes), answer in zip(news, answers, strict=True):
            if isinstance(answer, RedisFault):
                refusal = answer
                self._tell(key)
            elif known.changes == changes:
                known.is_unsaved = False
                known.confirmed = known.renewed = self._clock.ticks()
        if refusal is None:
            self._link.accepted()
            self._backoff_s = PAUSE_S
            return
        self._link.refused(refusal)
        await asyncio.sleep(blurred(self._backoff_s))
        self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S)

    def _news(self, key: Key, known: Known) -> Command:
        name = self._name(key)
        if known.exception is None:
            return ("DEL", name)
        if known.is_unsaved:
            return ("SET", name, known.exception, "EX", self._ttl_s)
        return ("EXPIRE", name, self._ttl_s)

    def _name(self, key: Key) -> str:
        pool, session = key
        return f"{self._prefix}:{quote(pool, safe='')}:{session}"


class Questions:
    """Requests that wait for an answer, by session; each until its deadline."""

    def __init__(self, timeout_s: float, on_missed: Callable[[], None]) -> None:
        self._timeout_s = timeout_s
        self._on_missed = on_missed
        self._waiting: dict[Key, list[Question]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def sessions(self) -> list[Key]:
        """Those that somebody waits for."""
        return list(self._waiting)

    def put(self, key: Key, then: Then) -> Question:
        question = Question(self, key, then)
        question.timer = asyncio.get_running_loop().call_later(
            self._timeout_s, self._miss, question
        )
        self._waiting.setdefault(key, []).append(question)
        self._count += 1
        return question

    def answer(self, key: Key, backend: str | None) -> None:
        questions = self._waiting.pop(key, [])
        self._count -= len(questions)
        for question in questions:
            question.tell(backend)

    def drop(self, question: Question) -> None:
        """It needs no answer any more."""
        questions = self._waiting.get(question.key, [])
        if question not in questions:
            return  # its answer is there, and just told to those that asked before it
        questions.remove(question)
        self._count -= 1
        if not questions:
            del self._waiting[question.key]

    def _miss(self, question: Question) -> None:
        self.drop(question)
        question.tell(None)
        self._on_missed()


class Question:
    """One request that waits."""

    __slots__ = ("_questions", "_then", "key", "timer")
    timer: asyncio.TimerHandle

    def __init__(self, questions: Questions, key: Key, then: Then) -> None:
        self._questions = questions
        self._then: Then | None = then
        self.key = key

    def cancel(self) -> None:
        """Nobody wants to know any more; nothing happens where it was told already."""
        if self._then is not None:
            self._then = None
            self.timer.cancel()
            self._questions.drop(self)

    def tell(self, backend: str | None) -> None:
        then, self._then = self._then, None
        self.timer.cancel()
        if then is None:
            return  # cancelled by another one that was told the same
        try:
            then(backend)
        except Exception:  # the others are still to be told
            log.exception("a request failed on what it was told of its session")


def _version(known: Known | None) -> int | None:
    """What an answer may be an answer to; None while the store has still to be told of ours."""
    if known is None:
        return 0
    return None if known.is_unsaved else known.changes


def _taken(keys: dict[Key, None]) -> list[Key]:
    """The first of them, which are then not in there any more."""
    batch = [key for key, _ in zip(keys, range(_BATCH), strict=False)]
    for key in batch:
        del keys[key]
    return batch


def _backend(answer: Answer) -> str | None:
    """A name; what cannot be one is none, since others may write to a store, too."""
    if not isinstance(answer, bytes) or len(answer) > 64:
        return None
    with contextlib.suppress(UnicodeDecodeError):
        return answer.decode()
    return None
