"""Settings of `export` for data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import SplitName, output_of
from reflectune.formats.reflection_data import MANIFEST
from reflectune.models.schemes.registry import all_schemes

SERVERS: Final = ("vllm", "sglang")
"""Values of `to` that take a checkpoint."""


class DataExportConfig(Settings):
    """Write reflection data in another tool's layout."""

    data: str = setting("", "reflection data: its folder, or the Parquet file of the split")
    output: Annotated[str, output_of("reflection.json", "export.json")] = setting("", "folder to write into", needed="")
    to: Literal["", "trl", "llamafactory", "ms-swift", "llava", "vllm", "sglang"] = setting(
        "", "trainer whose layout to write, or server", needed=""
    )
    split: SplitName = setting("train", "name of the split, and of its files", needed="")
    scheme: str = setting("", "a scheme's name; the one in the data's manifest if unset")
    image_root: str = setting("", "folder of the images; the manifest's, or the data's own folder, if unset")
    images: Literal["absolute", "copy"] = setting(
        "absolute", "name images by absolute path, or copy them into `output`"
    )
    space: bool = setting(
        True, "write a space between mR²AG's tokens and answers; false if the chat template puts none before a reply"
    )
    on_error: Literal["stop", "skip"] = setting(
        "stop", "a bad row: write nothing, or leave it out and list it in rejected.jsonl"
    )
    dry_run: bool = setting(False, "check every row, show one, and write nothing")

    @cross_check
    def export_problems(self) -> Iterator[str]:
        """Yield the problems of the data's folder and of the scheme."""
        yield from self.missing("data")
        if self.to in SERVERS:
            yield f"`to: {self.to}` takes a checkpoint, not data; give `checkpoint`"
        if self.scheme and self.scheme not in all_schemes():
            yield f"`scheme` is one of {', '.join(all_schemes())}; found `{self.scheme}`"
        folder = Path(self.data).parent if Path(self.data).is_file() else Path(self.data)
        if self.data and not Path(self.data).exists():
            yield f"`data`: {self.data} does not exist"
        elif self.data and not Path(folder, MANIFEST).is_file():
            missing = [name for name in ("scheme", "image_root") if not getattr(self, name)]
            yield from (f"`{name}` is needed: {folder} has no {MANIFEST}" for name in missing)
        if self.image_root and not Path(self.image_root).is_dir():
            yield f"`image_root`: {self.image_root} is not a folder"
        if self.output and self.data and Path(self.output).resolve() == folder.resolve():
            yield "`output` must be a different folder than that of `data`"
