"""Retrieve entries from a file of rankings by image, made by Google Lens for example."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from reflectune.core.errors import UserError
from reflectune.core.images import BadImage, image_key, load_image, pixel_hash
from reflectune.core.paths import OutsideRoot, Roots, resolve_below
from reflectune.core.rows import from_row
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.config import RankScore
from reflectune.retrieval.retrievers.queries import Query, Weights

_ASCII_IN_ADDRESSES = ("/:", "/:()", "/:(),'!*;@$&+=~")
"""Characters that URL writers don't escape, from the strictest to Wikipedia."""


@dataclass(frozen=True)
class Ranking:
    """Row of the file: the ranked entities of an image.

    Attributes:
        image: Path of the image, as in the data set's questions.
        entities: Ids of entries, best first; empty if nothing was found.
        scores: A score for each entity, not increasing; None: the scores are set by `ranked_scores`.
    """

    image: str
    entities: tuple[str, ...] = ()
    scores: tuple[float, ...] | None = None


class RankedRetriever:
    """Return the entries that a file lists for an image.

    An image that was loaded from a file is looked up by its path. Any other image, such as an upload, is compared with
    the pixels of all listed files, which are read once.

    Args:
        rankings: Entries, best first, with their scores or None, by an image's absolute path without links.
        kb: Name of the entries' knowledge base.
        rule: Score of an entry without one.
    """

    def __init__(
        self,
        rankings: Mapping[str, Sequence[tuple[str, float | None]]],
        kb: str,
        rule: RankScore = "reciprocal_rank",
    ) -> None:
        self._rankings, self._kb, self._rule = rankings, kb, rule

    def scored(self, rule: RankScore) -> RankedRetriever:
        """Return a retriever of the same rankings with another rule for missing scores."""
        return RankedRetriever(self._rankings, self._kb, rule)

    def search(self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None) -> list[list[Hit]]:
        """Return for each query the first `top_n` entries of its image, none if it isn't listed. Texts are ignored.

        Raises:
            ValueError: `top_n` is less than 1, or a query has no image.
        """
        if top_n < 1:
            raise ValueError(f"top_n must be at least 1, found {top_n}")
        found = []
        for query in queries:
            if query.image is None:
                raise ValueError("ranked entities are looked up by image, and a query has none")
            key = image_key(query.image)
            ranking = self._rankings.get(key if isinstance(key, str) else self._files.get(key, ""), ())
            by_rank = rank_scores(self._rule, len(ranking))
            rows = enumerate(zip(ranking[:top_n], by_rank[:top_n], strict=True), start=1)
            found.append(
                [
                    Hit(entry_id, rank_score if score is None else score, rank, query="ranked", kb=self._kb)
                    for rank, ((entry_id, score), rank_score) in rows
                ]
            )
        return found

    @functools.cached_property
    def _files(self) -> dict[bytes, str]:
        """First file of each pixel hash."""
        with ThreadPoolExecutor() as pool:  # images are decoded outside Python's lock
            hashes = list(pool.map(_hash_of, self._rankings))
        files: dict[bytes, str] = {}
        for pixels, file in zip(hashes, self._rankings, strict=True):
            if pixels is not None:
                files.setdefault(pixels, file)
        return files


def rank_scores(rule: RankScore, count: int) -> list[float]:
    """Return the scores of ranks 1 to `count`: 1, 1 / rank, or the softmax of -rank."""
    if rule == "softmax_rank":
        total = sum(math.exp(-rank) for rank in range(count))
        return [math.exp(-rank) / total for rank in range(count)]
    return [1.0 if rule == "constant" else 1 / rank for rank in range(1, count + 1)]


