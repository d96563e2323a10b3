"""Encodes the questions of splits, keeps those that are unlike each other, and writes them as a data set folder."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reflectune.core.durable import write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.progress import progress_bar
from reflectune.core.types import Question
from reflectune.data_builders.downsampling.greedy import Subset, Vectors, downsample, find_subset
from reflectune.formats.dataset import (
    LOOK_ALIKES,
    MANIFEST,
    PROBES,
    Dataset,
    built_manifest,
    companion,
    write_questions,
)
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.indexes.writing import write_array

BLOCK = 4096
"""Questions whose vectors are put on the disk together, and compared together."""
PERCENTILES = (5, 25, 50, 75, 95)
_VECTORS = ".vectors"


@dataclass(frozen=True)
class Choice:
    """Which questions to keep.

    Attributes:
        splits: Where they are from, in this order.
        threshold: Similarity above which one is redundant; None: found so that about `questions` stay.
        questions: How many to keep.
        tolerance: Share of `questions` that the number may differ by.
    """

    splits: tuple[str, ...]
    threshold: float | None = None
    questions: int = 500
    tolerance: float = 0.05


def write_subset(
    dataset: Dataset, encoder: TextEncoder, choice: Choice, output: Path, block: int = BLOCK
) -> dict[str, Any]:
    """Write a data set folder with the questions kept, each in its own split and in the order of the file.

    It refers to the whole data set's pictures and knowledge base; what decides relevance is copied. The manifest is
    written last: a folder without it is none.

    Args:
        dataset: The whole one.
        encoder: Of the questions' texts; its similarity must be the cosine.
        choice: Which to keep.
        output: The folder.
        block: Questions whose vectors are put on the disk together: what a crash costs at most.

    Returns:
        The manifest; under `subset` it says how it was chosen.

    Raises:
        UserError: There are no questions, no threshold keeps the number wanted, or the folder holds another data set.
    """
    by_threshold = choice.threshold is not None
    decisive = choice.threshold if by_threshold else [choice.questions, choice.tolerance]
    key = fingerprint(["downsample", dataset.fingerprint, encoder.fingerprint, choice.splits, by_threshold, decisive])
    if built := built_manifest(output, key):
        return built
    questions = [(split, question) for split in choice.splits for question in dataset.stream(split)]
    if not questions:
        raise UserError(f"{dataset.root}: no questions in {', '.join(choice.splits)}; name splits that have some")
    place = output / _VECTORS / fingerprint([dataset.fingerprint, encoder.fingerprint, choice.splits, block])
    vectors = _encode([question.text for _, question in questions], encoder, place, block)
    if choice.threshold is not None:
        subset = downsample(vectors, choice.threshold)
    else:
        subset = find_subset(vectors, choice.questions, choice.tolerance)
    manifest = {**_whole(dataset), "settings": key, "subset": _record(dataset, encoder, choice, subset)}
    manifest["name"] = f"{subset.size:,} questions of {dataset.manifest.get('name', dataset.root.name)}"
    manifest |= _write_questions(dataset, questions, subset, choice.splits, output)
    manifest["files"] = _copy_companions(dataset, output)
    write_json(output / MANIFEST, manifest)
    del vectors
    shutil.rmtree(output / _VECTORS)
    return manifest


def lines(manifest: Mapping[str, Any], where: str) -> list[str]:
    """What a subset is, to be printed.

    Args:
        manifest: Of `write_subset`.
        where: Its folder.
    """
    subset = manifest["subset"]
    told = [
        f"{where}: {subset['kept']:,} of {subset['of']:,} questions of {', '.join(subset['splits'])}",
        f"  threshold {subset['threshold']}: cosine of {subset['encoder']} to a kept question before",
    ]
    if nearest := subset["similarity"]:
        told.append("  highest similarity to one: " + ", ".join(f"{n} % at most {v:.3f}" for n, v in nearest.items()))
    return told + [f"  {split}: {sum(kinds.values()):,}" for split, kinds in manifest["counts"].items()]


def _encode(texts: Sequence[str], encoder: TextEncoder, place: Path, block: int) -> list[Vectors]:
    """The texts' vectors in blocks, on the disk: those that are there already aren't made again."""
    blocks: list[Vectors] = []
    with progress_bar(total=len(texts), desc="encoding", unit=" questions") as bar:
        for start in range(0, len(texts), block):
            path = place / f"{start}.npy"
            if not path.is_file():
                write_array(path, encoder.encode_queries(texts[start : start + block]))
            blocks.append(np.load(path, mmap_mode="r"))
            bar.update(len(blocks[-1]))
    return blocks


_OF_FOLDER = frozenset("parts counts files image_root images kinds dropped sources made_with".split())
"""What a manifest says of its own folder's files, and of how they were made."""


def _whole(dataset: Dataset) -> dict[str, Any]:
    """What the subset's manifest has from the whole one's, with where pictures and knowledge base are."""
    manifest = {key: value for key, value in dataset.manifest.items() if key not in _OF_FOLDER}
    if reader := (dataset.manifest.get("made_with") or {}).get("questions"):
        manifest["made_with"] = {"questions": reader}  # the metric of older data sets is known by it
    manifest["image_root"] = str(dataset.image_roots[-1].resolve())
    if dataset.knowledge_folder.is_dir():
        manifest["knowledge_root"] = str(dataset.knowledge_folder.resolve())
    return manifest


def _record(dataset: Dataset, encoder: TextEncoder, choice: Choice, subset: Subset) -> dict[str, Any]:
    """How a subset was chosen, for the manifest."""
    compared = subset.nearest[1:]
    return {
        "of_dataset": str(dataset.root.resolve()),
        "of_fingerprint": dataset.fingerprint,
        "splits": list(choice.splits),
        "encoder": encoder.name,
        "encoder_fingerprint": encoder.fingerprint,
        "threshold": subset.threshold,
        "of": len(subset.kept),
        "kept": subset.size,
        "similarity": {
            str(share): round(float(np.percentile(compared, share)), 6) for share in PERCENTILES if len(compared)
        },
    }


def _write_questions(
    dataset: Dataset, questions: Sequence[tuple[str, Question]], subset: Subset, splits: Sequence[str], output: Path
) -> dict[str, Any]:
    """Write the questions kept; what the manifest says about them."""
    kept: dict[str, list[Question]] = {split: [] for split in splits}
    for (split, question), stays in zip(questions, subset.kept, strict=True):
        if stays:
            kept[split].append(_below_root(question, dataset))
    paths = [write_questions(output, split, of_split) for split, of_split in kept.items()]
    return {
        "counts": {split: dict(Counter(question.answer_type for question in kept[split])) for split in splits},
        "fingerprint": file_fingerprint(*paths)[:8] + dataset.fingerprint[:8],
    }


def _below_root(question: Question, dataset: Dataset) -> Question:
    """A question whose image's path starts at the whole data set's image folder, as the subset's manifest names it."""
    image, start = Path(dataset.root, question.image).absolute(), dataset.image_roots[-1].absolute()
    if not question.image or start not in image.parents:
        return question
    return dataclasses.replace(question, image=str(image.relative_to(start)))


def _copy_companions(dataset: Dataset, output: Path) -> dict[str, str]:
    """Copy what the whole data set brings for measuring relevance; what the copies hash to."""
    prints: dict[str, str] = {}
    for name in (PROBES, LOOK_ALIKES):
        if (path := companion(dataset.root, dataset.manifest, name)) is not None:
            write_atomically(output / name, path.read_bytes())
            prints[name] = file_fingerprint(output / name)
    return prints
