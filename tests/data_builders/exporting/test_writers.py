import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reflectune.data_builders.exporting.run import ROW_GROUP, write_export

SCHEMA = pa.schema([("n", pa.int64())])


def read(path: Path) -> list[dict[str, int]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
@pytest.mark.parametrize("count", [1, 3, 2 * ROW_GROUP + 1])
def test_written_rows_are_read_back_and_a_failure_leaves_them(tmp_path: Path, suffix: str, count: int) -> None:
    rows, path = [{"n": i} for i in range(count)], tmp_path / f"rows{suffix}"
    schema = SCHEMA if suffix == ".parquet" else None
    write_export(path, rows, schema)
    assert read(path) == rows
    with pytest.raises(ZeroDivisionError):
        write_export(path, ({"n": 1 // n} for n in (1, 0)), schema)
    assert read(path) == rows
    assert list(tmp_path.iterdir()) == [path]
