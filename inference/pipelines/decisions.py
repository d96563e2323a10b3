"""Recompute the decisions of stored traces under other settings, without running a model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from reflectune.core.config import Settings
from reflectune.formats.hits import Hit
from reflectune.inference.pipelines.gated import random_position
from reflectune.inference.pipelines.mmkb_rag import MmkbRagSettings, keep_documents
from reflectune.inference.pipelines.mr2ag import ChoiceSettings, choose_again
from reflectune.inference.pipelines.settings import DepthSettings
from reflectune.inference.reading.ranking import PassageScores, entry_scores
from reflectune.inference.trace import Trace
from reflectune.models.schemes.registry import find_scheme
from reflectune.retrieval.retrievers.queries import equation_3


@dataclass(frozen=True)
class Alternatives:
    """A question's traces with its gate forced open and forced closed.

    Attributes:
        opened: Every passage of the retrieved entries is judged, and in mR²AG answered from.
        closed: Nothing is retrieved.
        scheme: Name of the checkpoint's scheme.
        title_weight: Weight of titles in the search.
        summary_share: Share of that weight on summaries.
    """

    opened: Trace
    closed: Trace
    scheme: str
    title_weight: float = 0.5
    summary_share: float = 0.0


@dataclass(frozen=True)
class Controls:
    """Settings of a decision.

    Attributes:
        gamma: γ, threshold of the gate.
        threshold: A passage is relevant if its score is above this; in MMKB-RAG, at least this.
        title_weight: Weight of titles in S_ret; None: that of the search.
        entries: Number of entries to read; None: all that were judged.
        documents: MMKB-RAG: number of documents to keep; None: those that reach `threshold`.
        without: Positions of passages to leave out.
    """

    gamma: float = 0.5
    threshold: float = 0.5
    title_weight: float | None = None
    entries: int | None = None
    documents: int | None = None
    without: Collection[int] = ()


@dataclass(frozen=True)
class Decision:
    """A decision, and the resulting answer.

    Attributes:
        retrieved: True if entries are retrieved.
        answer: The answer; None if the model has to be run for it.
        confidence: S_ans.
        hits: The entries to read, best first.
        scores: mR²AG: scores of each candidate, by its position in `passages`.
        used: Positions of the passages that are answered from, in order; in mR²AG the one with the highest product, or
            the one that the fallback `random` draws.
        fallback: Fallback used if no passage is relevant; "" otherwise.
    """

    retrieved: bool
    answer: str | None
    confidence: float | None
    hits: tuple[Hit, ...] = ()
    scores: Mapping[int, PassageScores] = field(default_factory=dict)
    used: tuple[int, ...] = ()
    fallback: str = ""


def opened_settings(settings: Settings, entries: int) -> Settings:
    """Return a pipeline's settings, changed so that every question retrieves at least `entries` entries.

    Args:
        settings: The pipeline's own settings.
        entries: Minimum number of entries to retrieve.
    """
    return settings.model_copy(update={"gamma": -1.0, "top_n": max(entries, DepthSettings.of(settings).top_n)})


def closed_settings(settings: Settings) -> Settings:
    """Return a pipeline's settings, changed so that no question retrieves."""
    return settings.model_copy(update={"gamma": 2.0})


def decide(asked: Alternatives, controls: Controls, settings: Settings) -> Decision:
    """Recompute a question's decision under other settings.

    Args:
        asked: Its traces.
        controls: The settings that vary.
        settings: The pipeline's other settings.
    """
    opened, closed = asked.opened, asked.closed
    if opened.gate is not None and not find_scheme(asked.scheme).retrieves(opened.gate, controls.gamma):
        return Decision(False, closed.answer, closed.confidence)
    hits = reweighted_hits(asked, controls.title_weight)[: controls.entries]
    if isinstance(settings, ChoiceSettings):
        return _choose(asked, controls, settings, hits)
    used, fallback = _documents(opened, controls, settings, hits)
    if fallback == "closed_book":
        return Decision(True, closed.answer, closed.confidence, hits, fallback=fallback)
    if fallback == "abstain":
        return Decision(True, "", None, hits, fallback=fallback)
    is_same = used == (opened.kept or opened.used)
    return Decision(
        True,
        opened.answer if is_same else None,
        opened.confidence if is_same else None,
        hits,
        used=opened.used if is_same else used,
        fallback=opened.fallback if is_same else fallback,
    )


