"""Reader of pipelines that answer in one turn: a loaded model, or one behind a server."""

from __future__ import annotations

from collections.abc import Sequence

from reflectune.core.images import Images, each_image
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.models import ServedModel
from reflectune.inference.operators.request_pool import RequestPool
from reflectune.inference.operators.requests import Prompt, WriteReply, WriteRequest
from reflectune.inference.pipelines.base import PlainReader
from reflectune.inference.pipelines.recipe import PipelineParts, needed
from reflectune.inference.reading.reader import Reader, ReaderAnswer
from reflectune.models.rendering.thoughts import without_thoughts
from reflectune.models.rendering.turns import answer_prompt, passage_text


def plain_reader(parts: PipelineParts, max_new_tokens: int) -> PlainReader:
    """Return the reader of a pipeline's parts."""
    if parts.use.is_served:
        return ServedReader(ServedModel(needed(parts.remote), step_models=parts.use.step_models), max_new_tokens)
    return Reader(needed(parts.engine), max_new_tokens)


class ServedReader:
    """A model behind a server, with the prompts of `Reader`. Passages are separated by line breaks.

    Args:
        model: The model.
        max_new_tokens: Maximum length of an answer.
    """

    def __init__(self, model: ServedModel, max_new_tokens: int) -> None:
        self._model, self._max_new_tokens = model, max_new_tokens

    def answer_plainly(
        self, questions: Sequence[Question], images: Sequence[Images], contexts: Sequence[Sequence[Passage]]
    ) -> list[ReaderAnswer]:
        """Answer each question by one request, `llm_concurrency` of them at a time.

        A question that the server refuses even with a single passage has an `error`.
        """
        replies: dict[int, WriteReply] = {}
        with RequestPool[int](self._model.concurrency) as pool:
            for row, (question, image, passages) in enumerate(zip(questions, images, contexts, strict=True)):
                request = WriteRequest("answer", 0, plain_prompt(question, image, passages), self._max_new_tokens)
                pool.send(row, self._model.requests(image, request))
            while pool.load:
                replies |= {row: reply for row, (reply,), _ in pool.collect(wait=True)}
        return [_answer(replies[row]) for row in range(len(questions))]


def plain_prompt(question: Question, image: Images, passages: Sequence[Passage]) -> Prompt:
    """Return the prompt that `Renderer.plain` renders."""
    prompt = answer_prompt(question.answer_style, documents=bool(passages)).replace("{passage}", "{documents}")
    return Prompt(
        f"{{question}} {prompt}".strip(),
        {"question": question.text},
        tuple(map(passage_text, passages)),
        more_images=len(each_image(image)) - 1,
    )


def _answer(reply: WriteReply) -> ReaderAnswer:
    return ReaderAnswer(
        without_thoughts(reply.text).strip(),
        reply.score or 0.0,
        reply.tokens,
        reply.shown,
        reply.read,
        cut=not reply.finished and not reply.refused,
        error=f"the server refused to answer ({reply.refused}); shorten the prompt" if reply.refused else "",
    )
