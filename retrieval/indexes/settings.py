"""Settings shared by indexes of entries and of passages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Device, Dtype, checked_by, output_of
from reflectune.models.names import EncoderName
from reflectune.retrieval.stores.names import store_name

MANIFEST: Final = "manifest.json"
"""File of a finished index, written last."""
UNFINISHED: Final = "unfinished"
"""Folder of the shards of an index that is being built."""


class IndexSettings(Settings):
    """Settings of any index."""

    knowledge: str = setting("", "knowledge base folder, e.g. DATASET/knowledge", needed="")
    output: Annotated[str, output_of(MANIFEST)] = setting("", "folder for the index", needed="")
    encoder: EncoderName = setting(
        "",
        "a folder, a hub id, owner/name[@COMMIT], a title map, or a shipped one; default: miniature/clip for entries, "
        "miniature/text for passages",
    )
    dtype: Dtype = setting("float32", "of the encoder: float32, bfloat16 or float16")
    shard_entries: int | None = setting(
        None, "entries per shard; a crash loses at most one shard; unset: 4096, or 1024 of passages", ge=1
    )
    store: Annotated[str, checked_by(store_name)] = setting(
        "auto",
        "vector store: auto (by size), exact, faiss, or a Milvus server's address (http://host:19530, or a file *.db)",
        secret=True,
    )
    device: Device = setting("auto", "cpu, cuda, cuda:1, or auto")
    dry_run: bool = setting(False, "check the encoder and the inputs, estimate space and time, and stop")

    @cross_check
    def knowledge_problems(self) -> Iterator[str]:
        """Yield the problem of a missing knowledge base."""
        if self.knowledge and not Path(self.knowledge, "kb.json").is_file():
            inner = Path(self.knowledge, "knowledge")
            advice = f"did you mean {inner}?" if (inner / "kb.json").is_file() else "give a knowledge base's folder"
            yield f"`knowledge`: {self.knowledge} has no kb.json; {advice}"
