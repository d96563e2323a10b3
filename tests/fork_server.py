"""Starts Python programs in forks of a process that has imported the libraries, which takes seconds.

    python tests/fork_server.py DESCRIPTOR

Listens on the Unix socket of that descriptor until its own input ends. A client sends one line of JSON with the
descriptors of the program's input, output and errors: `argv` as after `python` (`-m module …`, `-c program`, or a
script's path) or as after `accelerate` (`launch …`), `cwd`, `env`, and `executable`, which is `sys.executable` of all
but `-c program`: pytest-xdist's workers. It is answered by two lines: the program's process id, and its exit status
once it has ended. A launch is accelerate's and torchrun's own, but that its processes are forks too.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

PACKAGES = (
    *("core", "formats", "metrics", "models", "retrieval", "data_builders", "train", "inference"),
    *("examples.lessons", "examples.miniature.models", "examples.pocket.models"),
)
LIBRARIES = ("accelerate.commands.launch", "torch.distributed.launcher.api", "deepspeed", "trl.scripts", "PIL.Image")

ended: list[int] = []
"""The exit status of this process, once it was a program that came to its end."""


def main() -> None:
    del sys.path[0]  # this folder, whose `vllm` libraries would take for the package
    listener = socket.socket(fileno=int(sys.argv[1]))
    atexit.register(leave)  # before all others, and so called after them
    for name in (*LIBRARIES, *modules()):  # trl looks through every installed package
        importlib.import_module(name)
    sys.modules["PIL.Image"].init()  # imports what reads each format
    weights = importlib.import_module("transformers.conversion_mapping")
    weights.get_checkpoint_conversion_mapping("llava")  # compiles the patterns of all models
    gc.collect()
    gc.freeze()  # no fork copies the pages of what was imported by looking for garbage in them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that look after a program
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        client = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            look_after(client)
        client.close()


def modules() -> Iterator[str]:
    """Return the names of the package's modules."""
    for name in (f"reflectune.{package}" for package in PACKAGES):
        yield name
        folder = importlib.import_module(name).__path__
        yield from (module.name for module in pkgutil.walk_packages(folder, f"{name}."))


def look_after(client: socket.socket) -> NoReturn:
    """Start the program, say its process id, wait for its end and say its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sent, descriptors, *_ = socket.recv_fds(client, 1 << 16, 3)
    while not sent.endswith(b"\n"):
        sent += client.recv(1 << 16)
    program = os.fork()
    if program == 0:
        client.close()
        run(json.loads(sent), descriptors)
    for descriptor in (0, 1, 2, *descriptors):
        os.close(descriptor)  # who reads the program's output sees its end
    client.sendall(f"{program}\n".encode())
    client.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])}\n".encode())
    os._exit(0)


def run(asked: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Run the program in this process."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
    kind, *rest = asked["argv"]
    if kind != "-c":
        sys.executable = asked["executable"]
    code = 0
    try:
        if kind == "launch":
            start(rest)
        elif kind == "-m":
            run_module(*rest)
        elif kind == "-c":
            run_text(*rest)
        else:
            run_path(kind, *rest)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    ended.append(code)
    sys.exit(code)  # what runs at the end of a program runs


def leave() -> None:
    """End a program without taking down the modules that it was forked with: that takes 0.4 seconds."""
    if not ended:
        return
    gc.collect()  # closes what is left in cycles
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        os._exit(120)  # as Python does
    os._exit(ended[-1])


def run_module(module: str, *arguments: str) -> None:
    """Run `python -m module …`."""
    sys.argv = [module, *arguments]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_path(script: str, *arguments: str) -> None:
    """Run `python script …`."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")


def run_text(text: str) -> None:
    """Run `python -c …`."""
    sys.argv = ["-c"]
    sys.path.insert(0, "")
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(text, vars(main))


def start(arguments: Sequence[str]) -> None:
    """Run `accelerate launch …`."""
    from accelerate.commands import launch  # imports others, which would have their ends called after `leave`
    from torch.distributed import run as torchrun

    torchrun.elastic_launch = forking
    sys.argv = ["accelerate-launch", *arguments]
    launch.main()


def forking(config: LaunchConfig, entrypoint: str) -> Callable[..., Any]:
    """Return torchrun's launcher for `entrypoint`, which is Python: its processes are forks of this one."""
    from torch.distributed.launcher.api import elastic_launch

    assert entrypoint == sys.executable
    return elastic_launch(dataclasses.replace(config, start_method="fork"), run_script)


def run_script(*arguments: str) -> None:
    """Run `python [-u] script …` as one of a launch's processes."""
    script, *rest = [argument for argument in arguments if argument != "-u"]
    end, process = os._exit, os.getpid()

    def return_to_launcher(status: int) -> None:
        if os.getpid() != process:
            end(status)  # a worker of this process
        sys.exit(status)  # torchrun waits for what a forked process returns

    os._exit = return_to_launcher  # type: ignore[assignment]
    try:
        run_path(script, *rest)
    except SystemExit as ending:
        if ending.code:
            raise
    finally:
        os._exit = end


if __name__ == "__main__":
    main()
