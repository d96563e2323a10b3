"""Estimate the size of an index and the resources it needs, before anything is encoded."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reflectune.core.errors import UserError
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.indexes.sections import SectionKnowledge
from reflectune.retrieval.stores.opening import Choice, choose


@dataclass(frozen=True)
class Plan:
    """A planned index.

    Attributes:
        rows: Number of rows if nothing is left out: one per image, and one per entry without images.
        fields: Dimensions of each field.
        choice: The store.
    """

    rows: int
    fields: dict[str, int]
    choice: Choice

    @property
    def disk(self) -> int:
        """Bytes on disk."""
        return self.choice.disk(self.rows, self.fields)

    @property
    def building(self) -> int:
        """Bytes on disk during the build: the index and its encoded shards."""
        return self.disk + self.rows * sum(self.fields.values()) * np.dtype(self.choice.precision).itemsize

    @property
    def memory(self) -> int:
        """Bytes of memory that the searching processes of a machine share."""
        return self.choice.memory(self.rows, self.fields)


def fields_of(encoder: ImageTextEncoder, *, summaries: bool = False) -> dict[str, int]:
    """Return the fields of an index, and their dimensions."""
    texts = ("title", "summary") if summaries else ("title",)
    return {"image": encoder.dimensions, **dict.fromkeys(texts, encoder.title_dimensions)}


def plan_index(kb: KnowledgeBase, encoder: ImageTextEncoder, store: str, *, summaries: bool = False) -> Plan:
    """Plan the index of a knowledge base.

    Args:
        kb: The knowledge base.
        encoder: The encoder.
        store: `auto`, `exact`, `faiss`, or a Milvus server's address.
        summaries: Index entries' summaries as another field.
    """
    rows, fields = sum(max(count, 1) for count in kb.image_counts()), fields_of(encoder, summaries=summaries)
    return Plan(rows, fields, choose(store, rows, fields))


def check_room(folder: Path, plan: Plan) -> None:
    """Refuse a build that the disk has no room for. The files of an unfinished build count as free space.

    Raises:
        UserError: The disk has too little space.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(existing).free + written
    if plan.building > free:
        raise UserError(
            f"an index of {plan.rows:,} rows takes {plan.building / 2**30:,.1f} GiB of the disk while it is built, and "
            f"{existing} has {free / 2**30:,.1f} GiB left: free space, or build it elsewhere"
        )


def describe_plan(kb: KnowledgeBase, encoder: ImageTextEncoder, plan: Plan) -> list[str]:
    """Describe the planned index in lines."""
    images = f"{sum(kb.image_counts()):,}"
    content = (
        f"sections, {images} with an image," if isinstance(kb, SectionKnowledge) else f"entries with {images} images"
    )
    return [
        f"would index {len(kb):,} {content} of {kb.folder} (fingerprint {kb.fingerprint})",
        f"with {encoder.name}: {encoder.dimensions} dimensions, fingerprint {encoder.fingerprint}",
        *describe_needs(plan),
    ]


def describe_needs(plan: Plan) -> list[str]:
    """Describe the store and its disk space and memory in lines."""
    space = f"{size(plan.disk)} on the disk, {size(plan.building)} while it is built"
    shared = f"; {size(plan.memory)} of memory shared by all that search" if plan.choice.kind != "milvus" else ""
    return [f"searched by {plan.choice.kind}: {plan.choice.reason}", f"  {space}{shared}"]


def missing_images(kb: KnowledgeBase) -> list[str]:
    """Return a description of each missing image."""
    return [f"{path} of entry {entry.id}" for entry in kb for path in kb.image_paths(entry) if not path.is_file()]


def size(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / (1 << 30):,.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):,.1f} MiB"
