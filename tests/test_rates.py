"""What every store of rates promises, in memory and in a real Redis; what is reckoned for it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import cast

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from structlog.testing import capture_logs

from router import config, ratebook, rates, redisurl, toll
from router.keyring import Allowance
from router.ledger import Ledger
from router.ports import Rates
from router.rates import DAY_US, MINUTE_US, Standing, Used
from router.rates_redis import RedisRates
from router.record import Record
from router.redisclient import RedisClient
from router.toll import Toll
from tests.support.clocks import HandClock
from tests.support.redisserver import redis_server

limits = st.one_of(st.none(), st.integers(1, 50))
token_limits = st.one_of(st.none(), st.integers(1, 3000))
allowances = st.builds(Allowance, limits, token_limits, token_limits, st.sampled_from([None, 1, 3]))


class Asked:
    """What a plain reading of the limits has to say: buckets that fill up, and sums."""

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.allowance = allowance
        self._requests = Fraction(allowance.requests_per_minute or 0)
        self._tokens = Fraction(allowance.tokens_per_minute or 0)
        self._now = Fraction(now)
        self.spent = 0
        self.underway = 0

    @property
    def day(self) -> int:
        return int(self._now // 86_400)

    def pass_to(self, now: float) -> None:
        day, passed_s, self._now = self.day, Fraction(now) - self._now, Fraction(now)
        if self.day != day:
            self.spent = 0
        for name, limit in (
            ("_requests", self.allowance.requests_per_minute),
            ("_tokens", self.allowance.tokens_per_minute),
        ):
            if limit is not None:
                setattr(
                    self, name, min(Fraction(limit), getattr(self, name) + passed_s * limit / 60)
                )

    def waits(self, tokens: int) -> dict[str, Fraction]:
        """By what it is refused, with the seconds to wait; -1: nobody knows."""
        told = self.allowance
        found: dict[str, Fraction] = {}
        if told.requests_per_minute is not None and self._requests < 1:
            found["requests"] = (1 - self._requests) * 60 / told.requests_per_minute
        if told.tokens_per_minute is not None:
            needed = min(tokens, told.tokens_per_minute)
            if self._tokens < needed:
                found["tokens"] = (needed - self._tokens) * 60 / told.tokens_per_minute
        if told.tokens_per_day is not None and self.spent >= told.tokens_per_day:
            found["budget"] = (self.day + 1) * 86_400 - self._now
        if told.streams is not None and self.underway >= told.streams:
            found["streams"] = Fraction(-1)
        return found

    def is_close(self, tokens: int) -> bool:
        """Whether microseconds decide."""
        told = self.allowance
        needed = min(tokens, told.tokens_per_minute or 0)
        return abs(self._requests - 1) < Fraction(1, 1000) or (
            told.tokens_per_minute is not None and abs(self._tokens - needed) < Fraction(1, 100)
        )

    def grant(self, tokens: int) -> None:
        self._requests -= 1
        self._tokens -= min(tokens, self.allowance.tokens_per_minute or 0)
        self.spent += tokens
        self.underway += 1

    def settle(self, tokens: int, of: Toll, day: int) -> None:
        limit = self.allowance.tokens_per_minute
        if limit is not None:
            back = self._tokens - tokens + min(of.tokens, limit)
            self._tokens = min(Fraction(limit), back)
        if day == self.day:
            self.spent = max(0, self.spent + tokens - of.tokens)

    @property
    def requests_left(self) -> Fraction:
        return self._requests

    @property
    def tokens_left(self) -> Fraction:
        return self._tokens


class InMemory(RuleBasedStateMachine):
    """Any history of one key, and of another one that must not be touched by it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.runner = asyncio.Runner()
        self.stores: list[Rates] = []
        self.open: list[tuple[int, Toll]] = []

    def started(self) -> list[Rates]:
        return [ratebook.MemoryRates(self.clock)]

    @initialize(allowance=allowances, at=st.integers(86_000 * 1000, 87_000 * 1000))
    def begin(self, allowance: Allowance, at: int) -> None:
        self.clock.at = at / 1000
        self.stores = self.started()
        self.expected = Asked(allowance, self.clock.at)

    def asked(self, number: int, tolled: Toll) -> None:
        async def ask() -> None:
            done = asyncio.Event()
            self.stores[number].ask(tolled, lambda told: done.set())
            await done.wait()

        self.runner.run(ask())

    @rule(number=st.integers(0, 9), tokens=st.integers(0, 4000))
    def ask(self, number: int, tokens: int) -> None:
        number %= len(self.stores)
        tolled = Toll("shop", self.expected.allowance)
        tolled.tokens = tokens
        self.asked(number, tolled)

        standing = tolled.standing
        assert standing is not None
        waits = self.expected.waits(tokens)
        if not self.expected.is_close(tokens):
            self.judge(standing, waits)
        if not standing.refused:
            self.expected.grant(tokens)
            self.open.append((number, tolled))
        self.check_left(standing)

    def judge(self, standing: Standing, waits: dict[str, Fraction]) -> None:
        if not waits:
            assert standing.refused == ""
            return
        assert standing.refused in waits
        if "budget" in waits:
            assert standing.refused == "budget"
        elif set(waits) != {"streams"}:
            longest = max(waits.values())
            assert abs(standing.wait_us / 1_000_000 - longest) < Fraction(1, 1000)

    def check_left(self, standing: Standing) -> None:
        told, expected = self.expected.allowance, self.expected
        assert standing.spent == expected.spent
        if told.streams is not None:
            assert standing.underway == expected.underway
        for limit, us, left in (
            (told.requests_per_minute, standing.requests_us, expected.requests_left),
            (told.tokens_per_minute, standing.tokens_us, expected.tokens_left),
        ):
            if limit is not None:
                seconds = (limit - left) * 60 / limit
                assert abs(us / 1_000_000 - seconds) < Fraction(1, 1000)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), tokens=st.integers(0, 5000))
    def settle(self, which: int, tokens: int) -> None:
        number, tolled = self.open.pop(which % len(self.open))
        assert tolled.standing is not None
        self.stores[number].over(tolled)
        self.stores[number].over(tolled)
        self.stores[number].settle(tolled, tokens)
        self.expected.underway -= 1
        self.expected.settle(tokens, tolled, tolled.standing.day)
        self.arrived()

    @rule(ms=st.one_of(st.integers(0, 3000), st.integers(0, 120_000), st.just(86_400_000)))
    def pass_time(self, ms: int) -> None:
        self.clock.at = round(self.clock.at * 1000 + ms) / 1000
        self.expected.pass_to(self.clock.at)
        self.passed()

    def arrived(self) -> None:
        """What was settled is known to all."""

    def passed(self) -> None:
        """Time has passed."""

    @invariant()
    def a_look_is_free(self) -> None:
        for store in self.stores[:1]:
            tolled = Toll("shop", self.expected.allowance)
            assert store.look(tolled) == store.look(tolled)

    def teardown(self) -> None:
        async def close() -> None:
            for store in self.stores:
                await store.close()

        self.runner.run(close())
        self.runner.close()


