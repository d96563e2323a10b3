"""ReflectiVA (arXiv 2411.16863): retrieve or not, keep the relevant passages, and answer from all of them at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.gated import GatedPipeline, GatedSettings, fallback_of, random_position
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, every, needed
from reflectune.inference.pipelines.requirements import ENTRIES
from reflectune.inference.reading.passage_reader import PassageReader
from reflectune.inference.reading.reader import OpenedQuestions, ReaderAnswer
from reflectune.inference.trace import Trace
from reflectune.models.rendering.turns import fit_leading
from reflectune.models.schemes.reflectiva import Reflectiva

if TYPE_CHECKING:  # slow to import
    from reflectune.models.prefix.interface import Engine


class ReflectivaReader(PassageReader):
    """A loaded model of scheme `reflectiva` with its engine."""

    def __init__(self, engine: Engine, max_new_tokens: int) -> None:
        """Bind the engine; set the maximum length of an answer in tokens."""
        super().__init__(engine, max_new_tokens)
        self._prompts = Reflectiva.of(engine.renderer)

    def answer_together(
        self, opened: OpenedQuestions, passages: Mapping[int, Sequence[Passage]]
    ) -> dict[int, ReaderAnswer]:
        """Answer questions, given by position, each from all of its passages in one paragraph.

        Only the leading passages that fit the model's context whole are read.
        """
        fitted = {i: self._fit_branch(opened, i, question_passages) for i, question_passages in passages.items()}
        branches = [[fitted[i][1]] if i in fitted else [] for i in range(len(opened.questions))]
        state = self._engine.branch(opened.prefixes, branches)
        answers = self._generate(state, [(i, 0) for i in fitted], [])
        for i, answer in zip(fitted, answers, strict=True):
            opened.usage.branch(i, opened.lengths[i], len(fitted[i][1]), answer.tokens)
        return {
            i: dataclasses.replace(answer, passages_read=fitted[i][0])
            for i, answer in zip(fitted, answers, strict=True)
        }

    def _fit_branch(self, opened: OpenedQuestions, row: int, passages: Sequence[Passage]) -> tuple[int, list[int]]:
        """Return the number of leading passages that leave room for an answer, at least one, and their branch."""
        room = self._engine.max_length - opened.lengths[row] - self._max_new_tokens
        return fit_leading(
            lambda count: self._prompts.answer_branch(self._renderer, passages[:count]), len(passages), room, least=1
        )


class ReflectiVA(GatedPipeline):
    """Two stages, the gate and the relevance of every passage of the top entries, then one answer.

    The released procedure takes the first token of each reply, with one `generate` call a passage. Here both are
    probabilities read at one position; at `gamma: 0.5` the likelier of the gate's two tokens decides.
    """

    name = "reflectiva"

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order; each step runs on the questions that still need it."""
        clock = Clock()
        gated = self._gate_and_judge(questions, images, clock)
        traces = [self._chosen(question, trace) for question, trace in zip(questions, gated.traces, strict=True)]
        with clock.step("answer"):
            answers = self._answer(gated.opened, traces)
        seconds = clock.share(len(questions))
        counted = [{**trace.tokens, **gated.opened.usage.of(i)} for i, trace in enumerate(traces)]
        return [
            dataclasses.replace(_answered(trace, answers.get(i)), seconds=seconds, tokens=counted[i])
            for i, trace in enumerate(traces)
        ]

    def _chosen(self, question: Question, trace: Trace) -> Trace:
        """Set the passages to answer from: the relevant ones, or the fallback's."""
        relevant = tuple(k for k, passage in enumerate(trace.passages) if passage.relevant)
        fallback, positions = fallback_of(trace, self._settings.fallback), range(len(trace.passages))
        if fallback is None:
            return dataclasses.replace(trace, kept=relevant, used=relevant)
        used: tuple[int, ...] = ()
        if fallback == "random":
            used = (random_position(question.id, len(positions)),)
        if fallback == "best_product":
            used = (max(positions, key=lambda k: trace.passages[k].s_rel or 0.0),)
        return dataclasses.replace(trace, used=used, fallback=fallback)

    def _answer(self, opened: OpenedQuestions, traces: Sequence[Trace]) -> dict[int, ReaderAnswer]:
        """Answer by position; questions whose fallback is to abstain get no answer."""
        contexts = {i: [t.passages[k].passage for k in t.used] for i, t in enumerate(traces) if t.used}
        alone = [i for i, t in enumerate(traces) if not t.used and t.fallback != "abstain"]
        direct = dict(zip(alone, self._reader.answer_directly(opened, alone), strict=True))
        return {**direct, **self._reader.answer_together(opened, contexts)}


def _answered(trace: Trace, answer: ReaderAnswer | None) -> Trace:
    if answer is None:
        return trace
    used = trace.used[: answer.passages_read]
    return dataclasses.replace(trace, answer=answer.text, confidence=answer.score, cut=answer.cut, used=used)


def _make(name: str, settings: GatedSettings, parts: PipelineParts) -> ReflectiVA:
    reader = ReflectivaReader(needed(parts.engine), settings.max_new_tokens)
    return ReflectiVA(reader, needed(parts.retriever), parts.knowledge, settings)


RECIPES = {
    "reflectiva": Recipe(
        _make,
        GatedSettings,
        "model",
        every,
        requires=(ENTRIES,),
        title="ReflectiVA",
        form="reflectiva",
        scheme="reflectiva",
        measured_by="relevance",
    )
}
