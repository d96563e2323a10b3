from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.core.durable import RowLog, read_json, read_record, read_rows
from reflectune.core.errors import UserError


@settings(deadline=None)  # what it takes is the disk's
@given(keep=st.integers(min_value=0, max_value=200))
def test_a_log_cut_off_anywhere_resumes_with_whole_rows_only(tmp_path_factory, keep) -> None:
    path = tmp_path_factory.mktemp("log") / "rows.jsonl"
    with RowLog(path, "f") as log:
        for number in range(4):
            log.append(str(number), {"answer": f"ünïcode {number}"})
    path.write_bytes(path.read_bytes()[:keep])
    with RowLog(path, "f") as log:
        for number in range(4):
            if str(number) not in log.done:
                log.append(str(number), {"answer": f"ünïcode {number}"})
    assert [(row["id"], row["answer"]) for row in read_rows(path)] == [(str(n), f"ünïcode {n}") for n in range(4)]


def test_a_missing_or_broken_json_says_what_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the manifest is missing"):
        read_json(tmp_path / "a.json", "the manifest")
    for content in (b"{", b'{"a": "\xa0"}', b"[" * 100_000, b"9" * 5_000):
        (tmp_path / "a.json").write_bytes(content)
        with pytest.raises(UserError, match="the manifest is not valid JSON"):
            read_json(tmp_path / "a.json", "the manifest")


@pytest.mark.parametrize("damage", [b"\xa0", b"[1]", b'{"id": '])
def test_a_damaged_row_of_a_log_is_named_by_its_place(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    with RowLog(path, "f") as log:
        log.append("a", {"value": 1})
    whole = path.read_bytes()
    path.write_bytes(whole + damage + b"\n" + b'{"id": "b"}\n')
    with pytest.raises(UserError, match=rf"rows\.jsonl is damaged at byte {len(whole)} "):
        list(read_rows(path))
    with pytest.raises(UserError, match=rf"rows\.jsonl is damaged at byte {len(whole)} "):
        RowLog(path, "f")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("3", "holds int, not an object"),
        ('{"name": ["a"]}', "`name` is list, not str"),
        ('{"rows": true}', "`rows` is bool, not int"),
    ],
)
def test_a_record_of_a_different_shape_is_refused_by_its_key(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text('{"name": "a", "more": []}')
    assert read_record(path, "the manifest", name=str, rows=int) == {"name": "a", "more": []}
    path.write_text(content)
    with pytest.raises(UserError, match=f"the manifest is damaged: .*{problem}"):
        read_record(path, "the manifest", name=str, rows=int)
