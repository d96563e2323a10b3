"""Recall of gold entries and evidence, pseudo-relevance, and overlap of approximate with exact search.

`inference.recall` prints it. Each quantity is a mean over questions, with its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.progress import progress_bar
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.hits import Hit, PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.metrics.reporting.breakdown import Score, mean
from reflectune.metrics.reporting.intervals import units
from reflectune.metrics.reporting.retrieval import (
    article_recall_at_k,
    overlap_at_k,
    passage_recall_at_k,
    prr_at_k,
    reciprocal_rank,
)
from reflectune.models.rendering.turns import passage_text
from reflectune.retrieval.retrievers.queries import Query

Figures = dict[str, Any]
Scores = Mapping[str, Score | None]
Search = Callable[[Sequence[Query], int], Sequence[Sequence[Hit]]]
"""Find at most `n` entries for each query, best first."""
TextSearch = Callable[[Sequence[str], int], Sequence[Sequence[PassageHit]]]
"""Find at most `n` passages for each text, best first."""
_Asked = tuple[str, str]
"""An image's path and a text to search with, "" if unused."""
_SearchKey = tuple[str, bool]
"""A search's name, and True if it is exact."""

_BATCH = 16
_TEXTS = 256


def measure_entries(
    dataset: Dataset,
    questions: Sequence[Question],
    searches: Mapping[str, Search],
    depths: Sequence[int],
    *,
    with_texts: bool = False,
    exact: Mapping[str, Search] | None = None,
    seed: int = 0,
) -> Figures:
    """Compute article recall at each depth and mean reciprocal rank, by split and by search.

    Args:
        dataset: The data set of the questions.
        questions: Questions. Those without an image, or a gold entry in the knowledge base, are left out and counted.
        searches: Searches by name.
        depths: k of recall@k. The reciprocal rank is 0 beyond the largest k.
        with_texts: Search with each question's image and text; else with its image alone.
        exact: Exact searches by the same names, to measure the overlap of approximate ones.

    Returns:
        By split `resampled` (see `units`); `left_out`; `nothing_found`, the number of questions for which the first
        search found no entry; and under `searches`, by name, the scores `article_recall@k`, `mrr` and, with `exact`,
        `overlap@k`.

    Raises:
        UserError: No question has an image and an entry of the knowledge base, or an image or a text can't be used.
    """
    known = [q for q in questions if q.image and any(entry in dataset.knowledge for entry in q.entity_ids)]
    if not known:
        raise UserError(
            f"no question of {dataset.root} has both an image and an entry of its knowledge base; recall needs such "
            "questions"
        )
    all_searches = {(name, False): search for name, search in searches.items()}
    all_searches |= {(name, True): search for name, search in (exact or {}).items()}
    unique = list(dict.fromkeys(_query(question, with_texts) for question in known))
    ranked = _ranked(dataset, unique, all_searches, max(depths))
    figures: Figures = {}
    for split in dict.fromkeys(question.split for question in questions):
        in_split = [question for question in known if question.split == split]
        queries_of_split = [_query(question, with_texts) for question in in_split]
        lists = {key: [ids_by_query[query] for query in queries_of_split] for key, ids_by_query in ranked.items()}
        figures[split] = {
            "resampled": units(in_split),
            "left_out": sum(question.split == split for question in questions) - len(in_split),
            "nothing_found": sum(not ids for ids in lists[next(iter(searches)), False]),
            "searches": {
                name: {
                    **_entry_scores(in_split, lists[name, False], depths, seed),
                    **{
                        f"overlap@{k}": mean(
                            in_split, list(map(overlap_at_k, lists[name, False], lists[name, True], repeat(k))), seed
                        )
                        for k in (depths if exact else ())
                    },
                }
                for name in searches
            },
        }
    return figures


def _ranked(
    dataset: Dataset, asked: Sequence[_Asked], searches: Mapping[_SearchKey, Search], depth: int
) -> dict[_SearchKey, dict[_Asked, list[str]]]:
    """Return the ids of the entries that each search finds for each query."""
    ranked: dict[_SearchKey, dict[_Asked, list[str]]] = {key: {} for key in searches}
    with progress_bar(total=len(asked), unit=" queries", desc="searching") as bar:
        for start in range(0, len(asked), _BATCH):
            batch = asked[start : start + _BATCH]
            queries = [Query(load_image(image, root=dataset.image_roots), text) for image, text in batch]
            for key, search in searches.items():
                ids = ([hit.entry_id for hit in hits] for hits in search(queries, depth))
                ranked[key].update(zip(batch, ids, strict=True))
            bar.update(len(batch))
    return ranked


