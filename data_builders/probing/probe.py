"""Ask a model each question without and with each document, on one shared prefix of image and question."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.data_builders.probing.config import GenerationSettings
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer, finite_sum
from reflectune.data_builders.probing.summaries import add_sentences, add_words
from reflectune.metrics.scoring.registry import AnswerMetric
from reflectune.models.prefix.engine import Branches, Generation, PrefixEngine
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.rendering.thoughts import without_thoughts
from reflectune.models.schemes.prompts import PromptScheme
from reflectune.retrieval.contexts import Document, shorten

BranchIndex = tuple[int, int]
"""Index of a question in its batch, and of a branch: 0 without a document, k with the k-th document."""


@dataclass(frozen=True)
class PreparedQuestion:
    """A rendered question.

    Attributes:
        question: The question.
        prefix: Image and question.
        documents: The documents that fit into the model's context, best first.
        branches: Token ids of the prompts: without a document, then with each document.
        gold: The accepted answer to score, or "".
        gold_ids: Its token ids.
        left_out: Number of documents without a sentence that fits.
    """

    question: Question
    prefix: Rendered
    documents: list[Document]
    branches: list[list[int]]
    gold: str
    gold_ids: list[int]
    left_out: int

    @property
    def length(self) -> int:
        """Number of tokens to read."""
        return len(self.prefix.ids) + sum(map(len, self.branches))


class Prober:
    """Probes a model. All prompts and answers of a question share one prefix of image and question.

    Args:
        engine: Engine of the probed model, loaded with MMKB-RAG's scheme.
        correctness: Scores an answer.
        generation: Answers and summaries to generate.
    """

    def __init__(self, engine: PrefixEngine, correctness: AnswerMetric, generation: GenerationSettings) -> None:
        self._engine, self._renderer = engine, engine.renderer
        self._scheme = PromptScheme.of(engine.renderer)
        self._correctness, self._settings = correctness, generation

    def prepare(self, question: Question, image: Image.Image, documents: Sequence[Document]) -> PreparedQuestion:
        """Render a question. Documents that exceed the context are truncated at a sentence; the instruction never is.

        Raises:
            UserError: The question without documents is too long for the model, or its answers can't be scored.
        """
        self._correctness("?", question)
        prefix = self._renderer.question_prefix(question.text, image)
        alone = self._scheme.prompt_branch(self._renderer, "vqa", style=question.answer_style)
        gold = canonical_answer(question)
        gold_ids = self._renderer.reply_ids(gold) if gold else []
        room = self._engine.max_length - len(prefix.ids) - max(self._settings.max_new_tokens, len(gold_ids))
        if len(alone) > room:
            raise UserError(
                f"question {question.id} is too long: with an answer it exceeds the model's context of "
                f"{self._engine.max_length} tokens; shorten or leave out the question, or lower `max_new_tokens`"
            )
        prompt = functools.cache(
            lambda passage: self._scheme.prompt_branch(self._renderer, "vqa", [passage], question.answer_style)
        )
        fitted = [shorten(document, room, lambda passage: len(prompt(passage))) for document in documents]
        shown = [document for document in fitted if document is not None]
        branches = [alone, *(prompt(document.passage) for document in shown)]
        return PreparedQuestion(question, prefix, shown, branches, gold, gold_ids, len(documents) - len(shown))

    def probe(self, batch: Sequence[PreparedQuestion]) -> list[Probe]:
        """Return one probe per question, in order."""
        prefixes = self._engine.read([ready.prefix for ready in batch])
        state = self._engine.branch(prefixes, [ready.branches for ready in batch])
        replies = self._replies(state, batch)
        scores = self._scores(state, batch)
        probes = [
            Probe(
                question_id=ready.question.id,
                reply=replies[q, 0],
                documents=tuple(
                    DocumentProbe(
                        document.passage,
                        document.score,
                        document.rank,
                        replies[q, k],
                        scores.get((q, k)),
                        cut=document.cut,
                        found=document.found,
                    )
                    for k, document in enumerate(ready.documents, start=1)
                ),
                left_out=ready.left_out,
                gold=ready.gold,
                gold_log_prob=scores.get((q, 0)),
            )
            for q, ready in enumerate(batch)
        ]
        if self._settings.summary == "sentences":
            styles = [ready.question.answer_style for ready in batch]
            return add_sentences(self._engine, prefixes, probes, [ready.gold_ids for ready in batch], styles)
        if self._settings.summary == "words":
            lengths = [len(ready.prefix.ids) for ready in batch]
            return add_words(self._engine, prefixes, probes, lengths)
        return probes

    def _replies(self, state: Branches, batch: Sequence[PreparedQuestion]) -> dict[BranchIndex, ProbedAnswer]:
        """Return the greedy answer of each branch."""
        rows = _rows(batch)
        greedy = self._engine.generate(state, rows, max_new_tokens=self._settings.max_new_tokens)
        return {row: self._reply(generation, batch[row[0]]) for row, generation in zip(rows, greedy, strict=True)}

    def _reply(self, generation: Generation, ready: PreparedQuestion) -> ProbedAnswer:
        text = self._renderer.strip(without_thoughts(generation.text))
        return ProbedAnswer(text, self._correctness(text, ready.question), finite_sum(generation.log_probs))

    def _scores(self, state: Branches, batch: Sequence[PreparedQuestion]) -> dict[BranchIndex, float | None]:
        """Return the log-probability of the accepted answer after each branch, for questions that have one."""
        rows = [(q, k) for q, k in _rows(batch) if batch[q].gold_ids]
        answer_log_probs = self._engine.score(state, rows, [batch[q].gold_ids for q, _ in rows])
        return {row: finite_sum(log_probs) for row, log_probs in zip(rows, answer_log_probs, strict=True)}


def _rows(batch: Sequence[PreparedQuestion]) -> list[BranchIndex]:
    return [(q, k) for q, ready in enumerate(batch) for k in range(len(ready.branches))]
