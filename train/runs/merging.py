"""Merges an adapter's checkpoint into a full one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectune.core.hashing import file_fingerprint
from reflectune.core.partials import writing
from reflectune.models.loading import load, read_info, save_checkpoint, stored_dtype
from reflectune.models.weights.adapters import ADAPTER_WEIGHTS
from reflectune.models.weights.pretrained import as_dtype
from reflectune.train.runs.checkpoints import refuse_full_disk


@dataclass(frozen=True)
class Plan:
    """How an adapter is merged: into what, and at which precision the result is written."""

    base_model: str
    dtype: str
    remark: str


def plan(checkpoint: str | Path, dtype: str = "auto") -> Plan:
    """What would be merged.

    Args:
        checkpoint: The adapter's folder.
        dtype: `float32`, `bfloat16`, `float16`; `auto` for what the base model is stored in.

    Raises:
        UserError: The adapter lacks its record, or the base model is not where the record says.
    """
    info = read_info(checkpoint)
    base = str(info["base_model"])
    if dtype == "auto":
        dtype = str(stored_dtype(base) or "float32").removeprefix("torch.")
    return Plan(base, dtype, " (its 4-bit weights written out)" if info.get("quantization") else "")


def is_merged(checkpoint: str | Path, output: str | Path, how: Plan) -> bool:
    """Whether a checkpoint is what `merge` would write, from the same adapter at the same precision.

    Raises:
        UserError: A record is missing or damaged.
    """
    return _record(checkpoint, how).items() <= read_info(output).items()


def _record(checkpoint: str | Path, how: Plan) -> dict[str, str]:
    """What a merged checkpoint remembers of where it comes from."""
    return {
        "base_model": how.base_model,
        "merged_from": str(Path(checkpoint).resolve()),
        "merged_adapter": file_fingerprint(Path(checkpoint, ADAPTER_WEIGHTS)),
        "merged_dtype": how.dtype,
    }


def merge(checkpoint: str | Path, output: str | Path, how: Plan) -> None:
    """Add an adapter to its base model and write the whole. The folder appears at once, or not at all.

    Sums are made in fp32 and rounded once, whatever `dtype` is written.

    Args:
        checkpoint: The adapter's folder.
        output: The folder to write.
        how: From `plan`.

    Raises:
        UserError: The base model or the adapter cannot be loaded, or the disk is too full.
    """
    loaded = load(str(checkpoint))
    model: Any = loaded.model
    model = model.to(as_dtype(how.dtype))
    model.config.dtype = model.dtype
    with writing(output) as partial:
        partial.mkdir()
        refuse_full_disk(partial, sum(p.numel() * p.element_size() for p in model.parameters()))
        info = {name: value for name, value in read_info(checkpoint).items() if name not in ("kind", "scheme")}
        assert loaded.scheme is not None  # an adapter without one is not loaded
        save_checkpoint(partial, model, loaded.processor, loaded.scheme, info | _record(checkpoint, how))
