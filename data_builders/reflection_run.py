"""Builds a split of mR²AG-IT: questions and articles in, training examples out; goes on where it stopped."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image
from tqdm import tqdm

from reflectune.core.durable import RowLog, read_json, read_rows, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.images import load_image
from reflectune.core.types import Passage, Question, ReflectionExample
from reflectune.data_builders.dataset import Dataset
from reflectune.data_builders.mr2ag import Outcome, knowledge_example, question_problem, visual_example
from reflectune.data_builders.mr2ag_config import BuildConfig
from reflectune.data_builders.reflection_data import (
    MANIFEST,
    Manifest,
    example_from_row,
    read_manifest,
    write_examples,
    write_manifest,
)
from reflectune.models.scheme import passage_text
from reflectune.retrieval.encoders import load_encoder
from reflectune.retrieval.index import load_index
from reflectune.retrieval.knowledge_base import KnowledgeBase
from reflectune.retrieval.passages import split_passages
from reflectune.retrieval.retriever import EntryRetriever, Retriever

Made = TypeVar("Made")

STATISTICS = "statistics.json"
_CHUNK = 64
"""Questions that are retrieved for and written to the log together."""


@dataclass(frozen=True)
class Rejected:
    """A question that gave no example, and why. `bad` marks a bad row; the others are the strict filter's."""

    id: str
    reason: str
    bad: bool


@dataclass
class Batch:
    """What some questions became.

    Attributes:
        examples: Training examples.
        rejected: Questions that gave none.
        answer_elsewhere: Passages that the strict filter kept from being negatives.
    """

    examples: list[ReflectionExample] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    answer_elsewhere: int = 0


def run(config: BuildConfig) -> None:
    """Build as the config says; a dry run shows one example and writes nothing."""
    dataset = Dataset(Path(config.dataset))
    retriever = open_retriever(config, dataset.knowledge) if config.negatives_retrieved else None
    if config.dry_run:
        print(preview(dataset, retriever, config))
    else:
        build_split(dataset, retriever, config)


def open_retriever(config: BuildConfig, knowledge: KnowledgeBase) -> Retriever:
    """The retriever over the config's index, which must have been built from this knowledge base and encoder."""
    encoder = load_encoder(config.encoder, device=config.device)
    return EntryRetriever(load_index(Path(config.index), knowledge, encoder), encoder)


def build_split(dataset: Dataset, retriever: Retriever | None, config: BuildConfig) -> None:
    """Write `{split}.parquet`, and the split's part of the manifest and of `statistics.json`.

    Args:
        dataset: Questions, images and knowledge base.
        retriever: For hard negatives; None if the config asks for none.
        config: What to build.

    Raises:
        UserError: A row is bad and `on_error` is stop, or no question gave an example.
    """
    output = Path(config.output)
    target = output / f"{config.split}.parquet"
    index = file_fingerprint(Path(config.index, "manifest.json")) if retriever is not None else ""
    key = fingerprint([config.what_decides(), dataset.fingerprint, index])
    if is_built(output, dataset, config.split, key):
        print(f"nothing to do: {target} is built")
        return
    knowledge, visual = select_questions(dataset.questions(config.split), config)
    workshop = Workshop(dataset, retriever, config)
    built = _build_logged(workshop, knowledge, output / f".{config.split}.{key}.jsonl", key)
    seen = workshop.visual(visual, round(len(built.examples) * config.visual_ratio / (1 - config.visual_ratio)))
    whole = Batch(built.examples + seen.examples, built.rejected + seen.rejected, built.answer_elsewhere)
    numbers = statistics(whole)
    if not whole.examples:
        reasons = "; ".join(f"{count} × {reason}" for reason, count in numbers["questions_left_out"].items())
        raise UserError(
            f"no question of split {config.split} of {dataset.root} gave an example: {reasons or 'none there'}"
        )
    write_examples(target, whole.examples)
    _record(output, config.split, dataset, key, numbers)
    for log_path in output.glob(f".{config.split}.*.jsonl"):  # this build's, and those of builds that were given up
        log_path.unlink()
    print(summary(target, numbers))


