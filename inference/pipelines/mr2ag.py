"""mR²AG (arXiv 2411.15041, §3.1): decide whether to retrieve, judge passages, choose by the product of scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from PIL import Image
from pydantic import Field

from reflectune.core.config import setting
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.gated import Fallback, GatedPipeline, GatedSettings, fallback_of, random_position
from reflectune.inference.pipelines.oracle import GoldRetriever
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, every, needed, with_entry
from reflectune.inference.pipelines.requirements import ENTRIES
from reflectune.inference.pipelines.settings import EntryShareSettings
from reflectune.inference.reading.passage_reader import JudgedPassages, PassageReader
from reflectune.inference.reading.ranking import PLAIN, PassageScores, best, entry_scores, shift_relevance
from reflectune.inference.reading.reader import OpenedQuestions, ReaderAnswer
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.metrics.official.infoseek import normalize_answer

Exponents = Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=3, max_length=3)]


class ChoiceSettings(EntryShareSettings):
    """Settings of the choice among mR²AG's candidates, which `decide_again` applies to a stored trace."""

    exponents: Exponents = setting([*PLAIN], "mR²AG: exponents of S_ret, S_rel and S_ans in the product")
    votes: bool = setting(False, "mR²AG: sum the products of candidates with equal answers before the choice")
    relevant_shift: float = setting(
        0.0,
        "mR²AG: added to the log-odds of [Relevant]; corrects its prior: -3.5 from 1 : 3 in training to 1 : 100",
        ge=-100,
        le=100,
    )


class Mr2agSettings(ChoiceSettings, GatedSettings):
    """Settings of mR²AG. The paper's are the defaults."""


class MR2AG(GatedPipeline):
    """The gated loop: retrieve or not, judge every passage of the top entries, answer from the relevant ones.

    All passages of a question share its vision pass and its prefix; gate and relevance are probabilities read at one
    position; only relevant passages are decoded from.
    """

    name = "mr2ag"
    judging = True
    """False to answer from every passage, and to leave S_rel out of the product. Traces keep S_rel."""

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order; each step runs on the questions that still need it."""
        clock = Clock()
        gated = self._gate_and_judge(questions, images, clock, self._settings.s_ret_temperature)
        traces, reads = gated.traces, [list(trace.passages) for trace in gated.traces]
        used = [fallback_of(trace, self._settings.fallback, judging=self.judging) for trace in traces]
        fallbacks = {i: fallback for i, fallback in enumerate(used) if fallback}
        with clock.step("answer"):
            direct = self._answer_directly(gated.opened, traces, fallbacks)
            self._answer_from_passages(gated.opened, gated.judged, reads, fallbacks)
        seconds = clock.share(len(questions))
        return [
            self._trace(
                dataclasses.replace(
                    trace,
                    passages=tuple(reads[i]),
                    relevant_shift=self._settings.relevant_shift,
                    exponents=tuple(self._settings.exponents),
                    fallback=fallbacks.get(i, ""),
                    tokens={**trace.tokens, **gated.opened.usage.of(i)},
                    seconds=seconds,
                ),
                direct.get(i),
            )
            for i, trace in enumerate(traces)
        ]

    def _judge(self, opened: OpenedQuestions, passages: Sequence[Sequence[Passage]]) -> JudgedPassages:
        """Judge the passages of each question, with the log-odds of [Relevant] shifted."""
        judged = super()._judge(opened, passages)
        shift = self._settings.relevant_shift
        return dataclasses.replace(
            judged, relevance=[[shift_relevance(*pair, shift) for pair in row] for row in judged.relevance]
        )

    def _answer_directly(
        self, opened: OpenedQuestions, traces: Sequence[Trace], fallbacks: Mapping[int, Fallback]
    ) -> dict[int, ReaderAnswer]:
        """Answer without passages if the gate is closed, or as the fallback; by position."""
        rows = [i for i, trace in enumerate(traces) if not trace.retrieved or fallbacks.get(i) == "closed_book"]
        return dict(zip(rows, self._reader.answer_directly(opened, rows), strict=True))

    def _answer_from_passages(
        self,
        opened: OpenedQuestions,
        judged: JudgedPassages,
        reads: list[list[PassageTrace]],
        fallbacks: Mapping[int, Fallback],
    ) -> None:
        """Answer from every relevant passage, and from the fallback's passages, in place."""
        rows = [(i, k) for i, row in enumerate(reads) for k, p in enumerate(row) if p.relevant or not self.judging]
        for i, fallback in fallbacks.items():
            positions = range(len(reads[i]))
            drawn = [random_position(opened.questions[i].id, len(reads[i]))] if fallback == "random" else []
            rows += [(i, k) for k in (positions if fallback == "best_product" else drawn)]
        rows.sort()
        for (i, k), answer in zip(rows, self._reader.answer_from(judged, rows), strict=True):
            reads[i][k] = dataclasses.replace(reads[i][k], answer=answer.text, s_ans=answer.score, cut=answer.cut)

    def _trace(self, trace: Trace, direct: ReaderAnswer | None) -> Trace:
        """Add the answer: the direct one if there is one, else that of the passage with the highest product."""
        if direct is not None:
            return dataclasses.replace(trace, answer=direct.text, confidence=direct.score, cut=direct.cut)
        return choose(trace, self._settings, judging=self.judging)


@dataclass(frozen=True)
class CandidateChoice:
    """The choice among a stored trace's candidates.

    Attributes:
        chosen: Position in `passages` of the candidate with the highest product.
        scores: Scores of each candidate by its position: the relevant passages, or all if none is relevant.
        fallback: `best_product` if none is relevant; else "".
    """

    chosen: int
    scores: Mapping[int, PassageScores]
    fallback: Fallback | Literal[""]


