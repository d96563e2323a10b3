"""Compute `metrics.json` from traces: official scores, each decision by itself, and rankings, with intervals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reflectune.core.hashing import fingerprint
from reflectune.core.types import Question
from reflectune.inference.pipelines.diagnostics import SEVERAL, attribute_of
from reflectune.inference.pipelines.recipe import CONTROLS, TUNED_BASELINES
from reflectune.inference.pipelines.registry import all_forms, find_recipe, iterative, reflecting
from reflectune.inference.reading.ranking import FULL, RANKINGS
from reflectune.inference.scoring.calibration import calibration, gate_rows
from reflectune.inference.scoring.reflection_metrics import reflection
from reflectune.inference.scoring.scores import Traces, TraceScorer, traces_of_reflecting
from reflectune.inference.scoring.seeds import parts_over_seeds, record_of
from reflectune.inference.scoring.trajectories import costs, replies, trajectories
from reflectune.inference.scoring.variants import noise, saturation_curve, stop_rule
from reflectune.inference.trace import TextlessPassage, TextlessTrace
from reflectune.metrics.reporting.breakdown import OVERALL, Score, auroc, by_label, mean, score_rows
from reflectune.metrics.reporting.intervals import Statistic, units
from reflectune.metrics.reporting.retrieval import article_recall_at_k
from reflectune.models.schemes.calibration import GateScaling

BEST_BASELINE, BEST_OF_ALL = BESTS = "best_baseline", "best_of_all"
"""Rows of tables: the strongest baseline, and if controls were run, the strongest of baselines and controls."""


def baselines() -> tuple[str, ...]:
    """Return the baselines at equal depth: they read at most `top_n` entries, and are not oracles."""
    forms = all_forms()
    tuned = (name for name in forms[TUNED_BASELINES] if name.removesuffix("_tuned") not in forms["oracle"])
    return (*forms["closed_book"], *forms["naive_rag"], *tuned)


def evaluate(
    questions: Sequence[Question],
    traces: Traces,
    *,
    measure: TraceScorer,
    gamma: float,
    seed: int,
    groups: Sequence[str] = (),
    scalings: Mapping[str, GateScaling] = {},
    names: Mapping[str, Sequence[str]] = {},
) -> dict[str, Any]:
    """Compute all scores of a run.

    Args:
        traces: By pipeline or stage, then by question id.
        measure: Scorer of answers; selects the scored questions.
        groups: See `labels_of`.
        scalings: Scalings that the gates were read with, by the gate's name.
        names: Names of each question's entities, by its id.

    Returns:
        The content of metrics.json without `budgets`, `minutes` and `peak_gib`. A score is `{"value", "low", "high",
        "n"}`, a fraction of 1 with its 95 % interval over entities (`resampled`); None without such questions.
    """
    official = measure.official(questions)
    measure.read(questions, traces.values())
    pipelines = {name: pipeline_traces for name, pipeline_traces in traces.items() if find_recipe(name).form}
    tables = {name: _table(official, pipeline_traces, measure, seed) for name, pipeline_traces in pipelines.items()}
    controls, headline = [name for name in all_forms()[CONTROLS] if name in tables], measure.headline(official)
    best = {BEST_BASELINE: _strongest(tables, baselines(), headline)}
    best[BEST_OF_ALL] = _strongest(tables, (*baselines(), *controls), headline) if controls else None
    record = record_of(official, pipelines, groups, measure)
    by_group = parts_over_seeds({"": record}, best[BEST_BASELINE] or "", seed=seed)["parts"] if groups else {}
    for title, name in best.items():
        if name:
            tables[title], pipelines[title] = tables[name], pipelines[name]
    probed = traces.get("relevance", {})
    return {
        "metric": measure.facts(official),
        "resampled": units(official),
        "questions": fingerprint(sorted((question.id, question.text) for question in official)),
        "pipelines": tables,
        "gate": _gate(questions, traces_of_reflecting(traces, "relevance"), gamma, seed),
        "relevance": _relevance([q for q in official if q.id in probed], probed, seed),
        **_readers(questions, traces, measure, seed),
        "retrieval": _retrieval(official, traces.get("retrieval", {}), seed),
        "rankings": _rankings(official, traces.get("mr2ag", {}), measure, seed),
        "reflection": reflection(questions, traces, measure=measure, gamma=gamma, seed=seed),
        "calibration": calibration(questions, traces, measure=measure, seed=seed, scalings=scalings),
        "comparisons": _comparisons(official, pipelines, measure, seed),
        "groups": by_group,
        "two_hop": {name: measure.mean(measure.two_hop(questions), made, seed) for name, made in pipelines.items()},
        "by_split": {name: _by_split(questions, made, measure, seed) for name, made in pipelines.items()},
        "costs": {name: costs(_scored(official, pipeline_traces)) for name, pipeline_traces in pipelines.items()},
        "replies": {name: counts for name, made in pipelines.items() if (counts := replies(made))},
        "trajectories": trajectories(official, pipelines, seed=seed, measure=measure, names=names),
        "saturation": saturation_curve(official, pipelines, measure=measure),
        "stop_rule": stop_rule(official, pipelines, measure=measure, seed=seed),
        "noise": noise(pipelines),
        "coverage": {name: _coverage(questions, made) for name, made in pipelines.items()},
        **best,
        "too_long_for_bem": list(measure.too_long),
    }


def _scored(official: Sequence[Question], traces: Mapping[str, TextlessTrace]) -> Mapping[str, TextlessTrace]:
    """Return the traces of the scored questions, or of all if none is scored. Unscored ones would lower mean costs."""
    return {question.id: traces[question.id] for question in official if question.id in traces} or traces


def _table(
    questions: Sequence[Question], traces: Mapping[str, TextlessTrace], measure: TraceScorer, seed: int
) -> dict[str, Any]:
    answered = [q for q in questions if q.id in traces]
    values = np.array(measure.correct(answered, traces))
    kinds = [measure.kind(q) for q in answered]
    return {**measure.breakdown(answered, values, seed), "by_type": by_label(answered, values, kinds, seed)}


def _strongest(tables: Mapping[str, Any], names: Iterable[str], headline: str) -> str | None:
    """Return the pipeline with the highest score in this column. Selection on the test questions favours it."""
    scores = {name: score["value"] for name in names if name in tables and (score := tables[name].get(headline))}
    return max(scores, key=lambda name: scores[name]) if scores else None


def _readers(questions: Sequence[Question], traces: Traces, measure: TraceScorer, seed: int) -> dict[str, Any]:
    """Score answers from gold passages and articles, and to visual questions."""
    official, visual = measure.official(questions), measure.visual(questions)
    with_evidence = [question for question in official if question.evidence]
    read = {key: trace for key, trace in traces.get("relevance", {}).items() if trace.chosen is not None}
    return {
        "answer": {
            "gold_passage": measure.mean(official, read, seed),
            "gold_article": measure.mean(with_evidence, traces.get("oracle_article", {}), seed),
        },
        "visual": {
            "tuned": measure.mean(visual, traces_of_reflecting(traces), seed),
            "base": measure.mean(visual, traces.get("closed_book", {}), seed),
        },
    }


def _gate(
    questions: Sequence[Question], traces: Mapping[str, TextlessTrace], gamma: float, seed: int
) -> dict[str, Any]:
    decided = [question for question in questions if gate_rows([question], traces)]
    rows = np.array(gate_rows(decided, traces), dtype=float).reshape(-1, 2)
    return {
        "accuracy": mean(decided, (rows[:, 0] >= gamma) == (rows[:, 1] == 1), seed),
        "auroc": auroc(decided, rows, seed),
    }


def _relevance(questions: Sequence[Question], traces: Mapping[str, TextlessTrace], seed: int) -> dict[str, Any]:
    passages = [passage for question in questions for passage in traces[question.id].passages]
    attributes = sorted({a for p in passages if (a := attribute_of(p.source)) and a != SEVERAL})

    def judged(negative: Callable[[TextlessPassage], bool], statistic: Statistic) -> Score | None:
        counted = [(q, row) for q in questions if (row := _judged(traces[q.id], negative))]
        return score_rows([q for q, _ in counted], np.array([row for _, row in counted], float), seed, statistic)

    return {
        "within_article": judged(lambda p: p.source == "same_article", _balanced),
        "look_alikes": judged(lambda p: attribute_of(p.source) is not None, _balanced),
        "by_attribute": {name: judged(_differs_in(name), _rejected) for name in attributes},
    }


def _differs_in(attribute: str) -> Callable[[TextlessPassage], bool]:
    return lambda passage: attribute_of(passage.source) == attribute


def _judged(trace: TextlessTrace, negative: Callable[[TextlessPassage], bool]) -> tuple[int, int, int, int] | None:
    """Count gold passages accepted, gold passages, negatives rejected and negatives; None without gold or negatives."""
    gold = [p.relevant for p in trace.passages if p.source == "gold"]
    others = [not p.relevant for p in trace.passages if negative(p)]
    return (sum(gold), len(gold), sum(others), len(others)) if gold and others else None


def _rejected(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the share of negatives rejected, of rows of `_judged`."""
    return (weights @ rows[:, 2]) / (weights @ rows[:, 3])


