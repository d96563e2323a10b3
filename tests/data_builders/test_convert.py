import json
from pathlib import Path

import pytest

from reflectune.data_builders.convert import ROWS_LEFT_OUT, convert


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"id": "a", "title": "A", "text": "Text."}, {"id": "b", "title": "", "text": "Text."}]
    (tmp_path / "knowledge.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.yaml").write_text(
        f"root: {tmp_path}\noutput: {tmp_path / 'out'}\nknowledge: own\nknowledge_source: knowledge.jsonl\nworkers: 1\n"
    )
    return tmp_path / "own.yaml"


def run(monkeypatch: pytest.MonkeyPatch, config: Path, *arguments: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["convert", "--config", str(config), *arguments])
    try:
        convert.main()
    except SystemExit as status:
        return status.code
    return 0


def test_the_exit_status_tells_good_rows_from_rows_left_out_and_from_a_stop(config, monkeypatch, capsys) -> None:
    assert run(monkeypatch, config, "--dry_run") == 0
    assert run(monkeypatch, config, "--check") == ROWS_LEFT_OUT
    assert "knowledge.jsonl:2: id b: field `title`: is empty" in capsys.readouterr().out
    assert not (config.parent / "out").exists()
    assert run(monkeypatch, config) == 2
    assert run(monkeypatch, config, "--on_error", "skip") == ROWS_LEFT_OUT
    shown = capsys.readouterr().out
    assert "1 × title is empty" in shown
    assert "rejected.jsonl" in shown
    (config.parent / "knowledge.jsonl").write_text(json.dumps({"id": "a", "title": "A", "text": "Text."}) + "\n")
    assert run(monkeypatch, config, "--output", str(config.parent / "other")) == 0


def test_a_check_says_how_many_bad_rows_it_does_not_name(config, monkeypatch, capsys) -> None:
    rows = [{"id": f"{number}", "title": "", "text": "Text."} for number in range(25)]
    (config.parent / "knowledge.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(monkeypatch, config, "--check") == ROWS_LEFT_OUT
    assert "and 23 more; `on_error: skip` lists every bad row" in capsys.readouterr().out
