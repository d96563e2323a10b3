"""Starts Python programs in forks of a process that has imported the libraries, which takes seconds.

    python tests/fork_server.py

Reads one JSON object a line: `argv` as after `python` (`-m module …`), `cwd`, `env`, and the files `stdout`, `stderr`
and `status`, which gets the exit status when the program ends. Answers each by the program's process id.
"""

import importlib
import json
import os
import runpy
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

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
    _, module, *arguments = asked["argv"]
    sys.argv = [module, *arguments]
    warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.exit(code)  # what runs at the end of a program runs


if __name__ == "__main__":
    main()
