"""Settings of a run of lmms-eval: models, mode, and style of instruction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.types import AnswerStyle
from reflectune.formats.dataset import DatasetKey
from reflectune.inference.config import ModelRole, ModelSettings
from reflectune.inference.pipelines.mmkb_rag import MmkbRagSettings
from reflectune.inference.pipelines.registry import find_recipe, reflecting
from reflectune.inference.running.config import ReflectingPipelines
from reflectune.retrieval.config import RetrieverConfig

Mode = Literal["base", "no_retrieval", "gate", "pipeline"]
MODES: Final[tuple[Mode, ...]] = ("base", "no_retrieval", "gate", "pipeline")
"""Modes in the order of a table's columns: before reflection, and after it with less and less held fixed."""


class BenchmarkSettings(DatasetKey):
    """Settings of a benchmark's answers."""

    mode: Mode = setting(
        "pipeline",
        "base: base_model, before reflection; no_retrieval: the checkpoint, after a forced [No Retrieval]; gate: its "
        "gate decides, and with an open gate the question stays unanswered; pipeline: it retrieves",
    )
    answer_style: AnswerStyle = setting(
        "free", "free: in the benchmark's words alone; short or list: add our instruction, to the base model too"
    )
    max_new_tokens: int = setting(1024, "maximum number of tokens of an answer, for a task that sets none", ge=1)
    batch_questions: int = setting(8, "questions answered together", ge=1)

    def dataset_problems(self) -> Iterable[str]:
        """Return the problems of the data set's folder. One mode reads its knowledge base."""
        return super().dataset_problems() if self.mode == "pipeline" else []


class BenchmarkConfig(BenchmarkSettings, ModelSettings, ReflectingPipelines):
    """Settings of the adapter to lmms-eval: keys of the YAML file in `--model_args config=…`, or of `--model_args`."""

    @cross_check
    def benchmark_problems(self) -> Iterator[str]:
        """Yield the problems of keys that must fit each other, and of files that they name."""
        needed = "base_model" if self.mode == "base" else "model"
        if not getattr(self, needed):
            yield f"`{needed}` is needed by mode {self.mode}"
        if self.mode == "pipeline" and not RetrieverConfig.of(self).finds_entries:
            yield "`index` is needed by mode pipeline, or `ranked_entities`"
        if self.mode in ("no_retrieval", "gate") and not MmkbRagSettings.of(self).ret:
            yield f"`ret` is off, but mode {self.mode} reads the gate"

    def pipelines(self) -> dict[str, Settings]:
        """Return the settings of each pipeline that may answer, by name."""
        return {name: find_recipe(name).settings_of(self) for name in ("closed_book", *reflecting())}

    def roles(self) -> list[ModelRole]:
        """Return the keys that name the models of the mode."""
        if self.mode == "base":
            return ["base_model"]
        return ["model", "base_model"] if self.base_model else ["model"]
