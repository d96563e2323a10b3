import subprocess
import sys
from pathlib import Path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reflectune.examples.bem.convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    done = run("--variables", tmp_path / "none.npz", "--names", tmp_path / "none.json")
    assert done.returncode == 2
    for said in ("`vocabulary` is needed", "`examples` is needed", "`output` is needed", "none.npz", "none.json"):
        assert said in done.stderr


def test_a_dry_run_writes_nothing_and_a_damaged_file_is_one_clear_line(tmp_path: Path) -> None:
    for name in ("bem.npz", "vocab.txt", "logits.json"):
        (tmp_path / name).write_text("[]")
    arguments = ["--variables", tmp_path / "bem.npz", "--vocabulary", tmp_path / "vocab.txt"]
    arguments += ["--examples", tmp_path / "logits.json", "--output", tmp_path / "out"]
    dry = run(*arguments, "--dry_run", "true")
    assert (dry.returncode, (tmp_path / "out").exists()) == (0, False)
    damaged = run(*arguments)
    assert damaged.returncode == 2
    assert damaged.stderr.count("\n") == 1
    assert "can't be read as the variables' .npz" in damaged.stderr
