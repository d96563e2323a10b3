"""Settings of `export`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from reflectune.core.config import cross_check, setting
from reflectune.data_builders.exporting.config import SERVERS, DataExportConfig
from reflectune.models.names import ModelName, shipped_folder
from reflectune.models.schemes.base import SCHEME_FILE


class ExportConfig(DataExportConfig):
    """Write a checkpoint for a server, or reflection data in another tool's layout."""

    checkpoint: ModelName = setting("", "checkpoint to serve: a folder that sft or merge wrote, or a shipped one")
    adapter: bool = setting(
        False, "keep the LoRA adapter, next to a base model with the new tokens' rows; false merges it"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "precision of the exported weights; auto: the base model's own"
    )

    @property
    def folder(self) -> Path:
        """The checkpoint's folder; UserError for an unknown shipped name."""
        return shipped_folder(self.checkpoint) or Path(self.checkpoint)

    @cross_check
    def export_problems(self) -> Iterator[str]:
        """Yield the problems of the checkpoint, or of the data."""
        if not self.checkpoint:
            if not self.data and (self.to in SERVERS or self.adapter or self.dtype != "auto"):
                yield "`checkpoint` is needed: a folder that sft or merge wrote"
            else:
                yield from super().export_problems()
            return
        if self.to not in SERVERS:
            yield f"`to` is one of {', '.join(SERVERS)} for a checkpoint; found `{self.to}`"
        other = type(self).model_fields.keys() - {"checkpoint", "to", "output", "adapter", "dtype", "dry_run"}
        if given := sorted(other & self.model_fields_set):
            yield f"`{'`, `'.join(given)}` describe data, and `checkpoint` is given; leave out one or the other"
        if not (self.folder / SCHEME_FILE).is_file():
            yield f"`checkpoint`: {self.folder} has no {SCHEME_FILE}; give a folder that sft or merge wrote"
        elif self.adapter and not (self.folder / "adapter_config.json").is_file():
            yield f"`adapter`: {self.folder} holds no adapter, but a full checkpoint; leave `adapter` out"
