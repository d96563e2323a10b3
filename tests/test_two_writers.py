"""Every command that writes refuses an output that another one writes, at once, in one line, and touches nothing."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectune.core.command import Command
from reflectune.core.locking import lock_path

ROOT = Path(__file__).parents[1]
READING = {
    *(f"inference.{name}" for name in ("answer", "show_trace")),
    "train.estimate",
}
"""Commands that write nothing."""
WAITING = {"examples.pocket.fetch"}
"""Commands that write into the user's cache alone, where the second one waits and finds the work done."""

DATASET = "--dataset dataset"
INDEX = "--index index"
WRITING = {
    "examples.pocket.build_gallery": "--output OUT",
    "data_builders.build_mr2ag": f"{DATASET} {INDEX} --output OUT",
    "data_builders.build_plain": f"{DATASET} {INDEX} --reflection reflection --output OUT",
    "examples.miniature.build_world": "--output OUT",
    "data_builders.convert": "--config convert.yaml --output OUT",
    "data_builders.derive_labels": f"{DATASET} --probes probes --output OUT",
    "data_builders.export": "--data reflection --to trl --output OUT",
    "data_builders.probe": f"{DATASET} {INDEX} --model model --output OUT",
    "inference.compare": "--evaluations finished --output OUT",
    "inference.evaluate": f"{DATASET} --pipelines closed_book --base_model model --output OUT",
    "inference.recall": f"{DATASET} {INDEX} --output OUT",
    "inference.sweep": f"--config sweep.yaml {DATASET} {INDEX} --model model --base_model model --output OUT",
    "examples.miniature.papers_tables": "--output OUT",
    "inference.write_lessons": f"{DATASET} {INDEX} --base_model model --output OUT",
    "metrics.convert_bem": "--variables file --vocabulary file --examples file --output OUT",
    "metrics.score": f"--predictions file {DATASET} --output OUT",
    "metrics.submission": f"--predictions file {DATASET} --output OUT",
    "examples.miniature.pretrain": "--output OUT",
    "examples.pocket.pack": "--checkpoint model --output OUT",
    "retrieval.build_index": "--knowledge knowledge --output OUT",
    "retrieval.build_text_index": "--knowledge knowledge --output OUT",
    "examples.pocket.fit_title_map": "--pictures file --knowledge knowledge --output OUT.safetensors",
    "train.assemble_llava": "--language language --vision vision --output OUT",
    "train.grpo": f"{DATASET} {INDEX} --model model --base_model model --scheme mr2ag --output_dir OUT",
    "train.merge": "--checkpoint model --output OUT",
    "train.reag_grpo": f"{DATASET} --model model --train_data reflection --output_dir OUT",
    "train.sft": "--model model --scheme mr2ag --train_data reflection --output_dir OUT",
}
"""Every command that writes, with settings that pass its checks in the folder of `inputs`."""

HOLDING = """
import sys
from reflectune.core.outputs import hold
for output in sys.argv[1:]:
    hold(output)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with inputs of every kind that are just what a config is checked for: whoever reads on fails."""
    folder = tmp_path_factory.mktemp("inputs")
    files = {
        "file": "",
        "dataset/dataset.json": '{"metric": "infoseek", "fingerprint": "f"}',
        "index/manifest.json": "",
        "knowledge/kb.json": "",
        "probes/probes.json": "",
        "reflection/reflection.json": '{"scheme": "mr2ag", "image_root": ".", "fingerprints": {}}',
        "reflection/train.parquet": "",
        "language/config.json": "",
        "vision/config.json": "",
        "model/config.json": "",
        "model/adapter_config.json": "",
        "questions.jsonl": "",
        "convert.yaml": "questions: own\nsplits: {train: questions.jsonl}\n",
        "finished/metrics.json": "{}",
        "sweep.yaml": "grid: {gamma: [0.1, 0.9]}\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.fixture(scope="module")
def holder(inputs: Path) -> Iterator[int]:
    """The PID of a process that holds both outputs; with a partial file in each, which is its own."""
    outputs = [inputs / "OUT", inputs / "OUT.safetensors"]
    command = [sys.executable, "-c", HOLDING, *map(str, outputs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        for path in outputs:
            path.with_name(f".{path.name}.{process.pid}.partial").write_text("half")
        yield process.pid
        process.kill()


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder, with when it was changed and what it holds."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


def commands() -> set[str]:
    """The modules that run as commands."""
    scripts = (path for floor in _floors() for path in (ROOT / floor).rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in scripts}
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path, text in texts.items()
        if re.search(r"^@(command|entry_point)\b", text, re.MULTILINE)
    }


def _floors() -> Iterator[str]:
    return (path.name for path in (ROOT / "src" / "reflectune").iterdir())


@pytest.mark.parametrize("name", WRITING)
def test_the_second_writer_is_refused_in_one_line_and_touches_nothing(
    name: str, inputs: Path, holder: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = importlib.import_module(f"reflectune.{name}")
    monkeypatch.chdir(inputs)
    monkeypatch.setattr(sys, "argv", [name, *WRITING[name].split()])
    before = contents(inputs)
    found = getattr(command, name.rpartition(".")[2])
    with pytest.raises(SystemExit) as caught:
        (found if isinstance(found, Command) else command).main()
    assert caught.value.code == 2
    printed = capsys.readouterr()
    output = WRITING[name].split()[-1]
    assert printed.err.startswith(f"error: {output} is being written by PID {holder} on ")
    assert printed.err.endswith("; wait for it, or stop it; then the same command goes on\n")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert contents(inputs) == before


def test_no_command_is_forgotten() -> None:
    assert commands() - {"core.errors"} == WRITING.keys() | READING | WAITING


def parsed(word: str) -> Iterator[tuple[str, ast.AST]]:
    """The nodes of every module of the package with a word in it, each with the module's path."""
    for floor in _floors():
        for path in (ROOT / floor).rglob("*.py"):
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


def test_the_lock_lies_beside_what_it_guards(inputs: Path, holder: int) -> None:
    assert lock_path(inputs / "OUT").is_file()
    assert not (inputs / "OUT").exists()
