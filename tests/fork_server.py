"""Starts Python programs in forks of a process that has imported the libraries, which takes seconds.

    python tests/fork_server.py

Reads one JSON object a line: `argv` as after `python` (`-m module …`) or as after `accelerate` (`launch …`), `cwd`,
`env`, and the files `stdout`, `stderr` and `status`, which gets the exit status when the program ends. Answers each by
the program's process id. A launch is accelerate's and torchrun's own, but that its processes are forks too.
"""

import dataclasses
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from accelerate.commands import launch
from torch.distributed import run as torchrun
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

COMMANDS = (
    *("train.sft", "train.grpo", "train.merge", "data_builders.probe", "data_builders.build_mr2ag"),
    *("train.fine_tuning.fine_tune", "train.refining.refine", "data_builders.probing.run", "data_builders.mr2ag.run"),
    *("inference.tables", "inference.grid.tables_run"),
)


def main() -> None:
    for name in COMMANDS:
        importlib.import_module(f"reflectune.{name}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that look after a program
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.flush()
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            look_after(asked, writer)
        os.close(writer)
        print(os.read(reader, 32).decode(), flush=True)
        os.close(reader)


def look_after(asked: dict[str, Any], writer: int) -> NoReturn:
    """Start the program, say its process id, wait for its end and write down its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    program = os.fork()
    if program == 0:
        run(asked)
    os.write(writer, str(program).encode())
    os.close(writer)
    status = Path(asked["status"])
    ended = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    status.with_suffix(".part").write_text(str(ended))
    status.with_suffix(".part").rename(status)
    os._exit(0)


def run(asked: dict[str, Any]) -> NoReturn:
    """Be the program."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
    kind, *rest = asked["argv"]
    code = 0
    try:
        start(rest) if kind == "launch" else run_module(*rest)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.exit(code)  # what runs at the end of a program runs


def run_module(module: str, *arguments: str) -> None:
    """`python -m module …`."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def start(arguments: Sequence[str]) -> None:
    """`accelerate launch …`."""
    torchrun.elastic_launch = forking
    sys.argv = ["accelerate-launch", *arguments]
    launch.main()


def forking(config: LaunchConfig, entrypoint: str) -> Callable[..., Any]:
    """What torchrun starts processes with, where `entrypoint` is Python: they are forks, and import nothing again."""
    assert entrypoint == sys.executable
    return elastic_launch(dataclasses.replace(config, start_method="fork"), run_script)


def run_script(*arguments: str) -> None:
    """`python [-u] script …`, as one of a launch's processes."""
    script, *rest = [argument for argument in arguments if argument != "-u"]
    sys.argv = [script, *rest]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    main()
