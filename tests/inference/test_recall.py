"""The command that measures retrieval: its figures are those of a search by hand."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.images import load_image
from reflectune.core.types import Entry, Question, Section
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference import recall
from reflectune.inference.running.config import RecallConfig
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import load_index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query, Weights, equation_3, equation_7

SPLITS = ("val_unseen_question", "val_unseen_entity")
COLOURS = ("red", "green", "blue", "white", "orange", "purple")


@pytest.fixture
def folder(tmp_path: Path, encoder: str, make) -> Path:
    """A data set of six entries, two questions about each and one about nothing that is there, with its index."""
    entries, questions = [], []
    for place, colour in enumerate(COLOURS):
        for use in ("kb", "asked"):
            image = Image.new("RGB", (64, 64), colour)
            image.paste(Image.new("RGB", (20, 20 + 4 * place), "black"), (0, 0 if use == "kb" else 12))
            image.save(tmp_path / f"{use}{place}.png")
        entries.append(Entry(f"e{place}", f"A {colour} thing", summary="It is drawn.", images=(f"kb{place}.png",)))
        questions += [question(f"{place}{n}", split, place, "What is it?") for n, split in enumerate(SPLITS)]
    questions.append(Question("x", "asked0.png", "Why?", split=SPLITS[1], entity_ids=("nothing",)))
    make.data_set(tmp_path, entries, questions, encoder)
    return tmp_path


def question(name: str, split: str, place: int, text: str) -> Question:
    return Question(name, f"asked{place}.png", text, split=split, entity_ids=(f"e{place}",))


@pytest.fixture
def run(folder: Path, monkeypatch, capsys) -> Callable[..., tuple[Any, str]]:
    """Return a function that runs the command: its figures, and what it printed."""

    def start(*more: str, index: str = "index") -> tuple[Any, str]:
        where = ["--index", str(folder / index)] if index else []
        flags = ["--dataset", str(folder), "--device", "cpu", *where, "--output", str(folder / "recall.json")]
        monkeypatch.setattr(sys, "argv", ["recall", *flags, *more])
        recall.recall.main()
        return json.loads((folder / "recall.json").read_text()), capsys.readouterr().out

    return start


@pytest.fixture
def ranks(folder: Path, encoder: str) -> Callable[[str, Weights], list[int]]:
    """Return a function that searches for the questions of a split by hand: the rank of each one's entry."""
    loaded, dataset = load_encoder(encoder), Dataset(folder)
    retriever = EntryRetriever(load_index(folder / "index", dataset.knowledge, loaded), loaded)

    def search(split: str, weights: Weights) -> list[int]:
        asked = [each for each in dataset.questions(split) if each.entity_ids[0] in dataset.knowledge.ids]
        queries = [Query(load_image(folder / each.image), each.text) for each in asked]
        found = retriever.search(queries, 6, weights=weights)
        return [[hit.entry_id for hit in hits].index(q.entity_ids[0]) + 1 for q, hits in zip(asked, found, strict=True)]

    return search


def check(scores: dict[str, Any], ranks: list[int]) -> None:
    """Compare scores with those of six ranks."""
    assert scores["article_recall@1"]["value"] == pytest.approx(sum(rank == 1 for rank in ranks) / 6)
    assert scores["article_recall@3"]["value"] == pytest.approx(sum(rank <= 3 for rank in ranks) / 6)
    assert scores["mrr"]["value"] == pytest.approx(sum(1 / rank for rank in ranks if rank <= 3) / 6)
    assert scores["mrr"]["n"] == len(ranks) == 6


def test_recall_is_that_of_a_search_by_hand(run, ranks) -> None:
    figures, printed = run("--title_weights", "0", "0.5", "1", "--depths", "1", "3")
    assert list(figures) == sorted(SPLITS)
    assert [figures[split]["left_out"] for split in SPLITS] == [0, 1]
    seen = set()
    for weight in ("0", "0.5", "1"):
        expected = ranks(SPLITS[0], equation_3(float(weight)))
        for record in figures.values():
            check(record["weights"][weight], expected)
        seen.add(tuple(expected))
    assert len(seen) > 1  # the weight changes what is found
    assert (
        "val_unseen_entity: 6 questions, intervals over 6 entities; 1 without an image or a gold entry left out"
        in printed
    )
    assert printed.count("| title_weight | article_recall@1 | article_recall@3 | mrr |") == 2


@pytest.mark.parametrize("kind", ["title", "text"])
def test_an_approximate_index_is_compared_with_an_exact_search_of_its_vectors(kind: str, folder, encoder, run) -> None:
    build_index(KnowledgeBase(folder / "knowledge"), load_encoder(encoder), folder / "cells", store="faiss")
    figures, printed = run(f"--{kind}_weights", "0.5", "--depths", "1", "3", "--overlap", index="cells")
    for record in figures.values():
        scores = record["weights" if kind == "title" else "text_weights"]["0.5"]
        assert scores["overlap@3"]["value"] == 1.0  # with six entries every cell is looked into
    assert f"| {kind}_weight | overlap@1 | overlap@3 |" in printed


