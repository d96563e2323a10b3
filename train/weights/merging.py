"""Merge an adapter's checkpoint into a full one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectune.core.hashing import file_fingerprint
from reflectune.core.partials import writing
from reflectune.models.loading import load, read_info, save_checkpoint, stored_dtype
from reflectune.models.weights.adapters import ADAPTER_WEIGHTS
from reflectune.models.weights.pretrained import as_dtype
from reflectune.train.weights.checkpoints import refuse_full_disk


@dataclass(frozen=True)
class Merge:
    """A merge of an adapter: its base model, and the precision of the result."""

    base_model: str
    dtype: str
    remark: str


def plan_merge(checkpoint: str | Path, dtype: str = "auto") -> Merge:
    """Plan the merge of an adapter.

    Args:
        checkpoint: The adapter's folder.
        dtype: `float32`, `bfloat16`, `float16`; `auto` for the base model's own.

    Raises:
        UserError: The adapter lacks its record, or the base model is not where the record says.
    """
    info = read_info(checkpoint)
    base = str(info["base_model"])
    if dtype == "auto":
        dtype = str(stored_dtype(base) or "float32").removeprefix("torch.")
    return Merge(base, dtype, " (its 4-bit weights written out)" if info.get("quantization") else "")


def is_merged(checkpoint: str | Path, output: str | Path, planned: Merge) -> bool:
    """Return True if a checkpoint is the result of this merge.

    Raises:
        UserError: A record is missing or damaged.
    """
    return _record(checkpoint, planned).items() <= read_info(output).items()


def _record(checkpoint: str | Path, planned: Merge) -> dict[str, str]:
    """Return the origin of a merged checkpoint, for its `reflectune.json`."""
    return {
        "base_model": planned.base_model,
        "merged_from": str(Path(checkpoint).resolve()),
        "merged_adapter": file_fingerprint(Path(checkpoint, ADAPTER_WEIGHTS)),
        "merged_dtype": planned.dtype,
    }


def merge_adapter(checkpoint: str | Path, output: str | Path, planned: Merge) -> None:
    """Add an adapter to its base model and write the result. The folder appears at once, or not at all.

    Sums are computed in fp32 and rounded once.

    Args:
        checkpoint: The adapter's folder.
        output: The folder to write.
        planned: From `plan_merge`.

    Raises:
        UserError: The base model or the adapter cannot be loaded, or the disk is too full.
    """
    loaded = load(str(checkpoint))
    model: Any = loaded.model
    model = model.to(as_dtype(planned.dtype))
    model.config.dtype = model.dtype
    with writing(output) as partial:
        partial.mkdir()
        refuse_full_disk(partial, sum(p.numel() * p.element_size() for p in model.parameters()))
        info = {name: value for name, value in read_info(checkpoint).items() if name not in ("kind", "scheme")}
        assert loaded.scheme is not None  # an adapter without one is not loaded
        save_checkpoint(partial, model, loaded.processor, loaded.scheme, info | _record(checkpoint, planned))
