"""Assemble a LLaVA's checkpoint from its published parts: the model that mR²AG starts from (arXiv 2411.15041, §4.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.partials import writing
from reflectune.models.names import shipped_folder
from reflectune.models.weights import assembly
from reflectune.train.settings.merge import ASSEMBLED, PartsSettings


def assemble(settings: PartsSettings, output: str, dtype: str = "auto") -> str:
    """Write the checkpoint, and return a line about it. A checkpoint of the same parts is kept.

    Args:
        settings: The parts.
        output: The folder to write.
        dtype: Precision of the weights; `auto` is bfloat16.

    Raises:
        UserError: A part can't be loaded, they don't fit together, or the folder holds a checkpoint of other parts.
    """
    dtype = "bfloat16" if dtype == "auto" else dtype
    record, recorded = _record(settings, dtype), Path(output, ASSEMBLED)
    if recorded.is_file():
        if read_json(recorded, "the record of an assembled checkpoint") != record:
            raise UserError(f"`output`: {output} holds a checkpoint of other parts; choose a new folder")
        return f"nothing to do: {output} holds a checkpoint of these parts"
    parts = assembly.Parts(
        language=_source("language", settings.language),
        vision=_source("vision", settings.vision),
        tokenizer=_source("tokenizer", settings.tokenizer),
        projector=Path(settings.projector) if settings.projector else None,
        chat_template=Path(settings.chat_template).read_text(encoding="utf-8") if settings.chat_template else "",
        image_fit=settings.image_fit,
        image_size=settings.image_size,
        dtype=getattr(torch, dtype),
    )
    model, processor = assembly.assemble(parts)
    with writing(output) as partial:
        model.save_pretrained(partial)
        processor.save_pretrained(partial)
        write_json(partial / ASSEMBLED, record)
    count = sum(parameter.numel() for parameter in model.parameters())
    rows = model.lm_head.weight.shape[0]
    untrained = "" if settings.projector else "; its projector is untrained"
    return (
        f"written to {output}: {count:,} parameters, {len(processor.tokenizer):,} tokens in {rows:,} rows, "
        f"{model.config.image_seq_length} tokens a picture{untrained}"
    )


def _record(settings: PartsSettings, dtype: str) -> dict[str, Any]:
    """Return the names of the parts and the settings, with the content of single files."""
    record = PartsSettings.of(settings).model_dump()
    files = {key: file_fingerprint(record[key]) for key in ("projector", "chat_template") if record[key]}
    return {**record, **files, "dtype": dtype}


def _source(key: str, name: str) -> str:
    """Return the folder of a shipped part, fetched if it isn't there; other names stay."""
    try:
        return str(shipped_folder(name) or name)
    except UserError as error:
        raise UserError(f"`{key}`: {error}") from error
