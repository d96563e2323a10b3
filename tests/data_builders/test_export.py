"""The command `export`."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Passage
from reflectune.data_builders.exporting.run import export
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.models.schemes.examples import Branch, ReflectionExample
from reflectune.train.export import export as command
from reflectune.train.settings.export import ExportConfig

TOWER = Passage("tower", 0, 0, "Gold Tower", "", "", "It was founded in 1872.")
GOOD = [
    ReflectionExample("k", "red.png", "When was it founded?", True, branches=(Branch(TOWER, True, "1872"),)),
    ReflectionExample("v", "red.png", "Which colour is it?", False, answer="red"),
]
BAD = [
    ReflectionExample("no image", "gone.png", "Which colour is it?", False, answer="red"),
    ReflectionExample("no answer", "red.png", "Which colour is it?", False),
]


@pytest.fixture
def data(tmp_path: Path) -> Callable[..., Path]:
    def build(*examples: ReflectionExample) -> Path:
        write_examples(tmp_path / "data" / "train.parquet", examples)
        write_manifest(tmp_path / "data", Manifest("mr2ag", tmp_path / "data" / "images", {"train": "0"}))
        (tmp_path / "data" / "images").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (200, 30, 30)).save(tmp_path / "data" / "images" / "red.png")
        return tmp_path / "data"

    return build


def run(*arguments: object) -> int:
    try:
        command.main([*map(str, arguments)])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_command_prints_counts_and_writes_companions(data, tmp_path, capsys) -> None:
    status = run("--data", data(*GOOD), "--to", "ms-swift", "--output", tmp_path / "out")
    assert status == 0
    assert "2 examples, 2 rows, 1 images" in capsys.readouterr().out
    companions = {"README.md", "sft.sh", "tokens.txt", "scheme.json", "export.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"train.jsonl", *companions}


def test_every_bad_row_is_reported_at_once_and_nothing_is_written(data: Callable[..., Path], tmp_path: Path) -> None:
    config = ExportConfig(data=str(data(*GOOD, *BAD)), to="trl", output=str(tmp_path / "out"))
    with pytest.raises(UserError) as caught:
        export(config)
    assert "2 bad rows" in str(caught.value)
    assert "no image: image not found: " in str(caught.value)
    assert "no answer: a question without retrieval needs an answer" in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_bad_rows_are_left_out_and_listed_if_asked(data: Callable[..., Path], tmp_path: Path) -> None:
    folder = data(*GOOD, *BAD)
    status = run("--data", folder, "--to", "trl", "--output", tmp_path / "out", "--on_error", "skip")
    assert status == 3
    rejected = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [bad["row"] for bad in rejected] == ["no image", "no answer"]


@pytest.mark.parametrize("to", ["trl", "ms-swift"])
def test_an_export_of_bad_rows_alone_can_be_repeated_when_they_are_fixed(data, tmp_path: Path, to: str) -> None:
    config = ExportConfig(data=str(data(BAD[0])), to=to, output=str(tmp_path / "out"), on_error="skip")
    with pytest.raises(UserError, match=r"all 1 rows of .*rejected\.jsonl has the reasons"):
        export(config)
    shutil.copy(tmp_path / "data/images/red.png", tmp_path / "data/images/gone.png")
    assert export(config).bad == 0
    assert not (tmp_path / "out/rejected.jsonl").exists()


def test_bad_rows_of_every_split_stay_listed_until_they_are_fixed(data: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"

    def listed(split: str, *examples: ReflectionExample, named: Callable[[Path], str] = str) -> list[str]:
        folder = data(*GOOD)
        write_examples(folder / f"{split}.parquet", examples)
        export(ExportConfig(data=named(folder), to="trl", output=str(out), split=split, on_error="skip"))
        rejected = out / "rejected.jsonl"
        return [json.loads(line)["row"] for line in rejected.read_text().splitlines()] if rejected.exists() else []

    assert listed("train", *GOOD, BAD[0]) == ["no image"]
    assert listed("val", *GOOD, BAD[1]) == ["no image", "no answer"]
    assert listed("train", *GOOD, named=os.path.relpath) == ["no answer"]
    assert listed("val", *GOOD) == []


def test_a_dry_run_shows_a_row_and_writes_nothing(data, tmp_path, capsys) -> None:
    arguments = ("--data", data(*GOOD), "--to", "llamafactory", "--output", tmp_path / "out", "--dry_run")
    assert run(*arguments, "--images", "copy") == 0
    assert "[Relevant] 1872" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_copied_image_never_replaces_that_of_a_different_data_set(data, tmp_path, monkeypatch) -> None:
    folder = data(*GOOD)
    other = shutil.copytree(folder, tmp_path / "other")
    shutil.move(other / "train.parquet", other / "val.parquet")
    Image.new("RGB", (8, 8), "blue").save(other / "images/red.png")
    write_manifest(other, Manifest("mr2ag", other / "images", {"val": "0"}))
    for image in (folder / "images/red.png", other / "images/red.png"):  # of one size and time
        image.write_bytes(image.read_bytes().ljust(200, b"\0"))
        os.utime(image, (0, 0))
    keys = {"to": "ms-swift", "output": str(tmp_path / "out"), "images": "copy"}
    export(ExportConfig(data=str(folder), **keys))
    for _ in range(2):
        export(ExportConfig(data=str(other), split="val", **keys))
    rows = {name: json.loads((tmp_path / f"out/{name}.jsonl").read_text().splitlines()[0]) for name in ("train", "val")}
    colours = {name: load_image(tmp_path / "out" / rows[name]["images"][0]).getpixel((0, 0)) for name in rows}
    assert colours == {"train": (200, 30, 30), "val": (0, 0, 255)}
    assert len([*(tmp_path / "out/images").iterdir()]) == 2


def test_a_folder_of_something_else_is_not_written_into(data: Callable[..., Path], tmp_path: Path) -> None:
    folder = data(*GOOD)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    export(ExportConfig(data=str(folder), to="trl", output=str(tmp_path / "out")))
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex"):
        export(ExportConfig(data=str(folder), to="trl", output=str(tmp_path / "mine")))
    with pytest.raises(UserError, match="holds an export with to trl, not llava"):
        export(ExportConfig(data=str(folder), to="llava", output=str(tmp_path / "out")))
    with pytest.raises(UserError, match="holds an export with space True, not False"):
        export(ExportConfig(data=str(folder), to="trl", output=str(tmp_path / "out"), space=False))


def test_every_problem_of_the_config_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    config = ExportConfig(data=str(tmp_path / "bare"), output=str(tmp_path / "bare"))
    problems = "\n".join(config.problems())
    for part in ("`to` is needed", "`scheme` is needed", "`image_root` is needed", "a different folder"):
        assert part in problems
    assert any("`data` is needed" in issue for issue in find_problems(ExportConfig, {"to": "trl", "output": "o"}))
    assert any("found `selfrag`" in issue for issue in find_problems(ExportConfig, {"scheme": "selfrag"}))


def test_data_without_a_manifest_is_exported_with_scheme_and_images_given(tmp_path, data) -> None:
    folder = data(*GOOD)
    (folder / "reflection.json").unlink()
    where = {"data": str(folder / "train.parquet"), "output": str(tmp_path / "out")}
    config = ExportConfig(**where, to="llava", scheme="mr2ag", image_root=str(folder / "images"))
    assert config.problems() == []
    assert export(config).rows == 2


def leaking(path: str) -> ReflectionExample:
    return ReflectionExample("leak", path, "Which colour is it?", False, answer="red")


OUTSIDE = ("../../private.png", "SECRET", "link.png", "linked/private.png")


@pytest.mark.parametrize(("path", "images"), [*((path, "copy") for path in OUTSIDE), ("link.png", "absolute")])
def test_a_file_outside_the_image_folder_is_neither_copied_nor_named(data, tmp_path, path, images) -> None:
    (tmp_path / "secret.txt").write_text("the user's own words")
    Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / "private.png")
    folder = data(*GOOD, leaking(str(tmp_path / "secret.txt") if path == "SECRET" else path))
    (folder / "images" / "link.png").symlink_to(tmp_path / "private.png")
    (folder / "images" / "linked").symlink_to(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"(?s)1 bad rows.*leak: `.*` .*leads out of .*images.*`image_root`"):
        export(ExportConfig(data=str(folder), to="trl", output=str(out), images=images))
    skipping = ExportConfig(data=str(folder), to="trl", output=str(out), images=images, on_error="skip")
    assert export(skipping).bad == 1
    written = [file.read_bytes() for file in out.rglob("*") if file.is_file()]
    assert not any(b"the user's own words" in content for content in written)
    assert (tmp_path / "private.png").read_bytes() not in written


@pytest.mark.parametrize("images", ["copy", "absolute"])
def test_images_in_the_folder_that_the_data_set_names_are_exported(tmp_path: Path, images: str) -> None:
    """`convert` leaves images where they are and names their folder in dataset.json; rows then have absolute paths."""
    folder, world, built = tmp_path / "images", tmp_path / "world", tmp_path / "built"
    folder.mkdir()
    world.mkdir()
    Image.new("RGB", (8, 8), (200, 30, 30)).save(folder / "red.png")
    (world / "dataset.json").write_text(json.dumps({"fingerprint": "f", "image_root": str(folder)}))
    write_examples(built / "train.parquet", [leaking(str(folder / "red.png"))])
    write_manifest(built, Manifest("mr2ag", world, {"train": "0"}))
    export(ExportConfig(data=str(built), to="llamafactory", output=str(tmp_path / "chat"), images=images))
    first, *_ = (tmp_path / "chat" / "mr2ag_train.jsonl").read_text().splitlines()
    (image,) = json.loads(first)["images"]
    assert load_image(image, root=[tmp_path / "chat", folder]).getpixel((0, 0)) == (200, 30, 30)
