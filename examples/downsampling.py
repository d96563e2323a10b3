"""MI-RAG's greedy downsampling of a data set's questions (arXiv 2509.00798, appendix G, figure A13)."""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reflectune.core.durable import write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.types import Question
from reflectune.formats.dataset import LOOK_ALIKES, MANIFEST, PROBES, Dataset, companion, write_questions

Vectors = npt.NDArray[np.float32]

_TOLERANCE: Final = 0.05
"""Share of `count` by which the number of kept questions may differ from it."""


def downsample(vectors: Vectors, threshold: float, most: float = math.inf) -> npt.NDArray[np.bool_]:
    """Keep each question that is at most as similar as `threshold` to every kept question before it.

    Args:
        vectors: Embeddings of the questions in order, of length 1, shape (questions, dimensions).
        threshold: Highest cosine similarity of two kept questions; 1 keeps all.
        most: Stop once more than this many are kept; the rest is left out.

    Returns:
        True for each kept question, shape (questions,).
    """
    kept = np.zeros(len(vectors), dtype=bool)
    kept_vectors, size = np.empty_like(vectors), 0
    for row, vector in enumerate(vectors):
        # Because of rounding, the product of a vector with itself can exceed 1.
        if size == 0 or min((kept_vectors[:size] @ vector).max(), 1) <= threshold:
            kept[row], kept_vectors[size] = True, vector
            size += 1
        if size > most:
            break
    return kept


def find_threshold(vectors: Vectors, count: int) -> float:
    """Find by bisection a threshold that keeps about `count` questions, to six decimals.

    The number may differ from `count` by 5 %. A fitting threshold can be missed: a higher one may keep fewer questions,
    since each kept question rules out others.

    Raises:
        UserError: There are too few questions, or no threshold that was tried fits.
    """
    slack = math.floor(count * _TOLERANCE)
    if len(vectors) < count - slack:
        raise UserError(f"`count` is {count:,}, and there are {len(vectors):,} questions; name more splits, or fewer")
    if len(vectors) <= count + slack:
        return 1.0
    low, high = -1.0, 1.0
    while high - low > 1.5e-6:
        threshold = round((low + high) / 2, 6)
        size = int(downsample(vectors, threshold, most=count + slack).sum())
        if abs(size - count) <= slack:
            return threshold
        low, high = (low, threshold) if size > count else (threshold, high)
    tried = ", ".join(f"{end:g} keeps {downsample(vectors, end).sum():,}" for end in (low, high))
    raise UserError(
        f"no threshold was found that keeps {count:,} ± {slack:,} of {len(vectors):,} questions: {tried}; "
        "give one of these as `threshold`"
    )


def write_subset(
    dataset: Dataset,
    splits: Sequence[str],
    encode: Callable[[Sequence[str]], Vectors],
    output: Path,
    *,
    count: int = 500,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Write a data set folder with the kept questions. Images and knowledge base stay where they are.

    Args:
        dataset: The whole data set.
        splits: Its splits, read one after the other.
        encode: Maps texts to vectors of length 1, e.g. `TextEncoder.encode_queries`.
        output: Folder to write to.
        count: See `find_threshold`.
        threshold: Used instead of `count` if given.

    Returns:
        The manifest; `subset` has the threshold and the numbers of questions.
    """
    questions = [(split, question) for split in splits for question in dataset.stream(split)]
    vectors = encode([question.text for _, question in questions])
    threshold = find_threshold(vectors, count) if threshold is None else threshold
    kept: dict[str, list[Question]] = {split: [] for split in splits}
    for (split, question), is_kept in zip(questions, downsample(vectors, threshold), strict=True):
        if is_kept:
            # Paths of images become relative to the subset's image root, which is the whole data set's.
            first, *more = (
                path and os.path.relpath(dataset.root / path, dataset.image_roots[-1])
                for path in (question.image, *question.more_images)
            )
            kept[split].append(dataclasses.replace(question, image=first, more_images=tuple(more)))
    for split, kept_questions in kept.items():
        write_questions(output, split, kept_questions)
    left_out = {"parts", "files", "images", "kinds", "dropped", "sources", "made_with", "settings"}
    manifest = {key: value for key, value in dataset.manifest.items() if key not in left_out}
    manifest["image_root"] = str(dataset.image_roots[-1].resolve())
    manifest["knowledge_root"] = str(dataset.knowledge_folder.resolve())
    manifest["counts"] = {split: Counter(question.answer_type for question in kept[split]) for split in splits}
    manifest["subset"] = {"threshold": threshold, "kept": sum(map(len, kept.values())), "of": len(questions)}
    manifest["fingerprint"] = fingerprint([dataset.fingerprint, repr(kept)])
    for name in (PROBES, LOOK_ALIKES):
        if path := companion(dataset.root, dataset.manifest, name):
            write_atomically(output / name, path.read_bytes())
    write_json(output / MANIFEST, manifest)
    return manifest
