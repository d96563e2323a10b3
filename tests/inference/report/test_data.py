import dataclasses
from types import SimpleNamespace

import pytest
from PIL import Image

from reflectune.core.types import Entry, Section
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.reading.document_choice import MctTrace
from reflectune.inference.report.data import browser_data
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import PassageTrace


@pytest.fixture
def dataset(tmp_path) -> SimpleNamespace:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images/a.png")
    entries = [Entry(id="e1", title="Title", images=("images/a.png",), sections=(Section("H0", "It is made of oak."),))]
    write_knowledge_base(tmp_path / "knowledge", entries, name="kb", image_root="..", shard_size=10)
    knowledge = KnowledgeBase(tmp_path / "knowledge")
    return SimpleNamespace(root=tmp_path, image_roots=(tmp_path,), knowledge=knowledge)


def browsed(dataset, questions, traces, metric="infoseek"):
    return browser_data(dataset, questions, traces, gamma=0.5, measure=TraceScorer(metric))


def test_every_decision_of_mmkb_rag_reaches_the_page(make, dataset) -> None:
    mct = MctTrace("2, 1. Oak.", 2, keep=(2, 1), summary="Oak.")
    passages = (make.read(rel=0.25), make.read(section=1, rel=0.75))
    decided = {"gate": 0.9, "retrieved": True, "confidence": 0.25, "kept": (1, 0), "used": (0, 1), "mct": mct}
    trace = make.trace(0, "mmkb_rag", passages=passages, **decided)
    data = browsed(dataset, [make.question(0)], {"mmkb_rag": {"q000": trace}})
    shown = data["questions"][0]["traces"]["mmkb_rag"]
    assert (shown["gate"], shown["confidence"], shown["kept"], shown["used"]) == (0.9, 0.25, [1, 0], [0, 1])
    assert [passage["rel"] for passage in shown["passages"]] == [0.25, 0.75]
    assert (shown["mct"]["reply"], shown["mct"]["problem"], shown["mct"]["summary"]) == ("2, 1. Oak.", "", "Oak.")


@pytest.mark.parametrize(("answer", "expected"), [("oak", False), ("fir", True)])
def test_looking_up_is_right_where_the_base_model_is_wrong(make, dataset, answer: str, expected: bool) -> None:
    traces = {
        "mmkb_rag": {"q000": make.trace(0, "mmkb_rag", gate=0.9)},
        "closed_book": {"q000": make.trace(0, "closed_book", answer)},
    }
    data = browsed(dataset, [make.question(0)], traces)
    assert data["questions"][0]["traces"]["mmkb_rag"]["lookup"] is expected
    assert data["pipelines"][0] == "mmkb_rag"
    del traces["closed_book"]
    data = browsed(dataset, [make.question(0)], traces)
    assert data["questions"][0]["traces"]["mmkb_rag"]["lookup"] is None


def test_looking_up_is_right_where_less_than_half_of_the_score_is_given(make, dataset) -> None:
    question = dataclasses.replace(make.question(0), answers=("oak",) * 8 + ("fir",) * 2)
    traces = {
        "mmkb_rag": {"q000": make.trace(0, "mmkb_rag", gate=0.9)},
        "closed_book": {"q000": make.trace(0, "closed_book", "fir")},
    }
    for answers, expected in (("oak",) * 8 + ("fir",) * 2, False), (("oak",) * 9 + ("fir",), True):
        asked = dataclasses.replace(question, answers=answers)
        data = browsed(dataset, [asked], traces, "vqa")
        assert data["questions"][0]["traces"]["mmkb_rag"]["lookup"] is expected


def test_the_gate_of_mr2ag_should_look_up_knowledge_based_questions(make, dataset) -> None:
    questions = [make.question(i, requires_retrieval=looked_up) for i, looked_up in enumerate((True, False, None))]
    traces = {"mr2ag": {q.id: make.trace(i, gate=0.9) for i, q in enumerate(questions)}}
    data = browsed(dataset, questions, traces)
    assert [question["traces"]["mr2ag"]["lookup"] for question in data["questions"]] == [True, False, None]


def test_a_page_that_two_questions_read_has_the_summary_of_each(make, dataset) -> None:
    texts = ("It is made of oak.", "It was built in 1900.", "It is made of oak.")
    page = [dataclasses.replace(make.passage(), text=text) for text in texts]
    traces = {f"q00{i}": make.trace(i, "pmsr_web", passages=(PassageTrace(read),)) for i, read in enumerate(page)}
    questions = [make.question(number) for number in range(3)]
    data = browsed(dataset, questions, {"pmsr_web": traces})
    read_by = [row["traces"]["pmsr_web"]["passages"][0]["passage"] for row in data["questions"]]
    assert [data["passages"][place]["text"] for place in read_by] == list(texts)
    assert len(data["passages"]) == 2  # what is equal is kept once