def measure_passages(
    questions: Sequence[Question],
    knowledge: KnowledgeBase,
    search: TextSearch,
    depths: Sequence[int],
    *,
    exact: TextSearch | None = None,
    seed: int = 0,
) -> Figures:
    """Compute passage recall and pseudo-relevance recall at each depth of a search with the questions' words, by split.

    A passage is found if it belongs to a section that holds the evidence. Pseudo-relevance is FLMR's: the passage's
    text contains an accepted answer, regardless of case.

    Args:
        questions: Questions. Those without evidence in the knowledge base have no passage recall, those without an
            answer no pseudo-relevance; both are counted.
        knowledge: The knowledge base of the passages.
        depths: k.
        exact: The exact search, to measure the overlap of an approximate one.

    Returns:
        By split `resampled`, `questions`, `without_evidence`, `without_answers`, and under `scores`
        `passage_recall@k`, `prr@k` and, with `exact`, `overlap@k`, each a score; None if it is over no question.
    """
    rows = _found(questions, search, exact, max(depths))
    figures: Figures = {}
    for split in dict.fromkeys(question.split for question in questions):
        in_split = [row for row in rows if row.question.split == split]
        evident = [row for row in in_split if any(evidence.entry_id in knowledge for evidence in row.question.evidence)]
        answered = [row for row in in_split if row.question.answers]
        kinds = [("passage_recall", _Found.recall, evident), ("prr", _Found.prr, answered)]
        kinds += [("overlap", _Found.overlap, in_split)] if exact else []
        scores = {
            f"{name}@{k}": mean([row.question for row in found], [measure(row, k) for row in found], seed)
            for name, measure, found in kinds
            for k in depths
        }
        figures[split] = {
            "resampled": units([row.question for row in in_split]),
            "questions": len(in_split),
            "without_evidence": len(in_split) - len(evident),
            "without_answers": len(in_split) - len(answered),
            "scores": scores,
        }
    return figures


class _Found(NamedTuple):
    question: Question
    hits: Sequence[PassageHit]
    exact: Sequence[PassageHit]

    def recall(self, k: int) -> float:
        return passage_recall_at_k([hit.passage for hit in self.hits], self.question.evidence, k)

    def prr(self, k: int) -> float:
        """Return FLMR's pseudo-relevance; 0 if nothing is found, a case that FLMR doesn't define."""
        texts = [passage_text(hit.passage) for hit in self.hits]
        return prr_at_k(texts, self.question.answers, k) if texts else 0.0

    def overlap(self, k: int) -> float:
        ranked, truth = ([hit.passage.id for hit in hits] for hits in (self.hits, self.exact))
        return overlap_at_k(ranked, truth, k)


def _found(questions: Sequence[Question], search: TextSearch, exact: TextSearch | None, depth: int) -> list[_Found]:
    """Return the passages found for each question. Without an exact search its passages are those of `search`."""
    rows: list[_Found] = []
    with progress_bar(total=len(questions), unit=" questions", desc="searching") as bar:
        for start in range(0, len(questions), _TEXTS):
            batch = questions[start : start + _TEXTS]
            texts = [question.text for question in batch]
            hits = search(texts, depth)
            rows += map(_Found, batch, hits, exact(texts, depth) if exact else hits)
            bar.update(len(batch))
    return rows


def _query(question: Question, with_texts: bool) -> _Asked:
    if with_texts and not question.text.strip():
        raise UserError(f"question {question.id} has no text to search with; fix or remove the row")
    return question.image, question.text if with_texts else ""


def _entry_scores(
    questions: Sequence[Question], ranked: Sequence[Sequence[str]], depths: Sequence[int], seed: int
) -> Scores:
    """Return recall and reciprocal rank. k counts hits, among which a search for sections may repeat an entry."""
    pairs = [(ids, question.entity_ids) for ids, question in zip(ranked, questions, strict=True)]
    recalls = {
        f"article_recall@{k}": mean(questions, [article_recall_at_k(ids[:k], gold, k) for ids, gold in pairs], seed)
        for k in depths
    }
    return {**recalls, "mrr": mean(questions, [reciprocal_rank(ids, gold) for ids, gold in pairs], seed)}


def entry_tables(figures: Figures, searched_by: str) -> Iterator[str]:
    """Yield Markdown tables for each split, in per cent with 95 % intervals.

    Args:
        figures: The result of `measure_entries`.
        searched_by: Meaning of the searches' names, e.g. `title_weight`.
    """
    for split, record in figures.items():
        first = next(iter(record["searches"].values()))
        counted = first["mrr"]["n"] if first["mrr"] else 0
        notes = f"; {record['left_out']:,} without an image or a gold entry left out" if record["left_out"] else ""
        notes += f"; for {record['nothing_found']:,} nothing is found" if record["nothing_found"] else ""
        yield f"{split}: {counted:,} questions, intervals over {record['resampled']}{notes}"
        yield from _table(searched_by, record["searches"], ("article_recall@", "mrr"))
        yield from _table(searched_by, record["searches"], ("overlap@",))


def passage_tables(figures: Figures, index: str) -> Iterator[str]:
    """Yield Markdown tables for each split, in per cent with 95 % intervals.

    Args:
        figures: The result of `measure_passages`.
        index: The folder that was searched.
    """
    for split, record in figures.items():
        notes = f"; {record['without_evidence']:,} without evidence" if record["without_evidence"] else ""
        notes += f"; {record['without_answers']:,} without answers" if record["without_answers"] else ""
        counted = f"{record['questions']:,} questions, intervals over {record['resampled']}"
        yield f"{split}: passages searched by the text of {counted}{notes}"
        for start in ("passage_recall@", "prr@", "overlap@"):
            yield from _table("text_index", {index: record["scores"]}, (start,))


def _table(head: str, rows: Mapping[str, Scores], starts: tuple[str, ...]) -> Iterator[str]:
    """Yield a table with a row per search and a column per score with one of the prefixes; nothing without scores."""
    names = [name for name in next(iter(rows.values())) if name.startswith(starts)]
    if not names or all(row[name] is None for row in rows.values() for name in names):
        return
    yield f"| {head} | {' | '.join(names)} |"
    yield f"|--:|{'--:|' * len(names)}"
    for name, row in rows.items():
        yield f"| {name} | {' | '.join(_shown(row[score]) for score in names)} |"
    yield ""


def _shown(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return ""
    return f"{100 * score['value']:.1f} ({100 * score['low']:.1f} to {100 * score['high']:.1f})"
