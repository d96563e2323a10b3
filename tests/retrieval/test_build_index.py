import json
import shutil
import sys

import pytest

from reflectune.core.config import find_problems, parse_config
from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.formats.dataset import write_questions
from reflectune.retrieval.build_index import IndexConfig, build_index


@pytest.mark.parametrize("is_relative", [False, True])
def test_the_command_builds_an_index(kb, clip_folder, tmp_path, monkeypatch, capsys, is_relative) -> None:
    monkeypatch.chdir(tmp_path.parent)
    output, config = tmp_path / "index", tmp_path / "index.yaml"
    knowledge = kb.folder.relative_to(tmp_path.parent) if is_relative else kb.folder
    config.write_text(f"knowledge: {knowledge}\nencoder: {clip_folder}\noutput: {output}\ndevice: cpu\n")
    monkeypatch.setattr(sys, "argv", ["build_index", "--config", str(config), "--batch_size", "4"])
    build_index.main()
    assert json.loads((output / "manifest.json").read_text())["kb_fingerprint"] == kb.fingerprint
    assert "10 titles and 10 images of owls" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(kb, clip_folder, tmp_path, capsys) -> None:
    config = IndexConfig(
        knowledge=str(kb.folder), output=str(tmp_path / "index"), encoder=clip_folder, device="cpu", dry_run=True
    )
    build_index(config)
    assert "10 entries with 10 images" in capsys.readouterr().out
    assert not (tmp_path / "index").exists()
    (tmp_path / "images/3.png").unlink()
    with pytest.raises(UserError, match=r"1 of 10 images are missing.*3\.png of entry e3"):
        build_index(config)


def test_near_duplicates_of_test_images_are_listed_and_left_out(kb, entries, clip_folder, tmp_path, capsys) -> None:
    """The validation split asks about an entry's second image."""
    pytest.importorskip("imagehash", reason="an extra: pip install 'reflectune[dedup]'")
    copied = kb.image_paths(entries[1])[1]
    shutil.copy(copied, tmp_path / "asked.png")
    write_questions(tmp_path, "val", [Question("val", "asked.png", "What?", split="val")])
    write_json(tmp_path / "dataset.json", {"fingerprint": "f", "metric": "infoseek"})
    settings = {"knowledge": str(kb.folder), "encoder": clip_folder, "device": "cpu", "output": str(tmp_path / "index")}
    config = IndexConfig(**settings, test_images=str(tmp_path), test_splits=["val"])

    build_index(config.model_copy(update={"dry_run": True}))
    assert f"without the near-duplicates of the images of {tmp_path}" in capsys.readouterr().out
    assert not (tmp_path / "index").exists()

    assert build_index(config) is None  # it is no failure
    printed = capsys.readouterr().out
    assert "1 of 10 images, of 1 entries, are within 0 bits of 1 of 1 test images" in printed
    assert "10 titles and 9 images of owls" in printed
    (row,) = map(json.loads, (tmp_path / "index/near_duplicates.jsonl").read_text().splitlines())
    assert (row["entry"], row["image"], row["of"]) == ("e1", f"images/{copied.name}", "asked.png")

    with pytest.raises(UserError, match="built with the `leave_out`"):
        build_index(IndexConfig(**settings))


def test_problems_of_test_images_are_reported_together(kb, tmp_path) -> None:
    write_questions(tmp_path, "val", [Question("val", "asked.png", "What?", split="val")])
    write_json(tmp_path / "dataset.json", {"fingerprint": "f"})
    wrong = {"test_images": str(tmp_path), "test_splits": ["train"], "distance": 65, "leave_out": __file__}
    problems = " ".join(find_problems(IndexConfig, {"knowledge": str(kb.folder), "output": "o", **wrong}))
    for part in ("`distance` must be", "has no split train", "give one of the two"):
        assert part in problems


def test_bad_images_end_the_command_or_are_left_out_with_exit_status_3(
    kb, clip_folder, tmp_path, monkeypatch, capsys
) -> None:
    (tmp_path / "images/3.png").write_text("no image")
    (tmp_path / "images/5.png").unlink()
    output = tmp_path / "index"
    flags = ["--knowledge", str(kb.folder), "--encoder", clip_folder, "--output", str(output), "--device", "cpu"]

    def status(*more: str) -> object:
        monkeypatch.setattr(sys, "argv", ["build_index", *flags, *more])
        with pytest.raises(SystemExit) as ended:
            build_index.main()
        return ended.value.code

    assert status() == 2
    assert "id e3: field `images`: image unreadable" in capsys.readouterr().err
    assert status("--on_error", "skip", "--dry_run") == 3
    assert "1 of 10 images are missing" in capsys.readouterr().out
    for _ in range(2):  # built, then found built
        assert status("--on_error", "skip") == 3
        printed = capsys.readouterr().out
        assert "10 titles and 8 images of owls" in printed
        assert f"left out: 1 × image unreadable, listed in {output}/rejected.jsonl" in printed
        assert "1 × image missing" in printed
    assert status("--on_error", "stop") == 2
    assert "built with `on_error: skip` and lacks 2" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_of_a_launch_build_the_bytes_of_one(kb, clip_folder, tmp_path, start_launch) -> None:
    def flags(output: str) -> list[str]:
        where = ["--knowledge", str(kb.folder), "--encoder", clip_folder, "--output", str(tmp_path / output)]
        return [*where, "--batch_size", "2", "--shard_entries", "2", "--workers", "2", "--device", "cpu"]

    launch = start_launch("retrieval/build_index.py", flags("shared"))
    alone = parse_config(IndexConfig, argv=flags("alone"))
    build_index(alone)
    assert launch.wait() == 0, launch.stderr
    assert launch.stdout.count("10 titles and 10 images of owls") == 1
    built = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("shared", "alone")]
    assert built[0] == built[1]


def test_problems_are_told_together(kb) -> None:
    problems = " ".join(
        find_problems(IndexConfig, {"knowledge": str(kb.folder.parent), "batch_size": 0, "shard_entries": 0})
    )
    for part in ("`output` is needed", "`batch_size`", "`shard_entries`", f"did you mean {kb.folder}?"):
        assert part in problems


def test_a_key_of_the_other_rows_is_refused(kb) -> None:
    values = {"knowledge": str(kb.folder), "output": "index"}
    assert find_problems(IndexConfig, {**values, "rows": "passages", "cut": "sections"}) == []
    assert find_problems(IndexConfig, {**values, "rows": "passages", "summaries": True, "workers": 2}) == [
        "`summaries` means nothing for `rows: passages`; drop it",
        "`workers` means nothing for `rows: passages`; drop it",
    ]
    assert find_problems(IndexConfig, {**values, "cut": "sections"}) == [
        "`cut` means nothing for `rows: entries`; drop it"
    ]
    assert find_problems(IndexConfig, {**values, "rows": "passages", "cut": "sections", "size": 3}) == [
        "`size` means nothing for `cut: sections`; drop it"
    ]
    encoders = [IndexConfig(rows=rows).encoder for rows in ("entries", "passages")]
    assert encoders == ["miniature/clip", "miniature/text"]
