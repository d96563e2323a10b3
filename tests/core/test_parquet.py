"""A Parquet file that is damaged anywhere is one error that names it, when it is opened or when its rows are read."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.core.parquet import open_parquet, stream_rows, write_parquet

ROWS = [
    {"id": f"row {number}", "text": f"{number * 7919}" * 20, "evidence": [{"entry_id": f"{number}", "title": "of"}]}
    for number in range(200)
]
COLUMNS = pa.Table.from_pylist(ROWS).schema


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "rows.parquet"
    write_parquet(path, pa.Table.from_pylist(ROWS))
    return path.read_bytes()


def rows_of(path: Path) -> list[dict]:
    with open_parquet(path, "build it again") as file:
        return list(stream_rows(file, COLUMNS))


@given(data=st.data())
def test_a_flipped_bit_changes_nothing_or_is_one_error(data, whole, tmp_path_factory) -> None:
    """Pages have checksums, their headers and the file's end have none: what these decide fails, or is not read."""
    position, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    content = bytearray(whole)
    content[position] ^= 1 << bit
    path = tmp_path_factory.mktemp("flipped") / "rows.parquet"
    path.write_bytes(content)
    try:
        rows, error_text = rows_of(path), f"{path} …; build it again"
    except UserError as error:
        rows, error_text = ROWS, str(error)
    assert rows == ROWS
    assert str(path) in error_text
    assert error_text.endswith("; build it again")


def test_damage_that_shows_when_rows_are_read_is_the_same_error(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(whole[:40] + bytes(60) + whole[100:])
    with open_parquet(path, "") as file:
        assert file.metadata.num_rows == len(ROWS)  # its end, where the schema is, is whole
    with pytest.raises(UserError, match=r"rows\.parquet is not a readable Parquet file: .*; build it again"):
        rows_of(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"evidence": [{"entry_id": "2", "titlf": "of"}]}, "no column `evidence.title`"),
        ({"evidence": [3]}, "no column `evidence.entry_id`, no column `evidence.title`"),
        ({"evidence": {"entry_id": "2", "title": "of"}}, "no list in `evidence`"),
        ({"text": b"of"}, "no text in `text`"),
        ({"evidence": [{"entry_id": b"2", "title": "of"}]}, "no text in `evidence.entry_id`"),
    ],
)
def test_missing_columns_are_named(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.parquet", pa.Table.from_pylist([ROWS[0] | change]))
    with pytest.raises(UserError, match=f"it has {problem}; build it again"):
        rows_of(tmp_path / "rows.parquet")


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.parquet", pa.Table.from_pylist([{"id": "1"}]))
    with pytest.raises(UserError, match="it has no column `text`, no column `evidence`"):
        rows_of(tmp_path / "rows.parquet")


def test_an_empty_list_has_no_fields_to_miss(tmp_path: Path) -> None:
    row = {"id": "1", "text": "", "evidence": []}
    write_parquet(tmp_path / "rows.parquet", pa.Table.from_pylist([row]))
    assert rows_of(tmp_path / "rows.parquet") == [row]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.parquet is missing; build it again"):
        rows_of(tmp_path / "none.parquet")


def test_an_error_of_whoever_reads_stays_what_it_is(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(whole)
    with pytest.raises(ZeroDivisionError), open_parquet(path, ""):
        raise ZeroDivisionError
