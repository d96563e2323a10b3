import errno
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.rejected import BadRow, MissingImage, UnreadableImage
from reflectune.data_builders.readers.images import ADDRESSES, ImageFolder, escapes
from reflectune.data_builders.readers.rows import SourceRow

from .conftest import encoded

ROW, RED = SourceRow({"id": "q"}, "f.jsonl", 3), encoded("red", "PNG")


@pytest.mark.parametrize(
    ("stored", "image_id"),
    [
        ("oven_01963180.jpg", "oven_01963180"),
        ("01/oven_01963180.JPEG", "oven_01963180"),
        ("images/oven_01963180.png", "oven_01963180"),
        ("shard02/01/oven_01963180.jpg", "oven_01963180"),
        ("a/b/c/abcdef0123456789.jpg", "abcdef0123456789"),
        ("Q806/Q806563.jpg", "Q806563"),
        ("val2014/COCO_val2014_000000000042.jpg", "val2014/COCO_val2014_000000000042.jpg"),
        ("01/oven_01963180.JPEG", "oven_01963180.jpg"),
        ("{odd}/x1.jpg", "x1"),
    ],
)
def test_an_image_is_found_however_the_folder_is_sharded(tmp_path: Path, stored: str, image_id: str) -> None:
    (tmp_path / stored).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / stored).write_bytes(b"x")
    images = ImageFolder(tmp_path)
    assert images.find(image_id) == stored
    assert images.find(image_id) == stored
    assert pickle.loads(pickle.dumps(images)).find(image_id) == stored
    assert images.find("oven_99999999") is None


@pytest.mark.parametrize("stored", ["Zu\u0308rich/\u00e9u\u0308.JPG", "Z\u00fcrich/e\u0301\u00fc.jpg"])
@pytest.mark.parametrize("path", ["Z\u00fcrich/\u00e9\u00fc.jpg", "Zu\u0308rich/e\u0301u\u0308.jpg"])
def test_a_path_is_found_in_any_form_of_its_letters(tmp_path: Path, stored: str, path: str) -> None:
    (tmp_path / stored).parent.mkdir()
    (tmp_path / stored).write_bytes(b"x")
    images = ImageFolder(tmp_path)
    assert images.keep(ROW, "image", path) == images.path(ROW, "image", path) == stored
    assert images.exact(ROW, "image", f"{path}x") is None


def test_one_way_of_sharding_leads_to_all_its_images(tmp_path: Path) -> None:
    for n in range(30):
        folder = tmp_path / f"{n:02d}"
        folder.mkdir()
        (folder / f"oven_{n:02d}000000{'.jpg' if n % 2 else '.JPEG'}").write_bytes(b"x")
    images = ImageFolder(tmp_path)
    assert all(images.find(f"oven_{n:02d}000000") for n in range(30))


def test_small_folders_are_not_searched_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many of Wiki6M's articles have no image: a look-up tries only the last sharding."""
    (tmp_path / "Q806").mkdir()
    (tmp_path / "Q806/Q8061.jpg").write_bytes(b"x")
    images, asked = ImageFolder(tmp_path), list[str]()
    assert images.find("Q8061") == "Q806/Q8061.jpg"

    def is_file(path: str) -> bool:
        asked.append(path)
        return Path(path).is_file()

    monkeypatch.setattr("os.path.isfile", is_file)
    assert all(images.find(f"Q9{n:02d}000") is None for n in range(50))
    assert len(asked) <= 50
    assert images.find("Q8061") == "Q806/Q8061.jpg"


def test_a_process_keeps_its_cache_when_it_receives_images_again(tmp_path: Path) -> None:
    """A conversion sends them with each of thousands of batches; listing Wiki6M's folder takes half a minute."""
    sent = pickle.dumps(ImageFolder(tmp_path))
    assert pickle.loads(sent) is pickle.loads(sent)
    assert pickle.loads(sent) is not pickle.loads(pickle.dumps(ImageFolder(tmp_path, tmp_path)))


def test_files_are_passed_over_where_folders_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OVEN's and Wiki6M's folders hold millions of files two levels deep."""
    for name in ("01/a.jpg", "01/b.jpg", "deep/er/c.jpg", "deep/er/too/d.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "02").symlink_to(tmp_path / "deep")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", lambda path: pytest.fail(f"asks about {path}"))
        images = ImageFolder(tmp_path)
        assert [images.find(name) for name in "abcd"] == ["01/a.jpg", "01/b.jpg", "02/er/c.jpg", None]


def test_fetched_images_are_not_looked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of E-VQA's images are gone, and the others lie in 65,536 folders."""
    for name in ("ab/cd/abcd.jpg", "fa/ce/face.jpg", "named/Facade.jpg", f"{ADDRESSES}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    images = ImageFolder(tmp_path)
    assert images.find("Facade.jpg") == "named/Facade.jpg"
    assert images.find("abcd.jpg") is None
    assert images.exact(ROW, "image", "fa/ce/face.jpg") == "fa/ce/face.jpg"
    (tmp_path / ADDRESSES).unlink()
    assert ImageFolder(tmp_path).find("abcd.jpg") == "ab/cd/abcd.jpg"


def test_a_missing_image_is_its_own_kind_of_error(tmp_path: Path) -> None:
    with pytest.raises(MissingImage, match=r"f.jsonl:3: id q: field `image_id`: no image of `x` below"):
        ImageFolder(tmp_path).path(ROW, "image_id", "x")
    assert ImageFolder(None).path(ROW, "image_id", "x") == ""


@pytest.mark.parametrize("path", ["../x.jpg", "/etc/passwd", "a/../../x.jpg", "..\\x.jpg", "C:\\x.jpg", "a\0.jpg"])
def test_no_id_leads_out_of_the_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "x.jpg").write_bytes(b"x")
    images = ImageFolder(tmp_path / "inner")
    assert images.find(path) is None
    with pytest.raises(BadRow, match="leads out of"):
        images.path(ROW, "image", path)