def choose_again(
    trace: Trace,
    settings: ChoiceSettings,
    *,
    judging: bool = True,
    threshold: float = 0.5,
    without: Collection[int] = (),
    hits: Sequence[Hit] | None = None,
) -> CandidateChoice | None:
    """Choose among a stored trace's candidates under other settings, without running a model.

    Args:
        trace: See `decide_again`. Passages of entries that are not among its hits are not candidates.
        settings: The settings.
        judging: See `MR2AG`.
        threshold: A passage is relevant if its share of [Relevant] against [Irrelevant] is above this.
        without: Positions of passages that are not candidates.
        hits: Entries in place of the trace's.

    Returns:
        The choice; None without a candidate.
    """
    s_ret = entry_scores(trace.hits if hits is None else hits, settings.s_ret_temperature)
    passages, shift = trace.passages, settings.relevant_shift - trace.relevant_shift
    answered = [
        k
        for k, passage in enumerate(passages)
        if passage.answer is not None and passage.passage.entry_id in s_ret and k not in without
    ]
    weight = math.exp(shift) * (1.0 - threshold)
    relevant = [
        k
        for k in answered
        if (passages[k].s_rel or 0.0) * weight > (passages[k].s_irr or 0.0) * threshold or not judging
    ]
    scores = {}
    for k in relevant or answered:
        passage = passages[k]
        s_rel, _ = shift_relevance(passage.s_rel or 0.0, passage.s_irr or 0.0, shift)
        scores[k] = PassageScores(s_ret[passage.passage.entry_id], s_rel, passage.s_ans or 0.0)
    if not scores:
        return None
    factors = [found if judging else dataclasses.replace(found, rel=1.0) for found in scores.values()]
    answers = [normalize_answer(passages[k].answer or "") for k in scores] if settings.votes else None
    chosen = [*scores][best(factors, settings.exponents, answers)]
    return CandidateChoice(chosen, scores, "" if relevant else "best_product")


def decide_again(trace: Trace, settings: ChoiceSettings, *, judging: bool = True) -> Trace:
    """Decide a stored trace under other settings, without running a model.

    If every passage has an answer, as in traces of `mr2ag_unjudged`, the result equals the pipeline's with these
    settings and `fallback: best_product`. Passages without an answer can't be chosen.

    Args:
        trace: A trace of mR²AG or a control.
        settings: The settings.
        judging: See `MR2AG`.
    """
    choice = None if trace.error else choose_again(trace, settings, judging=judging)
    if choice is None:
        return trace
    s_ret, passages = entry_scores(trace.hits, settings.s_ret_temperature), list(trace.passages)
    shift = settings.relevant_shift - trace.relevant_shift
    for k, passage in enumerate(passages):
        s_rel, s_irr = shift_relevance(passage.s_rel or 0.0, passage.s_irr or 0.0, shift)
        scored = dataclasses.replace(passage, s_ret=s_ret[passage.passage.entry_id], s_rel=s_rel, s_irr=s_irr)
        passages[k] = scored if k in choice.scores else dataclasses.replace(scored, answer=None, s_ans=None, cut=False)
    chosen = passages[choice.chosen]
    return dataclasses.replace(
        trace,
        passages=tuple(passages),
        relevant_shift=settings.relevant_shift,
        exponents=tuple(settings.exponents),
        fallback=choice.fallback,
        answer=chosen.answer or "",
        cut=chosen.cut,
        chosen=choice.chosen,
    )


def choose(trace: Trace, settings: ChoiceSettings, *, judging: bool = True) -> Trace:
    """Set the answer of the candidate with the highest product, if there is a candidate."""
    if (choice := choose_again(trace, settings, judging=judging)) is None:
        return trace
    chosen = trace.passages[choice.chosen]
    return dataclasses.replace(trace, answer=chosen.answer or "", cut=chosen.cut, chosen=choice.chosen)


Kind = TypeVar("Kind", bound=MR2AG)


class Unjudged(MR2AG):
    """mR²AG without its verdicts: of all passages' answers, the one with the highest S_ret · S_ans."""

    name, judging = "mr2ag_unjudged", False


class OverGold(MR2AG):
    """mR²AG over the gold entries in place of the retrieved ones, as in its Table 1."""

    name = "mr2ag_oracle"


def make(kind: type[Kind], settings: Mr2agSettings, parts: PipelineParts) -> Kind:
    """Build mR²AG or a control."""
    reader = PassageReader(needed(parts.engine), settings.max_new_tokens)
    return kind(reader, needed(parts.retriever), parts.knowledge, settings, parts.reranker)


def _answer_each(settings: Mr2agSettings, parts: PipelineParts) -> MR2AG:
    return make(Unjudged, settings.model_copy(update={"gamma": -1.0}), parts)


RECIPES = {
    "mr2ag": Recipe(
        lambda name, settings, parts: make(MR2AG, settings, parts),
        Mr2agSettings,
        "model",
        every,
        requires=(ENTRIES,),
        title="mR²AG",
        form="mr2ag",
        scheme="mr2ag",
        measured_by="relevance",
        choices=("relevance", "entries", "ranking"),
        answer_each=_answer_each,
    ),
    "mr2ag_oracle": Recipe(
        lambda name, settings, parts: make(OverGold, settings, dataclasses.replace(parts, retriever=GoldRetriever())),
        Mr2agSettings,
        "model",
        with_entry,
        reads_gold=True,
        title="mR²AG, right entry given",
        form="mr2ag_oracle",
        scheme="mr2ag",
    ),
}
