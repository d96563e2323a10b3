"""What naive RAG and oracle share: passages before the answer, in one turn, and no reflection on any of them."""

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
    hits: Sequence[Sequence[Hit]],
    passages: Sequence[Sequence[Passage]],
    clock: Clock,
) -> list[Trace]:
    """Answer each question from its passages, as many as the model's context holds whole; the rest is counted.

    Args:
        name: The pipeline's name.
        reader: The model.
        questions: The questions.
        images: Their images.
        hits: The entries retrieved for each; empty for an oracle.
        passages: The passages to read, most important first.
        clock: Has the seconds spent so far.
    """
    with clock.step("answer"):
        answers = reader.answer_plainly(questions, images, passages)
    kept = [
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
            passages=tuple(PassageTrace(passage, s_ret=scores[i].get(passage.entry_id)) for passage in kept[i]),
            seconds=clock.share(len(questions)),
            tokens={
                **answer.usage,
                "passages_read": len(kept[i]),
                "passages_left_out": len(passages[i]) - len(kept[i]),
            },
        )
        for i, (question, answer) in enumerate(zip(questions, answers, strict=True))
    ]
