from pathlib import Path

import pytest


@pytest.fixture
def small_set(tmp_path: Path, make) -> str:
    """A data set of one entry and one question with evidence, with a place of an index."""
    folder = tmp_path / "world"
    folder.mkdir()
    make.data_set(folder, [make.entry(1)], [make.question(0, "val", evidence=make.evidence("e1"))])
    (folder / "manifest.json").write_text("{}")
    return str(folder)
