"""Measures of retrieval on searches whose results are written down: each is the share that one counts by hand."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Evidence, Passage, Question
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.hits import Hit, PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.scoring.recall import entry_tables, measure_entries, measure_passages, passage_tables
from reflectune.retrieval.retrievers.queries import Query


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Entries a to e; two questions about images 8 and 9 pixels wide, and one about an entry that isn't there."""
    for width in (8, 9):
        Image.new("RGB", (width, 8)).save(tmp_path / f"{width}.png")
    write_knowledge_base(tmp_path / "knowledge", [Entry(name, name) for name in "abcde"], name="kb")
    asked = (("8.png", "b"), ("9.png", "e"), ("9.png", "elsewhere"))
    questions = [
        Question(f"{n}", image, "What?", split="val", entity_ids=(name,)) for n, (image, name) in enumerate(asked)
    ]
    write_questions(tmp_path, "val", questions)
    (tmp_path / "dataset.json").write_text(json.dumps({"fingerprint": "f"}))
    return Dataset(tmp_path)


def finding(**entries: str) -> object:
    """A search that finds these entries, a letter each, by an image's width and its text."""

    def search(queries: Sequence[Query], top: int) -> list[list[Hit]]:
        rows = [entries[f"of_{query.image.width}{query.text}"][:top] for query in queries]
        return [[Hit(name, 1 / rank, rank) for rank, name in enumerate(row, 1)] for row in rows]

    return search


def values(scores: dict) -> dict[str, float]:
    return {name: score["value"] for name, score in scores.items()}


def test_entries_are_measured_by_search_with_the_overlap_of_an_exact_one(dataset: Dataset) -> None:
    searches = {"near": finding(of_8="abcd", of_9="dcba"), "none": finding(of_8="", of_9="e")}
    exact = {"near": finding(of_8="adbc", of_9="edcb"), "none": finding(of_8="ab", of_9="e")}
    figures = measure_entries(dataset, dataset.questions("val"), searches, [1, 4], exact=exact)
    record = figures["val"]
    assert (record["left_out"], record["nothing_found"]) == (1, 0)
    recalls, overlaps = {"article_recall@1": 0.0, "article_recall@4": 0.5}, {"overlap@1": 0.5, "overlap@4": 7 / 8}
    assert values(record["searches"]["near"]) == pytest.approx({**recalls, **overlaps, "mrr": 0.25})
    assert values(record["searches"]["none"]) == dict.fromkeys((*recalls, *overlaps, "mrr"), 0.5)
    printed = "\n".join(entry_tables(figures, "title_weight"))
    assert "val: 2 questions, intervals over 2 entities; 1 without an image or a gold entry left out\n" in printed
    assert "| title_weight | article_recall@1 | article_recall@4 | mrr |" in printed
    assert "| title_weight | overlap@1 | overlap@4 |" in printed
    assert "| near | 0.0 (0.0 to 0.0) | 50.0 (0.0 to 100.0) | 25.0 (0.0 to 50.0) |" in printed


def test_a_question_without_text_is_named_where_texts_are_searched_with(dataset: Dataset) -> None:
    asked = [Question("7", "8.png", " ", split="val", entity_ids=("a",))]
    with pytest.raises(UserError, match="question 7 has no text"):
        measure_entries(dataset, asked, {"w": finding(of_8="a")}, [1], with_texts=True)


def test_a_question_without_an_image_is_left_out(dataset: Dataset) -> None:
    asked = [*dataset.questions("val"), Question("7", "", "What?", split="val", entity_ids=("a",))]
    assert measure_entries(dataset, asked, {"r": finding(of_8="b", of_9="")}, [1])["val"]["left_out"] == 2


def passage(entry: str, section: int, text: str) -> Passage:
    return Passage(entry, section, 0, f"Title {entry}", "", "", text)


def test_passages_are_measured_by_evidence_and_by_the_answers_text(dataset: Dataset) -> None:
    known = [passage("a", 0, "It is KNOWN."), passage("a", 1, "It eats mice."), passage("b", 0, "Nothing.")]
    words = {"first": known, "second": known[::-1], "third": known[2:], "fourth": []}

    def search(texts: Sequence[str], top: int) -> list[list[PassageHit]]:
        return [[PassageHit(each, 1.0, rank) for rank, each in enumerate(words[text][:top], 1)] for text in texts]

    def exact(texts: Sequence[str], top: int) -> list[list[PassageHit]]:
        return search(["first"] * len(texts), top)

    def asked(text: str, answers: tuple[str, ...], *evidence: Evidence, split: str = "val") -> Question:
        return Question(text, "8.png", text, split=split, answers=answers, evidence=evidence)

    questions = [
        asked("first", (" No ",), Evidence("a", 1), Evidence("elsewhere", 0)),  # "no" stands in "known"
        asked("second", ("mice", "rats"), Evidence("a", 0)),
        asked("third", (), Evidence("elsewhere", 0)),
        asked("fourth", ("mice",), split="other"),
    ]
    figures = measure_passages(questions, dataset.knowledge, search, [1, 2], exact=exact)
    record = figures["val"]
    assert (record["questions"], record["without_evidence"], record["without_answers"]) == (3, 1, 1)
    recalls = {"passage_recall@1": 0.0, "passage_recall@2": 0.5, "prr@1": 0.5, "prr@2": 1.0}
    overlaps = {"overlap@1": 1 / 3, "overlap@2": (1 + 0.5 + 0) / 3}
    assert values(record["scores"]) == pytest.approx(recalls | overlaps)
    other = figures["other"]["scores"]
    assert other["passage_recall@1"] is None  # no question with evidence
    assert (other["prr@2"]["value"], other["overlap@2"]["value"]) == (0.0, 0.0)  # nothing found
    printed = "\n".join(passage_tables(figures, "texts"))
    words = "the text of 3 questions, intervals over 3 questions; 1 without evidence; 1 without answers"
    assert f"val: passages searched by {words}" in printed
    assert printed.count("| text_index | passage_recall@1 | passage_recall@2 |") == 1
    assert printed.count("| text_index | prr@1 | prr@2 |") == 2


def test_passages_may_be_of_another_knowledge_base(dataset: Dataset, tmp_path: Path) -> None:
    texts = write_knowledge_base(tmp_path / "texts", [Entry("w1", "Wiki")], name="texts")

    def search(queries: Sequence[str], top: int) -> list[list[PassageHit]]:
        return [[PassageHit(passage("w1", 0, "mice"), 1.0, 1)] for _ in queries]

    question = Question("1", "8.png", "What?", split="val", answers=("mice",), evidence=(Evidence("a", 0),))
    record = measure_passages([question], KnowledgeBase(texts.folder), search, [1])["val"]
    assert record["without_evidence"] == 1
    assert record["scores"]["passage_recall@1"] is None
    assert record["scores"]["prr@1"]["value"] == 1.0
