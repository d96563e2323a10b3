"""MMKB-RAG's training data from probes: derive labels, sample the ones to train on, and assemble the examples."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from reflectune.core.config import cross_check, setting
from reflectune.core.odds import sigmoid
from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.data_builders.mmkb.mct import MctLabel, MixingSettings, RelScores, mct_label, rel_score
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
        contexts: Documents to answer from, by question id.
    """

    ret: Sequence[RetLabel] = ()
    srt: Sequence[SrtLabel] = ()
    mct: Sequence[MctLabel] = ()
    without_summary: int = 0
    contexts: Mapping[str, tuple[Passage, ...]] = field(default_factory=dict)


class LabelSettings(Rule, MixingSettings):
    """Settings that determine the labels, given the probes."""

    labeller: Literal["probes", "string"] = setting(
        "probes", "labeller of documents: the model's own answers, or string (the document states an accepted answer)"
    )
    srt_visual: bool = setting(True, "label the documents of visual-dependent questions too")
    srt_balance: float | None = setting(None, "SRT: maximum ratio of the frequent label to the rare one", ge=1)
    ret_limit: int | None = setting(None, "RET: maximum number of examples, drawn by seed", ge=1)
    srt_limit: int | None = setting(None, "SRT: maximum number of examples, drawn by seed", ge=1)
    mct_limit: int | None = setting(None, "MCT: maximum number of examples, drawn by seed", ge=1)
    answer_model: Literal["separate", "shared"] = setting(
        "separate", "shared: train to answer too, without documents or with the relevant ones"
    )
    answer_documents: int | None = setting(
        None,
        "shared: answer from this many documents, the highest by `rel_scores` (or S_ret), one of them relevant; unset: "
        "from the relevant ones",
        ge=1,
    )
    pairs: bool = setting(
        False, "SRT: for each question only the most helpful [Rel] (log-probability) and the [NoRel] of highest S_ret"
    )

    hold_out: float = setting(
        0.0, "share of the entities whose questions are left out, to fit `srt_fusion` on them", ge=0, le=1
    )

    @cross_check
    def pair_problems(self) -> Iterator[str]:
        """Yield the problems of settings that exclude each other."""
        if self.soft and self.labeller == "string":
            yield "`soft` needs changes of log-probability, which `labeller: string` doesn't measure; drop one"
        if self.pairs and self.srt_balance:
            yield "`pairs` takes one label of each kind per question; leave out `srt_balance`"
        if self.answer_documents and self.answer_model != "shared":
            yield "`answer_documents` needs `answer_model: shared`; set it, or leave out `answer_documents`"


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
    contexts: dict[str, tuple[Passage, ...]] = {}
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
        contexts[probe.question_id] = _context(probe, srt, settings.answer_documents, rel_scores)
        mct = mct_label(probe, srt, mixing, rel_scores)
        if mct is not None and (mct.summary or not summaries):
            mcts.append(mct)
        without_summary += mct is not None and summaries and not mct.summary
    return Labels(rets, srts, mcts, without_summary, contexts)


