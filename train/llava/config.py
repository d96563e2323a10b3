"""The settings of `assemble_llava.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from reflectune.core.config import setting

NEW: Final = "new"
"""Names a projector that is not trained yet."""


@dataclass
class AssembleConfig:
    """Join a language model, a vision tower and a projector into a LLaVA."""

    language: str = setting("", "Vicuna: a folder or hub id, e.g. lmsys/vicuna-7b-v1.5")
    vision: str = setting("", "CLIP: a folder or hub id, openai/clip-vit-large-patch14-336")
    projector: str = setting("", "the pre-trained projector's file, mm_projector.bin, or `new` to begin stage 1 with")
    output: str = setting("", "folder for the checkpoint")
    tokenizer: str = setting("", "folder or hub id of the tokenizer, if it is not beside the language model")
    image_fit: Literal["pad", "crop"] = setting(
        "pad", "pad pictures to a square with the mean colour, as LLaVA-1.5 was tuned, or crop their middle"
    )
    seed: int = setting(0, "of a new projector's weights")
    dtype: Literal["bfloat16", "float16", "float32"] = setting("bfloat16", "precision of the checkpoint")

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        needed = ("language", "vision", "projector", "output")
        issues = [f"`{name}` is needed" for name in needed if not getattr(self, name)]
        if self.projector not in ("", NEW) and not Path(self.projector).is_file():
            issues.append(
                f"`projector`: {self.projector} is not a file; it is called mm_projector.bin where it is published; "
                "`new` makes one that is not trained"
            )
        for name in ("language", "vision", "tokenizer"):
            value = getattr(self, name)
            if not Path(value).is_dir() and (value.count("/") > 1 or value.startswith((".", "/", "~"))):
                issues.append(f"`{name}`: there is no folder {value}")
        output = Path(self.output)
        if self.output and output.exists() and (output.is_file() or any(output.iterdir())):
            issues.append(f"`output`: {output} is there already; choose a new folder")
        return issues
