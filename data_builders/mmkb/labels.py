"""MMKB-RAG's training data from probes: derive labels, draw the ones to train on, and assemble the examples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from reflectune.core.config import setting
from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.data_builders.mmkb.mct import MctLabel, MixingSettings, RelScores, mct_label
from reflectune.data_builders.probing.labels import RetLabel, Rule, SrtLabel, external_labels, ret_label, srt_labels
from reflectune.data_builders.probing.records import Probe
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample
from reflectune.models.schemes.mct import write_reply

T = TypeVar("T")


@dataclass(frozen=True)
class Labels:
    """Labels of the three tasks, in the order of the probes.

    Attributes:
        ret: Labels of questions.
        srt: Labels of documents.
        mct: Labels of mixed lists.
        without_summary: Number of questions left out of `mct`, since their relevant documents have no common summary.
    """

    ret: Sequence[RetLabel] = ()
    srt: Sequence[SrtLabel] = ()
    mct: Sequence[MctLabel] = ()
    without_summary: int = 0


@dataclass(frozen=True)
class LabelLimits:
    """Balance and number of the labels of one task.

    Attributes:
        balance: Most labels of the frequent kind for each of the rare kind, at least 1; None takes all. If one kind
            never occurs, all are taken.
        limit: Most labels in all, after balancing; None takes all. A higher limit adds to the draw of a lower one.
        seed: Seed of the draws.
    """

    balance: float | None = None
    limit: int | None = None
    seed: int = 0


class LabelSettings(Rule, MixingSettings):
    """Settings that determine the labels, given the probes."""

    labeller: Literal["probes", "string"] = setting(
        "probes", "labeller of documents: the model's own answers, or string (the document states an accepted answer)"
    )
    srt_visual: bool = setting(True, "label the documents of visual-dependent questions too; they are all [NoRel]")
    ret_balance: float | None = setting(None, "RET: most labels of the frequent kind per rare one", ge=1)
    srt_balance: float | None = setting(None, "SRT: most labels of the frequent kind per rare one", ge=1)
    ret_limit: int | None = setting(None, "RET: most examples, drawn by seed", ge=1)
    srt_limit: int | None = setting(None, "SRT: most examples, drawn by seed", ge=1)
    mct_limit: int | None = setting(None, "MCT: most examples, drawn by seed", ge=1)
    answer_model: Literal["separate", "shared"] = setting(
        "separate", "shared: train to answer too, without documents or with the relevant ones"
    )


def derive(
    probes: Sequence[Probe],
    questions: Mapping[str, Question],
    settings: LabelSettings,
    *,
    summaries: bool = True,
    rel_scores: RelScores | None = None,
) -> Labels:
    """Derive all labels.

    Args:
        probes: The probes.
        questions: The questions by id.
        settings: Rules and composition.
        summaries: Require a summary for MCT. If False, MCT's replies are numbers only.
        rel_scores: Scores that order MCT's reply; None takes the retriever's.
    """
    rule, mixing = Rule.of(settings), MixingSettings.of(settings)
    rets: list[RetLabel] = []
    srts: list[SrtLabel] = []
    mcts: list[MctLabel] = []
    without_summary = 0
    for probe in probes:
        if probe.problem:
            continue
        if (ret := ret_label(probe, rule)) is not None:
            rets.append(ret)
        question = questions[probe.question_id]
        if question.is_knowledge_based is False and not settings.srt_visual:
            continue
        srt = external_labels(probe, question) if settings.labeller == "string" else srt_labels(probe, rule)
        srts.extend(srt)
        mct = mct_label(probe, srt, rule, mixing, rel_scores)
        if mct is not None and (mct.summary or not summaries):
            mcts.append(mct)
        without_summary += mct is not None and summaries and not mct.summary
    return Labels(rets, srts, mcts, without_summary)


def take(labels: Labels, settings: LabelSettings) -> Labels:
    """Draw the labels to train on."""
    seed = settings.seed
    return Labels(
        choose(labels.ret, lambda label: label.retrieve, LabelLimits(settings.ret_balance, settings.ret_limit, seed)),
        choose(labels.srt, lambda label: label.relevant, LabelLimits(settings.srt_balance, settings.srt_limit, seed)),
        choose(labels.mct, lambda label: True, LabelLimits(None, settings.mct_limit, seed)),
        labels.without_summary,
    )


def choose(labels: Sequence[T], is_positive: Callable[[T], bool], limits: LabelLimits) -> list[T]:
    """Balance two kinds of labels and draw from them, keeping the order. The draw depends on order and seed only."""
    rng = random.Random(f"{limits.seed}")
    sides = [[i for i, label in enumerate(labels) if is_positive(label) is side] for side in (True, False)]
    if limits.balance is not None and all(sides):
        most = int(min(map(len, sides)) * limits.balance)
        sides = [rng.sample(side, min(most, len(side))) for side in sides]
    taken = sorted(sides[0] + sides[1])
    rng.shuffle(taken)
    return [labels[i] for i in sorted(taken[: limits.limit])]


def assemble(
    taken: Labels, derived: Labels, questions: Mapping[str, Question], *, train_answers: bool
) -> list[PromptedExample]:
    """Return one example per labelled question with all its branches, sorted by question id.

    Args:
        taken: Labels to train on.
        derived: All labels, from which answers are trained.
        questions: The questions by id.
        train_answers: Add branches that train the model to answer.
    """
    branches: dict[str, list[PromptedBranch]] = {}
    for question_id, branch in _branches(taken):
        branches.setdefault(question_id, []).append(branch)
    for question_id, branch in _answers(derived, questions) if train_answers else ():
        branches.setdefault(question_id, []).append(branch)
    return [
        PromptedExample(
            question.id,
            question.image,
            question.text,
            tuple(branches[question.id]),
            question.answer_style,
            question.split,
        )
        for question in (questions[question_id] for question_id in sorted(branches))
    ]


def _branches(labels: Labels) -> Iterator[tuple[str, PromptedBranch]]:
    """Yield a question id and a branch for each label."""
    for ret in labels.ret:
        yield ret.question_id, PromptedBranch("ret", role="retrieve" if ret.retrieve else "no_retrieve")
    for srt in labels.srt:
        role = "relevant" if srt.relevant else "irrelevant"
        yield srt.question_id, PromptedBranch("srt", (srt.document.passage,), role, found=srt.document.found)
    for mct in labels.mct:
        yield mct.question_id, PromptedBranch("mct", mct.documents, reply=write_reply(mct.keep, mct.summary))


def _answers(labels: Labels, questions: Mapping[str, Question]) -> Iterator[tuple[str, PromptedBranch]]:
    """Yield answer branches: without documents where the model needs none, else with all relevant ones."""
    relevant: dict[str, list[SrtLabel]] = {}
    for srt in labels.srt:
        if srt.relevant:
            relevant.setdefault(srt.question_id, []).append(srt)
    for ret in labels.ret:
        answer = canonical_answer(questions[ret.question_id])
        documents = tuple(label.document.passage for label in relevant.get(ret.question_id, ())) if ret.retrieve else ()
        if answer and (documents or not ret.retrieve):
            yield ret.question_id, PromptedBranch("vqa", documents, reply=answer)
