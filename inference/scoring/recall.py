"""Recall of the gold entry, over the weights of titles: what `inference.recall` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.progress import progress_bar
from reflectune.core.types import Question
from reflectune.data_builders.dataset import Dataset
from reflectune.inference.scoring.scores import mean
from reflectune.metrics.retrieval import article_recall_at_k, reciprocal_rank
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever

Figures = dict[str, Any]

_BATCH = 16


def measure_recall(
    dataset: Dataset,
    questions: Sequence[Question],
    retriever: EntryRetriever,
    weights: Sequence[float],
    depths: Sequence[int],
    *,
    seed: int = 0,
    progress: bool = False,
) -> Figures:
    """Article recall at each depth and the mean reciprocal rank of questions about entries, by split and by weight.

    Args:
        dataset: Of the questions.
        questions: Those without a gold entry in the knowledge base are left out and counted.
        retriever: Over the data set's knowledge base.
        weights: Of titles, each from 0 to 1.
        depths: k of recall@k; the reciprocal rank is of the deepest, and 0 beyond.
        seed: Of the intervals.
        progress: Show a progress bar over pictures.

    Returns:
        By split `left_out`, and under `weights`, by weight, `article_recall@k` and `mrr`: a score each.

    Raises:
        UserError: No question names an entry of the knowledge base, or a picture is bad.
    """
    known = [q for q in questions if any(entry in dataset.knowledge for entry in q.entity_ids)]
    if not known:
        raise UserError(f"no question of {dataset.root} names an entry of its knowledge base: there is no recall")
    pictures = list(dict.fromkeys(question.image for question in known))
    ranked: dict[float, dict[str, list[str]]] = {weight: {} for weight in weights}
    with progress_bar(total=len(pictures), unit=" pictures", desc="searching", disable=not progress) as bar:
        for start in range(0, len(pictures), _BATCH):
            batch = pictures[start : start + _BATCH]
            images = [load_image(picture, root=dataset.image_roots) for picture in batch]
            for weight in weights:
                found = retriever.search(images, max(depths), title_weight=weight)
                ids = ([hit.entry_id for hit in hits] for hits in found)
                ranked[weight].update(zip(batch, ids, strict=True))
            bar.update(len(batch))
    figures: Figures = {}
    for split in dict.fromkeys(question.split for question in questions):
        own = [question for question in known if question.split == split]
        figures[split] = {
            "left_out": sum(question.split == split for question in questions) - len(own),
            "weights": {f"{weight:g}": _scores(own, ranked[weight], depths, seed) for weight in weights},
        }
    return figures


def _scores(
    questions: Sequence[Question], ranked: Mapping[str, Sequence[str]], depths: Sequence[int], seed: int
) -> Figures:
    recalls = {
        f"article_recall@{k}": mean([article_recall_at_k(ranked[q.image], q.entity_ids, k) for q in questions], seed)
        for k in depths
    }
    return {**recalls, "mrr": mean([reciprocal_rank(ranked[q.image], q.entity_ids) for q in questions], seed)}


def tables(figures: Figures, depths: Sequence[int]) -> Iterator[str]:
    """A Markdown table for each split, per cent with 95 % intervals."""
    for split, record in figures.items():
        scores = list(record["weights"].values())
        counted = scores[0]["mrr"]["n"] if scores[0]["mrr"] else 0
        without = f"; {record['left_out']:,} without a gold entry left out" if record["left_out"] else ""
        yield f"\n{split}: {counted:,} questions{without}"
        names = [*(f"article_recall@{k}" for k in depths), "mrr"]
        yield f"| title_weight | {' | '.join(names)} |"
        yield f"|--:|{'--:|' * len(names)}"
        for weight, row in record["weights"].items():
            yield f"| {weight} | {' | '.join(_shown(row[name]) for name in names)} |"


def _shown(score: Mapping[str, float] | None) -> str:
    if score is None:
        return ""
    return f"{100 * score['value']:.1f} ({100 * score['low']:.1f} to {100 * score['high']:.1f})"
