"""Paths in data are opened below the data's folders, or refused."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import OutsideRoot, listed_file, resolve_below


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder with `root/inner/a.txt` and `secret.txt`."""
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "root" / "inner" / "a.txt").write_text("a")
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path


@pytest.mark.parametrize("path", ["inner/a.txt", "inner/../inner/a.txt", "./inner//a.txt", "inner/none.txt", "", "."])
def test_a_path_below_its_root_is_resolved(tree: Path, path: str) -> None:
    assert resolve_below(path, tree / "root") == (tree / "root" / path).resolve()


def test_an_absolute_path_counts_by_where_it_leads(tree: Path) -> None:
    inside = tree / "root" / "inner" / "a.txt"
    assert resolve_below(inside, tree / "root") == inside
    with pytest.raises(OutsideRoot, match="leads out of"):
        resolve_below(tree / "secret.txt", tree / "root")


@pytest.mark.parametrize("path", ["../secret.txt", "inner/../../secret.txt", "/etc/passwd", "..", "../root2/a"])
def test_a_path_that_leads_out_is_refused(tree: Path, path: str) -> None:
    (tree / "root2").mkdir()
    with pytest.raises(OutsideRoot, match="below"):
        resolve_below(path, tree / "root")


@settings(deadline=None)
@given(st.lists(st.sampled_from(["..", ".", "a", "b", "", "secret.txt"]), max_size=6).map("/".join))
def test_resolved_paths_are_below_the_root(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    root = tmp_path_factory.getbasetemp() / "root"
    try:
        resolved = resolve_below(path, root)
    except OutsideRoot:
        assert root not in (Path(os.path.normpath(root / path)), *Path(os.path.normpath(root / path)).parents)
    else:
        assert root in (resolved, *resolved.parents)


@pytest.mark.parametrize("link", ["link.txt", "folder/secret.txt"])
def test_a_link_that_leads_out_is_refused_and_one_that_stays_is_followed(tree: Path, link: str) -> None:
    (tree / "root" / "link.txt").symlink_to(tree / "secret.txt")
    (tree / "root" / "folder").symlink_to(tree)
    (tree / "root" / "stays.txt").symlink_to("inner/a.txt")
    assert resolve_below("stays.txt", tree / "root") == tree / "root" / "inner" / "a.txt"
    with pytest.raises(OutsideRoot, match=r"passes a link that leads out of .*; put the files there"):
        resolve_below(link, tree / "root")


def test_a_root_may_be_a_link_itself(tree: Path) -> None:
    (tree / "linked").symlink_to(tree / "root")
    assert resolve_below("inner/a.txt", tree / "linked") == tree / "root" / "inner" / "a.txt"


def test_a_path_may_lead_into_any_of_several_roots_and_starts_at_the_first(tree: Path) -> None:
    roots = (tree / "root" / "inner", tree / "other")
    assert resolve_below("../../other/b.txt", roots) == tree / "other" / "b.txt"
    assert resolve_below("a.txt", roots) == tree / "root" / "inner" / "a.txt"
    with pytest.raises(OutsideRoot, match=r"inner or .*other"):
        resolve_below("../../secret.txt", roots)


def test_the_hubs_cache_is_read_through_its_links(tmp_path: Path) -> None:
    repository = tmp_path / "datasets--owner--birds"
    snapshot = repository / "snapshots" / "5f3a"
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (repository / "blobs" / "9c1e").write_text("an image")
    (tmp_path / "secret.txt").write_text("secret")
    (snapshot / "a.jpg").symlink_to("../../blobs/9c1e")
    (snapshot / "b.jpg").symlink_to("../../../secret.txt")
    assert resolve_below("a.jpg", snapshot).read_text() == "an image"
    with pytest.raises(OutsideRoot):
        resolve_below("b.jpg", snapshot)


def test_an_image_outside_of_its_root_is_not_opened(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "private.png")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link.png").symlink_to(tmp_path / "private.png")
    for path in ("../private.png", str(tmp_path / "private.png"), "link.png"):
        with pytest.raises(UserError, match=r"image refused \(needed by question 7\): .*leads out of"):
            load_image(path, root=tmp_path / "root", needed_by="question 7")
    assert load_image(tmp_path / "private.png").size == (2, 2)  # the user's own choice


def test_a_file_that_a_manifest_lists_is_one_of_its_folder(tree: Path) -> None:
    root = tree / "root"
    (root / "link.txt").symlink_to(tree / "secret.txt")
    assert listed_file(root, "inner/a.txt", "manifest.json") == root / "inner" / "a.txt"
    for name in ("../secret.txt", "/etc/passwd", "link.txt", "", None, 3, ["inner/a.txt"]):
        with pytest.raises(OutsideRoot, match=r"manifest\.json lists .*build it again"):
            listed_file(root, name, "manifest.json")
