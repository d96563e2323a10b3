"""Merge an adapter's checkpoint into a full one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.partials import writing
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.names import shipped_folder
from reflectune.models.records import SAVED, read_info, stored_dtype
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.calibration import CALIBRATION_FILE, load_calibration
from reflectune.models.schemes.decision import DECISION_FILE
from reflectune.models.weights import assembly
from reflectune.models.weights.adapters import ADAPTER_WEIGHTS
from reflectune.models.weights.pretrained import as_dtype, set_config_dtype
from reflectune.train.settings.merge import ASSEMBLED, MergeConfig, PartsSettings
from reflectune.train.weights.checkpoints import refuse_full_disk


@dataclass(frozen=True)
class Merge:
    """Plan of a merge: base model, precision of the result, and a remark for the message."""

    base_model: str
    dtype: str
    remark: str


def plan_merge(checkpoint: str | Path, dtype: str = "auto") -> Merge:
    """Plan the merge of an adapter.

    Args:
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
    return {
        "base_model": planned.base_model,
        "merged_from": str(Path(checkpoint).resolve()),
        "merged_adapter": file_fingerprint(Path(checkpoint, ADAPTER_WEIGHTS)),
        "merged_dtype": planned.dtype,
    }


def merge_adapter(checkpoint: str | Path, output: str | Path, planned: Merge) -> None:
    """Merge an adapter into its base model and write the result. The folder is written atomically.

    Sums are computed in fp32 and rounded once.

    Args:
        planned: From `plan_merge`.

    Raises:
        UserError: The base model or the adapter cannot be loaded, or the disk is too full.
    """
    loaded = load(str(checkpoint))
    model: Any = loaded.model
    model = model.to(as_dtype(planned.dtype))
    set_config_dtype(model, model.dtype)
    with writing(output) as partial:
        partial.mkdir()
        refuse_full_disk(partial, sum(p.numel() * p.element_size() for p in model.parameters()))
        info = {name: value for name, value in read_info(checkpoint).items() if name not in ("kind", "scheme")}
        assert loaded.scheme is not None  # an adapter without one is not loaded
        save_checkpoint(partial, model, loaded.processor, loaded.scheme, info | _record(checkpoint, planned))
        copy_calibration(Path(checkpoint), partial, loaded.scheme)


def copy_calibration(folder: Path, output: Path, scheme: Scheme) -> None:
    """Copy a checkpoint's calibration and temperatures, if it has any, to an export of its weights.

    The calibration's hash of the weights is updated.
    """
    if (folder / CALIBRATION_FILE).is_file():
        calibration = load_calibration(folder, str(read_info(folder).get(SAVED, "")))
        replace(calibration, weights=str(read_info(output)[SAVED])).save(output, scheme)
    if (folder / DECISION_FILE).is_file():
        shutil.copyfile(folder / DECISION_FILE, output / DECISION_FILE)


def assemble(settings: PartsSettings, output: str, dtype: str = "auto") -> str:
    """Write a checkpoint assembled from parts, and return a line about it. An equal one is kept.

    Args:
        settings: The parts.
        dtype: Precision of the weights; `auto` is bfloat16.

    Raises:
        UserError: A part can't be loaded, they don't fit together, or the folder holds a checkpoint of other parts.
    """
    dtype = "bfloat16" if dtype == "auto" else dtype
    record = _assembly_record(settings, dtype)
    if _is_written(output, record):
        return f"nothing to do: {output} holds a checkpoint of these parts"
    parts = assembly.Parts(
        language=_source("language", settings.language),
        vision=_source("vision", settings.vision),
        projector=Path(settings.projector) if settings.projector else None,
        image_fit=settings.image_fit,
        image_size=settings.image_size,
        dtype=getattr(torch, dtype),
    )
    model, processor = assembly.assemble(parts)
    return _write(model, processor, output, record) + ("" if settings.projector else "; its projector is untrained")


def convert_original(settings: MergeConfig) -> str:
    """Convert a checkpoint from LLaVA's original layout to transformers', and return a line about it.

    Raises:
        UserError: See `read_original`; or the folder holds a different checkpoint.
    """
    from reflectune.models.weights.original_llava import read_original

    folder = Path(settings.checkpoint)
    stored = read_json(folder / "config.json", "the model's config").get("torch_dtype") or "bfloat16"
    dtype = str(stored) if settings.dtype == "auto" else settings.dtype
    record = {**_assembly_record(settings, dtype), "checkpoint": str(folder.resolve())}
    if _is_written(settings.output, record):
        return f"nothing to do: {settings.output} holds this checkpoint"
    model, processor = read_original(folder, _source("vision", settings.vision), as_dtype(dtype))
    return _write(model, processor, settings.output, record)


def _is_written(output: str, record: Mapping[str, Any]) -> bool:
    """Return True if a folder holds the checkpoint of a record.

    Raises:
        UserError: It holds the checkpoint of a different record.
    """
    recorded = Path(output, ASSEMBLED)
    if not recorded.is_file():
        return False
    if read_json(recorded, "the record of an assembled checkpoint") != record:
        raise UserError(f"`output`: {output} holds a checkpoint of other parts; choose a new folder")
    return True


def _write(model: Any, processor: Any, output: str, record: Mapping[str, Any]) -> str:
    """Write a checkpoint atomically, and return a line about it."""
    with writing(output) as partial:
        model.save_pretrained(partial)
        processor.save_pretrained(partial)
        write_json(partial / ASSEMBLED, record)
    count = sum(parameter.numel() for parameter in model.parameters())
    rows = model.lm_head.weight.shape[0]
    return (
        f"written to {output}: {count:,} parameters, {len(processor.tokenizer):,} tokens in {rows:,} rows, "
        f"{model.config.image_seq_length} tokens an image"
    )


def _assembly_record(settings: PartsSettings, dtype: str) -> dict[str, Any]:
    """Return the names of the parts and the settings, with the content of the projector's file."""
    projector = file_fingerprint(settings.projector) if settings.projector else ""
    return {**PartsSettings.of(settings).model_dump(), "projector": projector, "dtype": dtype}


def _source(key: str, name: str) -> str:
    """Return the folder of a shipped part, downloaded if necessary; other names are returned unchanged."""
    try:
        return str(shipped_folder(name) or name)
    except UserError as error:
        raise UserError(f"`{key}`: {error}") from error
