"""What finds entries, an index or a file of ranked entities: keys that a command's config takes over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectune.core import checks
from reflectune.core.config import bound_problems, setting
from reflectune.core.hashing import file_fingerprint
from reflectune.models.names import encoder_name


@dataclass
class IndexKeys:
    """Keys of a config that name what finds entries; a command's own config class may inherit them."""

    index: str = setting("", "index folder over the data set's knowledge base; needed by what retrieves")
    encoder: str = setting("miniature/clip", "the encoder that the index was built with", check=encoder_name)
    ranked_entities: str = setting(
        "", "in place of `index`: JSONL of entries ranked for each picture, e.g. by Google Lens", check=checks.file
    )

    summary_share: float = setting(
        0.0,
        "of what weighs on an entry's title so much goes to its summary; needs `build_index --summaries`",
        low=0,
        high=1,
    )

    @property
    def finds_entries(self) -> bool:
        """Whether the keys name an index or ranked entities."""
        return bool(self.index or self.ranked_entities)

    def index_problems(self) -> list[str]:
        """What is wrong with these keys, one sentence each; all may be unset."""
        is_missing = self.index and not Path(self.index, "manifest.json").is_file()
        told = f"`index`: {self.index} has no manifest.json; build it with reflectune.retrieval.build_index"
        issues = bound_problems(self, IndexKeys) + ([told] if is_missing else [])
        if self.index and self.ranked_entities:
            issues.append("`index` and `ranked_entities` are both given; entries are found by one of them")
        if self.ranked_entities and self.summary_share:
            issues.append("`summary_share` needs an `index`; ranked entities have no summaries to weigh")
        return issues

    def finder_fingerprint(self) -> str:
        """Hash of what hits depend on beside the encoder and weights: the index's manifest, or the ranked entities."""
        return file_fingerprint(self.ranked_entities or Path(self.index, "manifest.json"))


@dataclass
class RetrieverConfig(IndexKeys):
    """Keys of a config that choose a retriever; a command's own config class may inherit them."""

    title_weight: float = setting(
        0.5, "an entry's score: so much of its title's similarity, the rest its image's; eq. 3: 0.5", low=0, high=1
    )

    def retriever_problems(self) -> list[str]:
        """What is wrong with these keys, one sentence each; the index may be unset."""
        return self.index_problems() + bound_problems(self, RetrieverConfig)