def sample_labels(labels: Labels, settings: LabelSettings) -> Labels:
    """Sample the labels to train on."""
    seed, limit = settings.seed, settings.srt_limit
    if settings.pairs:
        pairs = sample(label_pairs(labels.srt), limit and max(1, limit // 2), seed)
        srt = [label for pair in pairs for label in pair]
    else:
        srt = sample(labels.srt, limit, seed, settings.srt_balance, lambda label: label.relevant)
    return Labels(
        sample(labels.ret, settings.ret_limit, seed),
        srt,
        sample(labels.mct, settings.mct_limit, seed),
        labels.without_summary,
    )


def label_pairs(labels: Sequence[SrtLabel]) -> list[tuple[SrtLabel, SrtLabel]]:
    """Return a `[Rel]` and a `[NoRel]` label of each question that has both.

    The `[Rel]` document makes the accepted answer most probable; the `[NoRel]` one has the highest S_ret. Ties are
    broken by rank.
    """
    by_question: dict[str, tuple[list[SrtLabel], list[SrtLabel]]] = {}
    for label in labels:
        by_question.setdefault(label.question_id, ([], []))[not label.relevant].append(label)

    def gain(label: SrtLabel) -> tuple[float, int]:
        log_prob = label.document.gold_log_prob
        return -math.inf if log_prob is None else log_prob, -label.document.rank

    def nearness(label: SrtLabel) -> tuple[float, int]:
        return label.document.score, -label.document.rank

    return [(max(rel, key=gain), max(no_rel, key=nearness)) for rel, no_rel in by_question.values() if rel and no_rel]


def _context(
    probe: Probe, labels: Sequence[SrtLabel], count: int | None, rel_scores: RelScores | None
) -> tuple[Passage, ...]:
    """Return the documents to answer from: the relevant ones, or the `count` best ones if one of them is relevant."""
    relevant = tuple(label.document.passage for label in labels if label.relevant)
    if count is None:
        return relevant
    best = sorted(probe.documents, key=lambda document: -rel_score(probe.question_id, document, rel_scores))[:count]
    passages = tuple(document.passage for document in best)
    return passages if set(passages) & set(relevant) else ()


def sample(
    labels: Sequence[T],
    limit: int | None,
    seed: int,
    balance: float | None = None,
    is_positive: Callable[[T], bool] = bool,
) -> list[T]:
    """Sample labels, keeping their order. The result depends only on the order and the seed.

    Args:
        labels: Labels of one task.
        limit: Maximum labels, after balancing; None takes all. A lower limit's sample is a subset of a higher one's.
        seed: Seed of the sample.
        balance: Maximum ratio of the frequent kind to the rare kind, at least 1; None takes all. If one kind never
            occurs, all are taken.
        is_positive: Tells the two kinds apart.
    """
    rng = random.Random(f"{seed}")
    taken = list(range(len(labels)))
    if balance is not None:
        sides = [[i for i in taken if is_positive(labels[i]) is side] for side in (True, False)]
        if all(sides):
            limit_per_side = int(min(map(len, sides)) * balance)
            taken = sorted(i for side in sides for i in rng.sample(side, min(limit_per_side, len(side))))
    rng.shuffle(taken)
    return [labels[i] for i in sorted(taken[:limit])]


def assemble(
    taken: Labels, derived: Labels, questions: Mapping[str, Question], settings: LabelSettings
) -> list[PromptedExample]:
    """Return one example per labelled question with all its branches, sorted by question id.

    Args:
        taken: Labels to train on.
        derived: All labels, from which answers are trained.
        questions: The questions by id.
        settings: Settings of soft labels and of the answers to train.
    """
    scale = settings.margin if settings.soft else None
    branches: dict[str, list[PromptedBranch]] = {}
    for question_id, branch in _branches(taken, scale):
        branches.setdefault(question_id, []).append(branch)
    for question_id, branch in _answers(derived, questions) if settings.answer_model == "shared" else ():
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


def _branches(labels: Labels, scale: float | None) -> Iterator[tuple[str, PromptedBranch]]:
    """Yield a question id and a branch for each label; with a scale of changes in nats, two for each of SRT."""
    for ret in labels.ret:
        yield ret.question_id, PromptedBranch("ret", role="retrieve" if ret.retrieve else "no_retrieve")
    for srt in labels.srt:
        share = float(srt.relevant) if scale is None else float(sigmoid((srt.change or 0.0) / scale))
        for role, weight in (("relevant", share), ("irrelevant", 1 - share)):
            if weight:
                read, found = (srt.document.passage,), srt.document.found
                yield srt.question_id, PromptedBranch("srt", read, role, found=found, weight=weight)
    for mct in labels.mct:
        yield mct.question_id, PromptedBranch("mct", mct.documents, reply=write_reply(mct.keep, mct.summary))


def _answers(labels: Labels, questions: Mapping[str, Question]) -> Iterator[tuple[str, PromptedBranch]]:
    """Yield answer branches: without documents if the model needs none, else with the documents to answer from."""
    for ret in labels.ret:
        answer = canonical_answer(questions[ret.question_id])
        documents = labels.contexts.get(ret.question_id, ()) if ret.retrieve else ()
        if answer and (documents or not ret.retrieve):
            yield ret.question_id, PromptedBranch("vqa", documents, reply=answer)