InMemory.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestInMemory = InMemory.TestCase


class OfWorkers(InMemory):
    """The same, of three workers with one ledger."""

    def started(self) -> list[Rates]:
        ledger = Ledger(workers=3, rows=8)
        return [ratebook.WorkersRates(self.clock, ledger, number) for number in range(3)]


OfWorkers.TestCase.settings = InMemory.TestCase.settings
TestOfWorkers = OfWorkers.TestCase

if shutil.which("redis-server"):  # runs where a Redis is offered
    servers: dict[str, redis.Redis] = {}

    @pytest.fixture(scope="module", autouse=True)
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
        with (
            redis_server(tmp_path_factory.mktemp("redis")) as port,
            redis.Redis(port=port, decode_responses=True) as client,
        ):
            servers["redis"] = client
            yield client

    class InRedis(InMemory):
        """The same, of three routers that are as one."""

        def started(self) -> list[Rates]:
            self.server = servers["redis"]
            self.server.delete("r:rate:shop")
            port = self.server.connection_pool.connection_kwargs["port"]
            address = redisurl.parse(f"redis://127.0.0.1:{port}")
            told = config.Affinity(store="redis", prefix="r", timeout_ms=5000)
            self.shared = [
                RedisRates(
                    lambda: RedisClient(address, connections=1, connect_s=5),
                    told,
                    self.clock,
                    now_us=lambda: int(self.clock.at * 1e6),
                )
                for _ in range(3)
            ]

            async def start() -> None:
                for store in self.shared:
                    await store.start()

            self.runner.run(start())
            return list(self.shared)

        def until(self, holds: Callable[[dict[str, str]], bool]) -> None:
            """What is stored comes to that; the stores' tasks need the loop meanwhile."""

            async def wait() -> None:
                end = time.monotonic() + 20
                while not holds(cast("dict[str, str]", self.server.hgetall("r:rate:shop"))):
                    assert time.monotonic() < end, self.server.hgetall("r:rate:shop")
                    await asyncio.sleep(0.0005)

            self.runner.run(wait())

        def arrived(self) -> None:
            is_counted = self.expected.allowance.streams is not None
            underway = self.expected.underway if is_counted else 0
            expected = self.expected.spent, underway, self.expected.day

            def is_told(stored: dict[str, str]) -> bool:
                told = sum(int(v.split()[0]) for k, v in stored.items() if k[:2] == "s:")
                return expected == (int(stored["u"]), told, int(stored["d"]))

            self.until(is_told)

        def passed(self) -> None:
            async def tell() -> None:
                for store in self.shared:
                    store.give_sign_of_life()

            self.runner.run(tell())
            if self.expected.allowance.streams is not None:
                now, underway = f"{self.clock.at * 1e6:.0f}", self.expected.underway

                def is_told(stored: dict[str, str]) -> bool:
                    told = [v.split() for k, v in stored.items() if k[:2] == "s:"]
                    alive = sum(int(count) for count, at in told if at == now)
                    return alive == underway

                self.until(is_told)

        def teardown(self) -> None:
            super().teardown()
            assert all(store.local == 0 for store in self.shared), "Redis did not decide"

    InRedis.TestCase.settings = settings(
        max_examples=50,
        stateful_step_count=25,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes it minutes
        suppress_health_check=[HealthCheck.too_slow],
    )
    TestInRedis = InRedis.TestCase