def reweighted_hits(asked: Alternatives, title_weight: float | None) -> tuple[Hit, ...]:
    """Return the trace's entries, ranked by S_ret with another weight of titles."""
    hits = asked.opened.hits
    if title_weight in (None, asked.title_weight) or not can_reweight(asked.opened):
        return hits
    weights = _part_weights(title_weight, asked.summary_share)
    scored = [(sum([weights[part] * value for part, value in hit.parts.items()]), hit) for hit in hits]
    ranked = sorted(scored, key=lambda pair: -pair[0])
    return tuple(
        Hit(hit.entry_id, score, rank, hit.query, hit.kb, hit.parts) for rank, (score, hit) in enumerate(ranked, 1)
    )


@functools.cache
def _part_weights(title_weight: float, summary_share: float) -> Mapping[str, float]:
    return dataclasses.asdict(equation_3(title_weight).with_summaries(summary_share))


def can_reweight(trace: Trace) -> bool:
    """Return True if the entries have the similarities of their images and titles."""
    return bool(trace.hits) and {"image", "title"} <= trace.hits[0].parts.keys()


def _choose(asked: Alternatives, controls: Controls, settings: ChoiceSettings, hits: tuple[Hit, ...]) -> Decision:
    """Choose among mR²AG's candidates."""
    opened, fallback = asked.opened, getattr(settings, "fallback", "best_product")
    choice = choose_again(opened, settings, threshold=controls.threshold, without=controls.without, hits=hits)
    if fallback == "abstain" and (choice is None or choice.fallback):
        return Decision(True, "", None, hits, fallback="abstain")
    if choice is None or (choice.fallback and fallback == "closed_book"):
        return Decision(True, asked.closed.answer, asked.closed.confidence, hits, fallback="closed_book")
    chosen, scores, used_fallback = choice.chosen, choice.scores, choice.fallback
    if choice.fallback and fallback == "random":
        chosen = [*scores][random_position(opened.question_id, len(scores))]
        scores, used_fallback = {chosen: scores[chosen]}, "random"
    passage = opened.passages[chosen]
    return Decision(True, passage.answer, passage.s_ans, hits, scores, (chosen,), used_fallback)


def _documents(
    opened: Trace, controls: Controls, settings: Settings, hits: tuple[Hit, ...]
) -> tuple[tuple[int, ...], str]:
    """Return the positions of the passages to answer from together, and the fallback."""
    ids = {hit.entry_id for hit in hits}
    passages = [
        passage
        if k not in controls.without and passage.passage.entry_id in ids
        else dataclasses.replace(passage, s_rel=None)
        for k, passage in enumerate(opened.passages)
    ]
    if isinstance(settings, MmkbRagSettings):
        update = {"threshold": controls.threshold, "k": controls.documents or "auto"}
        s_ret = entry_scores(hits, settings.s_ret_temperature)
        left = [k for k, it in enumerate(passages) if k not in controls.without and it.passage.entry_id in s_ret]
        found = [dataclasses.replace(passages[k], s_ret=s_ret[passages[k].passage.entry_id]) for k in left]
        kept, below = keep_documents(found, hits, settings.model_copy(update=update))
        return tuple(left[k] for k in kept), "best_relevance" if below else ""
    judged = [
        (k, passage.s_rel, passage.s_irr or 0.0) for k, passage in enumerate(passages) if passage.s_rel is not None
    ]
    relevant = tuple(k for k, yes, no in judged if yes * (1.0 - controls.threshold) > no * controls.threshold)
    fallback = getattr(settings, "fallback", "best_product")
    if relevant or fallback in ("closed_book", "abstain"):
        return relevant, "" if relevant else fallback
    if opened.fallback == "random" and {*opened.used} <= {k for k, _, _ in judged}:
        return opened.used, "random"
    return max(judged, key=lambda row: row[1])[:1] if judged else (), "best_product"
