"""Work of one process: prepare windows of questions and probe them in batches that fit into memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from PIL import Image

from reflectune.core.devices import is_out_of_memory
from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.images import load_image
from reflectune.core.images_ahead import ImagesAhead
from reflectune.core.types import Question
from reflectune.data_builders.probing.config import GenerationSettings, WorkerSettings
from reflectune.data_builders.probing.documents import DocumentSource
from reflectune.data_builders.probing.probe import PreparedQuestion, Prober
from reflectune.data_builders.probing.records import Probe
from reflectune.formats.dataset import Dataset
from reflectune.formats.questions import check_one_image
from reflectune.metrics.scoring.registry import AnswerMetric
from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.retrieval.contexts import Document

Made = TypeVar("Made")


class ProbeWorker:
    """Prepares windows of questions and probes them, batch by batch.

    Args:
        dataset: Images and knowledge base.
        source: Finds each question's documents.
        loaded: The target model.
        correctness: Scores an answer.
        generation: Answers and summaries to generate.
        settings: Batches, and bad questions.

    Attributes:
        images: Opens the images of the next window.
    """

    def __init__(
        self,
        dataset: Dataset,
        source: DocumentSource,
        loaded: Loaded,
        correctness: AnswerMetric,
        generation: GenerationSettings,
        settings: WorkerSettings,
    ) -> None:
        self._dataset, self._source, self._loaded, self._settings = dataset, source, loaded, settings
        self.images = ImagesAhead(self._open, lambda: [loaded.renderer.preparer(), *source.preparers()])
        self._prober = Prober(PrefixEngine(loaded, settings.token_budget), correctness, generation)

    def prepare(self, questions: Sequence[Question]) -> tuple[list[PreparedQuestion], list[Probe]]:
        """Load images, retrieve documents and render prompts.

        Returns:
            The prepared questions, and a probe with the problem of each question that can't be asked.

        Raises:
            UserError: A question can't be asked, and `on_error` is `stop`.
        """
        bad: list[Probe] = []
        opened = [(q, image) for q in questions if (image := self._try(bad, q, partial(self._take, q)))]
        opened, found = self._find(bad, opened)
        ready = [
            made
            for (q, image), documents in zip(opened, found, strict=True)
            if (made := self._try(bad, q, partial(self._prober.prepare, q, image, documents)))
        ]
        return ready, bad

    def batches(self, ready: Sequence[PreparedQuestion]) -> Iterator[Sequence[PreparedQuestion]]:
        """Yield batches of questions of similar length."""
        ordered = sorted(ready, key=lambda prepared: (prepared.length, prepared.question.id))
        size = self._settings.batch_questions
        return (ordered[start : start + size] for start in range(0, len(ordered), size))

    def probe(self, batch: Sequence[PreparedQuestion]) -> list[Probe]:
        """Probe a batch.

        Raises:
            UserError: It doesn't fit into memory, even with the smallest token budget.
        """
        try:
            return self._prober.probe(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            message = str(error).splitlines()[0] if str(error) else "out of memory"
            raise UserError(
                f"out of memory with {len(batch)} questions together: {message}; set `dtype: bfloat16`, or lower "
                "`batch_questions`, `documents` or `token_budget`"
            ) from error

    def shown(self, ready: PreparedQuestion) -> list[str]:
        """Return the model's input without a document and with the best one, with image tokens counted."""
        renderer = self._loaded.renderer
        token = renderer.processor.image_token
        texts = [renderer.decode([*ready.prefix.ids, *branch]) for branch in ready.branches[:2]]
        return [re.sub(rf"(?:{re.escape(token)}\s*)+", f"{token} × {text.count(token)}\n", text) for text in texts]

    def _try(self, bad: list[Probe], question: Question, make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except UserError as error:
            if self._settings.on_error == "stop":
                advice = "fix the row, or leave such rows out with `on_error: skip`"
                raise UserError(f"question {question.id} of {self._dataset.root}: {error}; {advice}") from error
            bad.append(Probe(question.id, problem=str(error)))
            return None

    def _find(
        self, bad: list[Probe], opened: list[tuple[Question, Image.Image]]
    ) -> tuple[list[tuple[Question, Image.Image]], list[list[Document]]]:
        """Return the questions and their documents, without questions whose image the encoder can't encode."""
        try:
            return opened, self._source.find([q for q, _ in opened], [image for _, image in opened])
        except UnusableInput:
            alone = [(row, self._try(bad, row[0], partial(self._source.find, [row[0]], [row[1]]))) for row in opened]
        found = [(row, documents[0]) for row, documents in alone if documents]
        return [row for row, _ in found], [documents for _, documents in found]

    def _take(self, question: Question) -> Image.Image:
        image = self.images.take(question)
        self._source.check(question)
        return image

    def _open(self, question: Question) -> Image.Image:
        for name, value in (("text", question.text), ("image", question.image)):
            if not value.strip():
                raise UserError(f"it has no {name}")
        check_one_image(question, "a probe")
        return load_image(question.image, root=self._dataset.image_roots)
