"""What breaks takes no request with it: the running router over scripted backends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients.demo import await_fact, record_of
from tests.support.pool import Pool, ask, held, pool_of, question, where
from tests.support.product import Product
from tests.support.rawclient import RawConnection, RawReply, sse_payloads
from tests.support.redisstand import RedisStand
from tests.support.script import CLOSE, Step, delta, reply_json, stream_head

#: short, and nothing that grows slowly hides whether it is back
SOON = {"open_s": 0.5, "slow_start_s": 0}
#: no breaker: what one test has broken is well for the next
NEVER = {"failures": 1000}


def fails(status: int, retry_after: str = "0") -> Step:
    body = {"error": {"message": f"a {status}"}}
    return reply_json(body, status=status, headers={"Retry-After": retry_after})


@pytest.fixture
def pool() -> Iterator[Pool]:
    with pool_of("a", "b") as running:
        yield running


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pool, Product]]:
    """One for all that makes nothing of a failure."""
    with pool_of("a", "b") as pool:
        folder = tmp_path_factory.mktemp("patient")
        with pool.start(folder, health=NEVER, retry={"least": 1000}) as product:
            yield pool, product


@contextlib.contextmanager
def routed(
    pool: Pool,
    folder: Path,
    health: Mapping[str, Any] = SOON,
    settings: Mapping[str, Any] | None = None,
    **tables: Any,
) -> Iterator[Product]:
    with pool.start(folder, settings=settings, health=health, **tables) as running:
        yield running


def ask_as(product: Product, request_id: str, session: str | None, **asked: Any) -> RawReply:
    return ask(product, session, headers={"x-request-id": request_id}, **asked)


def fault_of(reply: RawReply) -> Any:
    return reply.json()["error"]


# --- asking again -----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("status", [502, 503, 504])
def test_another_backend_answers_once_for_one_that_did_not_do_the_work(
    patient: tuple[Pool, Product], status: int, stream: bool
) -> None:
    pool, product = patient
    name = f"again-{status}-{stream}"
    [session] = pool.sessions_of("a", 1, name)
    pool.play("a", fails(status))
    pool.answer("b")
    reply = ask_as(product, name, session, stream=stream)

    assert where(reply) == "b"
    assert "I am b." in reply.text
    assert pool.counts() == {"a": 1, "b": 1}
    assert pool["a"].requests[0].body == pool["b"].requests[0].body
    record = record_of(product, name)
    assert (record["retries"], record["backend"], record["outcome"]) == (1, "b", "ok")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429, 500, 501])
def test_what_would_be_the_same_elsewhere_is_not_asked_again(
    patient: tuple[Pool, Product], status: int
) -> None:
    pool, product = patient
    pool.play("a", fails(status))
    pool.answer("b")
    reply = ask_as(product, f"once-{status}", pool.sessions_of("a", 1, "once")[0])

    assert reply.status == status
    assert fault_of(reply)["message"] == f"a {status}"
    assert pool.counts() == {"a": 1, "b": 0}
    assert record_of(product, f"once-{status}")["retries"] == 0


def test_a_backend_that_refuses_connections_is_passed_over(pool: Pool, tmp_path: Path) -> None:
    [session] = pool.sessions_of("a", 1)
    with routed(pool, tmp_path) as product:
        assert where(ask(product, session)) == "a"
        pool["a"].set_listen("refuse")
        reply = ask_as(product, "r", session, turns=2)

        assert (where(reply), reply.header("x-router-affinity")) == ("b", "moved")
        record = record_of(product, "r")
        assert (record["retries"], record["affinity"]) == (1, "moved")


def test_when_all_refuse_the_client_is_told(pool: Pool, tmp_path: Path) -> None:
    with routed(pool, tmp_path) as product:
        for backend in pool.backends.values():
            backend.set_listen("refuse")
        reply = ask_as(product, "r", "anyone")

        assert reply.status == 503
        assert int(str(reply.header("retry-after"))) >= 1
        assert fault_of(reply)["code"] == "no_healthy_backend"
        record = record_of(product, "r")
        assert (record["outcome"], record["retries"]) == ("upstream_error", 1)


def test_after_the_first_byte_nothing_is_asked_again(pool: Pool, tmp_path: Path) -> None:
    [session] = pool.sessions_of("a", 1)
    pool.play("a", stream_head(), delta(content="Half of it"), CLOSE)
    with routed(pool, tmp_path) as product:
        reply = ask_as(product, "r", session, stream=True)

        payloads = sse_payloads(reply.body)
        assert "Half of it" in payloads[0]
        assert '"backend_error"' in payloads[-1]
        assert "[DONE]" not in payloads
        assert pool.counts() == {"a": 1, "b": 0}
        record = record_of(product, "r")
        assert (record["retries"], record["outcome"]) == (0, "upstream_error")


def test_silence_ends_at_the_deadline_and_is_not_asked_again(pool: Pool, tmp_path: Path) -> None:
    [session] = pool.sessions_of("a", 1)
    pool.play("a", {"do": "wait_disconnect", "max_ms": 60_000})
    with routed(pool, tmp_path, settings={"timeout_s": 0.3}) as product:
        reply = ask_as(product, "r", session)

        assert reply.status == 504
        assert fault_of(reply)["code"] == "backend_timeout"
        assert pool["a"].requests[0].wait_peer_closed() is not None
        assert pool.counts() == {"a": 1, "b": 0}
        assert record_of(product, "r")["outcome"] == "upstream_timeout"


def test_when_all_are_overloaded_retries_stay_within_their_budget(
    pool: Pool, tmp_path: Path
) -> None:
    for name in pool.names:
        pool.play(name, fails(503))
    count = 300
    with routed(pool, tmp_path, retry={"least": 1}) as product:
        with RawConnection(product.port) as connection:
            for number in range(count):
                connection.send(question(f"s-{number}"))
                assert connection.read().status == 503
        asked = sum(pool.counts().values())

    # Without it each would be asked twice. A fifth more, ten at once, and one a second.
    assert count < asked < 1.5 * count


# --- waiting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_backend_is_left_alone_as_long_as_it_asks(
    pool: Pool, tmp_path: Path, status: int
) -> None:
    sessions = pool.sessions_of("a", 3)
    with routed(pool, tmp_path) as product:
        pool.play("a", fails(status, "1"))
        ask(product, sessions[0])
        pool.answer("a")
        meanwhile = [where(ask(product, session)) for session in sessions]
        meanwhile += [where(ask(product, about=f"thing {number}")) for number in range(4)]

        assert set(meanwhile) == {"b"}
        assert pool.counts()["a"] == 0
        await_fact(lambda: where(ask(product, sessions[1], turns=2)) == "a")


# --- the breaker ------------------------------------------------------------------------------


def broken(product: Product, pool: Pool) -> list[str]:
    """Backend a's sessions, after so many failures of theirs that it is out."""
    sessions = pool.sessions_of("a", 6)
    pool.play("a", fails(500))
    for session in sessions[:3]:
        assert ask(product, session).status == 500
    return sessions


