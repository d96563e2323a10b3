"""Each way to lose an answer, by the traces of each kind of pipeline."""

import dataclasses

import pytest

from reflectune.inference.reading.document_choice import MctTrace
from reflectune.inference.scoring import losses
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import FoundPassage, Step
from reflectune.retrieval.retrievers.two_stage import ARTICLE

WRONG = "fir"
MERGED = MctTrace("2. Fir.", 2, keep=(2,), summary="Fir.", merged=True)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("right", "right"),
        ("failed", "failed"),
        ("gate", "gate"),
        ("unread", "unread"),
        ("nothing_found", "not_found"),
        ("other_entry", "not_found"),
        ("judged_irrelevant", "rejected"),
        ("other_section", "rejected"),
        ("fell_back", "rejected"),
        ("outranked", "outranked"),
        ("misread", "misread"),
        ("read_together", "misread"),
        ("left_out", "rejected"),
        ("kept_and_used", "misread"),
        ("mct_dropped", "outranked"),
        ("mct_merged", "misread"),
        ("whole_article", "misread"),
        ("given", "misread"),
        ("step_found", "rejected"),
        ("unlabelled", "unknown"),
    ],
)
def test_a_wrong_answer_is_lost_at_the_first_step_after_which_it_cannot_be_right(make, case, expected) -> None:
    labelled = make.question(0, entity_ids=("e1",), evidence=make.evidence("e1", 0))
    hits = (make.hit("e2", 1), make.hit("e1", 2))
    gold, other = make.read("e1", answer=WRONG, ans=0.5), make.read("e2", answer=WRONG, ans=0.5)
    rejected, unjudged = make.read("e1", rel=0.1), dataclasses.replace(gold, s_rel=None, s_irr=None)
    looked_up = {"gate": 0.9, "retrieved": True, "hits": hits}
    found = Step("search", 0, found=(FoundPassage("e1#0.0", "e1", "texts", 0, 1, 0.5),))
    of_case = {
        "right": {"answer": "oak", **looked_up},
        "failed": {"error": "no room", **looked_up},
        "gate": {"gate": 0.1},
        "unread": {},
        "nothing_found": {"retrieved": True},
        "other_entry": {**looked_up, "hits": hits[:1], "passages": (other,), "chosen": 0},
        "judged_irrelevant": {**looked_up, "passages": (other, rejected), "chosen": 0},
        "other_section": {**looked_up, "passages": (make.read("e1", 1), rejected), "chosen": 0},
        "fell_back": {**looked_up, "passages": (rejected,), "fallback": "closed_book"},
        "outranked": {**looked_up, "passages": (other, gold), "chosen": 0},
        "misread": {**looked_up, "passages": (other, gold), "chosen": 1},
        "read_together": {"retrieved": True, "hits": hits, "passages": (unjudged,)},
        "left_out": {
            "retrieved": True,
            "hits": hits,
            "passages": (dataclasses.replace(unjudged, passage=other.passage),),
        },
        "kept_and_used": {**looked_up, "passages": (gold, other), "kept": (1, 0), "used": (0,)},
        "mct_dropped": {**looked_up, "passages": (gold, other), "kept": (0, 1), "used": (1,)},
        "mct_merged": {**looked_up, "passages": (gold, other), "kept": (1, 0), "mct": MERGED},
        "whole_article": {**looked_up, "passages": (make.read("e1", ARTICLE, answer=WRONG, ans=0.5),), "chosen": 0},
        "given": {"passages": (unjudged,)},
        "step_found": {"retrieved": True, "steps": (found,)},
        "unlabelled": looked_up,
    }[case]
    question = make.question(0) if case == "unlabelled" else labelled
    trace = make.trace(0, **{"answer": WRONG, **of_case})
    (key,) = losses.outcomes([question], {"q000": trace}, TraceScorer("infoseek"))
    assert key == expected


def test_without_evidence_any_passage_of_the_entry_is_the_right_one(make) -> None:
    question, read = make.question(0, entity_ids=("e1",)), (make.read("e1", 3),)
    assert losses.outcome(question, make.trace(0, retrieved=True, passages=read, chosen=0), 0.0) == "misread"
    assert losses.outcome(question, make.trace(0), 0.5) == "right"  # half of the score


def test_outcomes_are_counted_in_the_order_of_the_steps() -> None:
    assert list(losses.counted(["misread", None, "gate", "right", "misread"]).items()) == [
        ("right", 1),
        ("gate", 1),
        ("misread", 2),
    ]
