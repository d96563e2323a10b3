"""Models, retriever and caches that grid points are run with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelRole
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.oracle import GoldRetriever, gold_entries, has_gold
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe
from reflectune.inference.pipelines.registry import build_pipeline, find_recipe
from reflectune.inference.running.loading import open_entries, open_model
from reflectune.inference.sweeps.caching import CacheStats, CachingEngine, CachingReranker, CachingRetriever
from reflectune.inference.sweeps.points import GridSettings, Point
from reflectune.inference.trace import Trace
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.base import ImageReranker, Reranker
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.rerankers.loading import open_reranker
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.ranked_retriever import RankedRetriever


class GridRunner:
    """A runner of the pipelines of grid points over the same caching engines, one per model.

    A model is loaded when the first point needs it.
    """

    def __init__(self, config: GridSettings, dataset: Dataset, pipeline: str) -> None:
        """Bind the parts that all points share.

        Args:
            config: Names the models, the index, and the settings that points start from.
            pipeline: The pipeline of points that don't name one.
        """
        self._config, self._dataset, self._pipeline = config, dataset, pipeline
        self._engines: dict[str, CachingEngine] = {}
        self._hashes: dict[str, str] = {}
        retriever = RetrieverConfig.of(config)
        self._entries = open_entries(retriever, dataset, config.device)
        start = (retriever.title_weight, retriever.summary_share, retriever.ranked_scores)
        self._retrievers = {start: CachingRetriever(self._entries)}
        self._reranker: Reranker | None = None
        self._pipelines: dict[Any, Pipeline] = {}

    def run(self, point: Point, questions: Sequence[Question], images: Sequence[Image.Image]) -> dict[str, Trace]:
        """Return the traces of the questions that the point's pipeline answers, by id."""
        if point.run_key not in self._pipelines:
            self._pipelines[point.run_key] = self._build(point)
        takes = self._recipe(point).takes
        taken = [
            (q, image) for q, image in zip(questions, images, strict=True) if takes(q) and self._has_entries(q, point)
        ]
        if not taken:
            return {}
        taken_questions, taken_images = [q for q, _ in taken], [image for _, image in taken]
        traces = self._pipelines[point.run_key].run(taken_questions, taken_images)
        if "base_model" in self._engines:
            self.engine("base_model").release()  # each point answers from contexts of its own
        return {trace.question_id: trace for trace in traces}

    def _has_entries(self, question: Question, point: Point) -> bool:
        """Return False if the point gives the gold entry, and the question needs one that isn't there."""
        if point.settings.get("entries") != "gold":
            return True
        named = bool(gold_entries(question)) or question.is_knowledge_based is False
        return named and has_gold(question, self._dataset.knowledge)

    def stats(self) -> CacheStats:
        """Return the counts of all models."""
        counts = [engine.stats for engine in self._engines.values()]
        return CacheStats(sum(each.requested for each in counts), sum(each.done for each in counts))

    def fingerprints(self, roles: Sequence[ModelRole], points: Sequence[Point]) -> dict[str, str]:
        """Return the fingerprints of the models of these roles, and of the reranker if a point uses it."""
        for role in roles:
            self.engine(role)
        reranker = (
            {"reranker": self.reranker().fingerprint}
            if any(self._recipe(point).needs("reranker") for point in points)
            else {}
        )
        return {**{role: self._hashes[role] for role in roles}, **reranker}

    def forget(self) -> None:
        """Drop all caches."""
        for retriever in self._retrievers.values():
            retriever.forget()
        if isinstance(self._reranker, CachingReranker):
            self._reranker.forget()
        for engine in self._engines.values():
            engine.forget()

    def engine(self, role: ModelRole) -> CachingEngine:
        """Return the engine of a role's model; the first call loads it."""
        if role not in self._engines:
            loaded = open_model(self._config, role)
            self._hashes[role] = loaded.fingerprint
            compiling = self._config.compile == "auto"
            self._engines[role] = CachingEngine(loaded, self._config.token_budget, compiling=compiling)
        return self._engines[role]

    def _name(self, point: Point) -> str:
        name = str(point.settings.get("pipeline", self._pipeline))
        return name if point.settings.get("relevance", True) else f"{name}_unjudged"

    def _recipe(self, point: Point) -> Recipe[Any]:
        return find_recipe(self._name(point))

    def _build(self, point: Point) -> Pipeline:
        recipe, config = self._recipe(point), point.config(self._config)
        parts = PipelineParts(
            knowledge=self._dataset.knowledge,
            engine=self.engine(recipe.model) if recipe.model else None,
            base=self.engine("base_model") if recipe.models(config).base_answers else None,
            retriever=GoldRetriever() if point.settings.get("entries") == "gold" else self._weighted(config),
            reranker=self.reranker() if recipe.needs("reranker") else None,
        )
        return build_pipeline(self._name(point), config, parts)

    def _weighted(self, config: GridSettings) -> CachingRetriever:
        """Return the retriever with a point's weights of titles and summaries, or its score of ranked entities."""
        retriever = RetrieverConfig.of(config)
        weights = retriever.title_weight, retriever.summary_share, retriever.ranked_scores
        if weights not in self._retrievers:
            entries = self._entries
            if isinstance(entries, EntryRetriever):
                entries = entries.weighted(title_weight=weights[0], summary_share=weights[1])
            elif isinstance(entries, RankedRetriever):
                entries = entries.scored(weights[2])
            self._retrievers[weights] = CachingRetriever(entries)
        return self._retrievers[weights]

    def reranker(self) -> Reranker:
        """Return the reranker; the first call loads it."""
        if self._reranker is None:
            opened = open_reranker(RerankerConfig.of(self._config), device=self._config.device)
            self._reranker = opened if isinstance(opened, ImageReranker) else CachingReranker(opened)
        return self._reranker
