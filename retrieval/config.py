"""Settings of the index or the ranked entities, inherited by the configs of commands that retrieve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.values import InputFile
from reflectune.models.names import encoder_name, recorded_encoder

RankScore = Literal["reciprocal_rank", "constant", "softmax_rank"]


class SummarySettings(Settings):
    """Weight of summaries in an entry's score."""

    summary_share: float = setting(
        0.0, "share of the title's weight that an entry's summary gets; needs `build_index --summaries`", ge=0, le=1
    )


class IndexKeys(SummarySettings):
    """Settings of the index or the ranked entities."""

    index: str = setting(
        "", "index folder over the data set's knowledge base; needed by pipelines that retrieve", hashed=False
    )
    ranked_entities: InputFile = setting(
        "", "in place of `index`: JSONL of entries ranked for each image, e.g. by Google Lens", hashed=False
    )
    ranked_scores: RankScore = setting(
        "reciprocal_rank",
        "S_ret of ranked entities that the file gives no score: reciprocal_rank, constant, or softmax_rank of -rank",
    )

    @property
    def finds_entries(self) -> bool:
        """True if an index or ranked entities are named."""
        return bool(self.index or self.ranked_entities)

    @cross_check
    def index_problems(self) -> Iterator[str]:
        """Yield the problems of these keys."""
        if self.index and not Path(self.index, "manifest.json").is_file():
            yield f"`index`: {self.index} has no manifest.json; build it with `reflectune build_index`"
        elif self.index:
            yield from missing_encoder("index", self.index)
        if self.index and self.ranked_entities:
            yield "`index` and `ranked_entities` are both given; drop one of them"
        if self.ranked_entities and self.summary_share:
            yield "`summary_share` needs an `index`; ranked entities have no summaries to weigh"

    def finder_fingerprint(self) -> str:
        """Return the hash of the index's manifest, or of the ranked entities and their scores."""
        if self.ranked_entities and self.ranked_scores != "reciprocal_rank":
            return fingerprint([file_fingerprint(self.ranked_entities), self.ranked_scores])
        return file_fingerprint(self.ranked_entities or Path(self.index, "manifest.json"))


def missing_encoder(key: str, index: str) -> Iterator[str]:
    """Yield the problem of an index whose manifest names an encoder that isn't there.

    Args:
        key: The key that names the index.
        index: Folder of the index, of entries or of passages.
    """
    if problem := encoder_name(recorded_encoder(index)):
        yield f"`{key}`: {index} was built with an encoder that is missing: {problem}; move it back, or link to it"


class RetrieverConfig(IndexKeys):
    """Settings of the retriever."""

    title_weight: float = setting(
        0.5, "weight of the title's similarity in an entry's score, the rest is its image's; eq. 3: 0.5", ge=0, le=1
    )