def preview(dataset: Dataset, retriever: Retriever | None, config: BuildConfig) -> str:
    """How much there is to build, and the first example."""
    knowledge, visual = select_questions(dataset.questions(config.split), config)
    lines = [
        f"{config.split} of {dataset.root}: {len(knowledge):,} knowledge-based questions, {len(visual):,} visual ones"
    ]
    for example in Workshop(dataset, retriever, config).knowledge(knowledge[:8]).examples[:1]:
        lines.append(f"{example.id}: {example.question} ({example.image})")
        lines += [
            f"  {'[Relevant] ' + branch.answer if branch.relevant else '[Irrelevant]'} {branch.source}: "
            f"{passage_text(branch.passage)}"
            for branch in example.branches
        ]
    return "\n".join(lines)


def is_built(output: Path, dataset: Dataset, split: str, key: str) -> bool:
    """Whether this very split is there already.

    Raises:
        UserError: The folder holds another data set's splits.
    """
    if not (output / MANIFEST).is_file():
        return False
    manifest = read_manifest(output)
    if manifest.image_root != dataset.root.resolve():
        raise UserError(f"{output} holds data of {manifest.image_root}, not of {dataset.root}; choose another `output`")
    return manifest.fingerprints.get(split) == key and (output / f"{split}.parquet").is_file()


def select_questions(questions: Sequence[Question], config: BuildConfig) -> tuple[list[Question], list[Question]]:
    """Knowledge-based and visual-dependent questions, the latter in a drawn order; `limit` draws from the former.

    A question that the data set says nothing of counts as knowledge-based.
    """
    rng = random.Random(f"{config.seed}:{config.split}")
    knowledge = [question for question in questions if question.requires_retrieval is not False]
    visual = [question for question in questions if question.requires_retrieval is False]
    if config.limit is not None and config.limit < len(knowledge):
        kept = set(rng.sample(range(len(knowledge)), config.limit))
        knowledge = [question for i, question in enumerate(knowledge) if i in kept]
    rng.shuffle(visual)
    return knowledge, visual


def statistics(batch: Batch) -> dict[str, Any]:
    """What a person wants to know of a built split, as plain values."""
    branches = [branch for example in batch.examples for branch in example.branches]
    return {
        "examples": len(batch.examples),
        "with_retrieval": sum(example.retrieve for example in batch.examples),
        "without_retrieval": sum(not example.retrieve for example in batch.examples),
        "multi_answer": sum(example.multi_answer for example in batch.examples),
        "branches": len(branches),
        "relevant": sum(branch.relevant for branch in branches),
        "branches_by_source": dict(sorted(Counter(branch.source for branch in branches).items())),
        "negatives_dropped_for_holding_an_answer": batch.answer_elsewhere,
        "questions_left_out": dict(sorted(Counter(row.reason for row in batch.rejected if not row.bad).items())),
        "bad_rows": [{"id": row.id, "reason": row.reason} for row in batch.rejected if row.bad],
    }


def summary(target: Path, numbers: dict[str, Any]) -> str:
    """The statistics in a few lines."""
    sources = ", ".join(f"{count:,} {source}" for source, count in numbers["branches_by_source"].items())
    lines = [
        f"{target}: {numbers['examples']:,} examples ({numbers['with_retrieval']:,} with retrieval), "
        f"{numbers['branches']:,} passages ({sources})",
        *(f"left out: {count:,} questions: {reason}" for reason, count in numbers["questions_left_out"].items()),
    ]
    if numbers["bad_rows"]:
        lines.append(f"left out: {len(numbers['bad_rows']):,} bad rows, listed in {target.with_name(STATISTICS)}")
    return "\n".join(lines)


