"""Traces such as a pipeline leaves at InfoSeek's size, drawn by their numbers: questions, passages, scores, answers."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reflectune.core.resumable import Row
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.inference.trace import PassageTrace, Trace

PIPELINE = "mr2ag"
SPLITS = ("val_unseen_entity", "val_unseen_question")
TOP_N = 5
"""Entries that are looked up for a question; its passages are theirs."""
WORDS = 30_000
"""Made-up words, drawn by Zipf's law: their order says nothing, so that they shrink less than sentences do."""
RELEVANT = 0.03
"""The share of passages that an answer is read from."""


@dataclass(frozen=True)
class Size:
    """How much is generated."""

    questions: int
    passages: int
    base: int

    @property
    def each(self) -> int:
        """Passages of an entry."""
        return self.passages // TOP_N

    @property
    def entries(self) -> int:
        """Entries of the knowledge base."""
        return self.base // self.each


@functools.cache
def vocabulary() -> tuple[np.ndarray, np.ndarray]:
    """Words, and the share of the text's that each and all before it are."""
    drawn, letters = random.Random(0), ("bcdfghjklmnprstvw", "aeiou")
    words = ["".join(drawn.choice(letters[k % 2]) for k in range(drawn.randint(2, 9))) for _ in range(WORDS)]
    return np.array(words), zipf(WORDS)


@functools.cache
def zipf(count: int) -> np.ndarray:
    """Cumulated shares of the first, the second, …: one over its number."""
    shares = 1.0 / np.arange(1, count + 1)
    return np.cumsum(shares) / shares.sum()


@functools.lru_cache(maxsize=1000)
def entry_passages(entry: int, size: Size) -> tuple[Passage, ...]:
    """An entry's passages."""
    words, shares = vocabulary()
    drawn = np.random.default_rng(entry)
    places = np.minimum(np.searchsorted(shares, drawn.random((size.each, 100))), WORDS - 1)
    lead = f"It is number {entry}."
    return tuple(
        Passage(
            f"Q{entry}", k // 3, k % 3, f"Title {entry}", lead, f"Section {k // 3}", " ".join(text).capitalize() + "."
        )
        for k, text in enumerate(words[places])
    )


def question(number: int) -> Question:
    """A question of either split."""
    return Question(
        f"infoseek_val_{number:08d}",
        "images/q.png",
        "Which country does this building lie in?",
        answers=(f"answer {number % 50}",),
        split=SPLITS[number % 2],
        entity_ids=(f"Q{number % 1000}",),
    )


def trace(asked: Question, size: Size) -> Trace:
    """What `mr2ag` would leave; probabilities are of single precision, as a model's are."""
    drawn = np.random.default_rng(int(asked.id.rpartition("_")[2]))
    entries = dict.fromkeys(int(place) for place in np.searchsorted(zipf(size.entries), drawn.random(4 * TOP_N)))
    passages: list[PassageTrace] = []
    hits = []
    for rank, entry in enumerate(list(entries)[:TOP_N], start=1):
        s_ret = _single(0.9 - 0.03 * rank - 0.02 * drawn.random())
        hits.append(
            Hit(f"Q{entry}", s_ret, rank, kb="generated", parts={"image": s_ret, "title": _single(drawn.random())})
        )
        for passage in entry_passages(entry, size):
            is_relevant = drawn.random() < RELEVANT
            s_rel = _single((0.5 + 0.5 * drawn.random()) if is_relevant else 0.4 * drawn.random() ** 3)
            answer = f"answer {drawn.integers(50)}" if is_relevant else None
            s_ans = _single(drawn.random()) if is_relevant else None
            passages.append(PassageTrace(passage, s_ret, s_rel, _single(0.999 - s_rel), answer, s_ans))
    places = [place for place, read in enumerate(passages) if read.answer]
    chosen = max(places, key=lambda place: (passages[place].s_rel or 0) * (passages[place].s_ans or 0), default=None)
    return Trace(
        asked.id,
        PIPELINE,
        answer="" if chosen is None else passages[chosen].answer or "",
        gate=_single(drawn.random()),
        retrieved=True,
        hits=tuple(hits),
        passages=tuple(passages),
        chosen=chosen,
        seconds={step: round(drawn.random(), 6) for step in ("gate", "retrieve", "judge", "answer")},
        tokens={"passages_read": len(passages), "passages_left_out": 0},
    )


def _single(value: float) -> float:
    return float(np.float32(value))


def answer(size: Size) -> Callable[[Sequence[Question]], Iterator[tuple[str, Row]]]:
    """What a store asks for rows."""
    return lambda batch: ((each.id, row(trace(each, size))) for each in batch)


def row(made: Trace) -> Row:
    """A trace's row, as `to_row` makes it but for what is for people to read; much faster."""
    passages = [{**vars(read), "passage": vars(read.passage)} for read in made.passages]
    return {**vars(made), "hits": [vars(hit) for hit in made.hits], "passages": passages}
