"""A case is carried out: upstreams and product are started, the actions done in order.

What comes of it is a `Run` full of facts. Nothing is judged here; `casechecks.py` does.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.support.casefile import (
    SEND_HEADER,
    Case,
    JsonObject,
    Outgoing,
    numbers,
    outgoing,
    overridden,
)
from tests.support.casemap import LIVE_PATH, Settings, policy_text, settings
from tests.support.filewrites import write_file
from tests.support.product import Product
from tests.support.rawclient import RawReply, exchange, request_bytes
from tests.support.redisstand import RedisStand
from tests.support.scripted import ScriptedBackend, Seen
from tests.support.sdkclient import SdkView, sdk_chat

CHAT_PATH = "/v1/chat/completions"
EXIT_WAIT_S = 30.0


class Proxy(Protocol):
    """What a run needs of the thing under test; `Product` behind `ProductProxy` is one."""

    port: int
    policy_path: Path
    log_dir: Path

    @property
    def output(self) -> list[str]: ...
    @property
    def pid(self) -> int: ...
    def records(self) -> list[dict[str, Any]]: ...
    def signal(self, number: int) -> None: ...
    def wait_exit(self, timeout_s: float) -> int | None: ...
    def stop(self) -> int: ...


class ProductProxy:
    """The router as a process."""

    def __init__(self, folder: Path, given: Settings) -> None:
        self._product = Product.start(folder, given.config, policy=given.policy, env=given.env)
        self.port = self._product.port
        self.policy_path = self._product.policy_path
        self.log_dir = self._product.log_dir
        self.pid = self._product.process.pid

    @property
    def output(self) -> list[str]:
        return self._product.output

    def records(self) -> list[dict[str, Any]]:
        return self._product.records()

    def signal(self, number: int) -> None:
        self._product.signal(number)

    def wait_exit(self, timeout_s: float) -> int | None:
        """The exit code, or None while it runs on."""
        try:
            return self._product.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> int:
        return self._product.stop()


StartProxy = Callable[[Path, Settings], Proxy]


@dataclass
class Sent:
    """One request that a client sent, and what came of it."""

    name: str
    label: str
    request: Outgoing
    reply: RawReply
    sdk: SdkView | None = None  # when the SDK was the client


@dataclass(frozen=True, slots=True)
class Exit:
    code: int | None
    ms: float  # since the signal


@dataclass
class Run:
    """Everything that is known after the actions."""

    case: Case
    nodes: dict[str, ScriptedBackend] = field(default_factory=dict)
    proxies: list[Proxy] = field(default_factory=list)  # those that run now
    started: list[Proxy] = field(default_factory=list)  # all there ever were
    sent: dict[str, list[Sent]] = field(default_factory=dict)
    polls: dict[str, float | None] = field(default_factory=dict)  # ms until it held
    exits: dict[str, Exit] = field(default_factory=dict)
    health_ms: list[float] = field(default_factory=list)
    redis: RedisStand | None = None
    keys_before: dict[str, set[str]] = field(default_factory=dict)  # by send: keys at its start
    keys_after: dict[str, set[str]] = field(default_factory=dict)
    output_before: dict[str, int] = field(default_factory=dict)  # by send: lines at the last write
    base_rss_mb: float = 0.0
    first_pid: int = 0

    @property
    def seen(self) -> list[Seen]:
        """Every counted request of every node, in the order of arrival."""
        return sorted((s for n in self.nodes.values() for s in n.requests), key=lambda s: s.arrived)

    def records(self) -> list[dict[str, Any]]:
        return [record for proxy in self.started for record in proxy.records()]


@contextmanager
def performed(
    case: Case,
    folder: Path,
    start: StartProxy = ProductProxy,
) -> Iterator[Run]:
    """The run after its actions, everything still up."""
    with ExitStack() as stack:
        performer = _Performer(case, folder, start, stack)
        performer.set_up()
        with performer.watching_health():
            for action in case.actions:
                performer.do(action)
        yield performer.run


class _Performer:
    def __init__(
        self,
        case: Case,
        folder: Path,
        start: StartProxy,
        stack: ExitStack,
    ) -> None:
        self.run = Run(case)
        self._folder = folder
        self._start = start
        self._stack = stack
        self._config = dict(case.config)
        self._signalled_at = 0.0
        self._lines_at_write = 0

    # --- what there is before the first action ---

    def set_up(self) -> None:
        case = self.run.case
        for node in case.nodes:
            self.run.nodes[node["id"]] = self._stack.enter_context(
                ScriptedBackend(
                    node.get("steps", ()),
                    rules=node.get("rules", ()),
                    models=node.get("models", ("qwen3-0.6b",)),
                    listen=node.get("listen", "normal"),
                    keepalive=node.get("keepalive"),
                )
            )
        if "redis" in case.needs:
            self.run.redis = self._stack.enter_context(RedisStand(self._folder / "redis"))
        for _ in range(2 if "two_proxies" in case.needs else 1):
            self.run.proxies.append(self._start_proxy())
        self.run.first_pid = self.run.proxies[0].pid
        self.run.base_rss_mb = peak_rss_mb(self.run.first_pid)

    def _start_proxy(self) -> Proxy:
        dialects = {node["id"]: node.get("dialect", "vllm") for node in self.run.case.nodes}
        nodes = {name: (node.url, dialects[name]) for name, node in self.run.nodes.items()}
        given = settings(
            self._config, nodes, redis_url=self.run.redis.url if self.run.redis else None
        )
        proxy = self._start(self._folder / f"proxy-{len(self.run.started) + 1}", given)
        self.run.started.append(proxy)
        self._stack.callback(proxy.stop)
        return proxy

    @contextmanager
    def watching_health(self) -> Iterator[None]:
        """Where a check wants it, GET /health all the time."""
        if not self._checks("health_ms"):
            yield
            return
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.05):
                reply = exchange(self.run.proxies[0].port, request_bytes("GET", LIVE_PATH))
                self.run.health_ms.append(reply.total_ms or 0.0)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)

    # --- actions ---

    def do(self, action: JsonObject) -> None:
        kind = action["do"]
        method: Callable[[JsonObject], None] | None = getattr(self, f"_do_{kind}", None)
        if method is None:
            raise ValueError(f"no such action: {kind}")
        method(action)

    def _do_sleep(self, action: JsonObject) -> None:
        time.sleep(action["ms"] / 1000)

    def _do_parallel(self, action: JsonObject) -> None:
        with ThreadPoolExecutor(len(action["actions"])) as pool:
            for future in [pool.submit(self.do, each) for each in action["actions"]]:
                future.result()

    def _do_after(self, action: JsonObject) -> None:
        time.sleep(action["ms"] / 1000)
        self.do(action["action"])

    def _do_send(self, action: JsonObject) -> None:
        name, count = action["as"], action.get("count", 1)
        request = overridden(self.run.case.request, action.get("override", {}))
        client = action.get("client", self.run.case.client)
        self._note_before(name)
        results: list[Sent | None] = [None] * count
        ready = iter(list(enumerate(numbers(count, action.get("vary", {})))))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    position, number = next(ready, (-1, 0))
                if position < 0:
                    return
                out = outgoing(request, number=number, label=f"{name}-{position}")
                port = self._proxy_for(action, position).port
                reply, view = self._exchange(client, port, out, action)
                results[position] = Sent(name, f"{name}-{position}", out, reply, view)
                if "pause_ms" in action:
                    time.sleep(action["pause_ms"] / 1000)

        workers = min(action.get("concurrency", 1), count)
        with self._scripts(action), ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(work) for _ in range(workers)]:
                future.result()
        self.run.sent[name] = [each for each in results if each is not None]
        self._note_after(name)

    def _exchange(
        self, client: str, port: int, out: Outgoing, action: JsonObject
    ) -> tuple[RawReply, SdkView | None]:
        if client == "openai" and out.path == CHAT_PATH and out.json is not None:
            return sdk_chat(port, out.headers, out.json, out.extra_body)
        reply = exchange(
            port,
            out.raw,
            timeout_s=60.0,
            close_after_frames=action.get("close_after_frames"),
            close_after_ms=action.get("close_after_ms"),
            watch_close_s=self._watch_close_s(),
        )
        return reply, None

    def _watch_close_s(self) -> float:
        bounds = [check["max_ms"] for check in self._checks("connection_closed")]
        return max(bounds, default=0.0) / 1000

    def _checks(self, kind: str) -> list[JsonObject]:
        case = self.run.case
        return [check for check in (*case.must, *case.should) if check["check"] == kind]

    def _proxy_for(self, action: JsonObject, position: int) -> Proxy:
        which = action.get("proxy", 1)
        number = position % len(self.run.proxies) if which == "alternate" else which - 1
        return self.run.proxies[number]

    @contextmanager
    def _scripts(self, action: JsonObject) -> Iterator[None]:
        """`backend_steps` of a send hold for its requests only."""
        if "backend_steps" not in action:
            yield
            return
        before = {name: node.script for name, node in self.run.nodes.items()}
        for node in self.run.nodes.values():
            node.set_script(action["backend_steps"])
        yield
        for name, (rules, steps) in before.items():
            self.run.nodes[name].set_script(steps, rules=rules)

    def _do_poll(self, action: JsonObject) -> None:
        name, started = action["as"], time.monotonic()
        deadline = started + action["max_ms"] / 1000
        self.run.polls[name] = None
        for attempt in range(10_000):
            out = outgoing(self.run.case.request, number=attempt, label=f"{name}-{attempt}")
            reply, view = self._exchange("raw", self.run.proxies[0].port, out, {})
            if reply.status == action["until_status"]:
                self.run.sent[name] = [Sent(name, f"{name}-{attempt}", out, reply, view)]
                self.run.polls[name] = (time.monotonic() - started) * 1000
                return
            if time.monotonic() > deadline:
                return
            time.sleep(action["every_ms"] / 1000)

    def _do_backend_set(self, action: JsonObject) -> None:
        node = self.run.nodes[action["node"]]
        for name, value in action.items():
            match name:
                case "do" | "node":
                    pass
                case "listen":
                    node.set_listen(value)
                case "keepalive":
                    node.set_keepalive(**value)
                case "steps":
                    node.set_script(value, rules=node.script[0])
                case "rules":
                    node.set_script(node.script[1], rules=value)
                case _:
                    raise ValueError(f"a backend has no {name}")

    def _do_backend_steps(self, action: JsonObject) -> None:
        node = self.run.nodes[action["node"]]
        rules, steps = node.script
        node.set_script([*steps[:-1], action["replace_last"]], rules=rules)

    def _do_config_write(self, action: JsonObject) -> None:
        path = self.run.proxies[0].policy_path
        self._lines_at_write = len(self.run.proxies[0].output)
        hints = action.get("of") or action.get("pieces_of")
        text = action["text"] if hints is None else policy_text(hints["policy"])
        write_file(path, text, action)

    def _do_restart_proxy(self, action: JsonObject) -> None:
        self.run.proxies[0].stop()
        for part, value in action.get("config", {}).items():
            self._config[part] = {**self._config.get(part, {}), **value}
        self.run.proxies[0] = self._start_proxy()

    def _do_signal(self, action: JsonObject) -> None:
        self._signalled_at = time.monotonic()
        self.run.proxies[0].signal(getattr(signal, f"SIG{action['signal']}"))

    def _do_wait_exit(self, action: JsonObject) -> None:
        code = self.run.proxies[0].wait_exit(action["max_ms"] / 1000)
        since = (time.monotonic() - self._signalled_at) * 1000
        self.run.exits[action["as"]] = Exit(code, since)

    def _do_redis(self, action: JsonObject) -> None:
        assert self.run.redis is not None
        match action["action"]:
            case "delay":
                self.run.redis.delay_s = action["ms"] / 1000
            case "freeze" | "thaw" | "stop" | "start" as verb:
                getattr(self.run.redis, verb)()
            case other:
                raise ValueError(f"Redis cannot {other}")

    # --- notes for checks that compare before and after ---

    def _note_before(self, name: str) -> None:
        self.run.output_before[name] = self._lines_at_write
        if self._looks_at_keys(name):
            self.run.keys_before[name] = self._keys()

    def _note_after(self, name: str) -> None:
        if self._looks_at_keys(name):
            self.run.keys_after[name] = self._keys()

    def _looks_at_keys(self, name: str) -> bool:
        return any(check.get("of") == name for check in self._checks("keys_written"))

    def _keys(self) -> set[str]:
        return set() if self.run.redis is None else set(self.run.redis.keys())


def peak_rss_mb(pid: int) -> float:
    """The most memory that a process ever had resident; 0 where nobody tells."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line[:6] == "VmHWM:"), 0.0)


def label_of(seen: Seen) -> str | None:
    """Which send this request at a node belongs to."""
    return seen.header(SEND_HEADER)
