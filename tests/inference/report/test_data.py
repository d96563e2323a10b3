import dataclasses
from types import SimpleNamespace

import pytest
from PIL import Image

from reflectune.core.types import Entry, Section
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.reading.document_choice import MctTrace
from reflectune.inference.report.data import browser_data, script_json
from reflectune.inference.report.words import explain
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


def browsed(dataset, questions, traces, metric="infoseek", **more):
    return browser_data(dataset, questions, traces, TraceScorer(metric), gamma=0.5, names={}, **more)


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


def test_looking_up_is_right_where_less_than_half_of_the_score_is_given(make, dataset) -> None:
    traces = {
        "mmkb_rag": {"q000": make.trace(0, "mmkb_rag", gate=0.9)},
        "closed_book": {"q000": make.trace(0, "closed_book", "fir")},
    }
    for answers, expected in (("oak",) * 8 + ("fir",) * 2, False), (("oak",) * 9 + ("fir",), True):
        asked = dataclasses.replace(make.question(0), answers=answers)
        data = browsed(dataset, [asked], traces, "vqa")
        assert data["questions"][0]["traces"]["mmkb_rag"]["lookup"] is expected
    del traces["closed_book"]
    assert browsed(dataset, [asked], traces, "vqa")["questions"][0]["traces"]["mmkb_rag"]["lookup"] is None


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
    read_by = [row["traces"]["pmsr_web"]["passages"][0] for row in data["questions"]]
    assert [data["passages"][place]["text"] for place in read_by] == list(texts)
    assert len(data["passages"]) == 2  # what is equal is kept once


def test_fields_without_a_value_are_left_out_and_zeros_are_not(make, dataset) -> None:
    read = (make.read(rel=0.0), make.read(section=1, rel=0.9, answer="fir", ans=0.5))
    trace = make.trace(0, answer="fir", gate=0.0, passages=read, chosen=0)
    shown = browsed(dataset, [make.question(0)], {"mr2ag": {"q000": trace}})["questions"][0]["traces"]["mr2ag"]
    assert not {"error", "mct", "kept", "retrieved", "steps"} & shown.keys()
    assert (shown["gate"], shown["correct"], shown["chosen"]) == (0.0, 0.0, 0)
    assert shown["passages"][0] == {"passage": 0, "ret": 0.5, "rel": 0.0}


@pytest.mark.parametrize(("exponents", "product"), [((1.0, 1.0, 1.0), 0.1), ((1.0, 2.0, 0.0), 0.08)])
def test_products_are_those_that_the_run_chose_by(make, dataset, exponents, product) -> None:
    read = make.read(ret=0.5, rel=0.4, answer="fir", ans=0.5)
    trace = make.trace(0, "mr2ag", "fir", hits=(make.hit("e1", 1),), passages=(read,), chosen=0)
    trace = dataclasses.replace(trace, exponents=exponents)
    data = browsed(dataset, [make.question(0)], {"mr2ag": {"q000": trace}})
    assert data["questions"][0]["traces"]["mr2ag"]["passages"][0]["product"] == product
    assert f"product {product:.3f}" in explain(trace)


def test_as_many_questions_are_listed_as_fit_in_the_page(make, dataset) -> None:
    questions = [make.question(number, text="?" * 2000) for number in (3, 1, 2, 0)]
    data = browsed(dataset, questions, {}, max_bytes=3 * 2500)
    assert [row["id"] for row in data["questions"]] == ["q001", "q002", "q003"]  # the first three, in order
    assert len(script_json(data).encode()) < 3 * 2500 + 1000
    assert len(browsed(dataset, questions, {})["questions"]) == 4


def test_a_question_that_does_not_fit_leaves_nothing_in_the_page(make, dataset) -> None:
    questions = [make.question(number) for number in range(2)]
    read = [(make.read(),), tuple(make.read(section=1, answer=f"{n}" * 100) for n in range(20))]
    traces = {"mr2ag": {q.id: make.trace(n, passages=read[n]) for n, q in enumerate(questions)}}
    most = len(script_json(browsed(dataset, questions, traces)).encode()) - 1000
    data = browsed(dataset, questions, traces, max_bytes=most)
    assert [row["id"] for row in data["questions"]] == ["q000"]
    fitting = browsed(dataset, questions[:1], traces)
    assert {name: data[name] for name in ("passages", "entries", "images")} == {
        name: fitting[name] for name in ("passages", "entries", "images")
    }
