"""A command refuses an output that a different command writes, at once, in one line, and touches nothing."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectune import cli
from reflectune.core.command import Command, command
from reflectune.core.config import Settings, setting
from reflectune.core.locking import lock_path

ROOT = Path(__file__).parents[1]
MODULES = [module for modules in cli.GROUPS.values() for module in modules]
OUTPUTS = {"output", "output_dir"}
READING = {"inference.answer", "inference.serve", "train.estimate"}
"""Commands that write nothing."""

HOLDING = """
import sys
from reflectune.core.outputs import hold
hold(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


class WritingConfig(Settings):
    """Write a file."""

    output: str = setting("", "file")
    dry_run: bool = setting(False, "write nothing")


@command(WritingConfig, writes="output")
def write(config: WritingConfig) -> None:
    """Write a file."""
    print("begun")
    if not config.dry_run:
        Path(config.output).write_text("written")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """Return the PID of a process that holds `OUT`, with a partial file of its own."""
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "OUT")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        (tmp_path / f".OUT.{process.pid}.partial").write_text("half")
        yield process.pid
        process.kill()


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the time and the content of every file and folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


def test_the_second_writer_is_refused_in_one_line_and_touches_nothing(holder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(SystemExit) as caught:
        write.main(["--output", "OUT"])
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: OUT is being written by PID {holder} on ")
    assert printed.err.endswith("; wait for it, or stop it; then the same command goes on\n")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert contents(tmp_path) == before
    write.main(["--output", "OUT", "--dry_run"])
    assert capsys.readouterr().out == "begun\n"
    assert lock_path(tmp_path / "OUT").is_file()


def test_an_output_is_free_again_when_its_command_has_ended(tmp_path: Path) -> None:
    for _ in range(2):
        write.main(["--output", str(tmp_path / "OUT")])
    assert [path.name for path in tmp_path.iterdir()] == ["OUT"]


@pytest.mark.parametrize("module", MODULES)
def test_every_command_holds_its_output(module: str) -> None:
    found = getattr(importlib.import_module(f"reflectune.{module}"), module.rpartition(".")[2])
    assert isinstance(found, Command)
    if module in READING:
        assert not found.writes
    else:
        assert OUTPUTS & found.kind.model_fields.keys() <= set(found.writes) <= found.kind.model_fields.keys()
        assert found.writes


def parsed(word: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes of every module of the package with a word in it, each with the module's path."""
    for folder in (ROOT / "src" / "reflectune").iterdir():
        for path in (ROOT / folder.name).rglob("*.py"):
            if word in (text := path.read_text(encoding="utf-8")):
                yield from ((str(path.relative_to(ROOT)), node) for node in ast.walk(ast.parse(text)))


@pytest.mark.parametrize("library", ["fcntl", "filelock", "msvcrt"])
def test_locks_are_taken_by_filelock_alone(library: str) -> None:
    taking = {
        name
        for name, node in parsed(library)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and library in {getattr(node, "module", None), *(alias.name for alias in node.names)}
    }
    assert taking == ({"core/locking.py", "core/outputs.py"} if library == "filelock" else set())


def test_partial_files_are_named_in_one_module() -> None:
    naming = {
        name
        for name, node in parsed("partial")
        if isinstance(node, ast.Constant) and str(node.value).endswith(".partial")
    }
    assert naming == {"core/partials.py"}
