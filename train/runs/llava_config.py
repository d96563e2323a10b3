"""The settings of `assemble_llava.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.paths import is_occupied
from reflectune.core.values import OutputFolder
from reflectune.models.names import ModelName

RECORD = "assembled.json"
"""What the parts of an assembled checkpoint were, beside it."""


class AssembleConfig(Settings):
    """Join a language model, a vision tower and a projector into a LLaVA."""

    language: ModelName = setting(
        "", "Vicuna or pocket/language: a folder or hub id, e.g. lmsys/vicuna-7b-v1.5", needed=""
    )
    vision: ModelName = setting(
        "", "CLIP or pocket/vision: a folder or hub id, openai/clip-vit-large-patch14-336", needed=""
    )
    projector: str = setting(
        "", "the pre-trained projector's file, mm_projector.bin or safetensors; empty starts an untrained one, scaled"
    )
    output: OutputFolder = setting("", "folder for the checkpoint", needed="")
    tokenizer: str = setting("", "folder or hub id of the tokenizer, if it is not beside the language model")
    image_fit: Literal["pad", "crop"] = setting(
        "pad", "pad pictures to a square with the mean colour, as LLaVA-1.5 was tuned, or crop their middle"
    )
    image_size: int = setting(
        0,
        "side of the pictures in pixels, a multiple of the tower's patches; less of it, fewer image tokens; 0: its own",
        ge=0,
        le=65_536,
    )
    chat_template: str = setting(
        "", "a Jinja file; empty: the tokenizer's own, extended to pictures, or LLaVA-1.5's if it has none"
    )
    dtype: Literal["bfloat16", "float16", "float32"] = setting("bfloat16", "precision of the checkpoint")

    @cross_check
    def assemble_problems(self) -> Iterator[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        if self.projector and not Path(self.projector).is_file():
            yield f"`projector`: {self.projector} is not a file; it is called mm_projector.bin where it is published"
        if self.chat_template and not Path(self.chat_template).is_file():
            yield f"`chat_template`: {self.chat_template} is not a file"
        for name in ("language", "vision", "tokenizer"):
            value = getattr(self, name)
            if not Path(value).is_dir() and (value.count("/") > 1 or value.startswith((".", "/", "~"))):
                yield f"`{name}`: there is no folder {value}"
        if self.output and is_occupied(Path(self.output)) and not Path(self.output, RECORD).is_file():
            yield f"`output`: {Path(self.output)} is there already; choose a new folder"
