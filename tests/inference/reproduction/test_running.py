"""Steps from next to done, and what makes one stale, blocked or half done; run by the command as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.locking import lock_path, take
from reflectune.inference.reproduction import records, running
from reflectune.inference.reproduction.config import ReproduceConfig
from reflectune.inference.reproduction.status import Status, statuses, told

Config = Callable[..., ReproduceConfig]


def look(config: ReproduceConfig) -> dict[str, Status]:
    found = statuses(config.chosen_steps(), Path(config.data), config.all_steps())
    return {status.step.name: status for status in found}


def states(config: ReproduceConfig) -> dict[str, str]:
    return {name: status.state for name, status in look(config).items()}


def run(config: ReproduceConfig) -> None:
    running.run(config.chosen_steps(), config.all_steps(), Path(config.data), config.folder(), config.redo)


def test_steps_go_from_next_to_done_and_an_input_that_changes_makes_them_stale(
    config: Config, data: Path, rewrite: Callable[[int], None], capfd: pytest.CaptureFixture[str]
) -> None:
    made = config()
    assert states(made) == {"downloads": "done", "articles": "next", "index": "blocked"}
    assert look(made)["index"].why == "articles is not done"

    run(config(only=["articles"]))
    assert states(made) == {"downloads": "done", "articles": "done", "index": "next"}
    run(made)
    assert states(made) == dict.fromkeys(("downloads", "articles", "index"), "done")
    assert json.loads((data / "runs/index/manifest.json").read_text())["entries"] == 3
    assert "== articles: done" in capfd.readouterr().out

    rewrite(4)
    found = look(made)
    assert found["articles"].state == found["index"].state == "stale"
    assert found["articles"].why.startswith("data/kb.jsonl is another one since (")
    assert found["index"].why == "articles, which it reads, is stale"

    with pytest.raises(UserError, match=r"(?s)articles ended with status 2; `--redo articles` moves.*has changed"):
        run(made)
    run(config(redo=["articles"], only=["articles"]))
    assert (data / "runs/articles.before/dataset.json").is_file()
    assert states(made) == {"downloads": "done", "articles": "done", "index": "stale"}
    assert look(made)["index"].why.startswith("runs/articles/knowledge is another one since")


def test_another_setting_makes_a_step_stale_but_none_that_changes_no_result(config: Config, data: Path) -> None:
    (step,) = [step for step in config().all_steps() if step.name == "articles"]
    (data / "runs/articles").mkdir(parents=True)
    (data / "runs/articles/dataset.json").write_text("{}")
    records.end(step, data, records.begin(step, data), 60.0)
    changed = data.parent / "more.yaml"

    changed.write_text("settings: {articles: {workers: 7}}\n")
    assert states(config(changes=[str(changed)]))["articles"] == "done"
    changed.write_text("settings: {articles: {limit: 7}}\n")
    status = look(config(changes=[str(changed)]))["articles"]
    assert (status.state, status.why) == ("stale", "`limit` is 7 now, unset then")
    assert look(config())["articles"].why == "runs/articles, 1 min"


def test_another_root_makes_a_step_stale_unless_the_same_files_lie_there(
    config: Config, data: Path, rewrite: Callable[[int], None]
) -> None:
    (step,) = [step for step in config().all_steps() if step.name == "articles"]
    (data / "runs/articles").mkdir(parents=True)
    (data / "runs/articles/dataset.json").write_text("{}")
    records.end(step, data, records.begin(step, data), 60.0)
    shutil.copytree(data / "data", data / "copy")
    rewrite(4)
    (data / "data").rename(data / "other")
    changed = data.parent / "more.yaml"

    def status(root: str) -> Status:
        changed.write_text(f"settings: {{articles: {{root: {root}}}}}\n")
        return look(config(changes=[str(changed)]))["articles"]

    assert status("copy").state == "done"
    assert status("other").state == "stale"
    assert status("other").why.startswith("other/kb.jsonl, which it reads now, is another one (")


def test_what_was_begun_goes_on_and_says_when_its_inputs_are_others(
    config: Config, data: Path, rewrite: Callable[[int], None]
) -> None:
    (step,) = [step for step in config().all_steps() if step.name == "articles"]
    (data / "runs/articles/questions").mkdir(parents=True)
    records.begin(step, data)

    assert look(config())["articles"] == Status(step, "half done", "the same command goes on")
    rewrite(9)
    assert look(config())["articles"].why.endswith("; `--redo articles` begins anew")
    lock = take(lock_path((data / "runs/articles").resolve()))
    assert lock is not None
    assert look(config())["articles"].state == "running"
    lock.release(remove=True)


def test_a_missing_and_a_half_downloaded_file_block(config: Config, data: Path) -> None:
    kept = (data / "data/kb.jsonl").rename(data / "data/kb.jsonl.part")

    assert look(config())["downloads"].why == "1 of 1 files and folders are missing: data/kb.jsonl"
    assert look(config())["articles"].why == "data/kb.jsonl is half downloaded (kb.jsonl.part)"
    kept.unlink()
    assert look(config())["articles"].why == "data/kb.jsonl is missing"
    with pytest.raises(UserError, match=r"^articles can't be run: data/kb.jsonl is missing$"):
        run(config(only=["articles"]))


def test_what_was_run_by_hand_is_done_unless_it_is_of_another_knowledge_base_or_older(
    config: Config, data: Path
) -> None:
    for folder, name in (("articles", "dataset.json"), ("articles/knowledge", "kb.json"), ("index", "manifest.json")):
        (data / "runs" / folder).mkdir(parents=True, exist_ok=True)
        (data / "runs" / folder / name).write_text(json.dumps({"fingerprint": "a", "kb_fingerprint": "a"}))
    assert look(config())["index"].why == "runs/index, run by hand"

    os.utime(data / "runs/index/manifest.json", (0, 0))
    assert look(config())["index"].why == "it is older than runs/articles/knowledge, which it reads"
    (data / "runs/index/manifest.json").write_text('{"kb_fingerprint": "b"}')
    assert look(config())["index"].why == "it is of the knowledge base b, and runs/articles/knowledge is a"


def test_a_disk_without_room_is_noticed_before_a_step_begins(
    config: Config, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 5e5))
    (step,) = [step for step in config().all_steps() if step.name == "index"]

    with pytest.raises(UserError, match=r"^index writes about 0.001 GB to .*runs/index, and 0.0005 GB are free there;"):
        running.check_room(step, data)
    (data / "runs/index").mkdir(parents=True)
    (data / "runs/index/part").write_bytes(bytes(600_000))
    running.check_room(step, data)  # what is there of it needs no more room


def test_a_command_that_fails_ends_the_run_with_its_last_lines(config: Config, data: Path) -> None:
    (data / "data/kb.jsonl").write_text('{"id": "e0"}\n')

    with pytest.raises(
        UserError, match=r"(?s)^articles ended with status 2; all is in .*articles.log:\n.*`text`: is missing"
    ):
        run(config(only=["articles"]))
    assert states(config())["articles"] in ("next", "half done")


def test_the_list_is_told_with_its_count(config: Config) -> None:
    lines = told(list(look(config()).values()), "small in lab").splitlines()

    assert lines[0] == "small in lab: 1 of 3 steps are done"
    assert [line.split()[0] for line in lines[1:]] == ["done", "next", "blocked"]


def test_the_command_shows_its_status_and_its_commands(
    config: Config, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from reflectune.inference import reproduce

    monkeypatch.setattr(reproduce, "parse_config", lambda kind: (config(status=True),))
    reproduce.main()
    assert "small in" in capsys.readouterr().out
    monkeypatch.setattr(reproduce, "parse_config", lambda kind: (config(dry_run=True),))
    reproduce.main()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"cd {data.resolve()}"
    assert [line.split()[2] for line in lines] == [
        f"reflectune.{name}" for name in ("data_builders.download", "data_builders.convert", "retrieval.build_index")
    ]
    assert not (data / "runs").exists()
    assert sys.executable not in "".join(lines)
