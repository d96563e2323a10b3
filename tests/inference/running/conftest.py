from pathlib import Path

import pytest

from reflectune.core.durable import write_json


@pytest.fixture
def small_set(tmp_path: Path, make) -> str:
    """A data set of one entry and one question with evidence, with the manifest of an index."""
    folder = tmp_path / "world"
    folder.mkdir()
    make.data_set(folder, [make.entry(1)], [make.question(0, "val", evidence=make.evidence("e1"))])
    counts = dict.fromkeys(("kb_entries", "rows", "entries", "images"), 1)
    stored = {"store": "exact", "precision": "float32", "fields": {"image": 1, "title": 1}}
    write_json(folder / "manifest.json", {"kb": "world", "encoder": "miniature/clip", **stored, **counts})
    return str(folder)
