import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.durable import RowLog
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.data_builders.conversion import knowledge as knowledge_module
from reflectune.data_builders.conversion import questions as questions_module
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.run import check, convert, preview
from reflectune.data_builders.convert import table
from reflectune.data_builders.readers import own_questions
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.registry import knowledge_reader
from reflectune.formats.dataset import Dataset
from reflectune.formats.knowledge_base import write_knowledge_base
from tests.data_builders.readers.conftest import encoded

COUNT = 40


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Forty questions over ten entries of thirty, and two images."""
    folder = tmp_path / "source"
    (folder / "images").mkdir(parents=True)
    for name in ("red", "blue"):
        Image.new("RGB", (6, 6), name).save(folder / "images" / f"{name}.png")
    write(folder / "questions.jsonl", [question(n) for n in range(COUNT)])
    write(folder / "knowledge.jsonl", [article(n) for n in range(30)])
    return folder


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions_module, "BATCH", 7)
    monkeypatch.setattr(knowledge_module, "BATCH", 7)
    monkeypatch.setattr(knowledge_module, "BLOCK_BYTES", 400)


def question(n: int) -> dict[str, Any]:
    image = f"images/{'red' if n % 2 else 'blue'}.png"
    split = "val" if n % 3 == 0 else "train"
    return {"id": f"q{n}", "image": image, "question": f"Who {n}?", "split": split, "entity_ids": [f"e{n % 10}"]}


def article(n: int) -> dict[str, Any]:
    return {"id": f"e{n}", "title": f"Entry {n}", "text": f"It is {n}.\n\nIt was {n}.", "image": "images/red.png"}


def wiki_article(n: int) -> dict[str, Any]:
    return {"wikidata_id": f"Q{n}", "wikipedia_title": f"T{n}", "wikipedia_content": f"It is {n}.## Use.None."}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def config(source: Path, **changes: Any) -> ConvertConfig:
    values = {"output": str(source.parent / "out"), "root": str(source), "workers": 1}
    values |= {"questions": "own", "splits": {"train": "questions.jsonl"}}
    values |= {"knowledge": "own", "knowledge_source": "knowledge.jsonl"}
    made = ConvertConfig(**{**values, **changes})
    assert made.problems() == []
    return made


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a data set."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_converted_data_set_is_read(source: Path) -> None:
    manifest, new = convert(config(source))
    assert new
    dataset = Dataset(source.parent / "out")
    images = ImageFolder(source)
    read = own_questions.questions(source / "questions.jsonl", split="train", images=images)
    direct = [question for question, _ in read]
    absolute = [dataclasses.replace(q, image=str(source / q.image)) for q in direct]
    for split in ("train", "val"):
        assert dataset.questions(split) == [q for q in absolute if q.split == split]
    entries = knowledge_reader("own").entries(source / "knowledge.jsonl", images=ImageFolder(source))
    assert list(dataset.knowledge) == list(entries)
    assert dataset.knowledge.get("e17").title == "Entry 17"
    assert dataset.knowledge.image_path(dataset.knowledge.get("e3")).is_file()
    assert manifest["counts"] == {"train": {"string": 26}, "val": {"string": 14}}
    assert manifest["images"]["found"] == COUNT
    assert manifest["knowledge"]["gold_entries"] == {"named": 10, "found": 10}
    assert [Path(s["path"]).name for s in manifest["sources"]] == ["knowledge.jsonl", "questions.jsonl"]


def test_a_data_set_and_images_named_by_a_relative_path_can_be_moved_together(source: Path, monkeypatch) -> None:
    monkeypatch.chdir(source.parent)
    convert(config(Path(source.name), output="out"))
    moved = source.parent / "elsewhere"
    moved.mkdir()
    for name in (source.name, "out"):
        (source.parent / name).rename(moved / name)
    dataset = Dataset(moved / "out")
    assert load_image(dataset.questions("train")[0].image, root=dataset.image_roots).size
    assert dataset.knowledge.image_path(dataset.knowledge.get("e3")).resolve().is_relative_to(moved)


def test_a_folder_that_datasets_loads_is_a_source(source: Path) -> None:
    (source.parent / "hub").mkdir()
    write(source.parent / "hub/train.jsonl", [question(n) for n in range(5)])
    hub = {"train": {"load_dataset": str(source.parent / "hub")}}
    settings = config(source, splits=hub, images=str(source), knowledge="", knowledge_source="")
    manifest, _ = convert(settings)
    assert [Path(s["path"]).name for s in manifest["sources"]] == ["train.jsonl"]
    write(source.parent / "hub/train.jsonl", [question(n) for n in range(6)])
    with pytest.raises(UserError, match=r"train\.jsonl"):
        convert(settings)


def test_the_manifest_names_the_metric(source: Path) -> None:
    manifest, _ = convert(config(source))
    assert manifest["metric"] == Dataset(source.parent / "out").metric == "exact_match"
    other = convert(config(source, output=str(source.parent / "other"), metric="infoseek"))[0]
    assert other["metric"] == "infoseek"
    assert table(other).startswith("other: scored by infoseek\n")
    assert other["fingerprint"] == manifest["fingerprint"]
    with pytest.raises(UserError, match=r"made with other settings \(metric\)"):
        convert(config(source, metric="vqa"))


def test_a_check_says_which_questions_are_taken_as_knowledge_based(source: Path) -> None:
    said = [{}, {"requires_retrieval": True}, {"requires_retrieval": False}, {"entity_ids": []}]
    write(source / "questions.jsonl", [{**question(n), **more} for n, more in enumerate([*said, {}])])
    numbers, _ = check(config(source))
    assert numbers["kinds"] == {"by_entities": 2, "knowledge_based": 1, "unknown": 1, "visual": 1}
    shown = table(numbers)
    assert "3 knowledge-based (2 of them without `requires_retrieval`, since they name entities)" in shown
    assert "1 visual, 1 unknown (without `requires_retrieval` and without entities)" in shown
    assert convert(config(source))[0]["kinds"] == numbers["kinds"]


def test_a_check_counts_questions_without_answers_and_names_missing_articles(source: Path) -> None:
    answered = [{"answers": ["x"]}, {"range": [1, 2]}, {}, {"entity_ids": ["e1", "Entry 2"]}]
    write(source / "questions.jsonl", [{**question(n), **more} for n, more in enumerate(answered)])
    numbers, _ = check(config(source))
    assert numbers["unanswered"] == 2
    assert numbers["knowledge"]["gold_entries"] == {"named": 4, "found": 3, "missing": ["Entry 2"]}
    shown = table(numbers)
    assert "2 questions: they can't be trained on or scored" in shown
    assert "3 of the 4 that questions name; the knowledge base lacks 1, e.g. Entry 2" in shown
    assert convert(config(source))[0]["knowledge"] == numbers["knowledge"]


def test_two_processes_write_what_one_does_without_images_of_articles_that_are_not_drawn(source: Path) -> None:
    rows = [{**article(n), "image": encoded(f"rgb({n}, 0, 0)", "PNG")} for n in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), source / "k.parquet")
    asked = config(source, knowledge_source="k.parquet", sample_knowledge=5)
    out = source.parent / "out"
    convert(asked)
    by_one = content(out)
    out.rename(source.parent / "by one")
    convert(asked.model_copy(update={"workers": 2}))
    assert content(out) == by_one
    knowledge = Dataset(out).knowledge
    assert len(knowledge) == 10 + 5  # the articles that questions name, and those drawn
    assert all(knowledge.image_path(entry).is_file() for entry in knowledge)
    assert len([*(out / "images").rglob("*.png")]) == 15


def test_lines_in_blocks_and_rows_in_lists_make_the_same_entries(source: Path) -> None:
    write(source / "wiki.jsonl", [wiki_article(n) for n in range(30)])
    common = {"questions": "", "splits": {}, "knowledge": "wiki6m", "knowledge_source": "wiki.jsonl"}
    for name, limit in (("blocks", None), ("lists", 30)):
        convert(config(source, output=str(source.parent / name), limit=limit, **common))
    blocks, lists = (Dataset(source.parent / name).knowledge for name in ("blocks", "lists"))
    assert list(blocks) == list(lists)
    assert len(blocks) == 30
    assert blocks.fingerprint == lists.fingerprint
    assert len(blocks.manifest["shards"]) > 1


def test_a_second_run_has_nothing_to_do_and_a_changed_source_is_refused(source: Path) -> None:
    first, _ = convert(config(source))
    again, new = convert(config(source))
    assert (again, new) == (first, False)
    os.utime(source / "questions.jsonl")  # a copy, with the same content
    assert not convert(config(source))[1]
    write(source / "questions.jsonl", [question(n) for n in range(COUNT - 1)])
    with pytest.raises(UserError, match=r"questions.jsonl has changed since .*dataset.json was written"):
        convert(config(source))
    with pytest.raises(UserError, match=r"made with other settings \(limit, name\)"):
        convert(config(source, limit=3, name="another"))


def test_a_file_that_a_source_folder_got_since_is_refused(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.md").write_text("# An oak\n\nIt is old.\n")
    settings = ConvertConfig(knowledge="own_folder", knowledge_source=str(texts), output=str(tmp_path / "out"))
    assert convert(settings)[1]
    assert not convert(settings)[1]
    (texts / "b.md").write_text("# An elm\n\nIt is young.\n")
    with pytest.raises(UserError, match=r"b.md is new since .*dataset.json was written"):
        convert(settings)


def test_a_folder_with_other_data_is_not_touched(source: Path) -> None:
    (source.parent / "out" / "questions").mkdir(parents=True)
    with pytest.raises(UserError, match="holds questions and no"):
        convert(config(source))


BAD = [
    ({"id": "q3"}, "id is a duplicate", "id q3: field `id`: is a duplicate"),
    ({"question": ""}, "question is empty", "field `question`: is empty"),
    ({"image": "images/none.png"}, "image missing", "no image of `images/none.png`"),
    ({"image": "images/cut.png"}, "image unreadable", "images/cut.png: "),
    ({"image": "images/bomb.png"}, "image unreadable", "too large to decode safely"),
    ({"image": ["images/red.png", "images/cut.png"]}, "image unreadable", "images/cut.png: "),
    ({"split": "../up"}, "split is …", "field `split`: is '../up'"),
    ({"requires_retrieval": "nein"}, "requires_retrieval is …", "field `requires_retrieval`: is 'nein' (str)"),
]


@pytest.mark.parametrize(("change", "reason", "message"), BAD)
def test_a_bad_question_stops_or_is_left_out_and_listed(source: Path, monkeypatch, change, reason, message) -> None:
    whole = (source / "images" / "red.png").read_bytes()
    (source / "images" / "cut.png").write_bytes(whole[:40])
    Image.new("1", (400, 400)).save(source / "images" / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    write(source / "questions.jsonl", [question(n) for n in range(9)] + [{**question(9), **change}, question(10)])
    with pytest.raises(UserError) as caught:
        convert(config(source, verify_images="decode"))
    assert f"{source / 'questions.jsonl'}:10: " in str(caught.value)
    assert message in str(caught.value)
    manifest, _ = convert(config(source, verify_images="decode", on_error="skip"))
    assert manifest["dropped"] == {reason: 1}
    assert sum(sum(counts.values()) for counts in manifest["counts"].values()) == 10
    (listed,) = map(json.loads, (source.parent / "out" / "rejected.jsonl").read_text().splitlines())
    assert listed["line"] == 10
    assert listed["file"] == str(source / "questions.jsonl")


def test_a_duplicate_id_names_the_users_column(source: Path) -> None:
    rows = [{"my_key" if key == "id" else key: value for key, value in question(n).items()} for n in (0, 1, 0)]
    write(source / "questions.jsonl", rows)
    with pytest.raises(UserError, match=r"questions.jsonl:3: id q0: field `my_key`: is a duplicate"):
        convert(config(source, options={"columns": {"id": "my_key"}}))


@pytest.mark.parametrize("file", ["questions.jsonl", "knowledge.jsonl"])
def test_a_file_whose_rows_are_all_bad_is_refused_and_checked(source: Path, file: str) -> None:
    write(source / file, [{"id": "1", "txt": "a"}, {"id": "2", "txt": "b"}])
    with pytest.raises(UserError, match=rf"every row of .*{file} is bad; the first: .*{file}:1: id 1: "):
        convert(config(source, on_error="skip"))
    assert not (source.parent / "out" / "dataset.json").exists()
    assert sum(check(config(source))[0]["dropped"].values()) >= 2


def test_bad_entries_are_listed_and_a_later_duplicate_is_taken_out_of_its_shard(source: Path) -> None:
    rows: list[Any] = [article(n) for n in range(20)]
    rows += ['{"id": "cut', {**article(20), "title": ""}, {**article(2), "title": "Again"}, article(21)]
    write(source / "knowledge.jsonl", rows)
    with pytest.raises(UserError, match=r"knowledge.jsonl:21: is not a whole JSON object"):
        convert(config(source))
    manifest, _ = convert(config(source, on_error="skip"))
    knowledge = Dataset(source.parent / "out").knowledge
    assert knowledge.ids == tuple(f"e{n}" for n in (*range(20), 21))
    assert knowledge.get("e2").title == "Entry 2"
    assert manifest["knowledge"]["entries"] == 21
    assert manifest["knowledge"]["images"] == 21
    kept = list(knowledge)
    assert knowledge.fingerprint == write_knowledge_base(source.parent / "kb", kept, name="x").fingerprint
    lines = [json.loads(line)["line"] for line in (source.parent / "out" / "rejected.jsonl").read_text().splitlines()]
    assert sorted(lines) == [21, 22, 23]
    numbers, first = check(config(source))
    for key in ("counts", "knowledge", "dropped"):
        assert numbers[key] == manifest[key]
    assert len(first) == 3


def test_a_check_shows_two_bad_rows_of_each_file(source: Path) -> None:
    write(source / "questions.jsonl", [{key: question(n)[key] for key in ("image", "question")} for n in range(20)])
    write(source / "knowledge.jsonl", [{"title": "Owl", "text": "It flies.", "url": f"u{n}"} for n in range(20)])
    _, first = check(config(source))
    missing = "field `id`: is missing"
    fixes = {
        "questions": f"{missing} (the row has image, question); rename your columns, or map them in `columns`, or set "
        "`number_rows: true`",
        "knowledge": f"{missing} (the row has title, text, url); give it a value, or leave the row out",
    }
    expected = [f"{name}.jsonl:{n}: {fix}" for name, fix in fixes.items() for n in (1, 2)]
    assert [line.split("/")[-1] for line in first] == expected


def own_row(n: int, image: bytes) -> dict[str, Any]:
    return {**question(n), "image": image, "split": "train"}


def fvqa_row(n: int, image: bytes) -> dict[str, Any]:
    truth = {"ground_truth": "Ann", "candidate_answers": "[]", "style": "rule"}
    prompt = [{"role": "user", "content": f"Who {n}?"}]
    return {"data_id": f"q{n}", "prompt": prompt, "images": [{"bytes": image, "path": None}], "reward_model": truth}


@pytest.mark.parametrize(("reader", "make"), [("own", own_row), ("fvqa", fvqa_row)])
def test_images_given_as_bytes_are_written_next_to_the_questions(source: Path, reader: str, make: Any) -> None:
    images = [(source / "images" / f"{name}.png").read_bytes() for name in ("blue", "red")]
    pq.write_table(pa.Table.from_pylist([make(n, images[n % 2]) for n in range(9)]), source / "q.parquet")
    wanted = config(source, questions=reader, splits={"train": "q.parquet"}, knowledge="", knowledge_source="")
    before = content(source.parent)
    numbers, first = check(wanted)
    assert first == []
    assert content(source.parent) == before
    manifest, _ = convert(wanted)
    assert numbers["images"] == manifest["images"] == {"found": 9, "missing": 0, "unreadable": 0}
    out = Dataset(source.parent / "out")
    kept = {question.id: (out.root / question.image).read_bytes() for question in out.questions("train")}
    assert kept == {f"q{n}": images[n % 2] for n in range(9)}
    assert len(list((out.root / "images").rglob("*.png"))) == 2


@pytest.mark.parametrize("name", ["questions.jsonl", "knowledge.jsonl"])
def test_a_source_without_rows_is_refused(source: Path, name: str) -> None:
    write(source / name, [])
    for run in (check, convert):
        with pytest.raises(UserError, match=f"nothing to read in .*{name}"):
            run(config(source))


def test_of_a_sample_only_the_images_drawn_are_written(source: Path) -> None:
    rows = [own_row(n, encoded(f"rgb({n}, 0, 0)", "PNG")) for n in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), source / "q.parquet")
    splits = {"train": "q.parquet"}
    convert(config(source, splits=splits, sample=5, knowledge="", knowledge_source=""))
    out = Dataset(source.parent / "out")
    stored = {path.resolve() for path in (out.root / "images").rglob("*.png")}
    assert stored == {(out.root / q.image).resolve() for q in out.questions("train")}
    assert len(stored) == 5


def test_splits_in_different_folders_need_the_folder_of_their_images(source: Path) -> None:
    (source / "more").mkdir()
    write(source / "more" / "val.jsonl", [question(0)])
    described = config(source, splits={"train": "questions.jsonl", "val": "more/val.jsonl"}, images=".")
    (problem,) = described.model_copy(update={"images": ""}).problems()
    assert "`images` is needed" in problem


def test_a_sample_of_questions_is_exact_and_part_of_a_larger_one(source: Path) -> None:
    drawn = {}
    for count in (5, 12):
        out = source.parent / str(count)
        convert(config(source, output=str(out), sample=count, knowledge="", knowledge_source=""))
        drawn[count] = {q.id for split in ("train", "val") for q in Dataset(out).stream(split)}
    assert (len(drawn[5]), len(drawn[12])) == (5, 12)
    assert drawn[5] <= drawn[12]
    out = source.parent / "seed"
    convert(config(source, output=str(out), sample=5, seed=1, knowledge="", knowledge_source=""))
    assert {q.id for split in ("train", "val") for q in Dataset(out).stream(split)} != drawn[5]


def test_a_distilled_knowledge_base_has_the_gold_articles_and_as_many_others_as_asked(source: Path) -> None:
    manifest, _ = convert(config(source, sample_knowledge=6))
    ids = Dataset(source.parent / "out").knowledge.ids
    assert len(ids) == 16
    assert {f"e{n}" for n in range(10)} <= set(ids)
    assert list(ids) == sorted(ids, key=lambda name: int(name[1:]))
    assert manifest["knowledge"]["gold_entries"] == {"named": 10, "found": 10}


def test_articles_are_drawn_from_those_with_an_image_if_images_are_known(source: Path) -> None:
    rows = [article(n) if n % 2 else {**article(n), "image": ""} for n in range(30)]
    write(source / "knowledge.jsonl", rows)
    for folder in (".", ""):
        out = str(source.parent / f"imaged_{bool(folder)}")
        convert(config(source, output=out, knowledge_images=folder, sample_knowledge=9))
        entries = [Dataset(Path(out)).knowledge.get(name) for name in Dataset(Path(out)).knowledge.ids]
        others = [entry for entry in entries if int(entry.id[1:]) >= 10]  # e0 to e9 are the questions'
        assert (len(entries), len(others)) == (19, 9)
        assert all(entry.images for entry in others) is bool(folder)


def test_a_limit_reads_the_first_rows(source: Path) -> None:
    manifest, _ = convert(config(source, limit=9))
    assert sum(sum(counts.values()) for counts in manifest["counts"].values()) == 9
    assert manifest["knowledge"]["entries"] == 9


def test_a_preview_names_sources_and_sizes(source: Path) -> None:
    shown = preview(config(source))
    assert str(source / "knowledge.jsonl") in shown
    assert "MiB to read" in shown
    assert not (source.parent / "out").exists()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"output": ""}, "`output` is needed"),
        (dict.fromkeys(("questions", "knowledge", "knowledge_source"), "") | {"splits": {}}, "one of `questions` and"),
        ({"questions": "infosek"}, "unknown reader 'infosek'"),
        ({"options": {"colums": {}}}, "the reader own has no `colums`"),
        ({"splits": {"train": "none.jsonl"}}, "not found"),
        ({"split": ["test"]}, "`split`: test is not among the splits train"),
        ({"knowledge_source": ""}, "`knowledge_source` is needed"),
        ({"knowledge": ""}, "`knowledge_source` is set and `knowledge` is not"),
        ({"images": "none"}, "is not a folder"),
        ({"limit": -1}, "`limit` must be at least 1"),
    ],
)
def test_problems_are_found_before_anything_is_read(source: Path, values, problem) -> None:
    good = config(source).model_dump()
    assert any(problem in issue for issue in find_problems(ConvertConfig, dict(**{**good, **values})))


def test_a_folder_of_several_splits_is_refused(source: Path) -> None:
    """A data set's folder on the Hub holds all splits: `test` would be trained on, or training data scored."""
    folder = source / "hub"
    folder.mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002-0a1b", "mine"):
        (folder / f"{name}.parquet").touch()
    asked = config(source).model_copy(update={"splits": {"train": "hub"}, "output": str(source.parent / "out")})
    assert not asked.problems()
    (folder / "test-00000-of-00001.parquet").touch()
    assert any("holds the files of test, train; name one file" in issue for issue in asked.problems())


