"""Log of a trajectory: its steps, their results and costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reflectune.formats.hits import Hit, PassageHit
from reflectune.inference.operators.parsing import is_readable
from reflectune.inference.operators.requests import (
    JudgeEachReply,
    JudgeEachRequest,
    JudgeReply,
    JudgeRequest,
    RerankReply,
    RerankRequest,
    SearchReply,
    SearchRequest,
    SimilarityReply,
    SimilarityRequest,
    StepReply,
    StepRequest,
    WriteReply,
    WriteRequest,
    YesNoRequest,
)
from reflectune.inference.trace import FoundPassage, Step

REPLIES: Final = ("replies_refused", "replies_cut", "replies_unread", "queries_unread", "records_empty")
"""Keys of the counts of a model's failed replies: refused by a server, truncated at the maximum length, or not in the
requested format; `queries_unread` and `records_empty` count those of the refused and unread ones that were for queries
and for a record."""
DOCUMENTS_LEFT_OUT: Final = "documents_left_out"
"""Key of the count of documents that a model didn't see: they didn't fit its context, or its server refused them."""
NOTED: Final = ("replies_retried", "labels_written", DOCUMENTS_LEFT_OUT)
"""Keys of counts that are left out if 0: unread replies that were retried, judgements parsed from a written word, and
documents left out."""
_COUNTED = ("generated", "read", "computed", "calls", "searches", "documents_read", "iterations", *REPLIES)


@dataclass
class StepLog:
    """Log of one question's trajectory.

    Attributes:
        steps: Steps in order.
        hits: Best hit of each entry, by knowledge base and entry, in the order found.
        seconds: Seconds by operator.
        tokens: Counts of tokens, calls, searches, documents and iterations, as in `Trace.tokens`.
    """

    steps: list[Step] = dataclasses.field(default_factory=list)
    hits: dict[tuple[str, str], Hit] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    tokens: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))

    def add(self, request: StepRequest, reply: StepReply, seconds: float, *, retried: bool = False) -> None:
        """Append a step, and add its counts.

        Args:
            seconds: This question's share of the batch's seconds.
            retried: True if the reply can't be parsed and its request is sent again.
        """
        operator = request.operator if isinstance(request, WriteRequest) else _OPERATORS[type(request)]
        self.seconds[operator] = self.seconds.get(operator, 0.0) + seconds
        counts = self.tokens
        counts["iterations"] = max(counts["iterations"], request.iteration + 1)
        step = Step(operator, request.iteration)
        if isinstance(reply, (WriteReply, JudgeReply)):
            counts["calls"] += 1
            counts["read"] += reply.read
            counts["documents_read"] += reply.shown
            counts["replies_refused"] += bool(reply.refused)
            counts["generated"] += reply.tokens
            if isinstance(request, WriteRequest | YesNoRequest) and request.prompt.documents and not reply.refused:
                self._count(DOCUMENTS_LEFT_OUT, len(request.prompt.documents) - reply.shown)
            step = dataclasses.replace(
                step, shown=reply.shown, read=reply.read, refused=reply.refused, generated=reply.tokens
            )
        if isinstance(reply, WriteReply) and isinstance(request, WriteRequest):
            if retried:
                self._count("replies_retried", 1)
            else:
                self._count_written(request, reply)
            step = dataclasses.replace(step, text=reply.text, finished=reply.finished)
        elif isinstance(reply, JudgeReply):
            self._count_labels([reply])
            step = dataclasses.replace(step, probability=reply.yes, written=reply.written)
        elif isinstance(reply, SearchReply) and isinstance(request, SearchRequest):
            counts["searches"] += len(request.queries)
            self._count("queries_cut", reply.cut)
            step = dataclasses.replace(step, queries=request.queries, found=_found(reply))
            for hit in reply.all_hits:
                _keep_best(self.hits, hit)
        elif isinstance(reply, JudgeEachReply):
            self._count_each(reply)
            step = dataclasses.replace(
                step,
                each=tuple(judged.yes for judged in reply.each),
                shown=sum(judged.shown for judged in reply.each),
                read=reply.read,
                generated=sum(judged.tokens for judged in reply.each),
                refused=next((judged.refused for judged in reply.each if judged.refused), ""),
                written=any(judged.written for judged in reply.each),
            )
        elif isinstance(reply, RerankReply):
            step = dataclasses.replace(step, each=reply.scores)
        elif isinstance(reply, SimilarityReply):
            self._count("compared_cut", reply.cut)
            step = dataclasses.replace(step, probability=max(reply.highest, default=-1.0))
        self.steps.append(step)

    def _count_written(self, request: WriteRequest, reply: WriteReply) -> None:
        """Count the documents' images that a reply was generated from, and its defects."""
        self._count("images_shown", len(request.prompt.shown_images(reply.shown)))
        unread = unreadable(request, reply)
        self.tokens["replies_cut"] += not reply.finished and not reply.refused
        self.tokens["replies_unread"] += unread and not reply.refused
        self.tokens["queries_unread"] += unread and request.prompt.form == "queries"
        self.tokens["records_empty"] += unread and request.operator == "reason"

    def _count_each(self, reply: JudgeEachReply) -> None:
        """Count judgements of single documents."""
        self.tokens["calls"] += len(reply.each)
        self.tokens["read"] += reply.read_separately
        self.tokens["generated"] += sum(judged.tokens for judged in reply.each)
        self.tokens["documents_read"] += sum(judged.shown for judged in reply.each)
        self.tokens["replies_refused"] += sum(bool(judged.refused) for judged in reply.each)
        self._count(DOCUMENTS_LEFT_OUT, sum(not judged.shown and not judged.refused for judged in reply.each))
        self._count_labels(reply.each)

    def _count_labels(self, judgements: Sequence[JudgeReply]) -> None:
        """Count judgements parsed from a written word, and those that have neither word."""
        for judged in judgements:
            if judged.written:
                self._count("labels_written", 1)
                self.tokens["replies_unread"] += not judged.yes + judged.no

    def _count(self, name: str, number: int) -> None:
        if number:
            self.tokens[name] = self.tokens.get(name, 0) + number


def unreadable(request: WriteRequest, reply: WriteReply) -> bool:
    """Return True if a reply doesn't have the requested form."""
    return not is_readable(reply.text, request.prompt.form, reply.shown, len(request.prompt.documents))


_OPERATORS: Mapping[type[StepRequest], str] = {
    JudgeRequest: "judge",
    JudgeEachRequest: "judge",
    SearchRequest: "search",
    SimilarityRequest: "liken",
    RerankRequest: "rerank",
}


def _found(reply: SearchReply) -> tuple[FoundPassage, ...]:
    return tuple(
        FoundPassage(hit.passage.id, hit.passage.entry_id, base=base, query=query, rank=hit.rank, score=hit.score)
        for query, by_base in enumerate(reply.hits)
        for base, hits in by_base.items()
        for hit in hits
    )


def _keep_best(hits: dict[tuple[str, str], Hit], hit: PassageHit) -> None:
    """Keep the highest-scored hit of an entry; entries stay in the order found."""
    key = (hit.kb, hit.passage.entry_id)
    if key not in hits or hit.score > hits[key].score:
        rank = hits[key].rank if key in hits else len(hits) + 1
        hits[key] = Hit(hit.passage.entry_id, hit.score, rank, query="search", kb=hit.kb)
