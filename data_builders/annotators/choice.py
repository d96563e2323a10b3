"""An annotator by the name that a config gives."""

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
    """The annotator of this name; the `llm` one holds its file of replies open meanwhile.

    Args:
        name: One of `NAMES`.
        config: How the model of `llm` is asked.
        cache: Its file of replies, unless the config names one.
    """
    if name != "llm":
        yield {"string": by_string, "gold": by_gold}[name]
        return
    with RemoteModel(config.endpoint(), config.llm_cache or cache) as model:
        yield LlmAnnotator(model)
