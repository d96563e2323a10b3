"""From probes to MMKB-RAG's training examples: labels, which of them are taken, and how they hang from a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.data_builders.mmkb.config import DeriveConfig
from reflectune.data_builders.mmkb.mct import MctLabel, RelScores, mct_label
from reflectune.data_builders.mmkb.sampling import choose
from reflectune.data_builders.probing.labels import RetLabel, SrtLabel, external_labels, ret_label, srt_labels
from reflectune.data_builders.probing.records import Probe
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample
from reflectune.models.schemes.mct import write_reply


@dataclass(frozen=True)
class Labels:
    """Labels of the three tasks, in the order of the probes.

    Attributes:
        ret: Of questions.
        srt: Of documents.
        mct: Of mixed lists.
        without_summary: Questions with several relevant documents, but without a summary of just these; they are not
            in `mct`.
    """

    ret: Sequence[RetLabel] = ()
    srt: Sequence[SrtLabel] = ()
    mct: Sequence[MctLabel] = ()
    without_summary: int = 0


def derive(
    probes: Sequence[Probe],
    questions: Mapping[str, Question],
    config: DeriveConfig,
    *,
    summaries: bool = True,
    rel_scores: RelScores | None = None,
) -> Labels:
    """All labels that the rule gives.

    Args:
        probes: The probes.
        questions: By id.
        config: The rule. By the labeller `string` the documents' labels are not the model's; RET stays the model's.
        summaries: Whether summaries were asked for; if not, MCT's replies are numbers alone.
        rel_scores: What orders MCT's reply; None takes the retriever's score.
    """
    rule, mixing = config.how(), config.mixing()
    rets: list[RetLabel] = []
    srts: list[SrtLabel] = []
    mcts: list[MctLabel] = []
    without = 0
    for probe in probes:
        if probe.problem:
            continue
        if (ret := ret_label(probe, rule)) is not None:
            rets.append(ret)
        question = questions[probe.question_id]
        if question.is_knowledge_based is False and not config.srt_visual:
            continue
        srt = external_labels(probe, question) if config.labeller == "string" else srt_labels(probe, rule)
        srts.extend(srt)
        mct = mct_label(probe, srt, rule, mixing, rel_scores)
        if mct is not None and (mct.summary or not summaries):
            mcts.append(mct)
        without += mct is not None and summaries and not mct.summary
    return Labels(rets, srts, mcts, without)


def take(labels: Labels, config: DeriveConfig) -> Labels:
    """The labels that are trained on: balanced and limited, by seed."""
    ret, srt, mct = config.choices()
    return Labels(
        choose(labels.ret, lambda label: label.retrieve, ret),
        choose(labels.srt, lambda label: label.relevant, srt),
        choose(labels.mct, lambda label: True, mct),
        labels.without_summary,
    )


def assemble(
    taken: Labels, derived: Labels, questions: Mapping[str, Question], config: DeriveConfig
) -> list[PromptedExample]:
    """One example per question that has a label, with all of its branches, in the order of question ids.

    Args:
        taken: The labels to train on.
        derived: All labels; the answer of a `shared` model is trained from them.
        questions: By id.
        config: Whether the answer model is shared.
    """
    branches: dict[str, list[PromptedBranch]] = {}

    def hang(question_id: str, branch: PromptedBranch) -> None:
        branches.setdefault(question_id, []).append(branch)

    for ret in taken.ret:
        hang(ret.question_id, PromptedBranch("ret", role="retrieve" if ret.retrieve else "no_retrieve"))
    for srt in taken.srt:
        role = "relevant" if srt.relevant else "irrelevant"
        hang(srt.question_id, PromptedBranch("srt", (srt.document.passage,), role=role))
    for mct in taken.mct:
        hang(mct.question_id, PromptedBranch("mct", mct.documents, reply=write_reply(mct.keep, mct.summary)))
    if config.answer_model == "shared":
        for question_id, branch in _answers(derived, questions):
            hang(question_id, branch)
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


def _answers(derived: Labels, questions: Mapping[str, Question]) -> list[tuple[str, PromptedBranch]]:
    """What a shared model learns to answer: alone where it needs no document, else from all relevant ones."""
    relevant: dict[str, list[SrtLabel]] = {}
    for srt in derived.srt:
        if srt.relevant:
            relevant.setdefault(srt.question_id, []).append(srt)
    branches = []
    for ret in derived.ret:
        answer = canonical_answer(questions[ret.question_id])
        documents = tuple(label.document.passage for label in relevant.get(ret.question_id, ())) if ret.retrieve else ()
        if answer and (documents or not ret.retrieve):
            branches.append((ret.question_id, PromptedBranch("vqa", documents, reply=answer)))
    return branches
