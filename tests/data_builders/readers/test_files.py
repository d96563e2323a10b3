import gzip
import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.data_builders.readers.files import (
    block_rows,
    count_bytes,
    line_blocks,
    read_csv,
    read_jsonl,
    read_parquet,
    source_files,
)
from reflectune.data_builders.readers.json_documents import read_json_array, read_json_dict
from reflectune.data_builders.readers.json_texts import json_reader

VALUES = [{"id": str(n), "text": f"row {n} ü\u2028 end", "n": n} for n in range(50)]


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(json.dumps(v, ensure_ascii=False).encode() + b"\n" for v in VALUES))
    return path


def test_every_kind_of_file_gives_the_same_rows_in_order(tmp_path: Path, jsonl: Path) -> None:
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(jsonl.read_bytes()))
    zipped = tmp_path / "a.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("inside/a.jsonl", jsonl.read_bytes())
    array = tmp_path / "a.json"
    array.write_text(json.dumps(VALUES))
    nested = tmp_path / "nested.json"
    nested.write_text(json.dumps({"info": {}, "questions": VALUES}))
    table = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(VALUES), table)
    arrays = [read_json_array(array), read_json_array(nested, prefix="questions.item")]
    for stream in (*map(read_jsonl, (jsonl, packed, zipped)), *arrays, read_parquet(table), read_parquet(tmp_path)):
        assert list(stream) == list(enumerate(VALUES, 1))


def test_a_dict_gives_its_names_with_its_values(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"x": {"a": 1}, "y": 2, "z": {"key": "z"}, "w": {"key": "other"}}))
    rejected: list[BadRow] = []
    rows = [dict(row) for _, row in read_json_dict(path, rejected.append)]
    assert rows == [{"key": "x", "a": 1}, {"key": "y", "value": 2}, {"key": "z"}]
    assert [(error.line, error.row_id, error.field) for error in rejected] == [(4, "w", "key")]


