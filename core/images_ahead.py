"""Open the images of later questions in threads while a model reads earlier ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from PIL import Image

from reflectune.core.durable import Closing
from reflectune.core.errors import UserError
from reflectune.core.images import Images, each_image
from reflectune.core.types import Question

Opened = TypeVar("Opened", bound=Images)
Prepare = Callable[[Image.Image], None]
"""Function that prepares an image for a model, in any thread."""
_AHEAD: Final = 16
"""Maximum questions whose images are opened ahead. At Qwen2-VL's own limit a photograph takes 300 MB."""
_THREADS: Final = 4
"""Threads of a process. Pillow and torch release Python's lock while they work on pixels."""


class ImagesAhead(Closing, Generic[Opened]):
    """Images of questions that are answered next: threads open them, and prepare them for the models.

    Decoding, and resizing for a 7B model and a retriever, take a core about as long as a GPU takes to answer.

    Args:
        open_one: Opens the images of a question.
        prepare: Returns functions to call with each image; called once, before the first image is opened.
    """

    def __init__(
        self, open_one: Callable[[Question], Opened], prepare: Callable[[], Sequence[Prepare]] = tuple
    ) -> None:
        self._open_one, self._prepare = open_one, functools.cache(prepare)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="images")
        self._waiting: dict[str, Question] = {}
        self._begun: dict[str, Future[Opened]] = {}

    def close(self) -> None:
        """Drop images that no thread has begun, and end the threads."""
        self._pool.shutdown(cancel_futures=True)

    def begin(self, questions: Sequence[Question]) -> None:
        """Enqueue the images of questions for opening. Each question must be taken later."""
        self._waiting.update((question.id, question) for question in questions)
        self._fill()

    def take(self, question: Question) -> Opened:
        """Return a question's images, once; open them now if no thread has begun. Raises what `open_one` raises."""
        self._waiting.pop(question.id, None)
        begun = self._begun.pop(question.id, None)
        self._fill()
        return begun.result() if begun else self._open_one(question)

    def _fill(self) -> None:
        while self._waiting and len(self._begun) < _AHEAD:
            question = self._waiting.pop(next(iter(self._waiting)))
            self._begun[question.id] = self._pool.submit(self._made_ready, question, self._prepare())

    def _made_ready(self, question: Question, functions: Sequence[Prepare]) -> Opened:
        images = self._open_one(question)
        try:
            for image in each_image(images):
                for prepare in functions:
                    prepare(image)
        except UserError:
            pass  # the model that reads the image raises it again
        return images
