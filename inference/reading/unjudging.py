"""A reader that takes every passage for relevant: mR²AG without its relevance reflection."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from reflectune.core.types import Passage
from reflectune.inference.reading.reader import Judged, Opened, Reader


class UnjudgingReader(Reader):
    """Reads passages as `Reader` does, but S_rel is 1 for all: each is answered from, and no product depends on it."""

    def judge(self, opened: Opened, passages: Sequence[Sequence[Passage]]) -> Judged:
        """As `Reader.judge`, with p([Relevant]) = 1."""
        judged = super().judge(opened, passages)
        return dataclasses.replace(judged, relevance=[[(1.0, 0.0)] * len(own) for own in judged.passages])
