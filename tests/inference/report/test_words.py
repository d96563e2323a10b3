import dataclasses

from reflectune.inference.reading.document_choice import MctTrace
from reflectune.inference.report.words import explain
from reflectune.inference.trace import Step


def test_a_person_is_told_decision_entries_passages_and_answer(make) -> None:
    passages = (
        make.read("e1", ret=0.5, rel=0.2),
        make.read("e2", ret=0.8, rel=0.9, answer="oak", ans=0.5),
        make.read("e3", ret=0.8, rel=0.7, answer="fir", ans=0.5),
    )
    trace = make.trace(0, gate=0.93, retrieved=True, hits=(make.hit("e2", 1),), passages=passages, chosen=1)
    text = explain(trace)
    lines = text.splitlines()
    assert lines[0] == "decision: retrieve (gate 0.930)"
    assert lines[-1] == "answer: oak"
    order = [text.index(f"Title {entry}") for entry in ("e2", "e3", "e1")]
    assert order == sorted(order)  # the chosen one first, then by product, then those without an answer
    assert "product 0.360 → oak" in text
    assert [line[0] for line in lines if "relevant " in line] == ["*", " ", " "]


def test_a_fallback_is_said(make) -> None:
    trace = make.trace(0, gate=0.9, retrieved=True, fallback="abstain", answer="")
    text = explain(trace)
    assert "no passage was judged relevant; fallback: abstain" in text
    assert text.endswith("answer: (none)")


def test_what_nobody_judged_is_not_called_irrelevant(make) -> None:
    passage = dataclasses.replace(make.read("e1"), s_rel=None, s_irr=None)
    text = explain(make.trace(0, "naive_rag_passages", retrieved=True, passages=(passage,)))
    assert "not judged" in text
    assert "relevant" not in text
    assert "decision" not in text  # there is no gate


def test_the_end_of_a_budget_is_no_verdict(make) -> None:
    text = explain(make.trace(0, "pmsr", steps=(Step("answer", 0, "oak"),), fallback="budget"))
    assert "\nfallback: budget\n" in text
    assert "relevant" not in text


def test_a_question_answered_by_looking(make) -> None:
    trace = dataclasses.replace(make.trace(0, answer="red"), gate=0.02)
    assert explain(trace) == "decision: answer from the image (gate 0.020)\nanswer: red"


def test_mmkb_rags_documents_come_in_the_order_of_srt(make) -> None:
    passages = (make.read("e1", rel=0.2), make.read("e2", rel=0.9), make.read("e3", rel=0.7), make.read("e4", rel=0.1))
    mct = MctTrace("2.", 3, keep=(2,))
    trace = make.trace(0, "mmkb_rag", gate=0.93, retrieved=True, passages=passages, kept=(1, 2, 0), used=(2,), mct=mct)
    text = explain(trace)
    order = [text.index(f"Title {entry}") for entry in ("e2", "e3", "e1", "e4")]
    assert order == sorted(order)
    marks = [line[:8] for line in text.splitlines() if "[Rel]" in line]
    assert marks == ["  kept 1", "* kept 2", "  kept 3", "  left  "]
    assert "agreement: 2." in text
    assert text.endswith("answer: oak")


def test_a_malformed_reply_is_said(make) -> None:
    mct = MctTrace("x", 2, problem="no_numbers")
    passages = (make.read("e1", rel=0.9), make.read("e2", rel=0.8))
    trace = make.trace(0, "mmkb_rag", retrieved=True, passages=passages, kept=(0, 1), used=(0, 1), mct=mct)
    assert "malformed (no_numbers): the order of SRT holds" in explain(trace)
