"""What a person wants to know of derived labels: counts, and how they agree with the truth.

A document truly helps if it states an accepted answer and is of the entity shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.string import annotate_by_string
from reflectune.data_builders.mmkb.mct import MctLabel
from reflectune.data_builders.probing.labels import RetLabel, SrtLabel
from reflectune.data_builders.probing.records import Probe


def label_statistics(
    ret: Sequence[RetLabel], srt: Sequence[SrtLabel], mct: Sequence[MctLabel], without_summary: int = 0
) -> dict[str, Any]:
    """Counts over derived labels.

    Args:
        ret: RET labels.
        srt: SRT labels.
        mct: MCT labels.
        without_summary: Questions that Algorithm 3 would take, but for which there is no summary.

    Returns:
        Of each task the number of examples and of each label; of MCT also how many irrelevant documents τ asked for,
        how many were mixed in, and in how many examples they were fewer.
    """
    needed = sum(label.retrieve for label in ret)
    relevant = sum(label.relevant for label in srt)
    return {
        "ret": {"examples": len(ret), "[Ret]": needed, "[NoRet]": len(ret) - needed},
        "srt": {
            "examples": len(srt),
            "[Rel]": relevant,
            "[NoRel]": len(srt) - relevant,
            "questions": len({label.question_id for label in srt}),
        },
        "mct": {
            "examples": len(mct),
            "relevant": sum(len(label.keep) for label in mct),
            "irrelevant_wanted": sum(label.wanted for label in mct),
            "irrelevant_mixed_in": sum(label.mixed_in for label in mct),
            "with_fewer_than_wanted": sum(label.mixed_in < label.wanted for label in mct),
            "without_summary": without_summary,
        },
    }


def truth_table(
    probes: Iterable[Probe], labels: Mapping[str, Sequence[SrtLabel]], questions: Mapping[str, Question]
) -> dict[str, Any]:
    """How SRT labels agree with what the documents say.

    It covers the knowledge-based questions of which the data set knows entities and answers. Precision and recall are
    None where nothing was labelled, or nothing truly helps.

    Args:
        probes: The probes.
        labels: By question id, before any balancing.
        questions: By id.

    Returns:
        `questions` covered, of them `with_a_stating_document`; `table`: probed documents by label (`[Rel]`, `[NoRel]`,
        `none`) and truth (`states`, `states_not`); `precision` of `[Rel]`; `recall` of `[Rel]` among labelled documents
        that state the answer, and `recall_of_probed` among all that were probed.
    """
    table = {label: Counter(states=0, states_not=0) for label in ("[Rel]", "[NoRel]", "none")}
    covered = with_one = 0
    for probe in probes:
        question = questions.get(probe.question_id)
        if question is None or not can_tell(question):
            continue
        said = {srt.document.passage.id: "[Rel]" if srt.relevant else "[NoRel]" for srt in labels.get(question.id, ())}
        labels_and_truths = [
            (said.get(document.passage.id, "none"), states(question, document.passage)) for document in probe.documents
        ]
        for label, truly in labels_and_truths:
            table[label]["states" if truly else "states_not"] += 1
        covered += 1
        with_one += any(truly for _, truly in labels_and_truths)
    hits = table["[Rel]"]["states"]
    return {
        "questions": covered,
        "with_a_stating_document": with_one,
        "table": {label: dict(counts) for label, counts in table.items()},
        "precision": _share(hits, table["[Rel]"].total()),
        "recall": _share(hits, hits + table["[NoRel]"]["states"]),
        "recall_of_probed": _share(hits, sum(counts["states"] for counts in table.values())),
    }


def truth_text(truth: Mapping[str, Any]) -> str:
    """A truth table in a few lines."""

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


def can_tell(question: Question) -> bool:
    """Whether the data set knows which documents truly help."""
    return question.is_knowledge_based is not False and bool(question.entity_ids) and bool(question.answers)


def states(question: Question, passage: Passage) -> bool:
    """Whether a document of the question's entity states an accepted answer."""
    return passage.entry_id in question.entity_ids and annotate_by_string(question, passage).label == "relevant"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
