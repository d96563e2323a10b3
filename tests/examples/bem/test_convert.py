from collections.abc import Callable
from pathlib import Path

import pytest

from reflectune.examples.bem.convert import convert_bem

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command, and returns its exit status and its errors."""

    def run(*arguments: object) -> tuple[int, str]:
        status = 0
        try:
            convert_bem.main([*map(str, arguments)])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, capsys.readouterr().err

    return run


def test_all_problems_are_told_at_once(run: Run, tmp_path: Path) -> None:
    status, errors = run("--variables", tmp_path / "none.npz", "--names", tmp_path / "none.json")
    assert status == 2
    for said in ("`vocabulary` is needed", "`examples` is needed", "`output` is needed", "none.npz", "none.json"):
        assert said in errors


def test_a_dry_run_writes_nothing_and_a_damaged_file_is_one_clear_line(run: Run, tmp_path: Path) -> None:
    for name in ("bem.npz", "vocab.txt", "logits.json"):
        (tmp_path / name).write_text("[]")
    arguments = ["--variables", tmp_path / "bem.npz", "--vocabulary", tmp_path / "vocab.txt"]
    arguments += ["--examples", tmp_path / "logits.json", "--output", tmp_path / "out"]
    assert run(*arguments, "--dry_run", "true")[0] == 0
    assert not (tmp_path / "out").exists()
    status, errors = run(*arguments)
    assert status == 2
    assert errors.count("\n") == 1
    assert "can't be read as the variables' .npz" in errors
