"""From traces or a prediction file to a file for an official program, and what a person is told of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.metrics.scoring.predictions import read_predictions
from reflectune.metrics.scoring.registry import has_truth
from reflectune.metrics.scoring.scoring import join
from reflectune.metrics.scoring.submission_file import (
    LAYOUT_OF,
    LAYOUTS,
    Defect,
    Layout,
    as_text,
    official_ids,
    submission_rows,
)

_METRIC_OF: dict[Layout, Metric] = {"infoseek": "infoseek", "evqa": "evqa", "vqa": "vqa"}


@dataclass(frozen=True)
class Answers:
    """What a file of predictions says of a data set.

    Attributes:
        questions: Those to cover, in the data set's order; none that needs no retrieval, since official sets have none.
        by_id: The answer to each question that has one, by the question's id.
        unknown: Predictions for no such question; they are not handed in.
    """

    questions: tuple[Question, ...]
    by_id: dict[str, str]
    unknown: int

    @property
    def splits(self) -> list[str]:
        """Their splits."""
        return sorted({question.split for question in self.questions})


def layout_for(metric: Metric) -> Layout:
    """The layout that goes with a data set's metric.

    Raises:
        UserError: No official program that reads files goes with the metric.
    """
    if metric not in LAYOUT_OF:
        raise UserError(
            f"no official program reads answers of a data set scored by {metric}; `layout` is one of "
            f"{', '.join(LAYOUTS)}"
        )
    return LAYOUT_OF[metric]


def read_answers(path: Path, questions: Sequence[Question], *, touched: bool) -> Answers:
    """The answers of a file to the questions of a data set.

    Args:
        path: Traces, or a file that `read_predictions` knows.
        questions: The data set's.
        touched: Cover those splits alone that the file has an answer of.

    Raises:
        UserError: The file answers none of the questions, answers one twice, or holds no answers.
    """
    joined = join(read_predictions(path).rows, questions, "official")
    if not joined.pairs:
        raise UserError(f"{path} answers no question of the data set; is it of another one, or of another split?")
    if joined.doubled:
        raise UserError(f"{joined.doubled[0].where}: a question that was answered before; keep one of the two answers")
    by_id = {}
    for question, prediction in joined.pairs:
        if prediction.answer is None:
            raise UserError(f"{prediction.where}: the file holds no answers, only what was retrieved")
        by_id[question.id] = prediction.answer
    splits = {question.split for question, _ in joined.pairs}
    covered = [question for question in questions if not touched or question.split in splits]
    kept = tuple(question for question in covered if question.is_knowledge_based is not False)
    return Answers(kept, by_id, len(joined.unknown))


def file_content(
    layout: Layout, path: Path, questions: Sequence[Question], official: Path | None, *, touched: bool, fill: bool
) -> tuple[str, Answers]:
    """What the file holds that answers the questions, and whose answers those are.

    Args:
        layout: Whose program is to read it.
        path: Traces, or a prediction file.
        questions: The data set's.
        official: The official file of questions, which the data set may lack some of.
        touched: Cover those splits alone that the predictions are of.
        fill: Give a question without an answer an empty one.

    Raises:
        UserError: As `read_answers` and `submission_rows`.
    """
    answers = read_answers(path, questions, touched=touched)
    expected = official_ids(layout, official) if official is not None else ()
    rows = submission_rows(layout, answers.questions, answers.by_id, expected=expected, fill=fill)
    return as_text(layout, rows), answers


def lines(path: Path, layout: Layout, questions: Sequence[Question], defects: Sequence[Defect]) -> Iterator[str]:
    """What a person reads of a check."""
    unfit = sum(defect.is_unfit for defect in defects)
    verdict = f"{unfit} kinds of defect" if unfit else "fit to be handed in"
    yield f"{path} ({layout}, {len(questions)} questions of the data set): {verdict}"
    yield from (f"  {defect}" for defect in defects)
    untold = sum(not has_truth(question, _METRIC_OF[layout]) for question in questions)
    if untold:
        yield f"  {untold} of the questions have no answers in the data set: they can be handed in, and not scored here"
        if layout == "infoseek":
            yield "  (InfoSeek's answers of its test and human sets are unreleased; papers report its validation set)"
