"""Answer questions with retrieval and without, to measure the reward of a gate's two outcomes."""

from __future__ import annotations

import functools
import gc
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.config import Settings
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.launching import launch_processes
from reflectune.core.odds import log_odds
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelSettings
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe
from reflectune.inference.pipelines.registry import build_pipeline, find_recipe
from reflectune.inference.running.loading import open_engine, open_entries, open_plain
from reflectune.inference.running.parts import preparers
from reflectune.inference.running.runner import run_pipeline
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.inference.trace_files.columns import StoredTraces, with_texts
from reflectune.metrics.scoring.registry import AnswerMetric
from reflectune.models.loading import Loaded
from reflectune.models.schemes.gate_outcomes import (
    AnchoredPassage,
    AnchoredReply,
    GateOutcome,
    KLAnchor,
    PassageOutcome,
)
from reflectune.retrieval.config import RetrieverConfig

DIRECT, RETRIEVED, PASSAGES = "direct", "retrieved", "passages"

_GAMMA = {DIRECT: math.inf, RETRIEVED: -1.0}
"""Thresholds that no gate reaches, and that every gate reaches."""


class GateRewardRollout:
    """Measures the outcomes of questions' gates with the pipeline of the model's own scheme.

    The traces of each round are stored in `folder/round-NNN/{direct,retrieved,passages}.jsonl`, as in an evaluation:
    the work is shared among processes and resumable. They don't depend on costs, so that runs can share them.

    Args:
        settings: The pipeline's settings, or a config that has them.
        models: Names the base model, and sets how it is loaded.
        retriever: Names the index.
        loaded: The model, which may be trained between two rounds.
        folder: Folder of the traces.
        correctness: Score of an answer by the data set's metric; see `find_metric`.
        batch_questions: Questions in a batch.
        relevance: True to answer from every passage alone as well.
        run: Hash of everything that determines the weights in rounds after the first.
    """

    def __init__(
        self,
        settings: Settings,
        models: ModelSettings,
        retriever: RetrieverConfig,
        loaded: Loaded,
        dataset: Dataset,
        questions: Sequence[Question],
        *,
        folder: Path,
        correctness: AnswerMetric,
        batch_questions: int = 8,
        relevance: bool = False,
        run: str = "",
    ) -> None:
        self._settings, self._models, self._retriever = settings, models, retriever
        self._loaded, self._dataset, self._questions = loaded, dataset, questions
        self._folder, self._batch = folder, batch_questions
        self._correctness = correctness
        self._names = (DIRECT, RETRIEVED, PASSAGES) if relevance else (DIRECT, RETRIEVED)
        self._run = run
        launch_processes(folder)  # raises if the processes don't share the folder
        for question in questions:
            self._correctness("?", question)  # raises now, not after hours, if a question can't be scored

    def __call__(self, number: int, *, kept: bool = False) -> list[GateOutcome]:
        """Return the outcomes of a round, one a question, in the order of the questions.

        Args:
            number: Number of the round, from 0.
            kept: True if the traces must exist already, since the model has been trained after this round.

        Raises:
            UserError: `kept` is True and the round's traces are missing; or they were made with other settings.
        """
        folder = self._folder / f"round-{number:03d}"
        missing = [name for name in self._names if not (folder / f"{name}.jsonl").is_file()]
        if kept and missing:
            raise UserError(
                f"{folder} lacks {', '.join(f'{name}.jsonl' for name in missing)}, which the run had measured with "
                "earlier weights; restore it, or delete the run's folder and start again"
            )
        traces = self._answer(number, folder)
        gc.collect()  # an engine is part of a cycle: the base model would stay in memory while the gates are trained
        ids = [question.id for question in self._questions]
        whole = {name: with_texts(round_traces, ids) for name, round_traces in traces.items()}
        return [
            self._outcome(question, {name: by_id[question.id] for name, by_id in whole.items()})
            for question in self._questions
        ]

    def _answer(self, number: int, folder: Path) -> Mapping[str, StoredTraces]:
        """Answer the questions of a round, and return the traces by pipeline, then by question id."""
        base = open_plain(self._models, self._models.base_model) if self._base_answers else None
        parts, hashed = self._parts(base), self._fingerprint(number, base)
        return {
            name: run_pipeline(
                name,
                functools.partial(self._build, name, parts),
                self._questions,
                image_root=self._dataset.root,
                folder=folder,
                fingerprint=hashed,
                batch_questions=self._batch,
                on_error="stop",
                prepare=functools.partial(preparers, parts, self._recipe),
            )
            for name in self._names
        }

    @functools.cached_property
    def _scheme(self) -> str:
        assert self._loaded.scheme is not None  # only a fine-tuned model has gates
        return self._loaded.scheme.name

    @property
    def _recipe(self) -> Recipe[Any]:
        return find_recipe(self._scheme)

    @property
    def _base_answers(self) -> bool:
        return self._recipe.models(self._settings).base_answers

    def _parts(self, base: Loaded | None) -> PipelineParts:
        return PipelineParts(
            knowledge=self._dataset.knowledge,
            retriever=open_entries(self._retriever, self._dataset, self._models.device),
            engine=open_engine(self._models, self._loaded),
            base=open_engine(self._models, base) if base else None,
        )

    def _build(self, name: str, parts: PipelineParts) -> Pipeline:
        settings = self._recipe.settings_of(self._settings)
        if name == PASSAGES:
            if self._recipe.answer_each is None:
                raise UserError(f"the pipeline {self._scheme} can't answer from each passage alone; refine `retrieve`")
            return self._recipe.answer_each(settings, parts)
        forced = {"gamma": _GAMMA[name]} | ({"ret": True} if "ret" in type(settings).model_fields else {})
        return build_pipeline(self._scheme, settings.model_copy(update=forced), parts)

    def _fingerprint(self, number: int, base: Loaded | None) -> str:
        """Hash everything that a round's traces depend on. The first round's don't depend on costs."""
        settings = self._recipe.settings_of(self._settings)
        return fingerprint(
            {
                "scheme": self._scheme,
                "dataset": self._dataset.fingerprint,
                "index": self._retriever.finder_fingerprint(),
                "weights": {"title": self._retriever.title_weight, "summary": self._retriever.summary_share},
                "model": self._loaded.fingerprint,
                "base_model": base.fingerprint if base else None,
                "dtype": self._models.precision,
                "token_budget": self._models.token_budget,
                "batch_questions": self._batch,
                "settings": {name: it for name, it in settings.hashed().items() if name not in ("gamma", "ret")},
                "round": number,
                "run": self._run if number else "",
            }
        )

    def _outcome(self, question: Question, traces: Mapping[str, Trace]) -> GateOutcome:
        retrieved = traces[RETRIEVED]
        return GateOutcome(
            question.id,
            direct=self._correctness(traces[DIRECT].answer, question),
            retrieved=self._correctness(retrieved.answer, question),
            passages_read=retrieved.tokens["passages_read"],
            log_odds=log_odds(retrieved.gate or 0.0),
            passages=_passages(question, retrieved, traces.get(PASSAGES), self._correctness),
            anchor=self._anchor(traces[DIRECT], retrieved, refined=PASSAGES in traces),
        )

    def _anchor(self, direct: Trace, retrieved: Trace, *, refined: bool) -> KLAnchor:
        """Return the anchors of the KL penalty.

        Args:
            refined: True if the relevance gates have rewards of their own, and so no anchor.
        """
        tuned_answers = not self._base_answers
        passages = []
        for judged in _drawn_passage(retrieved):
            log_odds, answer = None if refined else _relevance(judged), judged.answer or ""
            if log_odds is not None or answer:
                passages.append(AnchoredPassage(judged.passage, log_odds, answer))
        replies = tuple(self._replies(retrieved, tuned_answers))
        return KLAnchor(tuple(passages), direct.answer if tuned_answers else "", replies)

    def _replies(self, retrieved: Trace, tuned_answers: bool) -> Iterator[AnchoredReply]:
        documents, mct = [passage.passage for passage in retrieved.passages], retrieved.mct
        if mct is not None and not mct.problem:
            shown = tuple(documents[k] for k in retrieved.kept[: mct.shown])
            yield AnchoredReply("mct", shown, self._loaded.renderer.strip(mct.reply))
        if tuned_answers and retrieved.answer and retrieved.used and not (mct is not None and mct.merged):
            yield AnchoredReply("vqa", tuple(documents[k] for k in retrieved.used), retrieved.answer)


def _drawn_passage(retrieved: Trace) -> list[PassageTrace]:
    """Draw a judged passage by the question's id: the best one with probability 1/2."""
    judged = sorted(
        (passage for passage in retrieved.passages if passage.s_rel is not None),
        key=lambda passage: -(passage.s_rel or 0.0),
    )
    if not judged:
        return []
    rng = random.Random(retrieved.question_id)
    others = judged[1:]
    return [rng.choice(others if others and rng.random() < 0.5 else judged[:1])]


def _passages(
    question: Question, judged: Trace, answered: Trace | None, correctness: AnswerMetric
) -> tuple[PassageOutcome, ...]:
    """Return the passages that were both judged and answered from."""
    if answered is None:
        return ()
    answers = {passage.passage.id: passage.answer for passage in answered.passages if passage.answer is not None}
    return tuple(
        PassageOutcome(passage.passage, correctness(answers[passage.passage.id], question), _relevance(passage))
        for passage in judged.passages
        if passage.s_rel is not None and passage.passage.id in answers
    )


def _relevance(passage: PassageTrace) -> float:
    assert passage.s_rel is not None
    assert passage.s_irr is not None
    return log_odds(passage.s_rel, passage.s_irr)
