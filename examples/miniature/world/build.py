"""Build a world into a data set folder: images, encyclopedia, questions, and the files of the diagnostics."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.durable import write_atomically
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.progress import progress_bar
from reflectune.core.types import Entry, Question
from reflectune.examples.data_sets import begin, content_fingerprint, count_questions, finish, save_jpeg
from reflectune.examples.miniature.world.drawing import draw
from reflectune.examples.miniature.world.entities import ATTRIBUTES, BALLOONS
from reflectune.examples.miniature.world.facts import RELATIONS
from reflectune.examples.miniature.world.population import (
    NEIGHBOURS,
    SIZES,
    EntityArticle,
    constructed_look_alike,
    populate,
)
from reflectune.examples.miniature.world.questions import TRAFFIC_IMAGES, WorldInterviewer
from reflectune.formats.dataset import PROBES, write_questions
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.formats.passages import split_passages

VERSION = 1
"""Raise it when the same seed gives a different world."""


def build_world(
    folder: Path,
    *,
    size: str,
    seed: int,
    traffic: int = 0,
    two_hop: int = 0,
    neighbours: float = NEIGHBOURS,
) -> dict[str, Any]:
    """Build a world, or return the manifest of one that is built already.

    Images that exist are kept, so that an interrupted build resumes. dataset.json is written last: a folder that has
    it is complete.

    Args:
        folder: Where to write it.
        size: A key of `SIZES`.
        seed: Seed of everything but the famous entities.
        traffic: Questions of a further split, `traffic`; a tenth of them for another, `traffic_val`. All else is as
            without them.
        two_hop: Questions of a further split, `two_hop_train`. All else is as without them.
        neighbours: Share of the articles that name a neighbour of their entity; two-hop questions are about these.

    Returns:
        The manifest.

    Raises:
        UserError: The folder holds a different data set.
    """
    asked_for = {"version": VERSION, "size": dataclasses.asdict(SIZES[size]), "seed": seed}
    more: dict[str, float] = {name: count for name, count in (("traffic", traffic), ("two_hop", two_hop)) if count}
    if neighbours != NEIGHBOURS:
        more["neighbours"] = neighbours
    key = fingerprint({**asked_for, **more})
    if built := begin(folder, key):
        return built
    articles = populate(SIZES[size], _rng(seed, "population"), neighbours)
    painter = _Painter(folder, seed)
    splits = WorldInterviewer(articles, _rng(seed, "questions"), painter.photograph).ask_all()
    if traffic:
        users = WorldInterviewer(articles, _rng(seed, "traffic"), painter.photograph, TRAFFIC_IMAGES)
        unseen = [*splits["val_unseen_question"], *splits["val_unseen_entity"]]
        splits["traffic"] = users.traffic(splits["train"], traffic, "traffic")
        splits["traffic_val"] = users.traffic(unseen, math.ceil(traffic / 10), "traffic_val")
    if two_hop:
        splits["two_hop_train"] = WorldInterviewer(articles, _rng(seed, "two hops"), painter.photograph).two_hop(
            two_hop, "two_hop_train"
        )
    entries = list(_entries(articles, painter, seed))
    painter.close()
    for split, questions in splits.items():
        write_questions(folder, split, questions)
    write_knowledge_base(folder / "knowledge", entries, name=f"world-{size}-{seed}", image_root="..")
    _write_probes(folder, articles, splits, seed)
    manifest = {
        "name": f"miniature world ({size}, seed {seed})",
        "metric": "infoseek",
        "seed": seed,
        "settings": key,
        "fingerprint": content_fingerprint(folder),
        "files": {PROBES: file_fingerprint(folder / PROBES)},
        "counts": count_questions(splits),
        "entries": len(entries),
        "looks": {article.entity.id: dataclasses.asdict(article.entity.looks) for article in articles},
    }
    finish(folder, manifest)
    return manifest


def _rng(seed: int | str, *what: object) -> random.Random:
    """Return a part's own random generator, so that a change in one part leaves the others as they are."""
    return random.Random("/".join(map(str, (seed, *what))))


class _Painter:
    """Draws images into the folder: the same image each time, and none twice."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._progress = progress_bar(desc="drawing", unit="image", mininterval=1.0)

    def photograph(self, article: EntityArticle, balloons: int, number: int) -> str:
        """Draw an entity's image, and return its path in the data set; `number` 0 is the encyclopedia's own."""
        name = f"images/{article.entity.id}/{number}.jpg"
        path = self._folder / name
        if not path.exists():
            save_jpeg(draw(article.entity.looks, balloons, _rng(self._seed, article.entity.id, number)), path)
        self._progress.update()
        return name

    def close(self) -> None:
        self._progress.close()


def _entries(articles: Sequence[EntityArticle], painter: _Painter, seed: int) -> Iterator[Entry]:
    for article in articles:
        # a famous entity's article is the same in every world
        rng = _rng("famous" if article.role == "famous" else seed, "article", article.entity.id)
        image = painter.photograph(article, _rng(seed, "balloons", article.entity.id).choice(BALLOONS), 0)
        yield article.entry(rng, (image,))


def _write_probes(
    folder: Path, articles: Sequence[EntityArticle], splits: dict[str, list[Question]], seed: int
) -> None:
    """Write, for each knowledge-based question of val and test, passages of entities that differ in one attribute."""
    by_id = {article.entity.id: article.entity for article in articles}
    lines = []
    for split, questions in splits.items():
        if not split.startswith(("val_", "test_")):
            continue
        for question in questions:
            if not question.requires_retrieval:
                continue
            rng = _rng(seed, "probes", question.id)
            for attribute in ATTRIBUTES:
                relation = question.meta["relation"]
                alike = constructed_look_alike(by_id[question.entity_ids[0]], attribute, relation, rng)
                entry = EntityArticle(alike, "bystander", [relation]).entry(rng, ())
                (passage,) = split_passages(entry, lead="first_sentence")
                row = {"question_id": question.id, "attribute": attribute, "passage": dataclasses.asdict(passage)}
                lines.append(json.dumps(row) + "\n")
    write_atomically(folder / PROBES, "".join(lines))


def describe_world(size: str, traffic: int, two_hop: int) -> str:
    """Return the lines of a dry run."""
    counts = SIZES[size]
    entities = (counts.train + counts.val + counts.test) * 2  # each with a look-alike
    return (
        f"a world of about {entities} entities and the famous ones, {len(RELATIONS)} kinds of fact, splits train, "
        "val_unseen_question, val_unseen_entity, test_unseen_question, test_unseen_entity, two_hop_val, two_hop_test"
        + (f", and {two_hop:,} questions of two_hop_train" if two_hop else "")
        + (f", and {traffic:,} questions of traffic" if traffic else "")
    )
