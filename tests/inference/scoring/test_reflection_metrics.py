from dataclasses import replace

import pytest

from reflectune.inference.reading.document_choice import MctTrace
from reflectune.inference.scoring.reflection_metrics import reflection
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import by_question

UQ, UE = "val_unseen_question", "val_unseen_entity"


def run(questions, traces, gamma=0.5):
    by_id = {name: by_question(each) for name, each in traces.items()}
    return reflection(questions, by_id, measure=TraceScorer("infoseek"), gamma=gamma, seed=0)


@pytest.fixture
def ret(make):
    """Four questions; the base model is wrong on the first, the third and the fourth."""
    questions = [make.question(i, UE if i < 2 else UQ, entity_ids=("e1",)) for i in range(4)]
    gates = {0: 0.9, 1: 0.2, 2: 0.6, 3: 0.5}
    traces = {
        "reflection": [make.trace(i, "reflection", "", gate=gate) for i, gate in gates.items()],
        "closed_book": [make.trace(i, "closed_book", "oak" if i == 1 else "fir") for i in range(4)],
    }
    return questions, traces


def test_ret_is_measured_against_what_the_base_model_gets_wrong(ret) -> None:
    ret_scores = run(*ret)["ret"]
    assert ret_scores["overall"]["auroc"]["value"] == 1.0
    # 0.5 is not above gamma, and retrieval was needed
    assert ret_scores["overall"]["accuracy"]["value"] == pytest.approx(3 / 4)
    assert ret_scores["overall"]["base_wrong"]["value"] == pytest.approx(3 / 4)
    # Bins of one each: |0.9 - 1|, |0.2 - 0|, |0.6 - 1|, |0.5 - 1|.
    assert ret_scores["overall"]["calibration_error"]["value"] == pytest.approx((0.1 + 0.2 + 0.4 + 0.5) / 4)


def test_an_answer_worth_a_part_of_a_point_is_right_or_wrong_as_the_labels_have_it(make) -> None:
    """By VQA's accuracy; calibration and the share `base_wrong` take the parts themselves."""
    questions = [replace(make.question(i, UE), answers=("oak",) * i + ("fir",) * (10 - i)) for i in range(4)]
    worth = TraceScorer("vqa")
    closed_book = {q.id: make.trace(i, "closed_book", "oak") for i, q in enumerate(questions)}
    assert [worth.correctness(q, closed_book[q.id]) for q in questions] == pytest.approx([0.0, 0.3, 0.6, 0.9])
    judged = {q.id: make.trace(i, "reflection", "", gate=0.9 - 0.2 * i) for i, q in enumerate(questions)}
    traces = {"reflection": judged, "closed_book": closed_book}
    scores = reflection(questions, traces, measure=worth, gamma=0.6, seed=0)["ret"]["overall"]
    assert scores["auroc"]["value"] == scores["accuracy"]["value"] == 1.0
    assert scores["base_wrong"]["value"] == pytest.approx((1.0 + 0.7 + 0.4 + 0.1) / 4)


def test_ret_is_measured_by_split_too(ret) -> None:
    ret_scores = run(*ret)["ret"]
    assert ret_scores["unseen_entity"]["auroc"] == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 2}
    assert ret_scores["unseen_question"]["auroc"] is None  # the base model is wrong on both
    assert ret_scores["unseen_question"]["accuracy"]["value"] == 0.5


def test_without_closed_book_ret_is_not_measured(ret) -> None:
    questions, traces = ret
    ret_scores = run(questions, {"reflection": traces["reflection"]})["ret"]["overall"]
    assert set(ret_scores.values()) == {None}


def test_a_question_that_failed_says_nothing_about_the_base_model(make, ret) -> None:
    questions, traces = ret
    failed = [make.trace(0, "closed_book", "", error="no image"), *traces["closed_book"][1:]]
    assert run(questions, {**traces, "closed_book": failed})["ret"]["overall"]["accuracy"]["n"] == 3


def test_the_gate_decides_on_visual_questions_too_and_is_measured_without_them_beside(make, ret) -> None:
    questions, traces = ret
    questions = [make.question(0, UE, requires_retrieval=False), *questions[1:]]
    scores = run(questions, traces)
    assert scores["ret"]["overall"]["accuracy"]["n"] == 4
    assert scores["ret_knowledge"]["overall"]["accuracy"]["n"] == 3
    assert scores["srt"]["overall"]["stating_retrieved"]["n"] == 3


def test_srt_ranks_where_there_is_something_to_rank(make) -> None:
    def judged(number, *scores):
        passages = tuple(
            make.read(section=k, rel=score, source="stating" if stating else "")
            for k, (score, stating) in enumerate(scores)
        )
        return make.trace(number, "reflection", "", gate=0.9, passages=passages)

    traces = [
        judged(0, (0.2, False), (0.9, True)),  # SRT is right, the retriever wrong
        judged(1, (0.4, True), (0.6, False)),  # the other way round
        judged(2, (0.7, True), (0.7, False)),  # a tie keeps the retriever's order
        judged(3, (0.9, False)),  # nothing states the answer
    ]
    questions = [make.question(i, entity_ids=("e1",)) for i in range(4)]
    yes_or_no = [make.question(4, answer="yes", entity_ids=("e1",)), make.question(5)]  # not searchable
    traces += [judged(4, (0.9, False)), judged(5, (0.9, False))]
    srt = run([*questions, *yes_or_no], {"reflection": traces})["srt"]["unseen_entity"]
    assert srt["stating_retrieved"]["value"] == pytest.approx(3 / 4)
    assert (srt["stating_first"]["value"], srt["stating_first"]["n"]) == (pytest.approx(2 / 3), 3)
    assert srt["stating_first_retriever"]["value"] == pytest.approx(2 / 3)


def test_malformed_replies_are_counted_by_problem(make) -> None:
    replies = [MctTrace("2.", 2, keep=(2,)), MctTrace("x", 2, problem="no_numbers"), None]
    replies.append(MctTrace("9.", 2, problem="out_of_range"))
    traces = [make.trace(i, "mmkb_rag", retrieved=i > 0, mct=mct) for i, mct in enumerate(replies)]
    scores = run([make.question(i) for i in range(4)], {"mmkb_rag": traces})
    problems = {"no_numbers": 1, "out_of_range": 1, "repeated": 0, "empty_summary": 0}
    assert scores["mct"] == {"replies": 3, "malformed": 2, "problems": problems}
    assert scores["retrieved"]["value"] == pytest.approx(3 / 4)


def test_other_pipelines_have_no_such_section(make) -> None:
    assert run([make.question(0)], {"mr2ag": [make.trace(0, gate=0.9)]}) is None