@pytest.mark.parametrize(
    ("output", "changes"),
    [
        (".", {}),
        ("images", {"images": "images"}),
        ("..", {}),
        ("new", {"splits": {"train": "."}}),
        ("images/new", {"knowledge_source": "."}),
    ],
)
def test_the_output_can_not_be_mixed_with_the_sources(source: Path, output: str, changes: dict[str, Any]) -> None:
    asked = config(source).model_copy(update={"output": str(source / output), **changes})
    (problem,) = asked.problems()
    assert problem.startswith(f"`output`: {asked.output}")
    assert "choose a different" in problem
    assert not config(source).model_copy(update={"output": str(source / "new")}).problems()  # beside its files


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "workers"), [("own", 1), ("wiki6m", 2)])
def test_a_run_killed_twice_ends_as_one_that_was_not(source: Path, monkeypatch, reader: str, workers: int) -> None:
    make, column = {"own": (article, "id"), "wiki6m": (wiki_article, "wikidata_id")}[reader]
    write(source / "questions.jsonl", [question(n) for n in range(1000)])
    write(source / "knowledge.jsonl", [make(0 if n % 50 == 7 else n) for n in range(800)])
    killed, straight = source.parent / "killed" / "out", source.parent / "straight" / "out"
    wanted = config(source, output=str(killed), on_error="skip", workers=workers, knowledge=reader)
    journals = [killed / ".convert" / f"{name}.jsonl" for name in ("questions", "knowledge")]
    orphans = [worker for journal in journals for worker in kill_in_the_middle(wanted, journal)]
    for module, batch in ((questions_module, 20), (knowledge_module, 4)):  # as in CHILD
        monkeypatch.setattr(module, "BATCH", batch)
    convert(wanted)
    convert(wanted.model_copy(update={"output": str(straight), "workers": 1}))
    assert content(killed) == content(straight)
    assert Dataset(killed).manifest["dropped"] == {f"{column} is a duplicate": 16}
    assert len(Dataset(killed).knowledge) == 784
    assert len(orphans) >= (workers > 1) * 2 * workers
    assert psutil.wait_procs(orphans, timeout=10)[1] == []


