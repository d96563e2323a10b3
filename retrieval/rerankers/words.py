"""BM25 among a handful of passages: which of them share most with a question's words."""

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
    """BM25 with k1 = 1.5 and b = 0.75 over heading and text, document frequencies counted in the passages at hand."""

    name = fingerprint = "words"

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """Return the `top_k` best passages of each question; see `Reranker.rank`."""
        return [
            best_first(choice, bm25_scores(question, choice), top_k)
            for question, choice in zip(questions, passages, strict=True)
        ]


def bm25_scores(question: str, passages: Sequence[Passage]) -> list[float]:
    """Return BM25 of each passage for the question: k1 = 1.5, b = 0.75, document frequencies of `passages`."""
    documents = [Counter(_words(f"{passage.heading} {passage.text}")) for passage in passages]
    if not documents:
        return []
    mean_length = sum(document.total() for document in documents) / len(documents)
    wanted = list(dict.fromkeys(_words(question)))  # in order, so that every process adds up to the same last digit
    holding = {word: sum(word in document for document in documents) for word in wanted}
    rarity = {word: math.log(1 + (len(documents) - n + 0.5) / (n + 0.5)) for word, n in holding.items()}

    def score(document: Counter[str]) -> float:
        norm = 1.5 * (0.25 + 0.75 * document.total() / max(mean_length, 1.0))
        return sum(rarity[word] * document[word] * 2.5 / (document[word] + norm) for word in wanted if word in document)

    return [score(document) for document in documents]


def _words(text: str) -> list[str]:
    """Return a text's tokens; then pairs of letters of scripts without spaces, and of syllables in Korean words.

    A pair is mostly a word, or a word without its particle.
    """
    tokens = tokenize(text)
    pairs = [first + second for first, second in pairwise(tokens) if _LETTERS.fullmatch(first + second)]
    syllables = [word[at : at + 2] for word in tokens if _KOREAN.fullmatch(word) for at in range(len(word) - 1)]
    return [*tokens, *pairs, *syllables]