# --- the workers of one router ----------------------------------------------------------------


def asked(store: Rates, name: str, allowance: Allowance) -> Toll:
    tolled = Toll(name, allowance)
    store.ask(tolled, lambda told: None)
    return tolled


def test_what_a_dead_worker_had_under_way_is_given_back_and_what_it_used_is_not() -> None:
    ledger, clock, allowance = Ledger(workers=2), HandClock(), Allowance(3, None, None, 1)
    dead, other = (ratebook.WorkersRates(clock, ledger, number) for number in range(2))
    assert asked(dead, "shop", allowance).is_granted
    assert not asked(other, "shop", allowance).is_granted

    heir = ratebook.WorkersRates(clock, ledger, 0)

    assert asked(heir, "shop", allowance).is_granted
    told = other.of("shop")
    assert (told.underway, told.requests_at) == (1, other.ticks_us() + 40_000_000)


def test_where_the_ledger_is_full_a_worker_counts_by_itself() -> None:
    ledger, clock = Ledger(workers=1, rows=4), HandClock()
    store = ratebook.WorkersRates(clock, ledger, 0)
    one = Allowance(requests_per_minute=1)
    with capture_logs() as lines:
        first = [asked(store, f"key-{number}", one).is_granted for number in range(6)]
        again = [asked(store, f"key-{number}", one).is_granted for number in range(6)]

    assert (first, again) == ([True] * 6, [False] * 6)
    assert [line["key"] for line in lines] == ["key-4", "key-5"]


# --- what is reckoned -----------------------------------------------------------------------


@given(
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(0, 500)), max_size=80),
)
def test_no_stretch_of_time_has_more_than_the_limit_and_its_share(
    limit: int, asked: list[tuple[int, int]]
) -> None:
    used, now, granted = Used(), 0, []
    for pause, tokens in asked:
        now += pause
        if not rates.ask(used, Allowance(None, limit), now, now, tokens).refused:
            granted.append((now, min(tokens, limit)))

    for n, (since, _) in enumerate(granted):
        total = 0
        for at, tokens in granted[n:]:
            total += tokens
            assert total <= limit + (at - since + len(granted)) * limit / MINUTE_US + 1e-6


@given(allowances, st.lists(st.integers(0, 3_000_000), max_size=40), st.integers(0, 100))
def test_who_waits_as_told_is_let_in(allowance: Allowance, pauses: list[int], tokens: int) -> None:
    allowance = allowance._replace(streams=None)
    used, now = Used(), 0
    for pause in pauses:
        now += pause
        refused = rates.ask(used, allowance, now, now, tokens)
        if refused.refused:
            assert rates.ask(used, allowance, now + refused.wait_us - 1, now, tokens).refused
            now += refused.wait_us
            assert not rates.ask(used, allowance, now, now, tokens).refused


@given(allowances, st.lists(st.integers(0, 3_000_000), max_size=40))
def test_where_a_look_says_no_asking_is_in_vain(allowance: Allowance, pauses: list[int]) -> None:
    used, now = Used(), DAY_US * 20_000
    for pause in pauses:
        now += pause
        looked = rates.look(used, allowance, now, now)
        asked = rates.ask(used, allowance, now, now, 0)
        if looked.refused:
            assert looked.refused == "requests"
            assert asked.refused
            assert asked.wait_us >= looked.wait_us


