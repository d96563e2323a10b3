"""Writes the checkpoint of a LLaVA that is joined from its parts."""

from __future__ import annotations

from pathlib import Path

import torch

from reflectune.core.errors import UserError
from reflectune.core.partials import writing
from reflectune.models.shipped import shipped_folder
from reflectune.models.weights import assembly
from reflectune.train.llava.config import AssembleConfig


def assemble(config: AssembleConfig) -> str:
    """Write the checkpoint, and return a line about it.

    Raises:
        UserError: A part can't be loaded, or they don't fit together.
    """
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
    count = sum(parameter.numel() for parameter in model.parameters())
    rows = model.lm_head.weight.shape[0]
    untrained = "" if config.projector else "; its projector is untrained"
    return (
        f"written to {config.output}: {count:,} parameters, {len(processor.tokenizer):,} tokens in {rows:,} rows, "
        f"{model.config.image_seq_length} tokens a picture{untrained}"
    )


def _source(name: str) -> str:
    """The folder of `pocket/…`, fetched if it isn't there; other names stay."""
    try:
        return str(shipped_folder(name) or name)
    except UserError as error:
        raise UserError(f"`{name}`: {error}") from error