def test_of_an_index_of_sections_the_first_k_sections_are_counted_too(run, encoder, tmp_path, make) -> None:
    """Each entry has two sections, of one image."""
    folder, entries, questions = tmp_path / "sectioned", [], []
    folder.mkdir()
    for place, colour in enumerate(COLOURS):
        image = Image.new("RGB", (64, 64), colour)
        image.paste(Image.new("RGB", (20, 20 + 4 * place), "black"))
        image.save(folder / f"{place}.png")
        sections = (Section("Use", f"It is {colour}."), Section("Builder", "Ann built it."))
        entries.append(Entry(f"e{place}", f"A {colour} thing", sections=sections, images=(f"{place}.png",)))
        asked = {"split": SPLITS[0], "entity_ids": (f"e{(place + 1) % 6}",)}  # never the entry of its own image
        questions.append(Question(f"q{place}", f"{place}.png", "Who built it?", **asked))
    make.data_set(folder, entries, questions, encoder)
    loaded, knowledge = load_encoder(encoder), KnowledgeBase(folder / "knowledge")
    retriever = EntryRetriever(build_index(knowledge, loaded, folder / "rows", sections=True), loaded)
    flags = ("--dataset", str(folder), "--splits", SPLITS[0], "--depths", "2", "3")
    flags += ("--title_weights", "0", "--text_weights", "0", "0.5")
    figures, printed = run(*flags, "--index", str(folder / "rows"), index="")
    record = figures[SPLITS[0]]
    for weight in ("0", "0.5"):
        queries = [Query(load_image(folder / each.image), each.text) for each in questions]
        found = retriever.search_sections(queries, 3, weights=equation_7(float(weight)))
        assert any(len({hit.entry_id for hit, _ in row}) < 3 for row in found)  # two sections of an entry are two
        for k in (2, 3):
            right = [
                any(hit.entry_id == each.entity_ids[0] for hit, _ in row[:k])
                for each, row in zip(questions, found, strict=True)
            ]
            assert record["section_weights"][weight][f"article_recall@{k}"]["value"] == pytest.approx(sum(right) / 6)
    assert "| text_weight, k sections | article_recall@2 |" in printed


def test_ranked_entities_are_measured_in_place_of_an_index(folder, run) -> None:
    rows = [{"image": f"asked{place}.png", "entities": [f"e{place}", "e0"]} for place in (0, 1)]
    rows.append({"image": "asked2.png", "entities": ["e0", "e2"]})
    (folder / "lens.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figures, printed = run("--ranked_entities", str(folder / "lens.jsonl"), "--depths", "1", "2", index="")
    recalls = {"article_recall@1": 2 / 6, "article_recall@2": 3 / 6, "mrr": 2.5 / 6}
    for record in figures.values():
        (scores,) = record["ranked_entities"].values()
        assert record["nothing_found"] == 3
        assert {name: score["value"] for name, score in scores.items()} == pytest.approx(recalls)
    assert "| ranked_entities | article_recall@1 | article_recall@2 | mrr |" in printed


def test_recall_of_texts_is_that_of_a_search_by_hand(folder, run, ranks) -> None:
    """Two questions about one image, one of them names its entry."""
    for split, text in zip(SPLITS, ("What is it?", "Is it a {} thing?"), strict=True):
        asked = [question(f"{split} {n}", split, n, text.format(colour)) for n, colour in enumerate(COLOURS)]
        write_questions(folder, split, asked)
    figures, printed = run("--text_weights", "0", "0.5", "1", "--depths", "1", "3")
    for split, record in figures.items():
        for weight in (0.0, 0.5, 1.0):
            check(record["text_weights"][f"{weight:g}"], ranks(split, equation_7(weight)))
        assert record["text_weights"]["0"] == record["weights"]["0"]
    assert figures[SPLITS[0]]["text_weights"]["1"] != figures[SPLITS[1]]["text_weights"]["1"]
    assert printed.count("| text_weight | article_recall@1 | article_recall@3 | mrr |") == 2


def test_without_any_gold_entry_there_is_no_recall(folder, run, capsys) -> None:
    write_questions(folder, "odd", [Question("y", "asked0.png", "Why?", split="odd", entity_ids=("nothing",))])
    with pytest.raises(SystemExit):
        run("--splits", "odd")
    assert "has both an image and an entry of its knowledge base" in capsys.readouterr().err


def test_weights_and_depths_out_of_bounds_are_refused(folder: Path) -> None:
    values = {"dataset": str(folder), "title_weights": [0.5, 1.5], "depths": [0], "text_knowledge": str(folder)}
    problems = " ".join(find_problems(RecallConfig, values))
    for part in ("`index` is needed", "`title_weights`", "`depths`", "has no kb.json"):
        assert part in problems


def test_weights_of_texts_need_an_index(folder: Path) -> None:
    (folder / "lens.jsonl").write_text('{"image": "asked0.png", "entities": ["e0"]}')
    config = RecallConfig(dataset=str(folder), ranked_entities=str(folder / "lens.jsonl"), text_weights=[0.5])
    (problem,) = config.problems()
    assert problem.startswith("`text_weights` need an `index`")


def test_the_rule_of_fusion_is_the_searches_own(run, ranks, capsys) -> None:
    figures, _ = run("--text_weights", "0.5", "--depths", "1", "3", "--fusion", "vectors")
    for split, record in figures.items():
        check(record["text_weights"]["0.5"], ranks(split, equation_7(0.5).fused("vectors")))
    with pytest.raises(SystemExit):
        run("--text_weights", "0.5", "--fusion", "features")
    assert "doesn't read an image and a text together" in capsys.readouterr().err