def test_bad_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[2]\n{"a": "\xff"}\n{"a": 3}\n{"a": 4')
    rejected: list[BadRow] = []
    assert [line for line, _ in read_jsonl(path, rejected.append)] == [1, 5]
    assert [error.line for error in rejected] == [3, 4, 6]
    with pytest.raises(UserError, match=r"a.jsonl:3: is list; a line should be a JSON object"):
        list(read_jsonl(path))


def test_half_of_a_surrogate_pair_is_a_bad_row_and_a_whole_one_a_character(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": "a", "q": ["x \\ud83e y"]}\n{"id": "b", "q": "\\ud83e\\udd8a"}\n')
    bad: list[str] = []
    assert [row["q"] for _, row in read_jsonl(path, lambda error: bad.append(str(error)))] == ["\U0001f98a"]
    assert len(bad) == 1
    assert f"{path}:1: holds half of a surrogate pair, which is not a character" in bad[0]


@pytest.mark.parametrize(
    "text", [r"\ud83e", r"x\ud83ey", r"\udd8a", r"\ud83e\u0041", r"\udd8a\ud83e", r"\ud83e\ud83e\udd8a"]
)
def test_half_of_a_surrogate_pair_in_an_array_is_a_bad_row(text: str, tmp_path: Path) -> None:
    """The fast JSON parser replaces it by `?` or another character, or fails."""
    path, members = tmp_path / "rows.json", tmp_path / "members.json"
    path.write_text(f'[{{"q": "\\ud83e\\udd8a"}}, {{"q": "{text}"}}, {{"q": "c"}}]')
    members.write_text(f'{{"a": {{"q": "{text}"}}, "b": {{"q": "\\ud83e\\udd8a"}}}}')
    rejected: list[BadRow] = []
    assert [row["q"] for _, row in read_json_array(path, rejected.append)] == ["\U0001f98a", "c"]
    assert [row["q"] for _, row in read_json_dict(members, rejected.append)] == ["\U0001f98a"]
    assert [(error.file, error.line) for error in rejected] == [(str(path), 2), (str(members), 1)]
    assert all("half of a surrogate pair" in str(error) for error in rejected)


@given(st.lists(st.sampled_from([r"\ud83e", r"\uDD8A", r"\u0041", "x", "\\\\"]), max_size=12), st.integers(1, 40))
def test_halves_are_found_wherever_a_chunk_ends(parts: list[str], chunk: int) -> None:
    content = f'["{"".join(parts)}"]'.encode()
    reader = json_reader(io.BytesIO(content), chunk)
    (text,) = reader.items(io.BytesIO(content), "item")
    assert text == json.loads(content)[0]


@given(st.lists(st.text(alphabet="ab\n", max_size=8), max_size=12), st.integers(1, 20), st.data())
def test_blocks_are_the_file_cut_at_line_ends(tmp_path_factory, parts, size, data) -> None:
    path = tmp_path_factory.mktemp("blocks") / "a.jsonl"
    content = "".join(parts).encode()
    path.write_bytes(content)
    blocks = list(line_blocks(path, size))
    assert b"".join(block.data for block in blocks) == content
    for block in blocks:
        assert block.first_line == content.count(b"\n", 0, block.offset) + 1
        assert block.offset == 0 or content[block.offset - 1 : block.offset] == b"\n"
    if blocks:
        number = data.draw(st.integers(0, len(blocks) - 1))
        begin = blocks[number]
        assert list(line_blocks(path, size, offset=begin.offset, first_line=begin.first_line)) == blocks[number:]


def test_a_packed_file_is_cut_as_the_plain_one_is(tmp_path: Path, jsonl: Path) -> None:
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(jsonl.read_bytes()))
    assert [block.data for block in line_blocks(packed, 100)] == [block.data for block in line_blocks(jsonl, 100)]


def test_lines_are_numbered_through_the_blocks(jsonl: Path) -> None:
    lines = [line for block in line_blocks(jsonl, 100) for line, _ in block_rows(block)]
    assert lines == list(range(1, 51))


def test_csv_records_know_the_line_they_begin_at(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffid,text\n1,"two\nlines"\n2,plain\n'.encode())
    assert list(read_csv(path)) == [(2, {"id": "1", "text": "two\nlines"}), (4, {"id": "2", "text": "plain"})]


@pytest.mark.parametrize("read", [read_json_array, read_json_dict])
def test_a_byte_order_mark_is_skipped(tmp_path: Path, read) -> None:
    path = tmp_path / "a.json"
    content = b'[{"a": "b"}]' if read is read_json_array else b'{"x": {"a": "b"}}'
    path.write_bytes(content)
    plain = [dict(row) for _, row in read(path)]
    path.write_bytes(b"\xef\xbb\xbf" + content)
    assert [dict(row) for _, row in read(path)] == plain


def test_bad_csv_records_are_named_and_the_others_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\n1,a\n2,b,c\n3\n4,\xff\n5,"x"y\n6,f\n')
    rejected: list[BadRow] = []
    assert [row["id"] for _, row in read_csv(path, rejected.append)] == ["1", "6"]
    assert [error.line for error in rejected] == [3, 4, 5, 6]
    assert str(rejected[0]) == f"{path}:3: id 2: has 3 values for 2 columns; fix the line"
    assert str(rejected[2]) == f"{path}:5: id 4: is not UTF-8 (it has the byte 0xff); save the file as UTF-8"


@pytest.mark.parametrize(
    ("name", "content", "read", "problem"),
    [
        ("a.csv", b"id;text\n1;a\n", read_csv, "a.csv:1: the columns are separated by `;`; save the file with commas"),
        ("a.csv", b"id\ttext\n1\ta\n", read_csv, "separated by tabs"),
        (
            "a.csv",
            b'"id";"text"\n"1";"a"\n',
            read_csv,
            "a.csv:1: the header is not CSV .*separate the columns with commas",
        ),
        ("a.jsonl", b'{"a": "\xf9"}\n', read_jsonl, "a.jsonl:1: is not UTF-8 .*; save the file as UTF-8"),
        ("a.jsonl", b'[{"a": 1}]\n', read_jsonl, "a.jsonl:1: is list; .*one array over the whole file is not JSONL"),
        ("a.csv", b"", read_csv, "is empty"),
        ("a.csv", b"id,\xe9t\xe9\n1,a\n", read_csv, "the header is not UTF-8 .*; save the file as UTF-8"),
        ("a.csv", b"id,id\n", read_csv, "`id` twice"),
        ("a.json", b'[{"a": 1}, {"a"', read_json_array, "damaged after record 1"),
        ("a.json", b'{"a": [1]}\n{"a": [2]}\n', read_json_array, "not a JSON array; .*per line `.jsonl`"),
        ("a.json", b'{"x": {"a": 1}, "y": {', read_json_dict, "damaged after record 1"),
        ("a.parquet", b"PAR1nothing", read_parquet, "damaged"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 999, mtime=0)[:-12], read_jsonl, "can't be unpacked"),
        ("a.csv.gz", gzip.compress(b"id,text\n" + b"1,a\n" * 999, mtime=0)[:-12], read_csv, "can't be unpacked"),
        ("a.json.gz", gzip.compress(b'[{"a": 1}]', mtime=0)[:-12], read_json_array, "can't be unpacked"),
        ("a.json.gz", gzip.compress(b'{"a": 1}', mtime=0)[:-12], read_json_dict, "can't be unpacked"),
        ("a.zip", b"PK nothing", read_jsonl, "can't be unpacked"),
        ("a.csv", b'id,text\n1,"a\n2,b\n3,c\n', read_csv, "lines 2 to 4 are one record .*; fix line 2"),
        ("a.csv", b'id,text\n1,"a\n2,b\n3,"c\n', read_csv, "lines 2 to 4 are one record .*; fix line 2"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name, content, read, problem) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=problem) as caught:
        list(read(path))
    assert str(path) in str(caught.value)


def test_a_file_without_the_array_is_refused_and_an_empty_array_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(r'{"data": [], "info": {"year": 1, "note": "\udd8a"}}')
    with pytest.raises(UserError, match="it is not a JSON array"):
        list(read_json_array(path))
    with pytest.raises(UserError, match="its field `questions` is not a JSON array"):
        list(read_json_array(path, prefix="questions.item"))
    assert list(read_json_array(path, prefix="data.item")) == []
    path.write_text(" []")
    assert list(read_json_array(path)) == []


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    for read in (read_jsonl, read_csv, read_json_array, read_json_dict, read_parquet):
        with pytest.raises(UserError, match=r"not found: .*nothing"):
            list(read(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"no \*.parquet in"):
        list(read_parquet(tmp_path))


def test_a_zip_of_several_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../escape.jsonl", "{}")
        archive.writestr("b.jsonl", "{}")
    with pytest.raises(UserError, match="holds 2 files"):
        list(read_jsonl(path))
    assert list(tmp_path.iterdir()) == [path]


def test_the_meter_counts_the_bytes_read_from_the_disk(jsonl: Path) -> None:
    with count_bytes() as meter:
        list(read_jsonl(jsonl))
    assert meter.bytes == jsonl.stat().st_size


def test_a_folder_s_parts_are_no_links_that_lead_out(tmp_path: Path) -> None:
    (tmp_path / "private.jsonl").write_text('{"id": "1"}\n')
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.jsonl").symlink_to(tmp_path / "private.jsonl")
    with pytest.raises(UserError, match=r"a.jsonl` is or passes a link that leads out of"):
        source_files(tmp_path / "parts", ".jsonl")


def test_a_folder_s_files_are_read_in_any_case_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for name in ("b.PARQUET", "a.parquet", "._a.parquet", ".c.parquet", "d.json"):
        (tmp_path / name).write_bytes(b"x")
    assert [file.name for file in source_files(tmp_path, ".parquet")] == ["a.parquet", "b.PARQUET"]
