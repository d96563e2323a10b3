"""Report all scores of prediction files as one JSON value, and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.types import Metric, Question
from reflectune.metrics.judging.bem import Bem
from reflectune.metrics.judging.judges import Judge, answer_to
from reflectune.metrics.official.vqa import CANNOT_MATCH, can_match
from reflectune.metrics.reporting.intervals import units
from reflectune.metrics.reporting.score_table import compare, retrieval_table, table
from reflectune.metrics.scoring.predictions import prediction_files, read_predictions
from reflectune.metrics.scoring.registry import Mode, evqa_candidate
from reflectune.metrics.scoring.scoring import Joined, Scored, join, score


def score_files(
    paths: Sequence[Path],
    questions: Sequence[Question],
    metric: Metric,
    mode: Mode,
    bem: Bem | None = None,
    judge: Judge | None = None,
    *,
    answered_splits_only: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Score one prediction file, or two and their difference.

    Args:
        paths: The file, and one to compare it with.
        questions: The data set's questions.
        metric: See `reflectune.metrics.scoring.scoring.score`.
        mode: `official` or `strict`.
        bem: For `evqa`.
        judge: Adds its verdicts to each file's scores.
        answered_splits_only: Leave out splits without a prediction in the first file.
        seed: Seed of the intervals and the paired test.
    """
    report: dict[str, Any] = {"metric": metric, "mode": mode, "seed": seed, "runs": []}
    if bem is not None:
        report["bem"] = {"name": bem.name, "fingerprint": bem.fingerprint}
    files = [read_predictions(path) for path in paths]
    if answered_splits_only:
        known = join(files[0].rows, questions, "official", metric)
        splits = {question.split for question, _ in (*known.pairs, *known.left_out)}
        questions = [question for question in questions if question.split in splits]
    report["splits"] = sorted({question.split for question in questions})
    scored: list[Scored] = []
    for path, file in zip(paths, files, strict=True):
        joined = join(file.rows, questions, mode, metric)
        _check_joined(path, joined, metric)
        run: dict[str, Any] = {
            "predictions": str(path),
            "layout": file.layout,
            "counts": joined.counts,
            "fingerprint": file_fingerprint(*prediction_files(path)),
            "retrieval": retrieval_table(file, joined, mode),
        }
        if file.layout != "echosight_retrieval":
            scored.append(score(joined, metric, mode, bem))
            run["scores"] = table(scored[-1], seed)
            run["resampled"] = units(scored[-1].questions)
            run["connected_lists"] = _connected_lists(joined, metric)
            run["unmatchable"] = (
                sum(bool(q.answers) and not can_match(q.answers) for q, _ in joined.pairs) if metric == "vqa" else 0
            )
            if judge is not None:
                verdicts = judge.verdicts([answer_to(q, str(p.answer)) for q, p in joined.pairs])
                run["judge"] = judge.summary(verdicts, missing=len(joined.missing))
        report["runs"].append(run)
    if len(scored) == 2:
        first, second = scored
        report["difference"] = compare(first, second, seed=seed)
    return report


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield printable lines: scores in %, intervals, coverage."""
    yield f"splits: {', '.join(report['splits']) or '(none)'}"
    for run in report["runs"]:
        counts = run["counts"]
        yield f"{run['predictions']} ({run['layout']}), {report['metric']}, {report['mode']} mode"
        yield (
            f"  coverage {_percent(counts['coverage'])}: {counts['questions']} questions, {counts['missing']} missing, "
            f"{counts['doubled']} doubled, {counts['unknown']} of no known question, {counts['left_out']} left out "
            "(visual, two-hop in InfoSeek, or without answers to compare with)"
        )
        if "resampled" in run:
            yield f"  in brackets 95 % intervals over {run['resampled']}"
        yield from _score_lines(run.get("scores", {}))
        if run.get("connected_lists"):
            yield f"  `&&` was read as a comma in {run['connected_lists']} answers; official code splits at commas"
        if run.get("unmatchable"):
            yield f"  {run['unmatchable']} questions have {CANNOT_MATCH}"
        yield from _judge_lines(run.get("judge"))
        yield from _retrieval_lines(run["retrieval"])
    if "difference" in report:
        yield _difference_line(report["difference"])


def _check_joined(path: Path, joined: Joined, metric: Metric) -> None:
    """Refuse a file without a prediction to score."""
    if joined.unknown and not joined.pairs and not joined.left_out:
        raise UserError(
            f"{path}: none of its {len(joined.unknown):,} ids is a question of the data set, the first at "
            f"{joined.unknown[0].where}; is it the file of a different data set or split?"
        )
    if joined.left_out and not joined.pairs:
        raise UserError(
            f"{path}: {metric} scores none of its questions: they are visual, or have no answers to compare"
        )


def _connected_lists(joined: Joined, metric: Metric) -> int:
    """Return the number of answers in which `&&` is read as a comma for the official code."""
    if metric not in ("evqa", "evqa_exact"):
        return 0
    return sum(evqa_candidate(str(p.answer), q) != p.answer for q, p in joined.pairs)


def _judge_lines(verdicts: Mapping[str, Any] | None) -> Iterator[str]:
    if verdicts is not None:
        yield (
            f"  judge {verdicts['judge']} by {verdicts['protocol']} (prompt {verdicts['prompt_hash']}, temperature 0): "
            f"{_percent(verdicts['accuracy_strict'])} of all, {_percent(verdicts['accuracy_official'])} of parsed "
            f"replies; {verdicts['correct']} correct, {verdicts['incorrect']} incorrect, "
            f"{verdicts['unparsed']} unparsed replies"
        )


def _score_lines(scores: Mapping[str, Any]) -> Iterator[str]:
    rows = [("overall", scores["overall"])] if "overall" in scores else []
    rows += [(title, scores[name]) for name, title in scores.get("columns", {}).items()]
    parts = {**scores.get("by_split", {}), **scores.get("by_type", {})}
    rows += [(name, value) for name, value in parts.items() if name not in scores["columns"].values()]
    for name, value in rows:
        yield f"  {name:<28}{_interval(value)}"
    if (report := scores.get("official_report")) is not None:
        halves = (report["unseen_question_score"]["score"], report["unseen_entity_score"]["score"])
        yield (
            f"  as the official script prints it: final {report['final_score']}, unseen question {halves[0]}, "
            f"unseen entity {halves[1]}"
        )
    if (long := scores.get("too_long_for_bem")) is not None:
        yield f"  counted wrong, too long for BEM: {len(long)} answers, e.g. of {long[0]}"


def _retrieval_lines(recalls: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"  {name:<28}{_percent(value)}" for name, value in recalls.items() if isinstance(value, float))
    for number, step in enumerate(recalls.get("entity_mention_recall_by_iteration", []), start=1):
        parts = ", ".join(f"{name} {_percent(value)}" for name, value in step.items())
        yield f"    until iteration {number}: {parts}"


def _difference_line(delta: Mapping[str, Any]) -> str:
    if delta["value"] is None:
        return "difference: no question was answered by both"
    points = ", ".join(f"{100 * delta[key]:+.2f}" for key in ("low", "high"))
    return (
        f"difference, first less second: {100 * delta['value']:+.2f} points, {delta['of'].replace('_', ' ')} (95 % "
        f"interval {points}), paired test p = {delta['p']:.4f}; on {delta['n']} questions, "
        f"better on {delta['better']}, worse on {delta['worse']}"
    )


def _interval(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "–  (no such questions, or of InfoSeek's halves only one)"
    return f"{_percent(value['value'])}  [{_percent(value['low'])}, {_percent(value['high'])}]  n = {value['n']}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"
