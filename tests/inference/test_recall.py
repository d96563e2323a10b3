"""The command that measures retrieval: its figures are those of a search by hand."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.images import load_image
from reflectune.core.types import Entry, Question
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference import recall
from reflectune.inference.running.config import RecallConfig
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import load_index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query, equation_7

COLOURS = ("red", "green", "blue", "white", "orange", "purple")


@pytest.fixture
def folder(tmp_path: Path, encoder: str) -> Path:
    """A data set of six entries, two questions about each and one about nothing that is there, with its index."""
    entries, questions = [], []
    for place, colour in enumerate(COLOURS):
        for use in ("kb", "asked"):
            image = Image.new("RGB", (64, 64), colour)
            image.paste(Image.new("RGB", (20, 20 + 4 * place), "black"), (0, 0 if use == "kb" else 12))
            image.save(tmp_path / f"{use}{place}.png")
        entries.append(Entry(f"e{place}", f"A {colour} thing", summary="It is drawn.", images=(f"kb{place}.png",)))
        for number, split in enumerate(("val_unseen_question", "val_unseen_entity")):
            questions.append(
                Question(f"{place}{number}", f"asked{place}.png", "What is it?", split=split, entity_ids=(f"e{place}",))
            )
    questions.append(Question("x", "asked0.png", "Why?", split="val_unseen_entity", entity_ids=("nothing",)))
    write_knowledge_base(tmp_path / "knowledge", entries, name="things")
    for split in ("val_unseen_question", "val_unseen_entity"):
        write_questions(tmp_path, split, [question for question in questions if question.split == split])
    (tmp_path / "dataset.json").write_text(json.dumps({"name": "things", "metric": "infoseek", "fingerprint": "f"}))
    build_index(KnowledgeBase(tmp_path / "knowledge"), load_encoder(encoder), tmp_path / "index")
    return tmp_path


def run(folder: Path, encoder: str, monkeypatch: pytest.MonkeyPatch, *more: str, index: str = "index") -> None:
    flags = ["--dataset", str(folder), "--index", str(folder / index), "--encoder", encoder, "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["recall", *flags, *more])
    recall.recall.main()


def test_recall_is_that_of_a_search_by_hand(folder, encoder, monkeypatch, capsys) -> None:
    output = folder / "recall.json"
    run(folder, encoder, monkeypatch, "--title_weights", "0", "0.5", "1", "--depths", "1", "3", "--output", str(output))
    loaded = load_encoder(encoder)
    retriever = EntryRetriever(load_index(folder / "index", Dataset(folder).knowledge, loaded), loaded)
    images = [load_image(folder / f"asked{place}.png") for place in range(6)]
    figures = json.loads(output.read_text())
    assert list(figures) == ["val_unseen_question", "val_unseen_entity"]
    assert [record["left_out"] for record in figures.values()] == [0, 1]
    seen = set()
    for weight in ("0", "0.5", "1"):
        ranks = [
            [hit.entry_id for hit in hits].index(f"e{place}") + 1
            for place, hits in enumerate(retriever.search(images, 6, title_weight=float(weight)))
        ]
        for record in figures.values():
            scores = record["weights"][weight]
            assert scores["article_recall@1"]["value"] == pytest.approx(sum(rank == 1 for rank in ranks) / 6)
            assert scores["article_recall@3"]["value"] == pytest.approx(sum(rank <= 3 for rank in ranks) / 6)
            assert scores["mrr"]["value"] == pytest.approx(sum(1 / rank for rank in ranks if rank <= 3) / 6)
            assert scores["mrr"]["n"] == 6
        seen.add(tuple(ranks))
    assert len(seen) > 1  # the weight changes what is found
    printed = capsys.readouterr().out
    assert "val_unseen_entity: 6 questions; 1 without a gold entry left out" in printed
    assert printed.count("| title_weight | article_recall@1 | article_recall@3 | mrr |") == 2


def test_an_approximate_index_is_compared_with_an_exact_search_of_its_vectors(
    folder: Path, encoder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build_index(KnowledgeBase(folder / "knowledge"), load_encoder(encoder), folder / "cells", store="faiss")
    output = folder / "recall.json"
    flags = ["--title_weights", "0.5", "--depths", "1", "3", "--overlap", "--output", str(output)]
    run(folder, encoder, monkeypatch, *flags, index="cells")
    for record in json.loads(output.read_text()).values():
        assert record["weights"]["0.5"]["overlap@3"]["value"] == 1.0  # with six entries every cell is looked into
    assert "| title_weight | overlap@1 | overlap@3 |" in capsys.readouterr().out


def test_texts_are_compared_with_an_exact_search_too(folder, encoder, monkeypatch, capsys) -> None:
    build_index(KnowledgeBase(folder / "knowledge"), load_encoder(encoder), folder / "cells", store="faiss")
    flags = ["--text_weights", "0.5", "--depths", "1", "3", "--overlap"]
    run(folder, encoder, monkeypatch, *flags, index="cells")
    assert "| text_weight | overlap@1 | overlap@3 |" in capsys.readouterr().out


def test_ranked_entities_are_measured_in_place_of_an_index(folder, monkeypatch, capsys) -> None:
    rows = [{"image": f"asked{place}.png", "entities": [f"e{place}", "e0"]} for place in (0, 1)]
    rows.append({"image": "asked2.png", "entities": ["e0", "e2"]})
    (folder / "lens.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--dataset", str(folder), "--ranked_entities", str(folder / "lens.jsonl"), "--depths", "1", "2"]
    monkeypatch.setattr(sys, "argv", ["recall", *flags, "--output", str(folder / "recall.json")])
    recall.recall.main()
    for record in json.loads((folder / "recall.json").read_text()).values():
        (scores,) = record["ranked_entities"].values()
        assert record["nothing_found"] == 3
        assert {name: score["value"] for name, score in scores.items()} == pytest.approx(
            {"article_recall@1": 2 / 6, "article_recall@2": 3 / 6, "mrr": 2.5 / 6}
        )
    assert "| ranked_entities | article_recall@1 | article_recall@2 | mrr |" in capsys.readouterr().out


def test_recall_of_texts_is_that_of_a_search_by_hand(folder, encoder, monkeypatch, capsys) -> None:
    """Two questions about one picture, one of them names its entry."""
    for split, text in (("val_unseen_question", "What is it?"), ("val_unseen_entity", "Is it a {} thing?")):
        asked = [
            Question(f"{split} {n}", f"asked{n}.png", text.format(colour), split=split, entity_ids=(f"e{n}",))
            for n, colour in enumerate(COLOURS)
        ]
        write_questions(folder, split, asked)
    output = folder / "recall.json"
    run(folder, encoder, monkeypatch, "--text_weights", "0", "0.5", "1", "--depths", "1", "3", "--output", str(output))
    loaded = load_encoder(encoder)
    retriever = EntryRetriever(load_index(folder / "index", Dataset(folder).knowledge, loaded), loaded)
    figures = json.loads(output.read_text())
    for split, record in figures.items():
        asked = [question for question in Dataset(folder).questions(split) if question.split == split]
        queries = [Query(load_image(folder / question.image), question.text) for question in asked]
        for weight in (0.0, 0.5, 1.0):
            ranks = [
                [hit.entry_id for hit in hits].index(question.entity_ids[0]) + 1
                for question, hits in zip(
                    asked, retriever.search_queries(queries, 6, weights=equation_7(weight)), strict=True
                )
            ]
            scores = record["text_weights"][f"{weight:g}"]
            assert scores["article_recall@1"]["value"] == pytest.approx(sum(rank == 1 for rank in ranks) / 6)
            assert scores["mrr"]["value"] == pytest.approx(sum(1 / rank for rank in ranks if rank <= 3) / 6)
        assert record["text_weights"]["0"] == record["weights"]["0"]
    assert figures["val_unseen_question"]["text_weights"]["1"] != figures["val_unseen_entity"]["text_weights"]["1"]
    printed = capsys.readouterr().out
    assert printed.count("| text_weight | article_recall@1 | article_recall@3 | mrr |") == 2


def test_without_any_gold_entry_there_is_no_recall(folder, encoder, monkeypatch, capsys) -> None:
    write_questions(folder, "odd", [Question("y", "asked0.png", "Why?", split="odd", entity_ids=("nothing",))])
    with pytest.raises(SystemExit):
        run(folder, encoder, monkeypatch, "--splits", "odd")
    assert "names an entry of its knowledge base; there is nothing to recall" in capsys.readouterr().err


def test_weights_and_depths_out_of_bounds_are_refused(folder: Path) -> None:
    values = {"dataset": str(folder), "title_weights": [0.5, 1.5], "depths": [0], "text_knowledge": str(folder)}
    problems = " ".join(find_problems(RecallConfig, values))
    for part in ("`index` is needed", "`title_weights`", "`depths`", "has no kb.json"):
        assert part in problems


def test_weights_of_texts_need_an_index(folder: Path) -> None:
    (folder / "lens.jsonl").write_text('{"image": "asked0.png", "entities": ["e0"]}')
    config = RecallConfig(dataset=str(folder), ranked_entities=str(folder / "lens.jsonl"), text_weights=[0.5])
    (problem,) = config.problems()
    assert problem.startswith("`index` is needed by `text_weights`")


def test_the_rule_of_fusion_is_the_searches_own(folder, encoder, monkeypatch, capsys) -> None:
    output = folder / "recall.json"
    flags = ["--text_weights", "0.5", "--depths", "1", "3", "--fusion", "vectors", "--output", str(output)]
    run(folder, encoder, monkeypatch, *flags)
    loaded = load_encoder(encoder)
    retriever = EntryRetriever(load_index(folder / "index", Dataset(folder).knowledge, loaded), loaded)
    for split, record in json.loads(output.read_text()).items():
        known = set(Dataset(folder).knowledge.ids)
        asked = [question for question in Dataset(folder).questions(split) if known & {*question.entity_ids}]
        queries = [Query(load_image(folder / question.image), question.text) for question in asked]
        found = retriever.search_queries(queries, 6, weights=equation_7(0.5).fused("vectors"))
        ranks = [
            [hit.entry_id for hit in hits].index(question.entity_ids[0]) + 1
            for question, hits in zip(asked, found, strict=True)
        ]
        mrr = record["text_weights"]["0.5"]["mrr"]["value"]
        assert mrr == pytest.approx(sum(1 / rank for rank in ranks if rank <= 3) / len(asked))
    with pytest.raises(SystemExit):
        run(folder, encoder, monkeypatch, "--text_weights", "0.5", "--fusion", "features")
    assert "doesn't read an image and a text together" in capsys.readouterr().err
