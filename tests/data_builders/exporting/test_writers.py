import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reflectune.data_builders.exporting.run import ROW_GROUP, open_writer

SCHEMA = pa.schema([("n", pa.int64())])


def read(path: Path) -> list[dict[str, int]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
@pytest.mark.parametrize("count", [0, 1, 3, 2 * ROW_GROUP + 1])
def test_written_rows_are_read_back(tmp_path: Path, suffix: str, count: int) -> None:
    rows = [{"n": i} for i in range(count)]
    with open_writer(tmp_path / f"rows{suffix}", SCHEMA) as writer:
        for row in rows:
            writer.write(row)
    assert read(tmp_path / f"rows{suffix}") == rows


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_a_failure_leaves_the_earlier_file_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    with open_writer(path, SCHEMA) as writer:
        writer.write({"n": 1})
    with pytest.raises(RuntimeError):
        _write_and_fail(path)
    assert read(path) == [{"n": 1}]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def _write_and_fail(path: Path) -> None:
    with open_writer(path, SCHEMA) as writer:
        writer.write({"n": 2})
        raise RuntimeError
