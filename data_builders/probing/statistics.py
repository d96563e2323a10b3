"""Counts over probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from reflectune.data_builders.probing.labels import Rule, is_right, srt_labels
from reflectune.data_builders.probing.records import Probe


def probe_statistics(probes: Iterable[Probe], rule: Rule) -> dict[str, Any]:
    """Count questions, documents, answers and changes.

    Returns:
        `questions`; of them, those `right_alone` (without a document), `without_documents` and `bad` (not askable);
        `documents`; of them, those `cut`; documents `left_out` for their length; `empty_answers` and `broken_answers`
        (log-probability not finite); `changes`: documents by their effect on the answer (`wrong_right`, `right_wrong`,
        `wrong_wrong`, `right_right`, `unclear`); `with_both_labels`: questions with `[Rel]` and `[NoRel]`;
        `with_several_relevant`: questions with more than one `[Rel]`, as MCT needs; `bad_questions`: the first hundred
        with their problems.
    """
    numbers: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    bad: list[dict[str, str]] = []
    for probe in probes:
        labels = [label.relevant for label in srt_labels(probe, rule)]
        before = is_right(probe.reply)
        numbers.update(
            questions=1,
            bad=bool(probe.problem),
            right_alone=before is True,
            without_documents=not probe.documents and not probe.problem,
            documents=len(probe.documents),
            cut=sum(document.cut for document in probe.documents),
            left_out=probe.left_out,
            empty_answers=sum(not reply.text for reply in probe.replies),
            broken_answers=sum(reply.log_prob is None for reply in probe.replies),
            with_both_labels=len(set(labels)) == 2,
            with_several_relevant=sum(labels) > 1,
        )
        changes.update(_named(before, is_right(document.reply)) for document in probe.documents)
        if probe.problem and len(bad) < 100:
            bad.append({"id": probe.question_id, "problem": probe.problem})
    counts = {name: int(count) for name, count in numbers.items()}
    return {**counts, "changes": dict(sorted(changes.items())), "bad_questions": bad}


def probe_table(numbers: Mapping[str, Any]) -> str:
    """Return `probe_statistics` in a few lines, without zero counts."""
    changes = numbers["changes"]
    lines = [
        f"  questions {numbers.get('questions', 0):,}, right without a document {numbers.get('right_alone', 0):,}",
        f"  documents {numbers.get('documents', 0):,}: "
        + ", ".join(f"{name.replace('_', ' → ')} {count:,}" for name, count in changes.items()),
    ]
    names = ("with_several_relevant", "without_documents", "bad", "cut", "left_out", "empty_answers", "broken_answers")
    for name in names:
        if numbers.get(name):
            lines.append(f"  {name.replace('_', ' ')} {numbers[name]:,}")
    return "\n".join(lines)


def _named(before: bool | None, after: bool | None) -> str:
    names = {True: "right", False: "wrong"}
    return "unclear" if before is None or after is None else f"{names[before]}_{names[after]}"
