"""Answer from passages given before the question in one turn, without reflection: naive RAG and oracle."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.reading.reader import Reader
from reflectune.inference.trace import PassageTrace, Trace


def answer_with_context(
    name: str,
    reader: Reader,
    questions: Sequence[Question],
    images: Sequence[Image.Image],
    *,
    hits: Sequence[Sequence[Hit]],
    passages: Sequence[Sequence[Passage]],
    clock: Clock,
) -> list[Trace]:
    """Answer each question from the leading passages that fit the context whole; the others are counted.

    Args:
        name: The pipeline's name.
        reader: The model.
        questions: The questions.
        images: Their images.
        hits: The entries retrieved for each; empty for an oracle.
        passages: The passages to read, most important first.
        clock: Clock with the seconds spent so far.
    """
    with clock.step("answer"):
        answers = reader.answer_plainly(questions, images, passages)
    read = [
        question_passages[: answer.passages_read] for question_passages, answer in zip(passages, answers, strict=True)
    ]
    scores = [{hit.entry_id: hit.score for hit in question_hits} for question_hits in hits]
    return [
        Trace(
            question_id=question.id,
            pipeline=name,
            answer=answer.text,
            confidence=answer.score,
            retrieved=bool(hits[i]),
            hits=tuple(hits[i]),
            passages=tuple(PassageTrace(passage, s_ret=scores[i].get(passage.entry_id)) for passage in read[i]),
            seconds=clock.share(len(questions)),
            tokens={
                **answer.usage,
                "passages_read": len(read[i]),
                "passages_left_out": len(passages[i]) - len(read[i]),
            },
        )
        for i, (question, answer) in enumerate(zip(questions, answers, strict=True))
    ]
