import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from reflectune.core.errors import UserError
from reflectune.train.weights.checkpoints import (
    RECORD,
    checkpoint_folders,
    is_finished,
    keep_newest,
    last_complete_checkpoint,
    mark_complete,
    recorded_settings,
    refuse_occupied,
)

SETTINGS = {"learning_rate": 1e-4, "seed": 0, "report": ["a"]}


def checkpoint(run: Path, step: int, *, whole: bool = True) -> Path:
    folder = run / f"checkpoint-{step}"
    folder.mkdir()
    save_file({"weight": torch.arange(500.0)}, folder / "model.safetensors")
    if whole:
        torch.save({"step": step, "moments": torch.arange(500.0)}, folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
        mark_complete(folder, SETTINGS, step, sizes=True)
    return folder


def checkpoints(run: Path, *steps: int) -> None:
    for step in steps:
        checkpoint(run, step)


def test_the_newest_whole_checkpoint_is_found_by_its_number(tmp_path: Path) -> None:
    checkpoints(tmp_path, 5, 9, 10)
    checkpoint(tmp_path, 11, whole=False)
    (tmp_path / "checkpoint-best").mkdir()

    assert last_complete_checkpoint(tmp_path, SETTINGS) == tmp_path / "checkpoint-10"


def test_a_run_without_checkpoints_begins_at_the_beginning(tmp_path: Path) -> None:
    assert last_complete_checkpoint(tmp_path / "new", SETTINGS) is None
    assert not is_finished(tmp_path / "new", SETTINGS)


@pytest.mark.parametrize("finished", [True, False])
def test_other_settings_are_refused_by_name(tmp_path: Path, finished: bool) -> None:
    if finished:
        mark_complete(tmp_path, SETTINGS, 20)
    else:
        checkpoint(tmp_path, 5)
    look = is_finished if finished else last_complete_checkpoint
    assert look(tmp_path, SETTINGS)

    with pytest.raises(UserError, match=r"`seed` is 1, was 0\. Restore"):
        look(tmp_path, {**SETTINGS, "seed": 1})


def test_only_the_newest_whole_checkpoints_are_kept(tmp_path: Path) -> None:
    for step, whole in ((2, True), (3, False), (4, True), (10, True), (11, False)):
        checkpoint(tmp_path, step, whole=whole)

    keep_newest(tmp_path, 2)

    assert [folder.name for folder in checkpoint_folders(tmp_path)] == [f"checkpoint-{n}" for n in (4, 10, 11)]
    keep_newest(tmp_path, 3)  # there are no more
    assert len(checkpoint_folders(tmp_path)) == 3


def test_without_resume_an_occupied_folder_is_refused(tmp_path: Path) -> None:
    refuse_occupied(tmp_path)
    checkpoint(tmp_path, 3)

    with pytest.raises(UserError, match="checkpoint-3 holds a run already"):
        refuse_occupied(tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def zero(path: Path) -> None:
    """Fill a file with zeros, as a crash of the machine may leave it."""
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    f"{name} {spoil.__name__}": (name, spoil)
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json", RECORD)
    for spoil in (cut, zero)
}
DAMAGES |= {f"{name} gone": (name, Path.unlink) for name in ("model.safetensors", "optimizer.pt", "trainer_state.json")}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_one_line(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, spoil = DAMAGES[damage]
    checkpoints(tmp_path, 5, 9, 10)
    spoil(tmp_path / "checkpoint-10" / name)
    assert last_complete_checkpoint(tmp_path, SETTINGS) == tmp_path / "checkpoint-9"
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{tmp_path}/checkpoint-10: {name} ")
    assert line.endswith(f": resuming from the previous checkpoint, {tmp_path}/checkpoint-9")

    spoil(tmp_path / "checkpoint-9" / name)
    spoil(tmp_path / "checkpoint-5" / name)
    with pytest.raises(UserError, match=rf"checkpoint-5: {name} .*; no undamaged checkpoint is left") as caught:
        last_complete_checkpoint(tmp_path, SETTINGS)
    assert "\n" not in str(caught.value)


def test_a_damaged_checkpoint_is_discarded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints(tmp_path, 5, 9, 10)
    cut(tmp_path / "checkpoint-10/optimizer.pt")

    assert last_complete_checkpoint(tmp_path, SETTINGS) == tmp_path / "checkpoint-9"
    assert capsys.readouterr().out
    assert not (tmp_path / "checkpoint-10" / RECORD).exists()
    assert last_complete_checkpoint(tmp_path, SETTINGS) == tmp_path / "checkpoint-9"
    assert not capsys.readouterr().out

    mark_complete(checkpoint(tmp_path, 11), SETTINGS, 11)
    keep_newest(tmp_path, 2)
    assert [folder.name for folder in checkpoint_folders(tmp_path)] == [f"checkpoint-{n}" for n in (9, 10, 11)]


def test_a_changed_byte_of_an_archive_is_found(tmp_path: Path) -> None:
    checkpoints(tmp_path, 5, 9)
    path = tmp_path / "checkpoint-9/optimizer.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    assert last_complete_checkpoint(tmp_path, SETTINGS) == tmp_path / "checkpoint-5"


def test_a_damaged_record_is_passed_over_for_the_settings_too(tmp_path: Path) -> None:
    checkpoints(tmp_path, 5, 9)
    cut(tmp_path / "checkpoint-9" / RECORD)
    assert recorded_settings(tmp_path) == SETTINGS
