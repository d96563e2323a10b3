"""Settings of `papers_tables.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from reflectune.core.config import cross_check, setting
from reflectune.core.values import Device, Dtype, Seed, SplitName, one_of, output_of
from reflectune.examples.miniature.world.questions import SPLITS
from reflectune.formats.dataset import split_issues
from reflectune.inference.pipelines.registry import sweepable
from reflectune.inference.sweeps.points import GridSettings
from reflectune.metrics.config import MetricKeys
from reflectune.models.names import EncoderName, ModelName
from reflectune.retrieval.rerankers.config import RerankerConfig

SIZES = (1.0, 0.5, 0.25, 0.1, 0.02)
"""Shares of the model's own SRT labels in MMKB-RAG's Table 5."""
DOCUMENTS = 20
"""Passages of the entries that MMKB-RAG takes."""
REFLECTION = "reflection/reflection.json"
"""The manifest of a quick start's mR²AG-IT."""


class TablesConfig(MetricKeys, RerankerConfig):
    """Print a paper's ablation tables in miniature, over several seeds, with a verdict on each of its claims."""

    paper: Annotated[str, one_of(*sweepable())] = setting("mr2ag", "whose tables")
    base_model: ModelName = setting("miniature/llava", "the model to fine-tune")
    epochs: float | None = setting(
        None, "of training with reflection tokens; the recipe's if unset. Baselines keep theirs", gt=0
    )
    seeds: list[Seed] = setting([0, 1, 2], "one training of each setting per seed")
    output: Annotated[str, output_of()] = setting(
        "",
        "folder for everything that is built, tables.json and tables.md",
        needed="a folder for stages and tables",
    )
    runs: list[str] = setting(
        [],
        "mR²AG: finished quick starts (world, index, checkpoint, plain_checkpoint), one per seed; others are made, "
        "and so is a plain_checkpoint that one lacks",
    )
    probe_limit: int | None = setting(None, "MMKB-RAG: training questions to probe", ge=1)
    equal_at: float = setting(1.0, f"MMKB-RAG: of {SIZES}, the share at which the external labeller is compared")
    min_steps: int = setting(150, "MMKB-RAG: minimum number of steps of a training on few labels", ge=1)
    splits: list[SplitName] = setting(["val_unseen_question", "val_unseen_entity"], "splits to answer")
    limit: int | None = setting(None, "questions per split, drawn by seed; all if unset", ge=1)
    encoder: EncoderName = setting("miniature/clip", "the index's encoder")
    top_n: int = setting(5, "entries to retrieve for a question", ge=1)
    passages: int = setting(5, "mR²AG: of their passages, those that the reranker picks", ge=1)
    max_new_tokens: int = setting(16, "maximum number of tokens of an answer", ge=1)
    batch_questions: int = setting(8, "questions kept in memory together", ge=1)
    dtype: Dtype = setting("float32", "of answering and probing: float32, bfloat16 or float16")
    device: Device = setting("cpu", "cpu, cuda, or auto: each process's own")
    seed: Seed = setting(0, "seed of MMKB-RAG's world, of drawing questions, and of intervals")
    dry_run: bool = setting(False, "say what would be done, and stop")

    @cross_check
    def run_problems(self) -> Iterator[str]:
        """Yield the problems of seeds and finished runs."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            yield f"`seeds` should be different numbers, at least one; found {self.seeds}"
        if len(self.runs) > len(self.seeds):
            yield f"`runs` has {len(self.runs)} folders for {len(self.seeds)} seeds; give at most one per seed"
        for folder in self.runs:
            if not Path(folder, "checkpoint", "scheme.json").is_file():
                yield f"`runs`: {folder} has no finished checkpoint (checkpoint/scheme.json)"
            elif not any(Path(folder, name).is_file() for name in ("plain_checkpoint/scheme.json", REFLECTION)):
                yield f"`runs`: {folder} has neither a plain_checkpoint nor the data to train one on ({REFLECTION})"

    @cross_check
    def split_problems(self) -> Iterator[str]:
        """Yield the splits that are missing in a finished run's world, or in the one that will be made."""
        if not self.splits:
            yield "`splits` is empty; name at least one split, e.g. val_unseen_entity"
        for folder in self.runs:
            yield from split_issues("splits", str(Path(folder, "world")), self.splits)
        if missing := [name for name in self.splits if name not in SPLITS and len(self.runs) < len(self.seeds)]:
            yield f"`splits`: a world has no split {', '.join(missing)}; it has {', '.join(SPLITS)}"

    @cross_check
    def metric_problems(self) -> Iterator[str]:
        """Yield the problems of the metric."""
        yield from self.metric_issues("")

    @cross_check
    def size_problems(self) -> Iterator[str]:
        """Yield the problem of a share that Table 5 doesn't have."""
        if self.equal_at not in SIZES:
            yield f"`equal_at` should be one of {SIZES}, found {self.equal_at}"

    @property
    def training_device(self) -> str:
        """Device of the trainings: the CPU if answers are computed there, else `auto`."""
        return "cpu" if self.device == "cpu" else "auto"

    def reading(self, world: Path, index: Path, checkpoint: Path, plain: Path | None = None) -> GridSettings:
        """Return the settings that every grid point starts from."""
        values = {
            "dataset": str(world),
            "index": str(index),
            "model": str(checkpoint),
            "base_model": self.base_model,
            "plain_model": str(plain or ""),
            "scheme": self.paper,
            "top_n": self.top_n,
            "passages": self.passages,
            "documents": DOCUMENTS,
            "max_new_tokens": self.max_new_tokens,
            "max_reply_tokens": 64,
            "dtype": self.dtype,
            "device": self.device,
            **{name: getattr(self, name) for name in RerankerConfig.model_fields},
        }
        return GridSettings.model_validate(values)
