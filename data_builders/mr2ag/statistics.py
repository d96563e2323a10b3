"""What a person wants to know of a built split of reflection data: counts, and why the others were left out."""

from __future__ import annotations

import statistics as stats
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reflectune.core.types import Question
from reflectune.data_builders.mr2ag.builder import Batch

STATISTICS = "statistics.json"


def statistics(batch: Batch, knowledge: Sequence[Question] = (), visual_wanted: int | None = None) -> dict[str, Any]:
    """Counts of a built split, as plain values.

    Args:
        batch: What was built.
        knowledge: The knowledge-based questions that it was built from, for the yield by answer type.
        visual_wanted: How many visual-dependent questions the ratio asks for.
    """
    branches = [branch for example in batch.examples for branch in example.branches]
    without_retrieval = sum(not example.retrieve for example in batch.examples)
    return {
        "examples": len(batch.examples),
        "with_retrieval": sum(example.retrieve for example in batch.examples),
        "without_retrieval": without_retrieval,
        "without_retrieval_wanted": without_retrieval if visual_wanted is None else visual_wanted,
        "follow_ups": sum(len(example.follow_ups) for example in batch.examples),
        "multi_answer": sum(example.style == "list" for example in batch.examples),
        "by_answer_type": _yield_by_type(batch, knowledge),
        "branches": len(branches),
        "relevant": sum(branch.relevant for branch in branches),
        "branches_by_source": dict(sorted(Counter(branch.source for branch in branches).items())),
        "words_of_a_passage": _spread([len(branch.passage.text.split()) for branch in branches]),
        "negatives_dropped_for_holding_an_answer": batch.answer_elsewhere,
        "evidence_dropped_for_holding_no_answer": batch.without_answer,
        "unclear_to_the_annotator": batch.unclear,
        "questions_left_out": dict(sorted(Counter(row.reason for row in batch.rejected if not row.bad).items())),
        "bad_rows": [{"id": row.id, "reason": row.reason} for row in batch.rejected if row.bad],
    }


def summary(target: Path, numbers: dict[str, Any]) -> str:
    """The statistics in a few lines."""
    sources = ", ".join(f"{count:,} {source}" for source, count in numbers["branches_by_source"].items())
    lines = [
        f"{target}: {numbers['examples']:,} examples ({numbers['with_retrieval']:,} with retrieval), "
        f"{numbers['branches']:,} passages ({sources})",
        *(f"left out: {count:,} questions: {reason}" for reason, count in numbers["questions_left_out"].items()),
    ]
    words = numbers["words_of_a_passage"]
    if numbers["branches"]:
        lines.append(
            f"words of a passage: median {words['median']:,}, 95 % have at most {words['p95']:,}, the longest "
            f"{words['most']:,}"
        )
    if numbers["unclear_to_the_annotator"]:
        lines.append(f"left out: {numbers['unclear_to_the_annotator']:,} passages unclear to the annotator")
    if numbers["without_retrieval"] < numbers["without_retrieval_wanted"]:
        lines.append(
            f"`visual_ratio` asks for {numbers['without_retrieval_wanted']:,} visual-dependent questions, "
            f"there are {numbers['without_retrieval']:,}; `visual_dataset` can name a data set with more"
        )
    if numbers["bad_rows"]:
        lines.append(f"left out: {len(numbers['bad_rows']):,} bad rows, listed in {target.with_name(STATISTICS)}")
    return "\n".join(lines)


def _yield_by_type(batch: Batch, knowledge: Sequence[Question]) -> dict[str, dict[str, int]]:
    """Of each answer type: knowledge-based questions, and how many of them became examples."""
    kinds = {question.id: question.answer_type for question in knowledge}
    question_counts = Counter(kinds.values())
    built = Counter(kinds[example.id] for example in batch.examples if example.retrieve and example.id in kinds)
    return {kind: {"questions": question_counts[kind], "examples": built[kind]} for kind in sorted(question_counts)}


def _spread(lengths: list[int]) -> dict[str, int]:
    """Median, 95th percentile and most, in whole words."""
    if not lengths:
        return {"median": 0, "p95": 0, "most": 0}
    ordered = sorted(lengths)
    return {
        "median": round(stats.median(ordered)),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "most": ordered[-1],
    }
