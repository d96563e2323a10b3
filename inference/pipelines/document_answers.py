"""Answers of MMKB-RAG from each document alone, independent of any gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.documents import DocumentFinder, FoundDocuments
from reflectune.inference.reading.prompted_reader import PromptedReader
from reflectune.inference.reading.reader import Reader, ReaderAnswer
from reflectune.inference.trace import Trace

DocumentPosition = tuple[int, int]
"""Positions of a question in its batch, and of a document in the question's list."""


class DocumentAnswers:
    """Answers every question once from each of its documents; a document that doesn't fit the context has no answer.

    Args:
        reader: The fine-tuned model.
        finder: Finds documents.
        base: The model that answers, plainly; None: the tuned one answers.
    """

    name = "document_answers"

    def __init__(self, reader: PromptedReader, finder: DocumentFinder, base: Reader | None = None) -> None:
        self._reader, self._finder, self._base = reader, finder, base

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order."""
        clock = Clock()
        with clock.step("retrieve"):
            retrieved = self._finder.find(questions, images)
        with clock.step("answer"):
            answers = self._answers(questions, images, retrieved)
        return [
            Trace(
                question.id,
                self.name,
                retrieved=True,
                hits=retrieved[i].hits,
                passages=tuple(
                    dataclasses.replace(passage, answer=answers[i, k].text, s_ans=answers[i, k].score)
                    if answers[i, k].passages_read
                    else passage
                    for k, passage in enumerate(retrieved[i].traces([None] * len(retrieved[i].documents)))
                ),
                seconds=clock.share(len(questions)),
            )
            for i, question in enumerate(questions)
        ]

    def _answers(
        self, questions: Sequence[Question], images: Sequence[Image.Image], retrieved: Sequence[FoundDocuments]
    ) -> dict[DocumentPosition, ReaderAnswer]:
        rows = [(i, k) for i, retrieval in enumerate(retrieved) for k in range(len(retrieval.documents))]
        contexts = [[retrieved[i].documents[k]] for i, k in rows]
        if self._base is not None:
            row_questions, seen = [questions[i] for i, _ in rows], [images[i] for i, _ in rows]
            return dict(zip(rows, self._base.answer_plainly(row_questions, seen, contexts), strict=True))
        opened = self._reader.open(questions, images)
        answers: dict[DocumentPosition, ReaderAnswer] = {}
        for position in range(max((k + 1 for _, k in rows), default=0)):
            batch = {i: context for (i, k), context in zip(rows, contexts, strict=True) if k == position}
            answers |= {(i, position): answer for i, answer in self._reader.answer(opened, batch).items()}
        return answers
