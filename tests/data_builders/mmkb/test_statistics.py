from reflectune.core.types import Passage, Question
from reflectune.data_builders.mmkb.labels import Labels
from reflectune.data_builders.mmkb.mct import MctLabel
from reflectune.data_builders.mmkb.run import missing_labels
from reflectune.data_builders.mmkb.statistics import label_statistics, truth_table, truth_text
from reflectune.data_builders.probing.labels import RetLabel, Rule, SrtLabel, srt_labels
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer
from reflectune.data_builders.probing.statistics import probe_statistics, probe_table

RIGHT, WRONG = ProbedAnswer("x", 1.0, -1.0), ProbedAnswer("y", 0.0, -2.0)
EMPTY, BROKEN = ProbedAnswer("", 0.0, -3.0), ProbedAnswer("z", 0.0, None)


def document(rank: int, reply: ProbedAnswer, cut: bool = False) -> DocumentProbe:
    return DocumentProbe(Passage("e", 0, rank, "T", "", "H", "text"), 0.5, rank, reply, cut=cut)


def test_probes_are_counted_by_the_change_of_the_answer() -> None:
    probes = [
        Probe("a", WRONG, (document(1, RIGHT), document(2, RIGHT, cut=True), document(3, EMPTY)), left_out=2),
        Probe("b", RIGHT, (document(1, WRONG), document(2, BROKEN))),
        Probe("c", WRONG),
        Probe("d", problem="it has no image"),
    ]
    counts = probe_statistics(probes, Rule(rule="paper"))

    questions = {"questions": 4, "bad": 1, "right_alone": 1, "without_documents": 1, "with_both_labels": 0}
    documents = {"documents": 5, "cut": 1, "left_out": 2, "empty_answers": 1, "broken_answers": 1}
    changes = {"right_wrong": 1, "unclear": 1, "wrong_right": 2, "wrong_wrong": 1}
    listed = {"changes": changes, "bad_questions": [{"id": "d", "problem": "it has no image"}]}
    assert counts == {**questions, **documents, "with_several_relevant": 1, **listed}
    table = probe_table(counts)
    assert "questions 4, right without a document 1" in table
    assert "wrong → right 2" in table
    assert "left out 2" in table


def test_no_probes_have_no_counts() -> None:
    assert "questions 0" in probe_table(probe_statistics([], Rule(rule="paper")))


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
    assert counts["srt"] == {"examples": 3, "[Rel]": 2, "[NoRel]": 1, "questions": 1, "questions_with_both_labels": 1}
    mixed = {"irrelevant_wanted": 2, "irrelevant_mixed_in": 1, "with_fewer_than_wanted": 1}
    assert counts["mct"] == {"examples": 1, "relevant": 2, **mixed, "without_summary": 4}
    assert missing_labels(counts, counts) == []


def test_a_task_with_one_label_alone_is_a_warning() -> None:
    one_sided = label_statistics(
        Labels([RetLabel("a", True, 0.0)], [SrtLabel("a", document(1, RIGHT), False, 1.0)], [])
    )
    held_back = label_statistics(Labels([], [], []))
    warned = missing_labels(one_sided, one_sided)
    assert [line.partition(", so")[0].partition(";")[0] for line in warned] == [
        "warning: RET has no [NoRet]",
        "warning: SRT has no [Rel]",
        "warning: MCT has no example",
    ]
    assert missing_labels(held_back, {"mct": {"examples": 1}}) == []  # as Table 5 trains each task alone


def stating(entry: str, text: str, right: bool) -> DocumentProbe:
    passage = Passage(entry, 0, len(text), "T", "", "H", text)
    return DocumentProbe(passage, 0.5, 1, ProbedAnswer("x", float(right), -1.0))


def test_a_document_truly_helps_if_it_belongs_to_the_entity_and_states_the_answer() -> None:
    probes = [
        Probe(
            "k",
            ProbedAnswer("x", 0.0, -1.0),
            (
                stating("e1", "Built in 1874.", True),  # [Rel], truly
                stating("e2", "Built in 1874.", True),  # [Rel], of another entity
                stating("e1", "Built of oak.", True),  # [Rel], states nothing
                stating("e1", "In 1874.", False),  # none, truly
                stating("e3", "Oak.", False),
            ),
        ),
        *(Probe(name, ProbedAnswer("x", 1.0, -1.0), (stating("e1", "Red.", False),)) for name in "vy"),
    ]
    questions = {
        "k": Question("k", "i", "When?", ("1874",), entity_ids=("e1",), requires_retrieval=True),
        "v": Question("v", "i", "Colour?", ("red",), entity_ids=("e1",), requires_retrieval=False),
        "y": Question("y", "i", "Is it old?", ("yes",), entity_ids=("e1",), requires_retrieval=True),  # isn't searched
    }
    truth = truth_table(
        probes, [label for probe in probes for label in srt_labels(probe, Rule(rule="paper"))], questions
    )

    assert truth["table"] == {
        "[Rel]": {"states": 1, "states_not": 2},
        "[NoRel]": {"states": 0, "states_not": 0},
        "none": {"states": 1, "states_not": 1},
    }
    assert (truth["questions"], truth["with_a_stating_document"]) == (1, 1)
    assert (truth["precision"], truth["recall"], truth["recall_of_probed"]) == (1 / 3, 1.0, 0.5)
    assert "precision 33.3 %, recall 100.0 % of labelled documents, 50.0 % of all" in truth_text(truth)


def test_without_a_known_truth_precision_is_missing() -> None:
    truth = truth_table([], [], {})
    assert truth["precision"] is None
    assert "precision –" in truth_text(truth)
