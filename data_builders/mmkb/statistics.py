"""Counts of derived labels, and their agreement with the truth.

A document truly helps if it states an accepted answer and belongs to an entity of the question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.string import annotate_by_string, is_yes_or_no
from reflectune.data_builders.mmkb.labels import Labels
from reflectune.data_builders.probing.labels import SrtLabel
from reflectune.data_builders.probing.records import Probe


def label_statistics(labels: Labels) -> dict[str, Any]:
    """Count the examples and labels of each task.

    MCT's counts include the irrelevant documents that τ asks for, those mixed in, and the examples with fewer of them.
    """
    ret, srt, mct = labels.ret, labels.srt, labels.mct
    needed = sum(label.retrieve for label in ret)
    relevant = sum(label.relevant for label in srt)
    sides = [{label.question_id for label in srt if label.relevant is side} for side in (True, False)]
    return {
        "ret": {"examples": len(ret), "[Ret]": needed, "[NoRet]": len(ret) - needed},
        "srt": {
            "examples": len(srt),
            "[Rel]": relevant,
            "[NoRel]": len(srt) - relevant,
            "questions": len(sides[0] | sides[1]),
            "questions_with_both_labels": len(sides[0] & sides[1]),
        },
        "mct": {
            "examples": len(mct),
            "relevant": sum(len(label.keep) for label in mct),
            "irrelevant_wanted": sum(label.expected for label in mct),
            "irrelevant_mixed_in": sum(label.mixed_in for label in mct),
            "with_fewer_than_wanted": sum(label.mixed_in < label.expected for label in mct),
            "without_summary": labels.without_summary,
        },
    }


def truth_table(
    probes: Iterable[Probe], labels: Sequence[SrtLabel], questions: Mapping[str, Question]
) -> dict[str, Any]:
    """Compare SRT labels with the text of the documents, for questions whose entities and answers are known.

    Precision and recall are None where nothing was labelled, or nothing truly helps.

    Args:
        probes: The probes.
        labels: All labels, before balancing.
        questions: The questions by id.

    Returns:
        `questions` covered, and the number `with_a_stating_document`; `table`: probed documents by label (`[Rel]`,
        `[NoRel]`, `none`) and truth (`states`, `states_not`); `precision` of `[Rel]`; `recall` of `[Rel]` among
        labelled documents that state the answer, and `recall_of_probed` among all probed ones.
    """
    table = {label: Counter(states=0, states_not=0) for label in ("[Rel]", "[NoRel]", "none")}
    tokens = {(srt.question_id, srt.document.passage.id): "[Rel]" if srt.relevant else "[NoRel]" for srt in labels}
    covered = with_stating = 0
    for probe in probes:
        question = questions.get(probe.question_id)
        if question is None or not has_known_truth(question):
            continue
        truths = [states_answer(question, document.passage) for document in probe.documents]
        for document, truly in zip(probe.documents, truths, strict=True):
            label = tokens.get((question.id, document.passage.id), "none")
            table[label]["states" if truly else "states_not"] += 1
        covered += 1
        with_stating += any(truths)
    hits = table["[Rel]"]["states"]
    return {
        "questions": covered,
        "with_a_stating_document": with_stating,
        "table": {label: dict(counts) for label, counts in table.items()},
        "precision": _share(hits, table["[Rel]"].total()),
        "recall": _share(hits, hits + table["[NoRel]"]["states"]),
        "recall_of_probed": _share(hits, sum(counts["states"] for counts in table.values())),
    }


def truth_text(truth: Mapping[str, Any]) -> str:
    """Return a truth table in a few lines."""

    def percent(name: str) -> str:
        return "–" if truth[name] is None else f"{100 * truth[name]:.1f} %"

    rows = (f"  {name:8}{counts['states']:>8,}{counts['states_not']:>12,}" for name, counts in truth["table"].items())
    return "\n".join(
        [
            f"truth: {truth['questions']:,} knowledge-based questions, {truth['with_a_stating_document']:,} with a "
            "document of their entity that states the answer",
            f"  {'':8}{'states':>8}{'states not':>12}",
            *rows,
            f"  [Rel]: precision {percent('precision')}, recall {percent('recall')} of labelled documents, "
            f"{percent('recall_of_probed')} of all",
        ]
    )


def has_known_truth(question: Question) -> bool:
    """Return True for a knowledge-based question with known entities and answers other than yes and no."""
    named = bool(question.entity_ids) and bool(question.answers) and not is_yes_or_no(question)
    return question.is_knowledge_based is not False and named


def states_answer(question: Question, passage: Passage) -> bool:
    """Return True if the passage belongs to an entity of the question and states an accepted answer."""
    return passage.entry_id in question.entity_ids and annotate_by_string(question, passage).label == "relevant"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