def test_an_image_that_comes_between_two_runs_is_noticed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without an image are left out before rows are numbered, so that the finished parts would not fit."""
    rows = [{**question(n), "image": f"images/{'late' if n == 0 else 'red'}.png"} for n in range(20)]
    write(source / "questions.jsonl", rows)
    wanted = config(source, on_error="skip")
    append, done = RowLog.append, []

    def killed(log: RowLog, row_id: str, row: dict[str, Any]) -> None:
        if done:
            raise KeyboardInterrupt
        append(log, row_id, row)
        done.append(row_id)

    with monkeypatch.context() as patch:
        patch.setattr(RowLog, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            convert(wanted)
    (source / "images/red.png").rename(source / "images/late.png")
    Image.new("RGB", (6, 6), "red").save(source / "images/red.png")
    with pytest.raises(UserError, match="was begun with other rows: images have been added or removed since"):
        convert(wanted)


def kill_in_the_middle(wanted: ConvertConfig, journal: Path) -> list[psutil.Process]:
    """`kill -9` a conversion in small batches once a journal lists some; return the processes that worked for it."""
    command = [sys.executable, "-c", CHILD, json.dumps(wanted.model_dump())]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (journal.is_file() and journal.read_bytes().count(b"\n") > 3):
        time.sleep(0.002)
    assert process.poll() is None, "the run ended before it was killed"
    workers = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    return workers


CHILD = """
import json, sys
from reflectune.data_builders.conversion import knowledge, questions
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.run import convert
questions.BATCH, knowledge.BATCH, knowledge.BLOCK_BYTES = 20, 4, 400
convert(ConvertConfig(**json.loads(sys.argv[1])))
"""


def test_other_settings_after_a_stop_start_again(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(source / "knowledge.jsonl", [article(0), {**article(1), "title": ""}, article(2)])
    with pytest.raises(UserError, match=r"knowledge.jsonl:2: "):
        convert(config(source))
    manifest, _ = convert(config(source, on_error="skip"))
    assert "starting again" in capsys.readouterr().out
    assert manifest["knowledge"]["entries"] == 2
