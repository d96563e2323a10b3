"""Index a knowledge base: `reflectune build_index --knowledge DIR --output DIR [--rows passages] [--dry_run]`.

`--rows entries` encodes every entry's images and title, and its summary with `--summaries` or its image's caption with
`--captions`. `--rows sections` encodes each section's summary and its entry's first image. `--rows passages` splits the
entries into passages and encodes these. The same command resumes an interrupted build. `--verify` compares a finished
index with its checksums. Under `accelerate launch` the processes share the work. Exit status: 0, or 3 if bad images
were left out (`on_error: skip`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from reflectune.core.command import command
from reflectune.core.config import cross_check, setting
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.retrieval.indexes.entries import EntryIndexSettings, build_entries
from reflectune.retrieval.indexes.passages import PassageIndexSettings, build_passages


class IndexConfig(EntryIndexSettings, PassageIndexSettings):
    """Settings of an index."""

    rows: Literal["entries", "sections", "passages"] = setting(
        "entries", "rows: entries by images and titles; sections by their entry's image and summary; passages by text"
    )

    @model_validator(mode="after")
    def _choose_encoder(self) -> Self:
        """Set the default encoder for the rows."""
        self.encoder = self.encoder or ("miniature/text" if self.rows == "passages" else "miniature/clip")
        return self

    @cross_check
    def unused_key_problems(self) -> Iterator[str]:
        """Yield the problems of keys that are set but not used for `rows`."""
        kinds = (EntryIndexSettings, PassageIndexSettings)
        own, other = kinds[::-1] if self.rows == "passages" else kinds
        unused = self.model_fields_set & (other.model_fields.keys() - own.model_fields.keys())
        if self.rows == "sections":
            unused |= {name for name in ("summaries", "captions") if getattr(self, name)}
        yield from (f"`{name}` means nothing for `rows: {self.rows}`; drop it" for name in sorted(unused))


@command(IndexConfig, writes="output")
def build_index(config: IndexConfig) -> int | None:
    """Index the images and titles of a knowledge base, or its sections, or its passages."""
    if config.rows == "passages":
        build_passages(config)
        return None
    return ROWS_LEFT_OUT if build_entries(config, sections=config.rows == "sections") else None


if __name__ == "__main__":
    build_index.main()
