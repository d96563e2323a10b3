import sys

import pytest

from reflectune.core.command import command
from reflectune.core.config import Settings, setting
from reflectune.core.errors import UserError
from reflectune.core.values import OutputFolder


class WriteConfig(Settings):
    """Settings of a test."""

    output: OutputFolder = setting("", "folder to write", needed="")
    rows: int = setting(1, "rows", ge=0)


@command(WriteConfig, writes="output")
def write(config: WriteConfig) -> int | None:
    """Write rows."""
    if config.rows > 5:
        raise UserError(f"{config.rows} rows are too many; give at most 5")
    if config.rows == 4:
        raise KeyboardInterrupt
    print(f"{config.rows} rows to {config.output}")
    return 3 if config.rows == 0 else None


def test_main_parses_and_carries_out(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write.main(["--output", "out", "--rows", "2"])
    assert capsys.readouterr().out.startswith("2 rows to out")
    monkeypatch.setattr(sys, "argv", ["write", "--output=out", "--rows=3"])
    write.main()
    assert capsys.readouterr().out.startswith("3 rows to out")


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["--output", "out", "--rows", "0"], 3, ""),
        (["--rows", "-1"], 2, "error: the config has problems:\n  `rows` must be at least 0"),
        (["--output", "out", "--rows", "6"], 2, "error: 6 rows are too many; give at most 5\n"),
        (["--output", "out", "--rows", "4"], 130, "stopped"),
    ],
)
def test_each_end_has_its_status(argv, status, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        write.main(argv)
    assert ended.value.code == status
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("variable", ["ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"])
def test_rows_left_out_are_no_crash_for_a_launcher(variable: str, tmp_path, monkeypatch) -> None:
    """Accelerate raises at any status but 0, and torchrun stops the other processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "no")
    write.main(["--output", "out", "--rows", "0"])
    with pytest.raises(SystemExit) as ended:
        write.main(["--output", "out", "--rows", "6"])
    assert ended.value.code == 2
