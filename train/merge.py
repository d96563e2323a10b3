"""Write an adapter into its base model: `reflectune merge --checkpoint DIR --output DIR`.

The result is a full checkpoint that transformers and vLLM load by its path, and reflectune with its scheme. An adapter
of QLoRA is merged into the 4-bit weights written out, which is what it was trained on. Given again, it finds its work
done.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal

from reflectune.core.command import command
from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.paths import is_occupied
from reflectune.core.values import OutputFolder
from reflectune.models.names import shipped_folder
from reflectune.models.schemes.base import SCHEME_FILE


class MergeConfig(Settings):
    """What is merged, and where to."""

    checkpoint: str = setting(
        "", "adapter: a folder that train/sft.py wrote, or a shipped one, e.g. pocket/plain", needed=""
    )
    output: OutputFolder = setting("", "folder to write, new or empty", needed="")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "precision of the weights that are written; auto is the base model's own"
    )
    dry_run: bool = setting(False, "say what would be merged, and stop")

    @cross_check
    def merge_problems(self) -> Iterator[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        folder = self.folder
        if self.checkpoint and not (folder / "adapter_config.json").is_file():
            whole = (folder / SCHEME_FILE).is_file()
            why = "a full checkpoint already" if whole else "no adapter: adapter_config.json is not there"
            yield f"`checkpoint`: {folder} holds {why}"
        if self.output and is_occupied(Path(self.output)):
            from reflectune.models.loading import INFO_FILE  # slow to import

            if not Path(self.output, INFO_FILE).is_file():
                yield f"`output`: {self.output} exists already; choose a different folder"

    @cached_property
    def folder(self) -> Path:
        """Where the adapter lies; UserError if there is no shipped one of this name."""
        return shipped_folder(self.checkpoint) or Path(self.checkpoint)


@command(MergeConfig, writes="output")
def merge(config: MergeConfig) -> None:
    """Merge an adapter into its base model."""
    from reflectune.train.checkpoints.merging import (  # slow to import: after the config is right
        is_merged,
        merge,
        plan_merge,
    )

    folder = str(config.folder)
    made = plan_merge(folder, config.dtype)
    if is_occupied(Path(config.output)):
        if not is_merged(folder, config.output, made):
            raise UserError(f"`output`: {config.output} is there already, and of another merge; choose another folder")
        print(f"nothing to do: {config.output} holds this merge")
        return
    print(f"{config.checkpoint} merged into {made.base_model}{made.remark}, as {made.dtype}, into {config.output}")
    if not config.dry_run:
        merge(folder, config.output, made)
