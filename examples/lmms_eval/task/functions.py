"""Functions by which lmms-eval asks and scores the documents of these tasks."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from reflectune.core.rows import from_row
from reflectune.core.types import Question
from reflectune.metrics.judging.bem import load_bem
from reflectune.metrics.official.infoseek import official_kind, percent_report
from reflectune.metrics.scoring.registry import AnswerMetric, answer_metric

BEM: Final = "REFLECTUNE_BEM"
"""Environment variable that names a converted BEM: with it `encyclopedic_vqa` has the official score too."""


def doc_to_visual(doc: Mapping[str, Any]) -> list[Any]:
    """Return the image."""
    return [doc["image"].convert("RGB")]


def doc_to_text(doc: Mapping[str, Any], lmms_eval_specific_kwargs: Mapping[str, Any] | None = None) -> str:
    """Return the question with the model's own texts before and after it."""
    around = lmms_eval_specific_kwargs or {}
    return f"{around.get('pre_prompt', '')}{doc['question']}{around.get('post_prompt', '')}"


def doc_to_target(doc: Mapping[str, Any]) -> str:
    """Return the accepted answers, for the log."""
    question = _question(doc)
    return " | ".join(question.answers) or str(question.range)


def visual_miniature(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score an answer to a question of `questions.parquet`."""
    return {"accuracy": float(results[0].strip().lower() == doc["answer"].lower())}


def infoseek(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, tuple[str, str, float]]:
    """Return the split, the kind and the score of an answer, from which the official report is computed."""
    question = _question(doc)
    row = (question.split, official_kind(question), answer_metric("infoseek")(results[0].strip(), question))
    return dict.fromkeys(("infoseek", "unseen_question", "unseen_entity"), row)


def infoseek_score(rows: Sequence[tuple[str, str, float]]) -> float:
    """Return InfoSeek's overall score in per cent: the harmonic mean of both splits."""
    return float(percent_report(rows)["final_score"])


def unseen_question(rows: Sequence[tuple[str, str, float]]) -> float:
    """Return the score of unseen questions in per cent."""
    return float(percent_report(rows)["unseen_question_score"]["score"])


def unseen_entity(rows: Sequence[tuple[str, str, float]]) -> float:
    """Return the score of unseen entities in per cent."""
    return float(percent_report(rows)["unseen_entity_score"]["score"])


def encyclopedic_vqa(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score an answer by E-VQA's exact part, a lower bound, and by the official score where BEM is there."""
    question, answer = _question(doc), results[0].strip()
    scores = {"evqa_exact": answer_metric("evqa_exact")(answer, question)}
    if os.environ.get(BEM):
        scores["evqa"] = _official()(answer, question)
    return scores


@functools.cache
def _official() -> AnswerMetric:
    return answer_metric("evqa", bem=load_bem(os.environ[BEM]))


def _question(doc: Mapping[str, Any]) -> Question:
    return from_row(Question, json.loads(doc["reference"]))
