"""Two tables beside the official one: original against repaired answers, and one entity in a picture against two."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reflectune.core.types import Metric, Question
from reflectune.metrics.judging.bem import Bem
from reflectune.metrics.reporting.breakdown import headline, mean, score_rows
from reflectune.metrics.reporting.intervals import paired_bootstrap, permutation_test
from reflectune.metrics.reporting.score_table import compare
from reflectune.metrics.scoring.registry import Mode
from reflectune.metrics.scoring.repairs import Repaired, Repairs
from reflectune.metrics.scoring.scoring import Joined, Scored, score

ANCHOR, SETTING = "anchor", "setting"
"""`Question.meta`: what the questions that differ in their pictures alone have in common, and what a picture shows."""

SETTINGS = ("one_entity", "intra_category", "inter_category")
"""The one entity alone; beside another of its kind (ARA's method 1); beside one of another kind (ARA's method 2)."""

_GROUPS: Mapping[str, Callable[[Repaired], bool]] = {
    "all": lambda repaired: True,
    "answers changed": lambda repaired: repaired.is_answer_changed,
    "reworded, same answers": lambda repaired: repaired.is_reworded and not repaired.is_answer_changed,
    "unchanged": lambda repaired: not (repaired.is_reworded or repaired.is_answer_changed),
}


def repair_table(
    joined: Joined,
    repairs: Repairs,
    metric: Metric,
    mode: Mode,
    bem: Bem | None,
    seed: int,
    asked_again: Joined | None = None,
) -> dict[str, Any]:
    """Scores against the answers before and after repair, of the same predictions.

    The question that a model was asked stays as it is where its answer is scored against the repaired ones, for BEM
    reads it; where the repaired question was asked (`asked_again`), BEM reads that.

    Args:
        joined: The predictions and their questions.
        repairs: What is repaired.
        metric: As in `score`; so are `mode` and `bem`.
        mode: See `metric`.
        bem: See `metric`.
        seed: Of the intervals.
        asked_again: Predictions for the repaired questions, joined to the same data set's.

    Returns:
        `counts`, and `rows`: for each group of questions `n`, `original` and `repaired` (scores with their intervals),
        `difference` (repaired less original, paired by question), and of `asked_again` the score `asked_again` with its
        `asked_again_difference` from `original`.
    """
    original = score(_of(joined, repairs, lambda repaired: repaired.before), metric, mode, bem)
    relabelled = score(_of(joined, repairs, _relabelled), metric, mode, bem)
    again = None
    if asked_again is not None:
        again = score(_of(asked_again, repairs, lambda repaired: repaired.after), metric, mode, bem)
    rows = []
    for name, holds in _GROUPS.items():
        ids = {key for key, repaired in repairs.kept.items() if holds(repaired)}
        before, after = _only(original, ids), _only(relabelled, ids)
        row = {"name": name, "n": len(before.questions), "original": _overall(before, seed)}
        row |= {"repaired": _overall(after, seed), "difference": compare(after, before, seed)}
        if again is not None:
            reasked = _only(again, ids)
            row |= {"asked_again": _overall(reasked, seed), "asked_again_difference": compare(reasked, before, seed)}
        rows.append(row)
    return {"file": str(repairs.path), "counts": _counts(joined, repairs), "rows": rows}


def setting_table(scored: Scored, seed: int) -> list[dict[str, Any]]:
    """Scores by what a picture shows beside the entity that is asked about; [] where no question says it.

    Returns:
        A row for each of `SETTINGS` that there is: `name`, `score`, and `difference` from the same questions over a
        picture of the one entity (`value`, `low`, `high`, `p`, `n`), None for those themselves or where none was asked.
    """
    values: dict[str, dict[str, float]] = {}
    for question, value in zip(scored.questions, scored.values.tolist(), strict=True):
        if SETTING in question.meta:
            values.setdefault(question.meta[SETTING], {}).setdefault(question.meta[ANCHOR], value)
    alone = values.get(SETTINGS[0], {})
    return [
        {"name": name, "score": mean(list(values[name].values()), seed), "difference": _less(values[name], alone, seed)}
        if name != SETTINGS[0]
        else {"name": name, "score": mean(list(alone.values()), seed), "difference": None}
        for name in SETTINGS
        if name in values
    ]


def repair_lines(table: Mapping[str, Any]) -> Iterator[str]:
    """The table of original and repaired answers, for a terminal."""
    counts = table["counts"]
    yield (
        f"  repaired by {table['file']}: {counts['repaired']} questions, {counts['answers_changed']} with other "
        f"answers, {counts['reworded']} reworded, {counts['unanswered']} without a prediction; {counts['dropped']} "
        f"dropped, {counts['unknown']} of no question here"
    )
    has_again = any("asked_again" in row for row in table["rows"])
    heads = [
        "n",
        "original",
        "repaired",
        "difference [95 %]",
        *(["asked again", "difference [95 %]"] if has_again else []),
    ]
    yield "  " + "".join([f"{'':<26}", f"{heads[0]:>6}", *(f"{head:>26}" for head in heads[1:])])
    for row in table["rows"]:
        cells = [_cell(row["original"]), _cell(row["repaired"]), _points(row["difference"])]
        cells += [_cell(row["asked_again"]), _points(row["asked_again_difference"])] if has_again else []
        yield "  " + "".join([f"{row['name']:<26}", f"{row['n']:>6}", *(f"{cell:>26}" for cell in cells)])


def setting_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The table of one and of several entities, for a terminal."""
    if rows:
        yield f"  {'entities in the picture':<28}{'score':>26}{'less one entity [95 %]':>32}"
    for row in rows:
        told = _points(row["difference"]) if row["difference"] else "–"
        yield f"  {row['name'].replace('_', ' '):<28}{_cell(row['score']):>26}{told:>32}"


