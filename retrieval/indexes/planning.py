"""Size and needs of an index, before anything is encoded."""

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
        rows: Number of rows if nothing is left out: one an image, or an entry without any.
        fields: Dimensions of each field.
        choice: The store.
    """

    rows: int
    fields: dict[str, int]
    choice: Choice

    @property
    def disk(self) -> int:
        """Bytes that it takes on the disk."""
        return self.choice.disk(self.rows, self.fields)

    @property
    def building(self) -> int:
        """Bytes on the disk while it is built: encoded shards and the resulting index."""
        return self.disk + self.rows * sum(self.fields.values()) * np.dtype(self.choice.precision).itemsize

    @property
    def memory(self) -> int:
        """Bytes that the searching processes of a machine share."""
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
        summaries: Index entries' summaries as a field.
    """
    rows, fields = sum(max(count, 1) for count in kb.image_counts()), fields_of(encoder, summaries=summaries)
    return Plan(rows, fields, choose(store, rows, fields))


def check_room(folder: Path, plan: Plan) -> None:
    """Refuse a build that the disk has no room for; files of an unfinished build count as room.

    Raises:
        UserError: There is too little.
    """
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    free = shutil.disk_usage(place).free + written
    if plan.building > free:
        raise UserError(
            f"an index of {plan.rows:,} rows takes {plan.building / 2**30:,.1f} GiB of the disk while it is built, and "
            f"{place} has {free / 2**30:,.1f} GiB left: make room, or build it elsewhere"
        )


def describe_plan(kb: KnowledgeBase, encoder: ImageTextEncoder, plan: Plan) -> list[str]:
    """Return lines that say what would be built."""
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
    """Return lines that describe the store and its needs."""
    taken = f"{size(plan.disk)} on the disk, {size(plan.building)} while it is built"
    shared = f"; {size(plan.memory)} of memory shared by all that search" if plan.choice.kind != "milvus" else ""
    return [f"searched by {plan.choice.kind}: {plan.choice.reason}", f"  {taken}{shared}"]


def missing_images(kb: KnowledgeBase) -> list[str]:
    """Return the missing images with their entries."""
    return [f"{path} of entry {entry.id}" for entry in kb for path in kb.image_paths(entry) if not path.is_file()]


def size(count: int) -> str:
    """Return bytes as text."""
    return f"{count / (1 << 30):,.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):,.1f} MiB"
