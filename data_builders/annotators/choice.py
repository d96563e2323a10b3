"""Open an annotator by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reflectune.data_builders.annotators.llm import LlmAnnotator
from reflectune.data_builders.annotators.protocol import Annotator
from reflectune.data_builders.annotators.string import by_gold, by_string
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import RemoteConfig

NAMES = ("string", "gold", "llm")


@contextmanager
def opened(name: str, config: RemoteConfig, cache: Path) -> Iterator[Annotator]:
    """Open the annotator of this name; `llm` keeps its file of replies open in this block.

    Args:
        name: One of `NAMES`.
        config: Settings of the model for `llm`.
        cache: Its file of replies, unless the config names one.
    """
    if name != "llm":
        yield {"string": by_string, "gold": by_gold}[name]
        return
    with RemoteModel(config.endpoint(), config.llm_cache or cache) as model:
        yield LlmAnnotator(model)
