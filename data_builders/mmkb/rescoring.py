"""Probes' answers judged again by another metric than they were probed with, without the model that gave them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from reflectune.core.types import Question
from reflectune.data_builders.mmkb.config import DeriveConfig
from reflectune.data_builders.probing.records import Probe, Reply
from reflectune.metrics.judging.bem import Bem, load_bem
from reflectune.metrics.judging.judges import PROTOCOLS, Judging, answer_to
from reflectune.metrics.scoring.registry import Metric
from reflectune.metrics.scoring.scoring import Answered, score_answers
from reflectune.models.remote.client import RemoteModel

Said = tuple[str, str]
"""A question's id and an answer to it."""


def judged_again(
    probes: Sequence[Probe], questions: Mapping[str, Question], settings: Mapping[str, Any], config: DeriveConfig
) -> tuple[list[Probe], dict[str, Any]]:
    """The probes by the config's metric, and the settings with what judged them. A judge's replies are kept."""
    said = said_in(probes)
    if config.metric == "judge":
        protocol = PROTOCOLS[config.judge]
        cache = config.llm_cache or str(Path(config.output, "judge.replies.jsonl"))
        with RemoteModel(config.endpoint(), cache) as model:
            worth = by_judge(said, questions, Judging(protocol, config.llm_model, partial(model.texts, what="judge")))
        name = f"judge {config.llm_model} by {protocol.name} (prompt {protocol.prompt_hash})"
    else:
        from reflectune.core.devices import find_device  # torch is slow to import

        bem = load_bem(config.bem, device=str(find_device(config.device))) if config.bem else None
        worth = by_metric(said, questions, cast(Metric, config.metric), bem)
        name = f"{config.metric} (BEM {bem.fingerprint})" if bem else config.metric
    return rescore(probes, worth), {**settings, "metric": name}


def rescore(probes: Sequence[Probe], worth: Mapping[Said, float]) -> list[Probe]:
    """The probes with another worth for every answer; an answer without a word is worth 0, whatever `worth` says."""

    def again(question_id: str, replies: tuple[Reply, ...]) -> tuple[Reply, ...]:
        return tuple(
            dataclasses.replace(reply, correctness=worth[question_id, reply.text] if reply.text.strip() else 0.0)
            for reply in replies
        )

    return [
        dataclasses.replace(
            probe,
            replies=again(probe.question_id, probe.replies),
            documents=tuple(
                dataclasses.replace(document, replies=again(probe.question_id, document.replies))
                for document in probe.documents
            ),
        )
        for probe in probes
    ]


def said_in(probes: Sequence[Probe]) -> list[Said]:
    """What was answered to which question, each pair once, in order; without answers that have no word."""
    return list(
        dict.fromkeys(
            (probe.question_id, reply.text)
            for probe in probes
            for replies in (probe.replies, *(document.replies for document in probe.documents))
            for reply in replies
            if reply.text.strip()
        )
    )


def by_metric(
    said: Sequence[Said], questions: Mapping[str, Question], metric: Metric, bem: Bem | None = None
) -> dict[Said, float]:
    """The official worth of answers, in [0, 1]; BEM reads all of them in batches, and what it can't read is wrong.

    Raises:
        UserError: A question lacks what the metric compares with, or `evqa` is asked for without `bem`.
    """
    answers = [Answered(questions[name], text, f"probe of {name}") for name, text in said]
    values, _ = score_answers(answers, metric, "official", bem, too_long="wrong")
    return dict(zip(said, values.tolist(), strict=True))


def by_judge(said: Sequence[Said], questions: Mapping[str, Question], judging: Judging) -> dict[Said, float]:
    """A judge's verdicts as 1 or 0; a reply that says neither counts as incorrect."""
    judged = judging.judged([answer_to(questions[name], text) for name, text in said])
    return {answer: float(verdict == "correct") for answer, verdict in zip(said, judged.verdicts, strict=True)}