def test_a_path_of_the_users_own_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    """A name that two folders hold is ambiguous."""
    for name in ("train/1.jpg", "val/2.png", "a.tif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    images = ImageFolder(tmp_path)
    for path in ("1.jpg", "val/2.jpg", "val/2"):
        with pytest.raises(MissingImage):
            images.keep(ROW, "image", path)
    assert [images.keep(ROW, "image", path) for path in ("./train/1.jpg", "a.tif")] == ["train/1.jpg", "a.tif"]


def test_an_absolute_path_into_the_folder_is_to_be_given_from_there_on(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(b"x")
    with pytest.raises(BadRow, match=r"x.jpg` is an absolute path; give the path from .* on"):
        ImageFolder(tmp_path).path(ROW, "image", str(tmp_path / "x.jpg"))


@given(st.text(alphabet="ab./\\", max_size=12))
def test_a_path_that_does_not_escape_stays_inside(path: str) -> None:
    if not escapes(path):
        whole = Path("/root/folder", path.replace("\\", "/")).resolve()
        assert Path("/root/folder") in (whole, *whole.parents)


def test_bytes_are_kept_once_under_a_name_of_their_content(tmp_path: Path) -> None:
    images = ImageFolder(tmp_path / "out", tmp_path / "out" / "images")
    first = images.keep(ROW, "image", RED)
    assert images.keep(ROW, "image", {"bytes": RED, "path": "x.png"}) == first
    assert images.keep(ROW, "image", encoded("blue", "PNG")) != first
    assert (tmp_path / "out" / first).read_bytes() == RED
    assert first.startswith("images/")
    assert first.endswith(".png")


def test_bytes_that_are_no_image_are_refused() -> None:
    with pytest.raises(UnreadableImage, match="4 bytes are not an image"):
        ImageFolder(None).keep(ROW, "image", b"text")


@pytest.mark.parametrize("value", [None, "", 3, {}, {"bytes": None}, b""])
def test_a_value_that_is_neither_a_path_nor_bytes_is_refused(value: object) -> None:
    with pytest.raises(BadRow, match="not an image"):
        ImageFolder(None).keep(ROW, "image", value)


@pytest.mark.parametrize("url", ["https://e.org/a.jpg", "HTTP://e.org/a.jpg", "s3://bucket/a.jpg"])
def test_a_url_is_refused_with_advice(url: str) -> None:
    with pytest.raises(BadRow, match=r"f.jsonl:3: id q: field `image`: holds a URL .*download the images once"):
        ImageFolder(None).keep(ROW, "image", url)


@pytest.mark.parametrize("link", ["x.jpg", "01/x.jpg", "linked/private.jpg"])
def test_no_link_leads_out_of_the_folder(tmp_path: Path, link: str) -> None:
    root = tmp_path / "images"
    (root / "01").mkdir(parents=True)
    (tmp_path / "private.jpg").write_bytes(b"x")
    if link.startswith("linked"):
        (root / "linked").symlink_to(tmp_path)
    else:
        (root / link).symlink_to(tmp_path / "private.jpg")
    (root / "01" / "good.jpg").write_bytes(b"x")
    images = ImageFolder(root)
    image_id = Path(link).stem
    assert images.find("good") == "01/good.jpg"
    for _ in range(2):  # the second look-up knows the folder
        with pytest.raises(BadRow, match=r"id q: field `image`: .*leads out of"):
            images.path(ROW, "image", image_id)
        with pytest.raises(BadRow, match="leads out of"):
            images.find_for(ROW, "image", image_id)


def test_a_link_to_itself_hides_no_folder(tmp_path: Path) -> None:
    (tmp_path / "01").mkdir()
    (tmp_path / "01" / "x1.jpg").write_bytes(b"x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert ImageFolder(tmp_path).find("x1") == "01/x1.jpg"
    assert ImageFolder(tmp_path).find("loop/x1.jpg") is None


@pytest.mark.parametrize("call", ["scandir", "stat"])
def test_a_lost_disk_is_no_folder_without_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def lost(folder: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(folder))

    images = ImageFolder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, lost)
        with pytest.raises(OSError, match="Stale"):
            images.find("folder/x1")
        if call == "stat":
            with pytest.raises(OSError, match="Stale"):
                images.exact(ROW, "image", "x1.jpg")
