"""How far annotators agree with each other, and how right they are where the truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reflectune.data_builders.annotators.protocol import Label


@dataclass(frozen=True)
class Agreement:
    """Two annotators' labels of the same cases.

    Attributes:
        cases: How many both gave a label to; where one is unclear, nothing is compared.
        share: Of these, the share that got the same label.
        kappa: Cohen's kappa: agreement beyond what two independent annotators with these frequencies would show; 1 if
            both gave one and the same label to everything.
        first_only: Relevant to the first alone.
        second_only: Relevant to the second alone.
    """

    cases: int
    share: float
    kappa: float
    first_only: int
    second_only: int


@dataclass(frozen=True)
class Correctness:
    """An annotator's labels against the truth. Unclear ones count as not relevant, since no evidence comes of them.

    Attributes:
        cases: How many there are a truth for.
        relevant: How many the annotator calls relevant.
        precision: Of these, the share that are; 0 if there are none.
        recall: Of what is relevant, the share that it found; 0 if nothing is.
        f1: The harmonic mean of both.
        unclear: How many it couldn't judge.
    """

    cases: int
    relevant: int
    precision: float
    recall: float
    f1: float
    unclear: int


def agreement(first: Sequence[Label], second: Sequence[Label]) -> Agreement:
    """How far two annotators agree on the same cases.

    Example:
        >>> agreement(["relevant", "irrelevant"], ["relevant", "relevant"]).share
        0.5
    """
    pairs = Counter(pair for pair in zip(first, second, strict=True) if "unclear" not in pair)
    total = pairs.total()
    if total == 0:
        return Agreement(0, 0.0, 0.0, 0, 0)
    same = sum(count for (one, other), count in pairs.items() if one == other) / total
    by_first, by_second = Counter[str](), Counter[str]()
    for (one, other), count in pairs.items():
        by_first[one] += count
        by_second[other] += count
    chance = sum(by_first[name] * by_second[name] for name in by_first) / total**2
    kappa = 1.0 if chance == 1 else (same - chance) / (1 - chance)
    return Agreement(total, same, kappa, pairs["relevant", "irrelevant"], pairs["irrelevant", "relevant"])


def correctness(labels: Sequence[Label], truth: Sequence[Label]) -> Correctness:
    """Precision and recall of `relevant`; a case whose truth is unclear is left out."""
    known = [(said, true) for said, true in zip(labels, truth, strict=True) if true != "unclear"]
    called = sum(said == "relevant" for said, _ in known)
    there = sum(true == "relevant" for _, true in known)
    both = sum(said == true == "relevant" for said, true in known)
    return Correctness(
        cases=len(known),
        relevant=called,
        precision=both / called if called else 0.0,
        recall=both / there if there else 0.0,
        f1=2 * both / (called + there) if called + there else 0.0,
        unclear=sum(said == "unclear" for said, _ in known),
    )


def table(labels: Mapping[str, Sequence[Label]], truth: Sequence[Label] | None) -> str:
    """Both comparisons as Markdown tables.

    Args:
        labels: By annotator.
        truth: The true labels, None if nobody knows them.
    """
    names = list(labels)
    pairs = [(one, other) for i, one in enumerate(names) for other in names[i + 1 :]]
    lines = ["| annotators | cases | agree | kappa | relevant to the first alone | to the second alone |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for one, other in pairs:
        comparison = agreement(labels[one], labels[other])
        lines.append(
            f"| {one}, {other} | {comparison.cases:,} | {comparison.share:.1%} | {comparison.kappa:.3f} | "
            f"{comparison.first_only:,} | {comparison.second_only:,} |"
        )
    parts = ["\n".join(lines)] if pairs else []
    if truth is not None:
        lines = [
            "| annotator | cases | relevant | unclear | precision | recall | F1 |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for name in names:
            right = correctness(labels[name], truth)
            lines.append(
                f"| {name} | {right.cases:,} | {right.relevant:,} | {right.unclear:,} | {right.precision:.1%} | "
                f"{right.recall:.1%} | {right.f1:.1%} |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
