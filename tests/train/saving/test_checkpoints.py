from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.train.saving.checkpoints import (
    RECORD,
    checkpoint_folders,
    is_finished,
    keep_newest,
    last_whole_checkpoint,
    mark_whole,
    refuse_occupied,
)

SETTINGS = {"learning_rate": 1e-4, "seed": 0, "report": ["a"]}


def checkpoint(run: Path, step: int, *, whole: bool = True) -> Path:
    folder = run / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "model.safetensors").touch()
    if whole:
        mark_whole(folder, SETTINGS, step)
    return folder


def test_the_newest_whole_checkpoint_is_found_by_its_number(tmp_path: Path) -> None:
    for step in (5, 9, 10):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 11, whole=False)
    (tmp_path / "checkpoint-best").mkdir()

    assert last_whole_checkpoint(tmp_path, SETTINGS) == tmp_path / "checkpoint-10"


def test_a_run_without_checkpoints_begins_at_the_beginning(tmp_path: Path) -> None:
    assert last_whole_checkpoint(tmp_path / "new", SETTINGS) is None
    assert not is_finished(tmp_path / "new", SETTINGS)


@pytest.mark.parametrize("finished", [True, False])
def test_other_settings_are_refused_by_name(tmp_path: Path, finished: bool) -> None:
    if finished:
        mark_whole(tmp_path, SETTINGS, 20)
    else:
        checkpoint(tmp_path, 5)
    look = is_finished if finished else last_whole_checkpoint

    with pytest.raises(UserError, match=r"`seed` is 1, was 0\. Restore"):
        look(tmp_path, {**SETTINGS, "seed": 1})


def test_a_finished_run_is_recognised(tmp_path: Path) -> None:
    mark_whole(tmp_path, SETTINGS, 20)

    assert is_finished(tmp_path, SETTINGS)


def test_only_the_newest_whole_checkpoints_are_kept(tmp_path: Path) -> None:
    for step, whole in ((2, True), (3, False), (4, True), (10, True), (11, False)):
        checkpoint(tmp_path, step, whole=whole)

    keep_newest(tmp_path, 2)

    assert [folder.name for folder in checkpoint_folders(tmp_path)] == [
        "checkpoint-4",
        "checkpoint-10",
        "checkpoint-11",
    ]


def test_nothing_is_deleted_before_there_are_enough(tmp_path: Path) -> None:
    checkpoint(tmp_path, 2)

    keep_newest(tmp_path, 2)

    assert (tmp_path / "checkpoint-2" / RECORD).is_file()


def test_without_resume_an_occupied_folder_is_refused(tmp_path: Path) -> None:
    refuse_occupied(tmp_path)
    checkpoint(tmp_path, 3)

    with pytest.raises(UserError, match="checkpoint-3 holds a run already"):
        refuse_occupied(tmp_path)