def test_a_refused_request_costs_nothing() -> None:
    used, allowance = Used(), Allowance(requests_per_minute=1, tokens_per_minute=100)
    assert not rates.ask(used, allowance, 0, 0, 60).refused

    for _ in range(100):
        assert rates.ask(used, allowance, 1, 1, 60).refused == "requests"

    assert not rates.ask(used, allowance, MINUTE_US, MINUTE_US, 60).refused


def test_one_that_is_larger_than_a_minute_is_let_in_when_all_of_it_is_there() -> None:
    used, allowance = Used(), Allowance(tokens_per_minute=100)
    large = rates.ask(used, allowance, 0, 0, 5000)
    second = rates.ask(used, allowance, 0, 0, 5000)

    assert (large.refused, large.tokens_us) == ("", MINUTE_US)
    assert (second.refused, second.wait_us) == ("tokens", MINUTE_US)


def test_what_was_used_beyond_the_estimate_is_paid_back() -> None:
    used, allowance = Used(), Allowance(tokens_per_minute=60)
    granted = rates.ask(used, allowance, 0, 0, 10)
    rates.settle(used, allowance, 0, 0, tokens=170, day=granted.day, spent=170)

    asked = rates.ask(used, allowance, 0, 0, 1)

    assert (asked.refused, asked.wait_us) == ("tokens", 121_000_000)  # 180 used, 1 more to come
    assert rates.left(asked.tokens_us, 60) == 0


def test_the_last_request_of_a_budget_may_go_over_it_and_the_day_ends_at_midnight_utc() -> None:
    used, allowance = Used(), Allowance(tokens_per_day=100)
    noon = DAY_US * 20_000 + DAY_US // 2

    assert not rates.ask(used, allowance, 0, noon, 99).refused
    assert not rates.ask(used, allowance, 0, noon, 500).refused
    refused = rates.ask(used, allowance, 0, noon, 1)

    assert (refused.refused, refused.wait_us) == ("budget", DAY_US // 2)
    assert not rates.ask(used, allowance, 0, noon + DAY_US // 2, 1).refused


def test_what_was_reserved_yesterday_is_not_given_back_today() -> None:
    used, allowance = Used(), Allowance(tokens_per_day=100)
    granted = rates.ask(used, allowance, 0, 0, 50)
    rates.ask(used, allowance, 0, DAY_US, 30)

    rates.settle(used, allowance, 0, DAY_US, tokens=0, day=granted.day, spent=-50)

    assert used.spent == 30


# --- for one request ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, b"0s"),
        (1, b"1ms"),
        (12_000, b"12ms"),
        (999_001, b"1s"),
        (1_500_000, b"1.5s"),
        (8_571_428, b"8.572s"),
        (59_999_999, b"1m0s"),
        (90_000_000, b"1m30s"),
        (3_600_000_000, b"1h0m0s"),
        (10_000_000, b"10s"),
    ],
)
def test_times_are_written_as_openai_writes_them(us: int, text: bytes) -> None:
    assert toll.duration(us) == text


def test_the_headers_tell_what_has_a_limit_and_nothing_else() -> None:
    standing = Standing("", 0, 30_000_000, 90_000_000, 0, 120, 1)

    assert toll.lines(Allowance(), standing) == []
    assert b"\r\n".join(toll.lines(Allowance(60, 1000, 100, 2), standing)).split(b"\r\n") == [
        b"x-ratelimit-limit-requests: 60",
        b"x-ratelimit-remaining-requests: 30",
        b"x-ratelimit-reset-requests: 30s",
        b"x-ratelimit-limit-tokens: 1000",
        b"x-ratelimit-remaining-tokens: 0",
        b"x-ratelimit-reset-tokens: 1m30s",
        b"x-ratelimit-limit-tokens-day: 100",
        b"x-ratelimit-remaining-tokens-day: 0",
    ]


@pytest.mark.parametrize(
    ("record", "was_sent", "tokens"),
    [
        (Record(input_tokens=20, output_tokens=5, answer_chars=12), True, 25),
        (Record(outcome="upstream_error"), True, 0),
        (Record(outcome="ok"), False, 0),
        # the router's own count: a byte in four, of the prompt and of what was answered
        (Record(outcome="client_disconnect"), True, 101),
        (Record(outcome="client_disconnect", answer_chars=40, reasoning_chars=8), True, 113),
        (Record(outcome="client_disconnect", answer_chars=40, lang="zh"), True, 131),
        (Record(outcome="ok", input_tokens=7, answer_chars=0), True, 7),
    ],
)
def test_what_was_used_is_what_usage_says_or_what_went_through(
    record: Record, was_sent: bool, tokens: int
) -> None:
    tolled = Toll("shop", Allowance(tokens_per_minute=1000))
    tolled.tokens, tolled.prompt = 500, 101

    assert toll.used(record, tolled, was_sent=was_sent) == tokens
