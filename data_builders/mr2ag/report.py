"""Report a built split of reflection data: its statistics, and its examples on the proofreading page."""

from __future__ import annotations

import statistics as stats
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reflectune.core.types import Question
from reflectune.data_builders.annotators.proofreading import PageArticle, PageLabel
from reflectune.data_builders.mr2ag.builder import BuiltExamples
from reflectune.formats.reflection_data import STATISTICS
from reflectune.models.schemes.examples import ReflectionExample

NO_RETRIEVAL = "[No Retrieval]"


def statistics(built: BuiltExamples, knowledge: Sequence[Question], visual_count: int) -> dict[str, Any]:
    """Count the examples of a split.

    Args:
        built: The examples.
        knowledge: The knowledge-based questions that they were built from.
        visual_count: Number of visual-dependent questions that the ratio asks for.
    """
    branches = [branch for example in built.examples for branch in example.branches]
    return {
        "examples": len(built.examples),
        "with_retrieval": sum(example.retrieve for example in built.examples),
        "without_retrieval": sum(not example.retrieve for example in built.examples),
        "without_retrieval_wanted": visual_count,
        "follow_ups": sum(len(example.follow_ups) for example in built.examples),
        "multi_answer": sum(example.style == "list" for example in built.examples),
        "by_answer_type": _examples_by_type(built, knowledge),
        "branches": len(branches),
        "relevant": sum(branch.relevant for branch in branches),
        "branches_by_source": dict(sorted(Counter(branch.source for branch in branches).items())),
        "words_of_a_passage": _spread([len(branch.passage.text.split()) for branch in branches]),
        "negatives_dropped_for_holding_an_answer": built.answer_elsewhere,
        "evidence_dropped_for_holding_no_answer": built.without_answer,
        "unclear_to_the_annotator": built.unclear,
        "questions_left_out": dict(sorted(Counter(row.reason for row in built.rejected if not row.bad).items())),
        "bad_rows": [{"id": row.id, "reason": row.reason} for row in built.rejected if row.bad],
    }


def summary(target: Path, numbers: dict[str, Any]) -> str:
    """Return the statistics in a few lines."""
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
        one_sided = "" if numbers["without_retrieval"] else "warning: the gate learns only [Retrieval]: "
        lines.append(
            f"{one_sided}`visual_ratio` asks for {numbers['without_retrieval_wanted']:,} visual-dependent questions, "
            f"there are {numbers['without_retrieval']:,}; `visual_dataset` can name a data set with more"
        )
    if numbers["bad_rows"]:
        lines.append(f"left out: {len(numbers['bad_rows']):,} bad rows, listed in {target.with_name(STATISTICS)}")
    return "\n".join(lines)


def page_article(example: ReflectionExample) -> PageArticle:
    """Return an example's article: its passages with evidence first, or its answers without retrieval."""
    if example.retrieve:
        answers = [branch.answer for branch in example.branches if branch.relevant]
        labels = [
            PageLabel("[Relevant]", "relevant", branch.answer, [branch.source], branch.passage)
            if branch.relevant
            else PageLabel("[Irrelevant]", "irrelevant", details=[branch.source], passage=branch.passage)
            for branch in sorted(example.branches, key=lambda branch: not branch.relevant)
        ]
    else:
        answers = [example.answer]
        labels = [PageLabel(NO_RETRIEVAL, answer=example.answer)]
        labels += [
            PageLabel(NO_RETRIEVAL, answer=later.answer, details=[later.question], subject=f"round {number}")
            for number, later in enumerate(example.follow_ups, start=2)
        ]
    style = "several answers, &&" if example.style == "list" else ""
    return PageArticle(
        example.id, example.image, example.question, [example.source, style], labels, answers or [example.answer]
    )


def _examples_by_type(built: BuiltExamples, knowledge: Sequence[Question]) -> dict[str, dict[str, int]]:
    types = {question.id: question.answer_type for question in knowledge}
    questions = Counter(types.values())
    examples = Counter(types[example.id] for example in built.examples if example.retrieve and example.id in types)
    return {name: {"questions": questions[name], "examples": examples[name]} for name in sorted(questions)}


def _spread(lengths: list[int]) -> dict[str, int]:
    """Return median, 95th percentile and maximum."""
    if not lengths:
        return {"median": 0, "p95": 0, "most": 0}
    ordered = sorted(lengths)
    return {
        "median": round(stats.median(ordered)),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "most": ordered[-1],
    }
