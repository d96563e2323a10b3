import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.data_builders.mmkb.mct import MctLabel, MixingSettings, RelScores, mct_label
from reflectune.data_builders.probing.labels import Rule, srt_labels
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer

MIXING = MixingSettings()


def probe(*right: bool, alone: bool = False, scores: list[float] | None = None, **more: object) -> Probe:
    """Return the probe of a question with a right or wrong answer from each document."""
    documents = tuple(
        DocumentProbe(
            Passage(f"e{k}", 0, 0, "T", "", "H", f"Text {k}."),
            scores[k] if scores else 1.0 - k / 10,
            k + 1,
            ProbedAnswer("x", float(is_right), -1.0),
            sentence=f"Text {k}." if is_right else "",
        )
        for k, is_right in enumerate(right)
    )
    return Probe("q", ProbedAnswer("x", float(alone), -1.0), documents, **more)


def label(made: Probe, mixing: MixingSettings = MIXING, rel_scores: RelScores | None = None) -> MctLabel | None:
    return mct_label(made, srt_labels(made, Rule(rule="paper")), mixing, rel_scores)


@pytest.mark.parametrize("right", [(), (True,), (True, False, False), (False, False)])
def test_a_question_needs_more_than_one_relevant_document(right: tuple[bool, ...]) -> None:
    assert label(probe(*right)) is None


@given(st.lists(st.booleans(), min_size=2, max_size=12), st.sampled_from([0, 10, 30, 50, 75, 90]), st.integers(0, 5))
def test_the_numbers_name_the_relevant_documents_and_the_share_is_tau(right: list[bool], tau: float, seed: int) -> None:
    made = probe(*right)
    mct = label(made, MixingSettings(tau=tau, seed=seed))
    if sum(right) < 2:
        assert mct is None
        return
    relevant = [mct.documents[number - 1].id for number in mct.keep]
    assert relevant == [
        document.passage.id for document, is_right in zip(made.documents, right, strict=True) if is_right
    ]
    assert len({passage.id for passage in mct.documents}) == len(mct.documents)
    assert mct.mixed_in == min(mct.expected, right.count(False))
    assert abs(mct.expected - tau / 100 * (mct.expected + sum(right))) <= 0.5 / (1 - tau / 100)


def test_a_trained_models_scores_order_the_reply() -> None:
    made = probe(True, True, True)
    scores = {("q", "e0#0.0"): 0.1, ("q", "e1#0.0"): 0.9, ("q", "e2#0.0"): 0.5}
    mct = label(made, rel_scores=scores)
    assert [mct.documents[number - 1].entry_id for number in mct.keep] == ["e1", "e2", "e0"]
    assert mct.summary == "Text 1. Text 2. Text 0."
    with pytest.raises(UserError, match=r"question q has no score for passage e2#0\.0"):
        label(made, rel_scores={key: 0.5 for key in scores if key[1] != "e2#0.0"})


def test_equal_scores_keep_the_order_of_the_documents() -> None:
    mct = label(probe(True, True, True, scores=[0.5, 0.5, 0.7]), MixingSettings(tau=0))
    assert [mct.documents[number - 1].entry_id for number in mct.keep] == ["e2", "e0", "e1"]


def test_by_the_papers_noise_and_rule_there_is_nothing_to_mix_in() -> None:
    mct = label(probe(True, True, False, False), MixingSettings(noise="no_rel"))
    assert (mct.expected, mct.mixed_in) == (2, 0)


def test_the_models_own_words_count_for_exactly_the_documents_that_they_summarise() -> None:
    words = {"summary": "All say x.", "summarised": ("e0#0.0", "e1#0.0")}
    assert label(probe(True, True, False, **words)).summary == "All say x."
    without = probe(True, False, True, **words)
    bare = tuple(dataclasses.replace(document, sentence="") for document in without.documents)
    assert label(dataclasses.replace(without, documents=bare)).summary == ""


def test_a_summary_of_a_part_leaves_the_other_relevant_documents_out_of_the_list() -> None:
    mct = label(probe(True, True, True, False, summary="All say x.", summarised=("e0#0.0", "e1#0.0")))
    assert {mct.documents[number - 1].entry_id for number in mct.keep} == {"e0", "e1"}
    assert {passage.entry_id for passage in mct.documents} == {"e0", "e1", "e3"}
    assert mct.summary == "All say x."


def test_look_alikes_under_the_same_heading_are_mixed_in_first() -> None:
    made = probe(True, False, False, False)
    headings = ("Area", "Flag", "Area", "Area")
    entries = ("e0", "e1", "e2", "e0")
    documents = tuple(
        dataclasses.replace(d, passage=dataclasses.replace(d.passage, heading=h, entry_id=e, index=k))
        for k, (d, h, e) in enumerate(zip(made.documents, headings, entries, strict=True))
    )
    made = dataclasses.replace(made, documents=documents)
    assert label(made, MixingSettings(noise="conflicts")) is None  # Algorithm 3 needs two relevant documents
    for seed in range(5):
        mct = label(made, MixingSettings(noise="conflicts", min_relevant=1, seed=seed))
        assert {(p.entry_id, p.heading) for p in mct.documents} == {("e0", "Area"), ("e2", "Area")}
        assert [mct.documents[number - 1].entry_id for number in mct.keep] == ["e0"]
    every = label(made, MixingSettings(noise="conflicts", min_relevant=1, tau=75))
    assert every.mixed_in == 3  # the others fill the list