def _balanced(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean of the shares of gold passages accepted and of negatives rejected."""
    return ((weights @ rows[:, 0]) / (weights @ rows[:, 1]) + _rejected(rows, weights)) / 2


def _retrieval(
    questions: Sequence[Question], traces: Mapping[str, TextlessTrace], seed: int
) -> dict[str, Score | None]:
    known = [q for q in questions if q.id in traces and q.entity_ids and not traces[q.id].error]
    found = [([hit.entry_id for hit in traces[q.id].hits], q.entity_ids) for q in known]
    return {f"article_recall@{k}": mean(known, [article_recall_at_k(*row, k) for row in found], seed) for k in (1, 5)}


def _rankings(
    questions: Sequence[Question], traces: Mapping[str, TextlessTrace], measure: TraceScorer, seed: int
) -> dict[str, Any] | None:
    """Score mR²AG's candidates under each ranking (Table 5 of the paper); `random` in expectation."""
    answered = [q for q in questions if q.id in traces]
    if not answered:
        return None
    expected = np.array([measure.expectations(q, traces[q.id], RANKINGS) for q in answered])
    right = dict(zip(RANKINGS, expected.T.copy(), strict=True))
    table = {name: measure.breakdown(answered, values, seed) for name, values in right.items()}
    names = (OVERALL, *(column.name for column in measure.columns(answered)))
    columns = [name for name in names if table["random"][name] is not None]
    return {
        "scores": table,
        "full_product_leads": {
            column: {
                name: measure.difference(answered, right[FULL], values, seed, column)
                for name, values in right.items()
                if name != FULL
            }
            for column in columns
        },
    }


def _comparisons(
    questions: Sequence[Question], pipelines: Traces, measure: TraceScorer, seed: int
) -> dict[str, dict[str, Any] | None]:
    """Compare reflecting and iterative pipelines with baselines and controls by headline score, paired by question."""
    pairs = itertools.product((*reflecting(), *iterative()), (*BESTS, *baselines(), *all_forms()[CONTROLS]))
    table: dict[str, dict[str, Any] | None] = {}
    for name, other in pairs:
        if {name, other} <= set(pipelines):
            both = [q for q in questions if q.id in pipelines[name] and q.id in pipelines[other]]
            first, second = (measure.correct(both, pipelines[key]) for key in (name, other))
            table[f"{name} - {other}"] = measure.difference(both, first, second, seed)
    return table


def _by_split(
    questions: Sequence[Question], traces: Mapping[str, TextlessTrace], measure: TraceScorer, seed: int
) -> dict[str, Score | None]:
    known = [q for q in questions if q.is_knowledge_based is not False and measure.has_truth(q)]
    splits = sorted({q.split for q in known})
    return {split: measure.mean([q for q in known if q.split == split], traces, seed) for split in splits}


def _coverage(questions: Sequence[Question], traces: Mapping[str, TextlessTrace]) -> float | None:
    """Return the share of a pipeline's questions that have an answer, right or wrong."""
    taken = [traces[q.id] for q in questions if q.id in traces]
    return sum(bool(trace.answer) and not trace.error for trace in taken) / len(taken) if taken else None