def test_failures_in_a_row_open_the_breaker(pool: Pool, tmp_path: Path) -> None:
    with routed(pool, tmp_path, health={"open_s": 60}) as product:
        sessions = broken(product, pool)
        after = [where(ask(product, session, turns=2)) for session in sessions]
        after += [where(ask(product, about=f"thing {number}")) for number in range(4)]

        assert set(after) == {"b"}
        assert pool.counts()["a"] == 3


def test_a_good_answer_between_failures_keeps_it_closed(pool: Pool, tmp_path: Path) -> None:
    [session] = pool.sessions_of("a", 1)
    with routed(pool, tmp_path) as product:
        statuses = []
        for answers in ("fails", "fails", "ok", "fails", "fails", "ok"):
            if answers == "fails":
                pool.play("a", fails(500))
            else:
                pool.answer("a")
            statuses.append(ask(product, session).status)

    assert statuses == [500, 500, 200, 500, 500, 200]


def test_one_request_at_a_time_tries_whether_it_is_well_again(pool: Pool, tmp_path: Path) -> None:
    with routed(pool, tmp_path) as product, contextlib.ExitStack() as stack:
        sessions = broken(product, pool)
        pool.play("a", {"do": "wait_disconnect", "max_ms": 60_000})

        def is_tried() -> bool:
            connection = stack.enter_context(RawConnection(product.port))
            before = pool.counts()
            connection.send(question(sessions[0]))
            await_fact(lambda: pool.counts() != before)
            return bool(pool.counts()["a"])

        await_fact(is_tried)
        assert {where(ask(product, session)) for session in sessions} == {"b"}
        assert pool.counts()["a"] == 1
        # That client leaves, which says nothing of the backend; the next answer is a good one.
        pool.answer("a")
        stack.close()
        await_fact(lambda: {where(ask(product, s, turns=2)) for s in sessions} == {"a"}, 20)


def test_a_probe_that_fails_opens_it_again(pool: Pool, tmp_path: Path) -> None:
    with routed(pool, tmp_path) as product:
        [session, *others] = broken(product, pool)
        await_fact(lambda: ask(product, session).status == 500)

        assert pool.counts()["a"] == 4
        assert {where(ask(product, other)) for other in others} == {"b"}
        assert pool.counts()["a"] == 4


