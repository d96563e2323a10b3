"""Which index is searched and how: keys that a command's config takes over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectune.core.config import bound_problems, setting
from reflectune.models.names import encoder_name


@dataclass
class IndexKeys:
    """Keys of a config that name an index; a command's own config class may inherit them."""

    index: str = setting("", "index folder over the data set's knowledge base; needed by what retrieves")
    encoder: str = setting("miniature/clip", "the encoder that the index was built with", check=encoder_name)

    def index_problems(self) -> list[str]:
        """What is wrong with these keys, one sentence each; the index may be unset."""
        is_missing = self.index and not Path(self.index, "manifest.json").is_file()
        told = f"`index`: {self.index} has no manifest.json; build it with reflectune.retrieval.build_index"
        return bound_problems(self, IndexKeys) + ([told] if is_missing else [])


@dataclass
class RetrieverConfig(IndexKeys):
    """Keys of a config that choose a retriever; a command's own config class may inherit them."""

    title_weight: float = setting(
        0.5, "an entry's score: so much of its title's similarity, the rest its image's; eq. 3: 0.5", low=0, high=1
    )

    def retriever_problems(self) -> list[str]:
        """What is wrong with these keys, one sentence each; the index may be unset."""
        return self.index_problems() + bound_problems(self, RetrieverConfig)
