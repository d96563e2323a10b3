"""Writes the checkpoint of a LLaVA that is joined from its parts."""

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
from reflectune.train.runs.llava_config import RECORD, AssembleConfig


def assemble(config: AssembleConfig) -> str:
    """Write the checkpoint, and return a line about it. One that is there already, of the same parts, is kept.

    Raises:
        UserError: A part can't be loaded, they don't fit together, or the folder holds a checkpoint of other parts.
    """
    record, held = _record(config), Path(config.output, RECORD)
    if held.is_file():
        if read_json(held, "the record of an assembled checkpoint") != record:
            raise UserError(f"`output`: {config.output} holds a checkpoint of other parts; choose a new folder")
        return f"nothing to do: {config.output} holds a checkpoint of these parts"
    sources = {name: _source(getattr(config, name)) for name in ("language", "vision", "tokenizer")}
    parts = assembly.Parts(
        **sources,
        projector=Path(config.projector) if config.projector else None,
        chat_template=Path(config.chat_template).read_text(encoding="utf-8") if config.chat_template else "",
        image_fit=config.image_fit,
        image_size=config.image_size,
        dtype=getattr(torch, config.dtype),
    )
    model, processor = assembly.assemble(parts)
    with writing(config.output) as partial:
        model.save_pretrained(partial)
        processor.save_pretrained(partial)
        write_json(partial / RECORD, record)
    count = sum(parameter.numel() for parameter in model.parameters())
    rows = model.lm_head.weight.shape[0]
    untrained = "" if config.projector else "; its projector is untrained"
    return (
        f"written to {config.output}: {count:,} parameters, {len(processor.tokenizer):,} tokens in {rows:,} rows, "
        f"{model.config.image_seq_length} tokens a picture{untrained}"
    )


def _record(config: AssembleConfig) -> dict[str, Any]:
    """What decides the checkpoint: the parts' names, the content of single files, and the settings."""
    record = {key: value for key, value in config.model_dump().items() if key != "output"}
    files = {key: file_fingerprint(record[key]) for key in ("projector", "chat_template") if record[key]}
    return {**record, **files}


def _source(name: str) -> str:
    """The folder of `pocket/…`, fetched if it isn't there; other names stay."""
    try:
        return str(shipped_folder(name) or name)
    except UserError as error:
        raise UserError(f"`{name}`: {error}") from error
