"""Settings of `merge.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.durable import read_json
from reflectune.core.paths import is_occupied
from reflectune.core.values import OutputFolder
from reflectune.models.names import ModelName, shipped_folder
from reflectune.models.schemes.base import SCHEME_FILE

ASSEMBLED: Final = "assembled.json"
"""The record of an assembled checkpoint's parts, in its folder."""
ORIGINAL: Final = "LlavaLlamaForCausalLM"
"""Architecture, in `config.json`, of a checkpoint in the layout of LLaVA's own code."""
_OF_PARTS: Final = ("language", "projector", "image_fit", "image_size")
"""Settings of parts, which a whole LLaVA and an adapter have in themselves."""


class PartsSettings(Settings):
    """Settings of the published parts of a LLaVA."""

    language: ModelName = setting("", "Vicuna or pocket/language: a folder or hub id, e.g. lmsys/vicuna-7b-v1.5")
    vision: ModelName = setting("", "CLIP or pocket/vision: a folder or hub id, openai/clip-vit-large-patch14-336")
    projector: str = setting(
        "", "the pre-trained projector's file, mm_projector.bin or safetensors; an untrained one, scaled, if unset"
    )
    image_fit: Literal["pad", "crop"] = setting(
        "pad", "pad images to a square with the mean colour, as LLaVA-1.5 was tuned, or crop their middle"
    )
    image_size: int = setting(
        0,
        "side of the images in pixels, a multiple of the tower's patches; a smaller one gives fewer image tokens; 0: "
        "the tower's own",
        ge=0,
        le=65_536,
    )

    @cross_check
    def file_problems(self) -> Iterator[str]:
        """Yield the problem of a projector's file that doesn't exist."""
        if self.projector and not Path(self.projector).is_file():
            yield f"`projector`: {self.projector} is not a file; it is published as mm_projector.bin"


class MergeConfig(PartsSettings):
    """Settings of a merge: of an adapter into its base model, or of a LLaVA's parts into one checkpoint."""

    checkpoint: str = setting(
        "",
        "adapter: a folder that sft wrote, or a shipped one, e.g. pocket/plain; or a LLaVA in the layout of its own "
        "code: a folder, e.g. of aimagelab/ReflectiVA",
    )
    output: OutputFolder = setting("", "folder to write, new or empty", needed="")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "precision of the result; auto: the base model's or the checkpoint's own, or bfloat16 for parts"
    )
    dry_run: bool = setting(False, "print the plan of the merge, and stop")

    @property
    def folder(self) -> Path:
        """The adapter's folder; UserError for an unknown shipped name."""
        return shipped_folder(self.checkpoint) or Path(self.checkpoint)

    @property
    def is_original(self) -> bool:
        """True if the checkpoint is a LLaVA in the layout of its own code."""
        config = Path(self.checkpoint, "config.json")
        if not self.checkpoint or not config.is_file():
            return False
        return ORIGINAL in (read_json(config, "the model's config").get("architectures") or [])

    @cross_check
    def merge_problems(self) -> Iterator[str]:
        """Yield the problems of the choice of inputs, and of the adapter."""
        given = [f"`{name}`" for name in _OF_PARTS if name in self.model_fields_set and getattr(self, name)]
        if self.is_original:
            if given:
                yield f"`checkpoint` is a whole LLaVA; leave out {', '.join(given)}"
            return
        if self.checkpoint and self.vision and not self.language and not self.folder.is_dir():
            yield f"`checkpoint`: {self.folder} is not a folder"
            return
        if self.checkpoint and (self.language or self.vision):
            yield "`checkpoint` is an adapter, `language` and `vision` are parts of a LLaVA; give one or the other"
        elif self.checkpoint and given:
            yield f"`checkpoint` is an adapter; leave out {', '.join(given)}, which are of parts of a LLaVA"
        elif not self.checkpoint and not (self.language and self.vision):
            yield "`checkpoint` is needed: an adapter; or both `language` and `vision`: parts of a LLaVA"
        if self.checkpoint and not (self.folder / "adapter_config.json").is_file():
            is_full = (self.folder / SCHEME_FILE).is_file()
            found = "a full checkpoint already" if is_full else "no adapter: adapter_config.json is missing"
            yield f"`checkpoint`: {self.folder} holds {found}"

    @cross_check
    def occupied_problems(self) -> Iterator[str]:
        """Yield the problem of an output that holds anything but such a checkpoint."""
        if not self.output or not is_occupied(Path(self.output)):
            return
        from reflectune.models.records import INFO_FILE  # slow to import

        if not Path(self.output, INFO_FILE if self.checkpoint and not self.is_original else ASSEMBLED).is_file():
            yield f"`output`: {self.output} exists already; choose a different folder"