def test_whoever_is_back_begins_with_a_little(pool: Pool, tmp_path: Path) -> None:
    with routed(pool, tmp_path, health={"open_s": 0.5, "slow_start_s": 60}) as product:
        sessions = broken(product, pool)
        pool.answer("a")
        await_fact(lambda: where(ask(product, sessions[0])) == "a")
        with held(product, [None] * 8) as places:
            # With a tenth of its weight it is asked once the other one has nine.
            assert set(places) == {"b"}


#: checked often, so that a return is seen soon
CHECKED = {"interval_s": 0.05, "slow_start_s": 0}


def is_up(product: Product, name: str) -> bool:
    backends = product.get("/router/status")["backends"]
    return bool(next(backend["up"] for backend in backends if backend["name"] == name))


@pytest.mark.parametrize("answers", [[], [fails(500)], [CLOSE]], ids=["well", "failing", "mute"])
def test_whoever_is_back_answers_us_before_it_answers_users(
    pool: Pool, tmp_path: Path, answers: list[Step]
) -> None:
    [session] = pool.sessions_of("a", 1)
    with routed(pool, tmp_path, CHECKED) as product:
        pool["a"].set_listen("refuse")
        await_fact(lambda: not is_up(product, "a"))
        if answers:
            pool.play("a", *answers)
        pool["a"].set_listen("normal")
        [first, *_] = pool["a"].wait_requests(1)

        assert first.json == {
            "model": "m",
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 1,
        }
        # One that breaks off even that is not back; an error is for the breaker to judge.
        if answers == [CLOSE]:
            pool["a"].wait_requests(2)
            assert not is_up(product, "a")
            pool.answer("a")
        await_fact(lambda: is_up(product, "a"))
        pool.answer("a")
        assert where(ask(product, session)) == "a"


def test_a_backend_that_warms_up_for_long_holds_nobody_up(pool: Pool, tmp_path: Path) -> None:
    [session] = pool.sessions_of("a", 1)
    with routed(pool, tmp_path, CHECKED) as product:
        pool["a"].set_listen("refuse")
        await_fact(lambda: not is_up(product, "a"))
        pool.play("a", {"do": "wait_disconnect", "max_ms": 20_000})
        pool["a"].set_listen("normal")
        pool["a"].wait_requests(1)

        assert where(ask(product, session)) == "b"
        assert len(pool["a"].requests) == 1


def test_warming_up_can_be_turned_off(pool: Pool, tmp_path: Path) -> None:
    with routed(pool, tmp_path, {**CHECKED, "warm_up": False}) as product:
        pool["a"].set_listen("refuse")
        await_fact(lambda: not is_up(product, "a"))
        pool["a"].set_listen("normal")
        await_fact(lambda: is_up(product, "a"))

        assert pool["a"].requests == []


def test_a_fault_that_all_share_takes_at_most_half_of_them_out(tmp_path: Path) -> None:
    with pool_of("a", "b", "c", "d") as pool, routed(pool, tmp_path) as product:
        for name in pool.names:
            pool.play(name, fails(500))
        statuses = {ask(product, f"s-{number}").status for number in range(40)}

        assert statuses == {500}  # all were asked, nobody was told that there is no backend
        counts = pool.counts()
        assert sum(counts.values()) == 40
        assert sum(count > 3 for count in counts.values()) >= 2
        for name in pool.names:
            pool.answer(name)
        assert {ask(product, f"t-{number}").status for number in range(8)} == {200}


def test_of_two_backends_the_last_is_never_taken_out(pool: Pool, tmp_path: Path) -> None:
    with routed(pool, tmp_path, health={"open_s": 60, "max_ejected": 1}) as product:
        for name in pool.names:
            pool.play(name, fails(500))
        for number in range(12):
            assert ask(product, f"s-{number}").status == 500
        counts = pool.counts()

        assert sorted(counts.values())[0] == 3
        assert sum(counts.values()) == 12


# --- a client that leaves ---------------------------------------------------------------------


def test_who_leaves_while_its_session_is_looked_up_is_gone(pool: Pool, tmp_path: Path) -> None:
    [session] = pool.sessions_of("a", 1)
    with RedisStand(tmp_path / "redis") as redis:
        store = {"store": "redis", "timeout_ms": 60_000}
        with pool.start(tmp_path, affinity=store, env={"REDIS_URL": redis.url}) as product:
            redis.freeze()
            with RawConnection(product.port) as connection:
                connection.send(question(session, headers={"x-request-id": "left"}))
                await_fact(lambda: product.get("/router/status")["inflight"] == 1)
            record = record_of(product, "left")

            assert record["outcome"] == "client_disconnect"
            assert record["backend"] is None
            assert pool.counts() == {"a": 0, "b": 0}
            redis.thaw()