class Workshop:
    """Turns questions into examples: images, articles, retrieval and random draws in one place.

    Args:
        dataset: Questions, images and knowledge base.
        retriever: For hard negatives, or None.
        config: What to build.
    """

    def __init__(self, dataset: Dataset, retriever: Retriever | None, config: BuildConfig) -> None:
        self._dataset, self._retriever, self._config = dataset, retriever, config
        self._entry_ids = list(dataset.knowledge.ids)
        self._ranked: dict[str, list[str]] = {}
        self._passages = functools.lru_cache(maxsize=8192)(self._split)

    def knowledge(self, questions: Sequence[Question]) -> Batch:
        """Examples of knowledge-based questions."""
        batch = Batch()
        images = {q.id: image for q in questions if (image := self._try(q, self._open, batch)) is not None}
        answerable = [question for question in questions if question.id in images]
        self._rank([(question.image, images[question.id]) for question in answerable])
        for question in answerable:
            outcome = self._try(question, self._hang, batch)
            if outcome is None:
                continue
            batch.answer_elsewhere += outcome.answer_elsewhere
            if outcome.example is None:
                batch.rejected.append(Rejected(question.id, outcome.reason, bad=False))
            else:
                batch.examples.append(outcome.example)
        return batch

    def visual(self, questions: Sequence[Question], wanted: int) -> Batch:
        """Examples of the first `wanted` fit visual-dependent questions."""
        batch = Batch()
        for question in questions:
            if len(batch.examples) == wanted:
                break
            if self._try(question, self._open, batch) is not None:
                batch.examples.append(visual_example(question))
        return batch

    def _try(self, question: Question, make: Callable[[Question], Made], batch: Batch) -> Made | None:
        """What `make` makes of a question; a bad row is an error, or is listed, as the config says."""
        try:
            if problem := question_problem(question):
                raise UserError(problem)
            return make(question)
        except UserError as error:
            if self._config.on_error == "stop":
                advice = "mend the row, or leave such rows out with `on_error: skip`"
                raise UserError(f"question {question.id} of {self._dataset.root}: {error}; {advice}") from error
            batch.rejected.append(Rejected(question.id, str(error), bad=True))
            return None

    def _open(self, question: Question) -> Image.Image:
        return load_image(question.image, root=self._dataset.root)

    def _rank(self, images: Sequence[tuple[str, Image.Image]]) -> None:
        """Retrieve for the images that have not been searched for yet."""
        new = {path: image for path, image in images if path not in self._ranked}
        if self._retriever is None or not new:
            return
        # Deep enough that entries remain when the question's own are taken out.
        found = self._retriever.search(list(new.values()), top_n=self._config.retrieval_depth + 2)
        for path, hits in zip(new, found, strict=True):
            self._ranked[path] = [hit.entry_id for hit in hits]

    def _hang(self, question: Question) -> Outcome:
        article = [passage for entry_id in question.entity_ids for passage in self._passages(entry_id)]
        others = [entry for entry in self._ranked.get(question.image, []) if entry not in question.entity_ids]
        ranked = [self._passages(entry) for entry in others[: self._config.retrieval_depth]]
        return knowledge_example(question, article, ranked, self._draw_article, self._config.recipe())

    def _draw_article(self, rng: random.Random) -> list[Passage]:
        return self._passages(rng.choice(self._entry_ids))

    def _split(self, entry_id: str) -> list[Passage]:
        return split_passages(self._dataset.knowledge.get(entry_id), lead=self._config.lead)


def _build_logged(workshop: Workshop, questions: Sequence[Question], log_path: Path, key: str) -> Batch:
    """Build in chunks, each one row of a log: what is in the log is not built again."""
    with RowLog(log_path, key) as log:
        starts = range(0, len(questions), _CHUNK)
        for start in tqdm(starts, desc="questions", unit=f"×{_CHUNK}", disable=None):
            if str(start) not in log.done:
                log.append(str(start), dataclasses.asdict(workshop.knowledge(questions[start : start + _CHUNK])))
    whole = Batch()
    for row in read_rows(log_path):
        whole.examples += [example_from_row(example) for example in row["examples"]]
        whole.rejected += [Rejected(**rejected) for rejected in row["rejected"]]
        whole.answer_elsewhere += row["answer_elsewhere"]
    return whole


def _record(output: Path, split: str, dataset: Dataset, key: str, numbers: dict[str, Any]) -> None:
    """Write the split's statistics, and then the manifest, which says that the split is there."""
    known = read_json(output / STATISTICS, "statistics") if (output / STATISTICS).is_file() else {}
    write_json(output / STATISTICS, {**known, split: numbers})
    before = read_manifest(output).fingerprints if (output / MANIFEST).is_file() else {}
    write_manifest(output, Manifest("mr2ag", dataset.root, {**before, split: key}))
