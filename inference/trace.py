"""The trace of a question: a row of `traces/<pipeline>.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from reflectune.core import rows
from reflectune.core.types import Passage
from reflectune.formats.hits import Hit
from reflectune.inference.reading.document_choice import MctTrace
from reflectune.inference.reading.ranking import PassageScores


@dataclass(frozen=True)
class TextlessPassage:
    """The model's scores of a passage that a pipeline read.

    Attributes:
        s_ret: Retrieval score of its entry: equation 3, in [-1, 1], or with `s_ret_temperature` a share in [0, 1]; None
            if nothing was retrieved (an oracle).
        s_rel: p([Relevant]) in the full softmax, equation 6; in MMKB-RAG Score_SRT, the softmax of two logits (its
            equation 7). None if the passage was not judged.
        s_irr: p([Irrelevant]) in the same softmax; in MMKB-RAG 1 - s_rel.
        answer: The answer generated from this passage; None if none was.
        s_ans: Geometric mean probability of that answer's tokens and the end token, equation 7.
        cut: True if that answer was truncated at the maximum length.
        source: Relation to the question in a diagnosis: `gold`, `same_article`, `look_alike:colour`, `stating`, ….
    """

    s_ret: float | None = None
    s_rel: float | None = None
    s_irr: float | None = None
    answer: str | None = None
    s_ans: float | None = None
    cut: bool = False
    source: str = ""

    @property
    def relevant(self) -> bool:
        """True if [Relevant] is more probable than [Irrelevant]."""
        return self.s_rel is not None and self.s_irr is not None and self.s_rel > self.s_irr

    @property
    def scores(self) -> PassageScores | None:
        """The factors of the rankings; None unless the passage was retrieved, judged and answered from."""
        if self.s_ret is None or self.s_rel is None or self.s_ans is None:
            return None
        return PassageScores(ret=self.s_ret, rel=self.s_rel, ans=self.s_ans)


@dataclass(frozen=True)
class _HasPassage:
    passage: Passage


@dataclass(frozen=True)
class PassageTrace(TextlessPassage, _HasPassage):  # fields are in the order of the bases from the last to the first
    """A passage that a pipeline read, with the model's scores.

    Attributes:
        passage: The passage.
    """


@dataclass(frozen=True)
class FoundPassage:
    """A passage found by a search of an iterative pipeline.

    Attributes:
        passage_id: The passage's id, `entry_id#section.index`.
        entry_id: Its entry.
        base: The knowledge base: `texts`, `pairs`, `entries` or `web`.
        query: Position of the query in the step's `queries`.
        rank: Rank among the query's passages there, from 1.
        score: The ranking score.
    """

    passage_id: str
    entry_id: str
    base: str
    query: int
    rank: int
    score: float


@dataclass(frozen=True)
class Step:
    """A step of an iterative pipeline's trajectory.

    Attributes:
        operator: `caption`, `rewrite`, `search`, `rerank`, `judge`, `reason`, `summarize`, `liken`, `answer`, `verify`
            or `extract`.
        iteration: Iteration, from 0.
        text: Generated reply, without thoughts except ReAG's with `think`.
        queries: Queries of a search.
        found: Passages found.
        probability: P(yes) of a judgement, in the full softmax; of `liken` the highest similarity.
        each: Score of each document that was judged or reranked alone: P(yes), the reranker's score, or a relevance
            gate's p([Relevant]).
        shown: Number of the given documents that fit the model's context.
        read: Tokens of the prompt.
        generated: Tokens of the reply.
        finished: True if the reply ended with the end token.
        refused: Reason why a server refused; the first one of several requests.
        written: True if a judgement was parsed from a written word, since the server gives no log-probabilities; its
            probability is then 1 or 0.
    """

    operator: str
    iteration: int
    text: str = ""
    queries: tuple[str, ...] = ()
    found: tuple[FoundPassage, ...] = ()
    probability: float | None = None
    each: tuple[float, ...] = ()
    shown: int = 0
    read: int = 0
    generated: int = 0
    finished: bool = True
    refused: str = ""
    written: bool = False


@dataclass(frozen=True)
class TextlessTrace:
    """Everything that happened to one question in one pipeline, without the passages' texts, which scores don't need.

    Attributes:
        question_id: The question.
        pipeline: The pipeline's name.
        answer: The final answer; "" if the pipeline abstained, failed or gives none.
        confidence: S_ans, equation 7, of an answer that was not generated from a single passage; None otherwise.
        cut: True if the answer was truncated at the maximum length.
        gate: P([Retrieval]) / (P([Retrieval]) + P([No Retrieval])), and Score_RET (equation 4) in MMKB-RAG; None if
            the pipeline has no gate.
        retrieved: True if entries were retrieved.
        hits: The retrieved entries, best first.
        passages: The passages read, in the order of reading; in MMKB-RAG all documents, in the retriever's order.
        relevant_shift: mR²AG: constant that was added to the log-odds of [Relevant] in `passages`.
        exponents: mR²AG: exponents of S_ret, S_rel and S_ans in the product that selected the answer.
        chosen: Position in `passages` of the answer's passage; None unless the answer has a single one.
        kept: MMKB-RAG: positions in `passages` of the documents that SRT kept (or the first k), best first.
        used: MMKB-RAG: positions in `passages` of the answer's documents, in the order of reading. Iterative pipelines:
            positions of the passages that a relevance gate kept.
        mct: MMKB-RAG: the reply to P_MCT; None if there was none.
        fallback: Fallback used if no passage was judged relevant; "" otherwise.
        steps: Trajectory of an iterative pipeline, in order; empty for others.
        ended: Reason why the trajectory ended.
        limit: The budget that ended the trajectory, by its key in the config; empty if none did.
        seconds: Wall-clock seconds per step, this question's share of its batch.
        tokens: Counts per step, e.g. `{"generated": 4}`, and counts of failed replies (`REPLIES`).
        error: Reason why the question could not be answered; "" if it could.
        question_hash: Hash of the question that was asked (`question_hash`); "" if the trace was not stored by a run.
    """

    question_id: str
    pipeline: str
    answer: str = ""
    confidence: float | None = None
    cut: bool = False
    gate: float | None = None
    retrieved: bool = False
    hits: Sequence[Hit] = ()
    passages: Sequence[TextlessPassage] = ()
    relevant_shift: float = 0.0
    exponents: tuple[float, ...] = (1.0, 1.0, 1.0)
    chosen: int | None = None
    kept: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    mct: MctTrace | None = None
    fallback: str = ""
    steps: Sequence[Step] = ()
    ended: str = ""
    limit: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    question_hash: str = ""


@dataclass(frozen=True)
class Trace(TextlessTrace):
    """Everything that happened to one question in one pipeline, with the passages read."""

    hits: tuple[Hit, ...] = ()
    passages: tuple[PassageTrace, ...] = ()
    steps: tuple[Step, ...] = ()


def to_row(trace: Trace) -> dict[str, Any]:
    """Convert a trace to JSON: its fields, and each passage's `relevant` and `id` for a human reader."""
    row = rows.to_row(trace)
    for passage, record in zip(trace.passages, row["passages"], strict=True):
        record["id"] = passage.passage.id
        record["relevant"] = passage.relevant
    return row


def from_row(row: Mapping[str, Any]) -> Trace:
    """Convert a row of `to_row` to a trace."""
    return rows.from_row(Trace, row)


def by_question(traces: Iterable[Trace]) -> dict[str, Trace]:
    """Index traces by question id."""
    return {trace.question_id: trace for trace in traces}


Observer = Callable[[Trace], None]
"""Takes the partial traces of questions that are being answered."""

_OBSERVER: Final[ContextVar[Observer | None]] = ContextVar("observer", default=None)


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Pass the partial traces of pipelines that run inside this block, on this thread, to an observer."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def publish(traces: Iterable[Trace]) -> None:
    """Pass partial traces to the observer, if there is one. A later trace of a question extends the earlier one."""
    if observer := _OBSERVER.get():
        for trace in traces:
            observer(trace)
