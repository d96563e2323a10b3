"""Probes: a model's answers to a question with and without each document, from which labels are derived."""

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
    """An answer of the model.

    Attributes:
        text: The answer; "" if it is empty.
        correctness: Score by the data set's metric, in [0, 1].
        log_prob: Log-probability of the whole answer in nats, including the end token. None if it isn't finite: no
            label is derived from such an answer.
    """

    text: str
    correctness: float
    log_prob: float | None


@dataclass(frozen=True)
class DocumentProbe:
    """A question's answers with one document.

    Attributes:
        passage: The document as the model read it.
        score: The retriever's score of the document's entry (S_ret).
        rank: Rank among the question's documents, 1 for the best.
        reply: The greedy answer; None if there is none.
        gold_log_prob: Log-probability in nats of the accepted answer, including the end token, with this document.
            None without an accepted answer, or if the number isn't finite.
        sentence: Sentence of the document that makes the accepted answer most probable, if the greedy answer is right
            and `summary` was `sentences`; else "".
        cut: True if the document was truncated to fit the model's context. `passage` has the sentences that fit.
        found: Rank of its entry in the search results (`formats.hits.describe_ranks`); "" for own and random documents.
    """

    passage: Passage
    score: float
    rank: int
    reply: ProbedAnswer | None
    gold_log_prob: float | None = None
    sentence: str = ""
    cut: bool = False
    found: str = ""


@dataclass(frozen=True)
class Probe:
    """A question's answers without and with each document.

    Attributes:
        question_id: The question's id.
        reply: The greedy answer without a document; None for a question that could not be asked.
        documents: Answers with each document, best first.
        left_out: Number of documents without a sentence that fits into the model's context.
        gold: The first accepted answer, whose log-probability is computed; "" if there is none.
        gold_log_prob: Its log-probability in nats, including the end token, without a document. None as above.
        summary: Summary of several documents in the model's own words, if `summary` was `words`; else "".
        summarised: Ids of the summarised documents, best first.
        problem: Reason why the question could not be asked, in which case it has no reply; else "".
    """

    question_id: str
    reply: ProbedAnswer | None = None
    documents: tuple[DocumentProbe, ...] = ()
    left_out: int = 0
    gold: str = ""
    gold_log_prob: float | None = None
    summary: str = ""
    summarised: tuple[str, ...] = ()
    problem: str = ""

    @property
    def replies(self) -> list[ProbedAnswer]:
        """The answers without and with each document."""
        optional = (self.reply, *(document.reply for document in self.documents))
        return [reply for reply in optional if reply is not None]


def greedy_correctness(reply: ProbedAnswer | None) -> float | None:
    """Return the greedy answer's score in [0, 1]; None if there is none or its log-probability isn't finite."""
    return None if reply is None or reply.log_prob is None else reply.correctness


def stream_probe_file(path: Path) -> Iterator[Probe]:
    """Yield the probes of a Parquet file in order, with a few hundred in memory at a time.

    Raises:
        UserError: The file is missing or damaged, or lacks a column, or a number is out of range.
    """
    fix = "copy it again, or probe again"
    try:
        with open_parquet(path, fix) as file:
            for row in stream_rows(file, schema_of(Probe)):
                probe = from_row(Probe, row)
                _check_numbers(probe)
                yield probe
    except (KeyError, ValueError) as error:
        raise UserError(f"{path} is not a readable probe file: {error}; {fix}") from error


def _check_numbers(probe: Probe) -> None:
    """Raise a `ValueError` for a correctness outside [0, 1], or a log-probability or score that isn't finite."""
    log_probs = [probe.gold_log_prob, *(document.gold_log_prob for document in probe.documents)]
    log_probs += [reply.log_prob for reply in probe.replies]
    numbers = [number for number in log_probs if number is not None] + [document.score for document in probe.documents]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"question {probe.question_id} has a log-probability or score that is not a finite number")
    if not all(0 <= reply.correctness <= 1 for reply in probe.replies):
        raise ValueError(f"question {probe.question_id} has a reply whose correctness is not in [0, 1]")


def finite_sum(log_probs: Sequence[float]) -> float | None:
    """Return the log-probability of a sequence in nats; None if it isn't finite."""
    total = math.fsum(log_probs) if all(map(math.isfinite, log_probs)) else math.nan
    return total if math.isfinite(total) else None
