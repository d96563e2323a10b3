"""The program `reflectune`: its commands, its help, and the names that `import reflectune` gives."""

import importlib
import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import reflectune
from reflectune import cli
from reflectune.core.command import Command

MODULES = {module: line for modules in cli.GROUPS.values() for module, line in modules.items()}


def end(*words: str) -> int:
    """The exit status of the program."""
    try:
        cli.main(words)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize("module", MODULES)
def test_a_command_is_listed_with_its_first_line(module: str) -> None:
    found = getattr(importlib.import_module(f"reflectune.{module}"), module.partition(".")[2])
    assert isinstance(found, Command)
    assert inspect.cleandoc(str(found.__doc__)).splitlines()[0] == MODULES[module]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("module", MODULES)
def test_a_commands_file_runs_as_a_program(module: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [f"{module}.py", "--help"])
    runpy.run_module(f"reflectune.{module}", run_name="__main__")
    assert capsys.readouterr().out.startswith(f"usage: {module}.py")


def test_the_help_lists_the_commands_without_a_slow_import() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "reflectune", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(MODULES) == 22
    assert all(f"  {module.partition('.')[2]} " in ended.stdout for module in MODULES)
    assert not {"pydantic", "numpy", "torch"} & {line.split("|")[-1].strip() for line in ended.stderr.splitlines()}


@pytest.mark.parametrize("words", [["--help"], ["sft", "--help"]])
def test_a_reader_that_leaves_early_ends_a_command_without_a_line(words: list[str]) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "reflectune", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    program.stdout.close()  # as after `| head`
    assert (program.communicate()[1], program.returncode) == ("", 141)


def test_no_command_loads_a_library_of_models_before_its_config_is_right() -> None:
    heavy = ("torch", "transformers", "faiss", "peft", "trl", "accelerate")
    imports = "; ".join(f"import reflectune.{module}" for module in MODULES)
    code = f"import sys; {imports}\n"
    code += "try: reflectune.train.sft.sft.main(['--warmup', '-1'])\n"
    code += f"except SystemExit: print({set(heavy)} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"
    assert "`warmup`" in ended.stderr


@pytest.mark.parametrize("words", [["merge"], ["train", "merge"], ["train", "merge", "--dry-run"]])
def test_a_command_has_a_grouped_spelling(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert end(*words) == 2
    assert "`checkpoint` is needed" in capsys.readouterr().err


def test_hyphens_are_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    assert end("index", "build-index", "--help") == 0
    assert capsys.readouterr().out.startswith("usage: reflectune build_index [--config FILE.yaml]")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stf"], "unknown command `stf`; did you mean `sft`? `reflectune --help` lists all"),
        (["train", "stf"], "unknown command `train stf`; did you mean `sft`?"),
        (["x"], "unknown command `x`; `reflectune --help` lists all"),
        (
            ["train"],
            "`train` is a group of commands; name one of sft, grpo, reag_grpo, promsa_grpo, merge, export, estimate",
        ),
        (["infer", "sft"], "unknown command `infer sft`; did you mean `sft`?"),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest(words: list[str], message: str, capsys) -> None:
    assert end(*words) == 2
    assert f"error: {message}" in capsys.readouterr().err


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (end(), end("--help")) == (2, 0)
    assert capsys.readouterr().out.count("usage: reflectune COMMAND") == 2


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert end("--version") == 0
    assert capsys.readouterr().out == f"reflectune {importlib.metadata.version('reflectune')}\n"


def test_ctrl_c_while_a_command_is_imported_is_one_line(monkeypatch, capsys) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupt)
    assert end("sft") == 130
    assert capsys.readouterr().err == "stopped\n"


# import reflectune


def test_every_public_name_is_there() -> None:
    assert sorted(reflectune.__all__) == reflectune.__all__
    assert set(reflectune.__all__) <= set(dir(reflectune))
    for name in reflectune.__all__:
        assert getattr(reflectune, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'anwser'"):
        reflectune.anwser  # type: ignore[attr-defined]  # noqa: B018


def test_an_import_loads_nothing_heavy() -> None:
    code = "import sys, reflectune; print({'torch', 'pydantic', 'numpy'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


def test_problems_of_a_call_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(reflectune.UserError) as caught:
        reflectune.answer(image=tmp_path / "none.png", question=" ", model="", dataset=tmp_path, top_n=0)
    said = str(caught.value)
    assert all(f"`{key}` is needed" in said for key in ("question", "model"))
    assert all(part in said for part in ("`image` must be an existing file", "`top_n` must be at least 1"))
    with pytest.raises(reflectune.UserError, match="unknown key `knowlege`"):
        reflectune.build_index(knowledge=tmp_path, output=tmp_path / "index", knowlege="x")
