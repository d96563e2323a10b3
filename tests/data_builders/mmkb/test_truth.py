from __future__ import annotations

from reflectune.core.types import Passage, Question
from reflectune.data_builders.mmkb.statistics import truth_table, truth_text
from reflectune.data_builders.probing.labels import Rule, srt_labels
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer


def document(entry: str, text: str, right: bool) -> DocumentProbe:
    passage = Passage(entry, 0, len(text), "T", "", "H", text)
    return DocumentProbe(passage, 0.5, 1, (ProbedAnswer("x", float(right), -1.0),))


def test_a_document_truly_helps_if_it_belongs_to_the_entity_and_states_the_answer() -> None:
    probes = [
        Probe(
            "k",
            (ProbedAnswer("x", 0.0, -1.0),),
            (
                document("e1", "Built in 1874.", True),  # [Rel], truly
                document("e2", "Built in 1874.", True),  # [Rel], of another entity
                document("e1", "Built of oak.", True),  # [Rel], states nothing
                document("e1", "In 1874.", False),  # none, truly
                document("e3", "Oak.", False),
            ),
        ),
        Probe("v", (ProbedAnswer("x", 1.0, -1.0),), (document("e1", "Red.", False),)),
    ]
    questions = {
        "k": Question("k", "i", "When?", ("1874",), entity_ids=("e1",), requires_retrieval=True),
        "v": Question("v", "i", "Colour?", ("red",), entity_ids=("e1",), requires_retrieval=False),
    }
    truth = truth_table(probes, [label for probe in probes for label in srt_labels(probe, Rule())], questions)

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
