"""What a sweep holds a reflection's probabilities against."""

from dataclasses import replace

from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.sweeps.judging import CLOSED_BOOK, REFLECTION, RELIABILITY_CHECKS


def test_ret_is_held_against_what_its_labels_call_wrong(make) -> None:
    """By VQA's accuracy an answer is worth a part of a point: half of it is right, as in `derive_labels`."""
    question = replace(make.question(0), answers=("oak",) * 6 + ("fir",) * 2 + ("elm",) * 2)
    by_answer = {}
    for answer, wrong in (("oak", False), ("fir", False), ("ash", True)):
        traces = {
            REFLECTION: make.trace(0, "reflection", "", gate=0.9),
            CLOSED_BOOK: make.trace(0, "closed_book", answer),
        }
        judgements = RELIABILITY_CHECKS["mmkb_rag"].judge(question, traces, TraceScorer("vqa"))
        by_answer[answer] = ([judgement.true for judgement in judgements], [wrong])
    assert TraceScorer("vqa").worth("fir", question) == 0.6
    assert all(found == expected for found, expected in by_answer.values())