def _of(joined: Joined, repairs: Repairs, of: Callable[[Repaired], Question]) -> Joined:
    """The predictions and missing questions that are repaired, each question as `of` has it."""
    kept = repairs.kept
    return dataclasses.replace(
        joined,
        pairs=tuple((of(kept[q.id]), prediction) for q, prediction in joined.pairs if q.id in kept),
        missing=tuple(of(kept[q.id]) for q in joined.missing if q.id in kept),
        doubled=(),
    )


def _relabelled(repaired: Repaired) -> Question:
    return dataclasses.replace(repaired.after, text=repaired.before.text)


def _only(scored: Scored, ids: set[str]) -> Scored:
    places = [place for place, question in enumerate(scored.questions) if question.id in ids]
    return dataclasses.replace(
        scored, questions=tuple(scored.questions[place] for place in places), values=scored.values[places]
    )


def _overall(scored: Scored, seed: int) -> dict[str, Any] | None:
    first = headline(scored.metric, scored.questions)
    return score_rows(first.rows(scored.values), seed, first.statistic, strata=first.half)


def _counts(joined: Joined, repairs: Repairs) -> dict[str, int]:
    repaired = repairs.kept.values()
    missing = {question.id for question in joined.missing}
    return {
        "repaired": len(repairs.kept),
        "answers_changed": sum(one.is_answer_changed for one in repaired),
        "reworded": sum(one.is_reworded for one in repaired),
        "dropped": len(repairs.dropped),
        "unanswered": len(missing & repairs.kept.keys()),
        "unknown": repairs.unknown,
    }


def _less(values: Mapping[str, float], alone: Mapping[str, float], seed: int) -> dict[str, Any] | None:
    common = [key for key in values if key in alone]
    if not common:
        return None
    first, second = (np.array([side[key] for key in common]) for side in (values, alone))
    difference = paired_bootstrap(first, second, seed=seed)
    p = permutation_test(first, second, seed=seed)
    ends = {"value": difference.value, "low": difference.low, "high": difference.high}
    return {**ends, "p": p, "n": len(common)}


def _cell(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value['value']:.2f} % [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"


def _points(delta: Mapping[str, Any]) -> str:
    if delta["value"] is None:
        return "–"
    return f"{100 * delta['value']:+.2f} [{100 * delta['low']:+.2f}, {100 * delta['high']:+.2f}]"
