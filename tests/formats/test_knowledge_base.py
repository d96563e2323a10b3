import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Section
from reflectune.formats.knowledge_base import (
    KnowledgeBase,
    drop_entries,
    finish_knowledge_base,
    shard_name,
    write_knowledge_base,
    write_shard,
)


def test_written_entries_are_read(kb, entries) -> None:
    again = KnowledgeBase(kb.folder)
    assert list(again) == entries
    assert [again.get(entry.id) for entry in reversed(entries)] == entries[::-1]
    assert list(again.ids) == [entry.id for entry in entries]
    assert len(again) == 10
    assert again.name == "owls"


def test_entries_beyond_one_row_group_are_found(tmp_path) -> None:
    many = [Entry(f"e{i}", f"T{i}", sections=(Section("", f"text {i}"),)) for i in range(700)]
    kb = write_knowledge_base(tmp_path, iter(many), name="many", shard_size=300)
    assert all(kb.get(f"e{i}") == many[i] for i in (0, 63, 64, 299, 300, 699))
    assert list(kb) == many


def test_the_fingerprint_is_of_the_content_alone(tmp_path, entries, kb) -> None:
    resharded = write_knowledge_base(tmp_path / "a", entries, name="other name", shard_size=3)
    assert resharded.fingerprint == kb.fingerprint
    changed = [dataclasses.replace(entries[0], summary="A bird!"), *entries[1:]]
    assert write_knowledge_base(tmp_path / "b", changed, name="owls").fingerprint != kb.fingerprint
    assert write_knowledge_base(tmp_path / "c", entries[::-1], name="owls").fingerprint != kb.fingerprint


def test_images_lie_where_the_manifest_says(kb, entries, tmp_path) -> None:
    assert kb.image_path(entries[0]).samefile(tmp_path / "images/0.png")
    assert [path.name for path in kb.image_paths(entries[1])] == ["1.png", "2.png"]
    absolute = dataclasses.replace(entries[0], images=(str(tmp_path / "images/2.png"),))
    assert kb.image_path(absolute) == tmp_path / "images/2.png"
    with pytest.raises(UserError, match=r"entry e2 .* has 0 images"):
        kb.image_path(entries[2])


def test_a_smaller_knowledge_base_replaces_a_larger_one(kb, entries) -> None:
    smaller = write_knowledge_base(kb.folder, entries[:3], name="owls", shard_size=4)
    assert list(smaller) == entries[:3]
    assert len(list(kb.folder.glob("*.parquet"))) == 1


def test_a_writer_that_fails_leaves_no_knowledge_base(kb, entries) -> None:
    with pytest.raises(UserError, match="e1 comes twice"):
        write_knowledge_base(kb.folder, [*entries[:4], entries[1]], name="owls", shard_size=2)
    with pytest.raises(UserError, match="manifest is missing"):
        KnowledgeBase(kb.folder)


def test_an_entry_needs_an_id(tmp_path) -> None:
    with pytest.raises(UserError, match="`Nameless`"):
        write_knowledge_base(tmp_path, [Entry("", "Nameless")], name="kb")


def test_images_are_counted_without_reading_an_entry(kb, entries) -> None:
    assert list(kb.image_counts()) == [len(entry.images) for entry in entries]


def test_the_first_entries_have_the_fingerprint_of_a_knowledge_base_of_their_own(kb, entries, tmp_path) -> None:
    for count in (1, 4, 10):
        first = write_knowledge_base(tmp_path / f"first{count}", entries[:count], name="first", shard_size=3)
        assert kb.fingerprint_of(count) == first.fingerprint


def test_ids_with_equal_hashes_are_distinguished(tmp_path, monkeypatch) -> None:
    kb = write_knowledge_base(tmp_path / "kb", [Entry(f"e{n}", f"Title {n}") for n in range(300)], name="many")
    monkeypatch.setattr("builtins.hash", lambda name: 7)
    assert [kb.get(f"e{n}").title for n in (0, 128, 299)] == ["Title 0", "Title 128", "Title 299"]
    assert "e300" not in kb
    assert [kb.id_at(n) for n in (0, 299)] == ["e0", "e299"]


def test_an_unknown_entry_is_named_with_the_knowledge_base(kb) -> None:
    assert "e3" in kb
    assert "e99" not in kb
    with pytest.raises(UserError, match=r"entry e99 is not in the knowledge base owls"):
        kb.get("e99")


def test_damage_is_named(kb) -> None:
    part = kb.folder / "part-00001.parquet"
    part.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="part-00001"):
        list(kb)
    part.unlink()
    with pytest.raises(UserError, match=r"part-00001\.parquet is missing; write or copy"):
        kb.get("e0")


@pytest.mark.parametrize("gone", [[0], [1, 2], [], [0, 1, 2]])
def test_entries_taken_out_of_a_shard_leave_the_others_as_they_were(tmp_path, entries, gone) -> None:
    some, path = list(entries)[:3], tmp_path / "kb" / shard_name(0)
    path.parent.mkdir()
    digests = write_shard(path, some)
    drop_entries(path, gone)
    kept = [entry for position, entry in enumerate(some) if position not in gone]
    assert path.is_file() == bool(kept)
    shards = [{"file": path.name, "entries": len(kept)}] if kept else []
    kept_digests = [digest for position, digest in enumerate(digests) if position not in gone]
    kb = finish_knowledge_base(path.parent, shards, kept_digests, name="owls")
    assert list(kb) == kept
    assert kb.fingerprint == write_knowledge_base(tmp_path / "b", kept, name="owls").fingerprint


def test_an_entry_without_a_value_and_a_shard_with_too_many_are_named(kb) -> None:
    shard = kb.folder / kb.manifest["shards"][0]["file"]
    table = pq.read_table(shard)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), shard)
    with pytest.raises(UserError, match=f"holds {table.num_rows + 1} entries, kb.json says {table.num_rows}"):
        list(kb)
    rows = table.to_pylist()
    rows[0]["images"] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), shard)
    assert len(list(kb.image_counts())) == len(kb)
    with pytest.raises(UserError, match=f"entry {rows[0]['id']} of the knowledge base: `images`: input should be "):
        list(kb)
    rows[0] |= {"images": [], "id": ""}
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), shard)
    with pytest.raises(UserError, match="of the knowledge base has no id"):
        list(kb)


def test_a_column_of_another_type_is_named(kb) -> None:
    shard = kb.folder / kb.manifest["shards"][0]["file"]
    table = pq.read_table(shard)
    numbers = pa.array(range(table.num_rows))
    pq.write_table(table.set_column(table.column_names.index("title"), "title", numbers), shard)
    with pytest.raises(UserError, match="the column `title` is int64, not "):
        list(kb)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"image_root": [[]]}, "`image_root` is list, not str"),
        ({"entries": "3"}, "`entries` is str, not int"),
        ({"entries": -1}, "`entries` is -1, its shards hold"),
        ({"shards": [{"file": "part-00000.parquet"}]}, "a shard lacks its file or its entries"),
    ],
)
def test_a_manifest_of_another_shape_is_refused(kb, change, problem) -> None:
    write_json(kb.folder / "kb.json", {**kb.manifest, **change})
    with pytest.raises(UserError, match=problem):
        KnowledgeBase(kb.folder)
