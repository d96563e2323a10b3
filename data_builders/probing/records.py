"""Probes: a question's answers with and without each document, kept as Parquet so that labels can be derived anew."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.core.parquet import open_parquet, stream_rows
from reflectune.core.rows import from_row, schema_of
from reflectune.core.types import Passage


@dataclass(frozen=True)
class ProbedAnswer:
    """One answer of the model.

    Attributes:
        text: The answer; "" if the model said nothing.
        correctness: What it is worth by the data set's metric, in [0, 1].
        log_prob: Log-probability of the whole answer in nats, its end token included; None if it isn't a finite number:
            such a reply says nothing about the model, and no label is derived from it.
    """

    text: str
    correctness: float
    log_prob: float | None


@dataclass(frozen=True)
class DocumentProbe:
    """What became of a question's answer when the model read one document.

    Attributes:
        passage: The document, as the model read it.
        score: The retriever's, of the document's entry (S_ret).
        rank: Its place among the question's documents, 1 for the best.
        replies: The greedy answer, and after it the drawn ones, if any were asked for.
        gold_log_prob: Log-probability in nats of the accepted answer that is scored, end token included, with this
            document; None if there is no such answer or the number isn't finite.
        sentence: The document's sentence from which the model finds the accepted answer most probable, if the greedy
            answer is right and `summary` was `sentences`; else "".
        cut: Whether the model's context didn't hold all of its sentences; those that it held are in `passage`.
    """

    passage: Passage
    score: float
    rank: int
    replies: tuple[ProbedAnswer, ...]
    gold_log_prob: float | None = None
    sentence: str = ""
    cut: bool = False


@dataclass(frozen=True)
class Probe:
    """A question's answers.

    Attributes:
        question_id: The question's id.
        replies: Without any document: the greedy answer, and after it the drawn ones, if any were asked for.
        documents: With each document, best first.
        left_out: Documents of which the model's context, beside the question and an answer, held no sentence.
        gold: The answer that is scored: the question's first accepted one, or "" if there is none.
        gold_log_prob: Its log-probability in nats, end token included, without a document; None as above.
        summary: The model's own words on several documents, if `summary` was `words`; else "".
        summarised: The ids of those documents, best first.
        problem: Why the question could not be asked; it then has no replies. "" for all others.
    """

    question_id: str
    replies: tuple[ProbedAnswer, ...] = ()
    documents: tuple[DocumentProbe, ...] = ()
    left_out: int = 0
    gold: str = ""
    gold_log_prob: float | None = None
    summary: str = ""
    summarised: tuple[str, ...] = ()
    problem: str = ""


def greedy_correctness(replies: tuple[ProbedAnswer, ...]) -> float | None:
    """What the greedy answer is worth, in [0, 1]; None if there is none, or it can't be judged."""
    return _mean_correctness(replies[:1])


def drawn_rate(replies: tuple[ProbedAnswer, ...]) -> float | None:
    """Rate of correctness over the drawn answers, or over the greedy one where none were drawn; None as above."""
    return _mean_correctness(replies[1:] or replies)


def _mean_correctness(replies: tuple[ProbedAnswer, ...]) -> float | None:
    """Mean correctness of those replies whose log-probability is a finite number; None if there is none."""
    values = [reply.correctness for reply in replies if reply.log_prob is not None]
    return sum(values) / len(values) if values else None


def stream_probe_file(path: Path) -> Iterator[Probe]:
    """The probes of one Parquet file, in order, some hundreds of them in memory at a time.

    Raises:
        UserError: The file is missing, damaged, or lacks a column, or a number in it is none that a probe can have.
    """
    fix = "copy it again, or probe again"
    try:
        with open_parquet(path, fix) as file:
            for row in stream_rows(file, schema_of(Probe)):
                probe = from_row(Probe, row)
                _check_numbers(probe)
                yield probe
    except (KeyError, ValueError) as error:
        raise UserError(f"{path} is no readable file of probes: {error}; {fix}") from error


def _check_numbers(probe: Probe) -> None:
    """Raise a `ValueError` for a correctness outside of [0, 1] or a log-probability or score that is not finite."""
    replies = [*probe.replies, *(reply for document in probe.documents for reply in document.replies)]
    log_probs = [probe.gold_log_prob, *(document.gold_log_prob for document in probe.documents)]
    log_probs += [reply.log_prob for reply in replies]
    numbers = [number for number in log_probs if number is not None] + [document.score for document in probe.documents]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"question {probe.question_id} has a log-probability or score that is no finite number")
    if not all(0 <= reply.correctness <= 1 for reply in replies):
        raise ValueError(f"question {probe.question_id} has a reply whose correctness is not in [0, 1]")


def finite_sum(log_probs: Sequence[float]) -> float | None:
    """Log-probability of a sequence in nats, or None if it is no finite number."""
    total = math.fsum(log_probs) if all(map(math.isfinite, log_probs)) else math.nan
    return total if math.isfinite(total) else None
