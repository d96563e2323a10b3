"""BM25 over a question's candidate passages."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from reflectune.core.tokens import UNSPACED, tokenize
from reflectune.core.types import Passage
from reflectune.retrieval.rerankers.base import ScoredPassage, best_first

_LETTERS = re.compile(f"[{UNSPACED}]{{2}}")
_KOREAN = re.compile(r"[\uac00-\ud7a3]{3,}")


class WordReranker:
    """BM25 over heading and text; see `bm25_scores`."""

    name = fingerprint = "words"

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """See `Reranker.rank`."""
        return [
            best_first(candidates, bm25_scores(question, candidates), top_k)
            for question, candidates in zip(questions, passages, strict=True)
        ]


def bm25_scores(question: str, passages: Sequence[Passage]) -> list[float]:
    """Score passages by BM25 (k1 = 1.5, b = 0.75), with document frequencies counted in `passages`."""
    documents = [Counter(_words(f"{passage.heading} {passage.text}")) for passage in passages]
    if not documents:
        return []
    mean_length = sum(document.total() for document in documents) / len(documents)
    words = list(dict.fromkeys(_words(question)))  # in order, so that sums are bitwise equal in every process
    frequencies = {word: sum(word in document for document in documents) for word in words}
    idf = {word: math.log(1 + (len(documents) - n + 0.5) / (n + 0.5)) for word, n in frequencies.items()}

    def score(document: Counter[str]) -> float:
        norm = 1.5 * (0.25 + 0.75 * document.total() / max(mean_length, 1.0))
        return sum(idf[word] * document[word] * 2.5 / (document[word] + norm) for word in words if word in document)

    return [score(document) for document in documents]


def _words(text: str) -> list[str]:
    """Return a text's tokens, bigrams of letters in scripts without spaces, and bigrams of syllables in Korean words.

    A bigram is mostly a word, or a word without its particle.
    """
    tokens = tokenize(text)
    pairs = [first + second for first, second in pairwise(tokens) if _LETTERS.fullmatch(first + second)]
    syllables = [word[at : at + 2] for word in tokens if _KOREAN.fullmatch(word) for at in range(len(word) - 1)]
    return [*tokens, *pairs, *syllables]
