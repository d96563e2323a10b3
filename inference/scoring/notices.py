"""Notices at the top of a report: questions left out, failures, and limits of the data or the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reflectune.core.types import Question
from reflectune.inference.scoring.scores import Traces, TraceScorer, traces_of_reflecting
from reflectune.inference.scoring.trajectories import reply_sentences
from reflectune.metrics.official.vqa import CANNOT_MATCH, can_match

MINIATURE_PARAMETERS = 50_000_000
"""Models with fewer parameters are miniatures, which know only the drawn world."""


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model for a report; `tuned_on` are the contexts of a plain model's training data, if known."""

    role: str
    name: str
    fingerprint: str
    parameters: int
    tuned_on: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}, {self.parameters / 1e6:.1f} M parameters, fingerprint {self.fingerprint}"


def notices(
    questions: Sequence[Question],
    traces: Traces,
    metrics: Mapping[str, Any],
    manifest: Mapping[str, Any],
    models: Sequence[ModelFacts],
    measure: TraceScorer,
) -> list[str]:
    """Return sentences for the top of a report; none if everything could be measured.

    Args:
        traces: By pipeline or stage, then by question id.
        metrics: The content of metrics.json.
        manifest: The data set's manifest; a drawn world's has `looks`.
        models: The models that were run.
        measure: Scorer of answers; selects the scored questions.
    """
    sentences = []
    drawn = bool(manifest.get("looks"))
    if any(model.parameters < MINIATURE_PARAMETERS for model in models):
        sentences.append(
            "Miniature numbers: a model of this size knows only the drawn world. They show that the mechanism works "
            "and are not comparable with a paper's."
            if drawn
            else "A miniature model was run on data that it wasn't made for. Its answers are not expected to be right; "
            "this run shows only that everything works on such data."
        )
    sentences += _left_out(questions, traces, metrics, measure)
    sentences += _reflection(traces, metrics["reflection"])
    sentences += _nothing_found(traces)
    sentences += _cut_short(traces)
    sentences += _cut_off(traces)
    sentences += reply_sentences(metrics)
    sentences += cut_query_sentences(traces)
    sentences += _failures(traces)
    return sentences


def _left_out(
    questions: Sequence[Question], traces: Traces, metrics: Mapping[str, Any], measure: TraceScorer
) -> list[str]:
    sentences = []
    official = measure.official(questions)
    if traces_of_reflecting(traces, "relevance"):
        if not any(q.evidence for q in official):
            sentences.append(
                "The data set has no gold evidence: relevance, and answers from the gold passage, are left out."
            )
        elif metrics["relevance"]["look_alikes"] is None:
            sentences.append("The data set doesn't list look-alikes: relevance against look-alikes is left out.")
        if not any(q.is_knowledge_based is False for q in questions):
            sentences.append("No question is marked as visual-dependent: the gate is not measured on such questions.")
    if measure.metric == "infoseek" and not any(table["overall"] for table in metrics["pipelines"].values()):
        sentences.append(
            "The official overall score needs questions of both an unseen_question and an unseen_entity split; it is "
            "left out."
        )
    if measure.metric == "vqa" and (lost := sum(bool(q.answers) and not can_match(q.answers) for q in official)):
        sentences.append(f"{lost} questions have {CANNOT_MATCH}.")
    if measure.metric == "evqa_exact":
        sentences.append("E-VQA's score without BEM is a lower bound of the official one.")
    if metrics["too_long_for_bem"]:
        sentences.append(
            f"{len(metrics['too_long_for_bem'])} questions had an answer too long for BEM, counted as wrong."
        )
    unknown = sum(not measure.has_truth(q) for q in questions)
    if unknown:
        sentences.append(f"{unknown} questions have no answer that this metric can score: none known, or free text.")
    return sentences


def _reflection(traces: Traces, reflection: Mapping[str, Any] | None) -> list[str]:
    """Return sentences on MMKB-RAG's missing measurements, and on malformed replies of MCT."""
    if reflection is None:
        return []
    sentences = []
    if "closed_book" not in traces:
        sentences.append("closed_book was not run: RET is not measured, since it predicts the base model's errors.")
    if not (reflection["srt"]["overall"]["stating_first"] or {}).get("n"):
        sentences.append("No document is known to state an accepted answer: SRT's order is not measured.")
    mct = reflection["mct"]
    if mct["malformed"]:
        kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in mct["problems"].items() if count)
        sentences.append(
            f"{mct['malformed']} of {mct['replies']} replies of MCT were malformed ({kinds}): SRT's order held."
        )
    return sentences


def _nothing_found(traces: Traces) -> list[str]:
    """Return the number of questions whose images have no entry, e.g. images that ranked entities don't list."""
    searched = [trace for trace in traces.get("retrieval", {}).values() if trace.retrieved]
    count = sum(not trace.hits for trace in searched)
    return [f"For {count} of {len(searched)} questions no entry was found."] if count else []


def _cut_short(traces: Traces) -> list[str]:
    sentences = []
    for name, pipeline_traces in traces.items():
        ended = Counter(trace.ended for trace in pipeline_traces.values() if trace.limit)
        if ended:
            reasons = "; ".join(f"{reason}: {count}" for reason, count in ended.most_common())
            sentences.append(
                f"{name}: {ended.total()} of {len(pipeline_traces)} questions reached a budget ({reasons}) and were "
                "answered from what had been found. Raise the budget and run the command again to continue them."
            )
    return sentences


def _cut_off(traces: Traces) -> list[str]:
    """Return the number of truncated answers of each pipeline without steps; for others see `reply_sentences`."""
    counts = {
        name: sum(trace.cut for trace in pipeline_traces.values() if not trace.steps)
        for name, pipeline_traces in traces.items()
    }
    return [
        f"{name}: {count} of {len(traces[name])} answers were truncated at `max_new_tokens`."
        for name, count in counts.items()
        if count
    ]


def cut_query_sentences(traces: Traces) -> list[str]:
    """Return the number of queries that an encoder truncated, by pipeline."""
    sentences = []
    for name, pipeline_traces in traces.items():
        counts = Counter[str]()
        for trace in pipeline_traces.values():
            counts.update({key: trace.tokens.get(key, 0) for key in ("queries_cut", "compared_cut", "searches")})
        if counts["queries_cut"] or counts["compared_cut"]:
            sentences.append(
                f"{name}: {counts['queries_cut']:,} of {counts['searches']:,} searches, and {counts['compared_cut']:,} "
                "comparisons, had a query longer than its encoder's maximum length, which was truncated. Two such "
                "queries may look equal. An encoder for long texts is `pair:IMAGE+TEXT`."
            )
    return sentences


def _failures(traces: Traces) -> list[str]:
    sentences = []
    for name, pipeline_traces in traces.items():
        failed = [trace for trace in pipeline_traces.values() if trace.error]
        if failed:
            shown = "; ".join(f"{trace.question_id}: {trace.error}" for trace in failed[:3])
            more = " …" if len(failed) > 3 else ""
            sentences.append(
                f"{name}: {len(failed)} question{'s' * (len(failed) > 1)} failed, counted as wrong. {shown}{more}"
            )
    return sentences
