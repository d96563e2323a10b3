"""Rerank passages with the model itself: operators of mRAG (arXiv 2505.24073, §4).

The prompts of pairwise and listwise reranking are published (figures 6 and 7). The compared pairs and the treatment of
unreadable replies are not: here the pairs are a setting (`Pairs`), and an unreadable reply keeps the order and is
counted. The paper's pointwise scores are similarities of embeddings (MM-Embed, EchoSight): `reranker` is the run's
reranker, of `retrieval/rerankers/`. `pointwise` is the probability of the relevance prompt of its figure 10.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, Literal

from reflectune.core.types import Passage
from reflectune.inference.operators import parsing
from reflectune.inference.operators.vocabulary import Steps, gather, judge, rerank_scores, texts_of, write

Reranking = Literal["none", "pointwise", "pairwise", "listwise", "reranker"]
Pairs = Literal["all", "both_orders", "adjacent"]

RELEVANT: Final = """\
Given an image and question, read the provided document under RELATED DOCUMENT section and decide whether the answer \
can be derived from the document. Do not use your own knowledge.

RELATED DOCUMENT:
{documents}

Now given the image and the following question, assess whether the RELATED DOCUMENT is describing the image and \
provides the answer to the question.

{question}

Return one of these labels: 'Yes' or 'No'. Please directly return your label, do not include the reasoning process!
Your evaluation is:"""
"""Figure 10: relevance of a document."""

PAIRWISE: Final = """\
Given an image and a question to the image as following:

{question}

Now given two documents below, [Document A] and [Document B]. Which of the following documents is more relevant or the \
answer is in the document?

{documents}

The output should be exactly [Document A] or [Document B], do not include any other text.
Output [Document A] or [Document B]:"""
"""Figure 6."""

LISTWISE: Final = """\
You are provided with {count} documents, each indicated by a numerical identifier [Document x], where x represents a \
number and should be at least 1 and at most {count}.
Rank the documents based on their relevance to the visual question answering task:

{question}

Related Documents:
{documents}

Please carefully read all the documents and rank the {count} documents above based on their relevance to the visual \
question answering task above.
All the passages should be included and listed using identifiers, in descending order of relevance. The output format \
should be [Document x] > [Document y] > ..., e.g., [Document 4] > [Document 2] > ..., x and y should be at least 1 and \
DO NOT exceed {count}. Only respond with the ranking results, do not include anything else or explain.
Your ranking:"""
"""Figure 7, with a number for `{count}`, its N."""


def rerank(
    method: Reranking, question: str, passages: Sequence[Passage], *, pairs: Pairs, max_tokens: int
) -> Steps[tuple[Passage, ...]]:
    """Order passages by one of the methods below. Fewer than two are returned as they are.

    Args:
        method: The method; `none` keeps the order.
        passages: As retrieved, best first.
        pairs: Pairs that `pairwise` compares.
        max_tokens: Maximum length of a reply of `pairwise` and `listwise`.
    """
    if method == "none" or len(passages) < 2:
        return tuple(passages)
    if method == "pointwise":
        return (yield from pointwise(question, passages))
    if method == "reranker":
        return best_first(passages, (yield from rerank_scores(0, question, passages)).scores)
    if method == "pairwise":
        return (yield from pairwise(question, passages, pairs=pairs, max_tokens=max_tokens))
    return (yield from listwise(question, passages, max_tokens=max_tokens))


def relevance(iteration: int, question: str, passage: Passage) -> Steps[float]:
    """Compute P(Yes) / (P(Yes) + P(No)) of the relevance prompt; 0 if nothing of the passage fits the context.

    The share replaces the full softmax, since a model that wasn't trained on the prompt spreads probability over
    other first words, which say nothing about the passage.
    """
    reply = yield from judge(iteration, RELEVANT, {"question": question}, documents=paragraphs([passage]))
    return reply.share if reply.shown else 0.0


def pointwise(question: str, passages: Sequence[Passage]) -> Steps[tuple[Passage, ...]]:
    """Order passages by their own relevance, best first; ties keep their order. One judgement a passage."""
    return best_first(passages, (yield from gather([relevance(0, question, passage) for passage in passages])))


def best_first(passages: Sequence[Passage], scores: Sequence[float]) -> tuple[Passage, ...]:
    """Order passages by their scores, best first; ties keep their order."""
    return tuple(passages[place] for place in sorted(range(len(passages)), key=lambda place: -scores[place]))


def pairwise(
    question: str, passages: Sequence[Passage], *, pairs: Pairs, max_tokens: int
) -> Steps[tuple[Passage, ...]]:
    """Order passages by comparisons of pairs. A reply that names neither keeps the order of the two.

    The paper doesn't publish its pairs; these are those of Qin et al. (arXiv 2306.17563), which it cites.

    Args:
        passages: As retrieved, best first.
        pairs: `all`: each pair once, the earlier passage as Document A, ordered by wins, n(n-1)/2 replies.
            `both_orders`: each pair in both orders, so that a preference for a letter cancels out.
            `adjacent`: one pass of neighbours from the last to the first that moves the better one up, n-1 replies: the
            best passage comes first, the others nearly keep their order.
        max_tokens: Maximum length of a reply.
    """
    order = list(range(len(passages)))
    if pairs == "adjacent":
        for place in reversed(range(len(passages) - 1)):
            first, second = order[place : place + 2]
            winner = yield from _compare(question, passages[first], passages[second], max_tokens)
            if winner == "B":
                order[place : place + 2] = [second, first]
        return tuple(passages[place] for place in order)
    wins = [0.0] * len(passages)
    compared = list(itertools.combinations(order, 2))
    if pairs == "both_orders":
        compared += [(second, first) for first, second in compared]
    winners = yield from gather([_compare(question, passages[a], passages[b], max_tokens) for a, b in compared])
    for (first, second), winner in zip(compared, winners, strict=True):
        wins[first] += {"A": 1.0, "B": 0.0}.get(winner or "", 0.5)
        wins[second] += {"A": 0.0, "B": 1.0}.get(winner or "", 0.5)
    return best_first(passages, wins)


def listwise(question: str, passages: Sequence[Passage], *, max_tokens: int) -> Steps[tuple[Passage, ...]]:
    """Order all passages by one reply.

    Passages that it leaves out follow in their previous order, as do those that didn't fit the context. A reply that
    names no passage keeps the order.
    """
    numbered = [f"[Document {number}]: {text}" for number, text in enumerate(texts_of(passages), start=1)]
    template = LISTWISE.replace("{count}", str(len(passages)))
    slots = {"question": question}
    reply = yield from write("rerank", 0, template, slots, documents=numbered, max_tokens=max_tokens, form="order")
    order = parsing.order(reply.text, reply.shown)
    if order is None:
        return tuple(passages)
    return (*(passages[place] for place in order), *passages[reply.shown :])


def paragraphs(passages: Sequence[Passage]) -> list[str]:
    """Split the texts of passages into lines, so that the beginning of an article that exceeds the context is shown."""
    return [line for text in texts_of(passages) for line in text.split("\n")]


def _compare(question: str, first: Passage, second: Passage, max_tokens: int) -> Steps[parsing.Letter | None]:
    """Return which of two passages the model prefers; None if the reply is unreadable, or didn't see both."""
    documents = [f"[Document {letter}]: {text}" for letter, text in zip("AB", texts_of([first, second]), strict=True)]
    slots = {"question": question}
    reply = yield from write("rerank", 0, PAIRWISE, slots, documents=documents, max_tokens=max_tokens, form="preferred")
    return parsing.preferred(reply.text) if reply.shown == len(documents) else None
