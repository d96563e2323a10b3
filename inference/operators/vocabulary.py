"""Operators of iterative pipelines. Those that return `Steps` are called by `reply = yield from write(…)`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.requests import (
    Box,
    Form,
    JudgeEachReply,
    JudgeEachRequest,
    JudgeReply,
    JudgeRequest,
    ModelName,
    Prompt,
    RerankReply,
    RerankRequest,
    SearchReply,
    SearchRequest,
    SimilarityReply,
    SimilarityRequest,
    StepReply,
    StepRequest,
    WriteOperator,
    WriteReply,
    WriteRequest,
)
from reflectune.models.rendering.turns import passage_text
from reflectune.retrieval.retrievers.joint import merged

Value = TypeVar("Value")
Judged = Literal["passage", "record"]
"""Kinds of documents that the relevance gate judges."""
Steps = Generator[StepRequest | tuple[StepRequest, ...], Any, Value]
"""Generator of steps that returns a value: the type of an operator, and of a whole trajectory.

A tuple of requests gets a tuple of replies; see `gather`.
"""


def write(
    operator: WriteOperator,
    iteration: int,
    template: str,
    texts: Mapping[str, str],
    *,
    documents: Sequence[str] = (),
    max_tokens: int,
    model: ModelName = "reader",
    system: str = "",
    image: bool = True,
    keeps_thoughts: bool = False,
    form: Form = "free",
    images: Mapping[int, str] = MappingProxyType({}),
    rounds: Sequence[tuple[str, str]] = (),
    sizes: Sequence[int] = (),
    earlier: Sequence[tuple[str, str]] = (),
) -> Steps[WriteReply]:
    """Generate a reply: caption, rewrite, rerank, reason, summarize, answer, verify or extract.

    Args:
        iteration: Iteration of the trajectory.
        template: The prompt, with `{slots}`.
        texts: Contents of its slots.
        documents: Contents of `{documents}`; the leading ones that fit the context are shown.
        max_tokens: Maximum length of the reply.
        system: System prompt.
        image: True to show the question's image.
        keeps_thoughts: True to keep a reasoning model's thoughts in the reply.
        form: Form of the reply.
        images: Paths of documents' images, by position in `documents`; see `Prompt`.
        rounds: Earlier replies and their tools' results; see `Prompt`.
        sizes: Sizes of the groups of documents, which are truncated in proportion; see `Prompt`.
        earlier: Turns before the prompt; see `Prompt`.
    """
    prompt = Prompt(
        template,
        texts,
        tuple(documents),
        system,
        image,
        form,
        images,
        tuple(rounds),
        tuple(sizes),
        earlier=tuple(earlier),
    )
    reply = yield WriteRequest(operator, iteration, prompt, max_tokens, model, keeps_thoughts)
    return _as(WriteReply, reply)


def judge(
    iteration: int,
    template: str,
    texts: Mapping[str, str],
    *,
    documents: Sequence[str] = (),
) -> Steps[JudgeReply]:
    """Compare the probabilities of yes and no as a reply to a prompt."""
    reply = yield JudgeRequest(iteration, Prompt(template, texts, tuple(documents)))
    return _as(JudgeReply, reply)


def judge_each(
    iteration: int,
    template: str,
    texts: Mapping[str, str],
    documents: Sequence[str],
    *,
    system: str = "",
) -> Steps[JudgeEachReply]:
    """Compare the probabilities of yes and no for each document alone. Without documents nothing is requested."""
    if not documents:
        return JudgeEachReply()
    reply = yield JudgeEachRequest(iteration, Prompt(template, texts, tuple(documents), system))
    return _as(JudgeEachReply, reply)


def relevance(
    iteration: int, question: Question, documents: Sequence[str], *, kind: Judged = "passage"
) -> Steps[JudgeEachReply]:
    """Judge each document alone by the relevance token of a checkpoint that reflects: `yes` is p([Relevant]), eq. 6.

    Args:
        documents: Texts of passages, or a record.
        kind: Kind of the documents.
    """
    if not documents:
        return JudgeEachReply()
    texts = {"question": question.text, "style": question.answer_style, "kind": kind}
    prompt = Prompt("{question} {documents}", texts, tuple(documents))
    return _as(JudgeEachReply, (yield JudgeEachRequest(iteration, prompt, "relevant", "irrelevant", "gate")))


def search(
    iteration: int,
    queries: Sequence[str],
    tops: Mapping[str, Sequence[int]],
    *,
    question: str = "",
    boxes: Sequence[Box | None] = (),
) -> Steps[SearchReply]:
    """Search with texts; see `SearchRequest`. Without a query nothing is requested."""
    if not queries:
        return SearchReply()
    counts = {base: tuple(numbers) for base, numbers in tops.items()}
    return _as(SearchReply, (yield SearchRequest(iteration, tuple(queries), counts, question, tuple(boxes))))


def similarity(iteration: int, texts: Sequence[str], others: Sequence[str]) -> Steps[SimilarityReply]:
    """Return the highest similarity of each text to one of the others; see `SimilarityReply`."""
    if not others:
        return SimilarityReply((-1.0,) * len(texts))
    return _as(SimilarityReply, (yield SimilarityRequest(iteration, tuple(texts), tuple(others))))


def rerank_scores(iteration: int, query: str, passages: Sequence[Passage]) -> Steps[RerankReply]:
    """Score passages by the reranker; see `RerankRequest`."""
    if not passages:
        return RerankReply()
    return _as(RerankReply, (yield RerankRequest(iteration, query, tuple(passages))))


def gather(parts: Sequence[Steps[Value]]) -> Steps[list[Value]]:
    """Execute independent steps concurrently, and return their values in order.

    The budget is checked once, before the requests of all parts.
    """
    values: dict[int, Value] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(parts)))
    while replies:
        requests: dict[int, StepRequest | tuple[StepRequest, ...]] = {}
        for part, reply in replies.items():
            try:
                requests[part] = parts[part].send(reply)
            except StopIteration as end:
                values[part] = end.value
        lists = [it if isinstance(it, tuple) else (it,) for it in requests.values()]
        received = iter((yield tuple(itertools.chain(*lists))) if lists else ())
        replies = {
            part: tuple(itertools.islice(received, len(it))) if isinstance(it, tuple) else next(received)
            for part, it in requests.items()
        }
    return [values[part] for part in range(len(parts))]


def relayed(steps: Steps[Value], relay: Callable[[Any], Steps[Any]]) -> Steps[Value]:
    """Execute steps with each request passed to `relay`, which returns its reply.

    If `relay` raises BudgetSpent, it is raised inside the steps.
    """
    step = functools.partial(next, steps)
    while True:
        try:
            request = step()
        except StopIteration as end:
            value: Value = end.value
            return value
        try:
            step = functools.partial(steps.send, (yield from relay(request)))
        except BudgetSpent as spent:
            step = functools.partial(steps.throw, spent)


def merge(found: SearchReply) -> list[Passage]:
    """Merge the passages found, without duplicates: base by base, and within a base round-robin over the queries."""
    names = dict.fromkeys(base for hits in found.hits for base in hits)
    return [hit.passage for hit in merged([[hits.get(name, ()) for hits in found.hits] for name in names])]


def sizes_of(found: SearchReply, passages: Sequence[Passage]) -> list[int]:
    """Return the lengths of the runs of merged passages that come from one knowledge base."""
    names = dict.fromkeys(base for hits in found.hits for base in hits)
    base_of = {hit.passage.id: base for base in reversed(names) for hits in found.hits for hit in hits.get(base, ())}
    return [len([*same]) for _, same in itertools.groupby(passages, key=lambda passage: base_of.get(passage.id))]


def best_entries(found: SearchReply, entries: int) -> list[Passage]:
    """Return the passages of the entries with the highest scores in any search, best entry first."""
    score: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    for hit in found.all_hits:
        name = hit.passage.entry_id
        score[name] = max(score.get(name, -2.0), hit.score)
        passages.setdefault(hit.passage.id, hit.passage)
    best = sorted(score, key=lambda name: -score[name])[:entries]
    return [passage for name in best for passage in passages.values() if passage.entry_id == name]


def texts_of(passages: Sequence[Passage]) -> list[str]:
    """Render passages as a model reads them."""
    return [passage_text(passage) for passage in passages]


def _as(kind: type[Value], reply: StepReply) -> Value:
    if not isinstance(reply, kind):
        raise TypeError(f"expected {kind.__name__} in reply, found {type(reply).__name__}")
    return reply
