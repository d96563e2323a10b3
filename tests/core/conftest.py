"""Programs in processes of their own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest


@pytest.fixture
def start_python() -> Iterator[Callable[..., Any]]:
    """Return a function that starts a program with arguments. All are killed in the end."""
    with ExitStack() as stack:

        def start(program: str, *arguments: str) -> Any:
            command = [sys.executable, "-c", program, *arguments]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start
