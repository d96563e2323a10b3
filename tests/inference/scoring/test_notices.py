import dataclasses

from reflectune.inference.reading.document_choice import MctTrace
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.notices import ModelFacts, notices
from reflectune.inference.scoring.scores import TraceScorer

MINIATURE = ModelFacts("model", "miniature/llava", "f", 1_700_000)
LARGE = ModelFacts("model", "llava-1.5-7b", "f", 7_000_000_000)
WORLD = {"looks": {"e1": {"kind": "owl"}}}


def notices_of(questions, traces, manifest, models, metric="infoseek") -> str:
    measure = TraceScorer(metric)
    metrics = evaluate(questions, traces, measure=measure, gamma=0.5, seed=0)
    return "\n".join(notices(questions, traces, metrics, manifest, models, measure))


def test_a_miniature_on_real_data_is_not_expected_to_be_right(make) -> None:
    questions, traces = [make.question(0)], {"mr2ag": {"q000": make.trace(0, gate=0.9)}}
    assert "not expected to be right" in notices_of(questions, traces, {}, [MINIATURE])
    assert "not expected to be right" not in notices_of(questions, traces, WORLD, [MINIATURE])
    assert "Miniature numbers" in notices_of(questions, traces, WORLD, [MINIATURE])
    assert "iniature" not in notices_of(questions, traces, {}, [LARGE])


def test_what_is_left_out_is_said(make) -> None:
    traces = {"mr2ag": {"q000": make.trace(0, gate=0.9)}}
    text = notices_of([make.question(0)], traces, {}, [LARGE])
    assert "no gold evidence" in text
    assert "marked as visual-dependent" in text
    assert "overall score needs questions of both" in text
    with_evidence = [make.question(0, evidence=make.evidence())]
    probed = {**traces, "relevance": {"q000": make.trace(0, "relevance", passages=(make.read(source="gold"),))}}
    assert "look-alikes" in notices_of(with_evidence, probed, {}, [LARGE])


def test_failures_are_counted_and_the_first_are_shown(make) -> None:
    questions = [make.question(i) for i in range(5)]
    traces = {"closed_book": {q.id: make.trace(i, error=f"image {i} is gone") for i, q in enumerate(questions)}}
    text = notices_of(questions, traces, {}, [LARGE])
    assert "closed_book: 5 questions failed" in text
    assert "q000: image 0 is gone" in text
    assert "q004" not in text


def test_answers_that_were_cut_off_are_counted(make) -> None:
    questions = [make.question(i) for i in range(3)]
    traces = {"closed_book": {q.id: make.trace(i, cut=i > 0) for i, q in enumerate(questions)}}
    text = notices_of(questions, traces, {}, [LARGE])
    assert "closed_book: 2 of 3 answers were truncated at `max_new_tokens`." in text


def test_budgets_that_are_used_up_are_counted(make) -> None:
    limited = {"limit": {"question_tokens": 90}, "ended": "the question's 90 tokens are used up"}
    traces = {"pmsr": {"q000": make.trace(0, "pmsr"), "q001": make.trace(1, "pmsr", **limited)}}
    text = notices_of([make.question(0), make.question(1)], traces, {}, [LARGE])
    assert "pmsr: 1 of 2 questions reached a budget (the question's 90 tokens are used up: 1)" in text


def test_questions_without_truth_are_counted(make) -> None:
    questions = [make.question(0), make.question(1)]
    unknown = [questions[0], questions[1].__class__(id="q001", image="i", text="t", split="val_unseen_entity")]
    traces = {"closed_book": {"q000": make.trace(0), "q001": make.trace(1)}}
    assert "1 questions have no answer that this metric can score" in notices_of(unknown, traces, {}, [LARGE])


def test_answers_that_vqas_metric_never_matches_are_counted(make) -> None:
    questions = [dataclasses.replace(make.question(i), answers=(said,) * 10) for i, said in enumerate(("Oak", "oak"))]
    traces = {"closed_book": {q.id: make.trace(i) for i, q in enumerate(questions)}}
    assert "1 questions have answers that no prediction matches in VQA's metric" in notices_of(
        questions, traces, {}, [LARGE], "vqa"
    )
    assert "VQA's metric" not in notices_of(questions[1:], traces, {}, [LARGE], "vqa")
    assert "VQA's metric" not in notices_of(questions, traces, {}, [LARGE], "exact_match")


def test_what_is_missing_from_mmkb_rags_measurements_is_said(make) -> None:
    replies = [MctTrace("x", 2, problem="no_numbers"), MctTrace("x", 2, problem="no_numbers"), MctTrace("1.", 2)]
    traces = {
        "mmkb_rag": {f"q00{i}": make.trace(i, "mmkb_rag", mct=mct) for i, mct in enumerate(replies)},
        "reflection": {"q000": make.trace(0, "reflection", "", gate=0.9, passages=(make.read(),))},
    }
    questions = [make.question(i, entity_ids=("e1",)) for i in range(3)]
    text = notices_of(questions, traces, {}, [LARGE])
    assert "RET is not measured" in text
    assert "SRT's order is not measured" in text
    assert "2 of 3 replies of MCT were malformed (2 no numbers)" in text
    traces["closed_book"] = {"q000": make.trace(0, "closed_book")}
    traces["reflection"]["q000"] = make.trace(0, "reflection", "", gate=0.9, passages=(make.read(source="stating"),))
    traces["mmkb_rag"] = {"q002": traces["mmkb_rag"]["q002"]}
    text = notices_of(questions, traces, {}, [LARGE])
    assert "not measured" not in text
    assert "malformed" not in text
