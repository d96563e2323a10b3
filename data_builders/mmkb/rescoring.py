"""Score the answers of probes by a different metric, without the model that gave them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from reflectune.core.types import Metric, Question
from reflectune.data_builders.probing.records import Probe, ProbedAnswer
from reflectune.metrics.judging.bem import Bem
from reflectune.metrics.judging.judges import Judging, answer_to
from reflectune.metrics.scoring.scoring import Answered, score_answers

QuestionAnswer = tuple[str, str]
"""A question's id and an answer to it."""


def rescore(probes: Sequence[Probe], scores: Mapping[QuestionAnswer, float]) -> list[Probe]:
    """Return the probes with new scores. An answer without a word scores 0."""

    def rescored(question_id: str, replies: tuple[ProbedAnswer, ...]) -> tuple[ProbedAnswer, ...]:
        return tuple(
            dataclasses.replace(reply, correctness=scores[question_id, reply.text] if reply.text.strip() else 0.0)
            for reply in replies
        )

    return [
        dataclasses.replace(
            probe,
            replies=rescored(probe.question_id, probe.replies),
            documents=tuple(
                dataclasses.replace(document, replies=rescored(probe.question_id, document.replies))
                for document in probe.documents
            ),
        )
        for probe in probes
    ]


def answers_of(probes: Sequence[Probe]) -> list[QuestionAnswer]:
    """Return each different pair of question and answer once, in order, without answers that have no word."""
    return list(
        dict.fromkeys(
            (probe.question_id, reply.text)
            for probe in probes
            for replies in (probe.replies, *(document.replies for document in probe.documents))
            for reply in replies
            if reply.text.strip()
        )
    )


def score_by_metric(
    answers: Sequence[QuestionAnswer], questions: Mapping[str, Question], metric: Metric, bem: Bem | None = None
) -> dict[QuestionAnswer, float]:
    """Return the official scores of answers, in [0, 1]. An answer too long for BEM is wrong.

    Raises:
        UserError: A question lacks the reference that the metric needs, or `evqa` lacks `bem`.
    """
    answered = [Answered(questions[name], text, f"probe of {name}") for name, text in answers]
    values, _ = score_answers(answered, metric, "official", bem, too_long="wrong")
    return dict(zip(answers, values.tolist(), strict=True))


def score_by_judge(
    answers: Sequence[QuestionAnswer], questions: Mapping[str, Question], judging: Judging
) -> dict[QuestionAnswer, float]:
    """Return a judge's verdicts as 1 or 0. A reply that is neither verdict counts as incorrect."""
    judged = judging.judged([answer_to(questions[name], text) for name, text in answers])
    return {answer: float(verdict == "correct") for answer, verdict in zip(answers, judged.verdicts, strict=True)}