def open_ranked(
    path: str | Path, knowledge: KnowledgeBase, image_roots: Roots, rule: RankScore = "reciprocal_rank"
) -> RankedRetriever:
    """Open the retriever of a file of rankings, and print to stderr how many rows are left out.

    Entities that the knowledge base lacks are left out, and the others are ranked without them. URLs that differ only
    in escaping (`%C3%A9` for `é`) are the same entity. If an image is listed twice, the first row counts.

    Args:
        path: JSONL of `Ranking`s.
        knowledge: The entities' knowledge base.
        image_roots: Folders that image paths are relative to and must lie in.
        rule: Rule for missing scores.

    Raises:
        UserError: The file is missing, a row of it is not a ranking, or none of its images exists.
    """
    rankings = list(read_rankings(path))
    ranking_of: dict[str, list[tuple[str, float | None]]] = {}
    missing: list[str] = []
    unknown = entities = 0
    for ranking in rankings:
        ids = [_entry_id(entity, knowledge) for entity in ranking.entities]
        entities += len(ids)
        unknown += ids.count(None)
        if (file := _file_of(ranking.image, image_roots)) is None:
            missing.append(ranking.image)
        else:
            ranking_of.setdefault(file, _scored(ids, ranking.scores))
    if not ranking_of:
        message = f"the image {missing[0]} doesn't exist, nor do the others" if missing else "it is empty"
        raise UserError(f"{path}: {message}; its `image`s are paths as in the data set's questions")
    message = f"{path}: rankings of {len(rankings):,} images; left out: {unknown:,} of {entities:,} entities, which "
    message += f"the knowledge base {knowledge.name} lacks, and {len(missing):,} images that don't exist"
    print(message + (f", e.g. {missing[0]}" if missing else ""), file=sys.stderr, flush=True)
    return RankedRetriever(ranking_of, knowledge.name, rule)


def read_rankings(path: str | Path) -> Iterator[Ranking]:
    """Yield the rows of a file of rankings. Empty lines are skipped.

    Raises:
        UserError: The file is missing, or a line is not a ranking.
    """
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _ranking(line, f"{path}:{number}")
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; check the path") from error


def _ranking(line: bytes, where: str) -> Ranking:
    try:
        ranking = from_row(Ranking, json.loads(line))
    except ValueError as error:
        problem = "is not JSON" if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) else f"has {error}"
        fix = 'it should be like {"image": "images/1.jpg", "entities": ["Q42", "Q7"], "scores": [0.9, 0.4]}'
        raise UserError(f"{where}: {problem}; {fix}") from error
    scores = ranking.scores
    if not ranking.image.strip():
        raise UserError(f"{where}: `image` is empty; name the image as the data set's questions do")
    if scores is not None and len(scores) != len(ranking.entities):
        raise UserError(f"{where}: {len(scores)} scores for {len(ranking.entities)} entities; give each one, or none")
    if scores is not None and not all(map(math.isfinite, scores)):
        raise UserError(f"{where}: `scores` has a value that isn't finite; fix it, or leave `scores` out")
    if scores is not None and list(scores) != sorted(scores, reverse=True):
        raise UserError(f"{where}: `scores` increase; entities must be listed best first, so sort both")
    return ranking


def _file_of(image: str, roots: Roots) -> str | None:
    """Return the path of an image, links resolved, below the first root that has it; None if no root has it."""
    for root in [roots] if isinstance(roots, str | Path) else roots:
        try:
            file = resolve_below(Path(root).absolute() / image, roots)
        except OutsideRoot as error:
            raise UserError(f"image refused: {error}") from error
        if file.is_file():
            return str(file)
    return None


def _hash_of(file: str) -> bytes | None:
    """Return the hash of an image's pixels; None if the file is damaged."""
    with suppress(BadImage):
        return pixel_hash(load_image(file))
    return None


def _entry_id(entity: str, knowledge: KnowledgeBase) -> str | None:
    """Return the id of an entity in the knowledge base; None if the knowledge base lacks it."""
    spellings = [entity]
    if "://" in entity:
        plain = unquote(entity)
        spellings += [plain, *(quote(plain, safe=left) for left in _ASCII_IN_ADDRESSES)]
    return next((spelling for spelling in spellings if spelling in knowledge), None)


def _scored(ids: Sequence[str | None], scores: Sequence[float] | None) -> list[tuple[str, float | None]]:
    """Return the distinct known entries, each with its first score, or None without scores."""
    first: dict[str, float | None] = {}
    for entry_id, score in zip(ids, [None] * len(ids) if scores is None else scores, strict=True):
        if entry_id is not None:
            first.setdefault(entry_id, score)
    return list(first.items())
