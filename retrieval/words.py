"""BM25 among a handful of passages: which of them share most with a question's words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from reflectune.core.types import Passage


def best_by_words(question: str, passages: Sequence[Passage], top_n: int) -> list[Passage]:
    """The passages with the highest BM25 against the question, among these passages; ties keep their order.

    BM25 with k1 = 1.5 and b = 0.75 over heading and text, its document frequencies counted in `passages`.
    """
    documents = [Counter(_words(f"{passage.heading} {passage.text}")) for passage in passages]
    if not documents:
        return []
    mean_length = sum(document.total() for document in documents) / len(documents)
    wanted = set(_words(question))
    rarity = {word: _rarity(sum(word in document for document in documents), len(documents)) for word in wanted}

    def score(document: Counter[str]) -> float:
        norm = 1.5 * (0.25 + 0.75 * document.total() / max(mean_length, 1.0))
        return sum(rarity[word] * document[word] * 2.5 / (document[word] + norm) for word in wanted if word in document)

    scores = [score(document) for document in documents]
    order = sorted(range(len(passages)), key=lambda i: (-scores[i], i))
    return [passages[i] for i in order[:top_n]]


def _rarity(holding: int, documents: int) -> float:
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
