"""Probed questions as articles of the page for proof-reading: answers without and with each document, and labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reflectune.core.types import Question
from reflectune.data_builders.annotators.proofreading import PageArticle, PageLabel
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.data_builders.mmkb.labels import Labels
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer
from reflectune.models.schemes.mct import write_reply


class ProbeArticles:
    """A function that makes a probe's article.

    Args:
        labels: All derived labels.
        questions: The questions by id.
    """

    def __init__(self, labels: Labels, questions: Mapping[str, Question]) -> None:
        self._questions = questions
        self._ret = {label.question_id: label for label in labels.ret}
        self._srt = {(label.question_id, label.document.passage.id): label.relevant for label in labels.srt}
        self._mct = {label.question_id: label for label in labels.mct}

    def __call__(self, probe: Probe) -> PageArticle:
        """Return the article of a question that could be asked."""
        question = self._questions[probe.question_id]
        accepted = canonical_answer(question) or " / ".join(map(str, question.range or ()))
        return PageArticle(
            question.id,
            question.image,
            question.text,
            [f"accepted: {accepted}"],
            [*self._labels(probe)],
            question.answers,
        )

    def _labels(self, probe: Probe) -> Iterator[PageLabel]:
        ret = self._ret.get(probe.question_id)
        token = "no label" if ret is None else "[Ret]" if ret.retrieve else "[NoRet]"
        yield PageLabel(token, answer=_answer(probe.replies), details=["alone", *_facts(probe)])
        for document in probe.documents:
            relevant = self._srt.get((probe.question_id, document.passage.id))
            yield PageLabel(
                "no label" if relevant is None else "[Rel]" if relevant else "[NoRel]",
                "relevant" if relevant else "irrelevant",
                _answer(document.replies),
                [*_facts(document), f"{document.rank}. S_ret {document.score:.2f}", "cut" if document.cut else ""],
                document.passage,
                is_judged=relevant is not None,
            )
        if mct := self._mct.get(probe.question_id):
            listed = ", ".join(passage.id for passage in mct.documents)
            yield PageLabel("MCT", answer=write_reply(mct.keep, mct.summary), details=[f"of {listed}"])


def _answer(replies: Sequence[ProbedAnswer]) -> str:
    return (replies[0].text if replies else "") or "nothing"


def _facts(probed: Probe | DocumentProbe) -> Iterator[str]:
    """Yield the correctness of the greedy answer and of the drawn ones, and the accepted answer's log-probability."""
    if probed.replies:
        first, *drawn = probed.replies
        yield f"{first.correctness:g} right" + (", broken" if first.log_prob is None else "")
        if drawn:
            yield f"{sum(reply.correctness for reply in drawn):g} of {len(drawn)} drawn right"
    if probed.gold_log_prob is not None:
        yield f"log p(accepted) {probed.gold_log_prob:.1f}"
