from __future__ import annotations

from reflectune.core.types import Passage
from reflectune.data_builders.mmkb.labels import Labels
from reflectune.data_builders.mmkb.mct import MctLabel
from reflectune.data_builders.mmkb.statistics import label_statistics
from reflectune.data_builders.probing.labels import RetLabel, Rule, SrtLabel
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer
from reflectune.data_builders.probing.statistics import probe_statistics, probe_table

RIGHT, WRONG, EMPTY, BROKEN = (
    ProbedAnswer("x", 1.0, -1.0),
    ProbedAnswer("y", 0.0, -2.0),
    ProbedAnswer("", 0.0, -3.0),
    ProbedAnswer("z", 0.0, None),
)


def document(rank: int, reply: ProbedAnswer, cut: bool = False) -> DocumentProbe:
    return DocumentProbe(Passage("e", 0, rank, "T", "", "H", "text"), 0.5, rank, (reply,), cut=cut)


def test_probes_are_counted_by_the_change_of_the_answer() -> None:
    probes = [
        Probe("a", (WRONG,), (document(1, RIGHT), document(2, RIGHT, cut=True), document(3, EMPTY)), left_out=2),
        Probe("b", (RIGHT,), (document(1, WRONG), document(2, BROKEN))),
        Probe("c", (WRONG,)),
        Probe("d", problem="it has no image"),
    ]
    counts = probe_statistics(probes, Rule())

    assert counts == {
        "questions": 4,
        "bad": 1,
        "right_alone": 1,
        "without_documents": 1,
        "documents": 5,
        "cut": 1,
        "left_out": 2,
        "empty_answers": 1,
        "broken_answers": 1,
        "with_both_labels": 0,
        "with_several_relevant": 1,
        "changes": {"right_wrong": 1, "unclear": 1, "wrong_right": 2, "wrong_wrong": 1},
        "bad_questions": [{"id": "d", "problem": "it has no image"}],
    }
    table = probe_table(counts)
    assert "questions 4, right without a document 1" in table
    assert "wrong → right 2" in table
    assert "left out 2" in table


def test_no_probes_have_no_counts() -> None:
    assert "questions 0" in probe_table(probe_statistics([], Rule()))


def test_labels_are_counted_by_task() -> None:
    passages = tuple(Passage("e", 0, k, "", "", "", "") for k in range(3))
    labels = Labels(
        [RetLabel("a", True, 0.0), RetLabel("b", False, 1.0)],
        [SrtLabel("a", document(k, RIGHT), k < 2, 1.0) for k in range(3)],
        [MctLabel("a", passages, (2, 1), "s", expected=2)],
        without_summary=4,
    )
    counts = label_statistics(labels)

    assert counts["ret"] == {"examples": 2, "[Ret]": 1, "[NoRet]": 1}
    assert counts["srt"] == {"examples": 3, "[Rel]": 2, "[NoRel]": 1, "questions": 1}
    assert counts["mct"] == {
        "examples": 1,
        "relevant": 2,
        "irrelevant_wanted": 2,
        "irrelevant_mixed_in": 1,
        "with_fewer_than_wanted": 1,
        "without_summary": 4,
    }
