"""The settings of `tables.py`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reflectune.core import checks
from reflectune.core.config import DTYPES, bound_problems, setting
from reflectune.examples.miniature.world.questions import SPLITS
from reflectune.formats.dataset import split_issues
from reflectune.inference.config import ReadingConfig
from reflectune.inference.pipelines.registry import sweepable
from reflectune.metrics.config import MetricConfig
from reflectune.models.names import encoder_name, model_name
from reflectune.retrieval.rerankers.config import RerankerConfig

REFLECTION = "reflection/reflection.json"
"""The manifest of a quick start's mR²AG-IT."""


@dataclass
class TablesConfig(MetricConfig, RerankerConfig):
    """Print a paper's ablation tables in miniature, over several seeds, with a verdict on each of its claims."""

    paper: str = setting("mr2ag", "whose tables", choices=sweepable())
    base_model: str = setting("miniature/llava", "the model to fine-tune", check=model_name)
    method: Literal["full", "lora"] = setting("full", "train all weights, or adapters")
    epochs: float | None = setting(None, "of training; those of the recipe if unset", above=0)
    seeds: list[int] = setting([0, 1, 2], "one training of each setting per seed", low=0, high=checks.MOST_SEED)
    output: str = setting(
        "", "folder for everything that is built, tables.json and tables.md", check=checks.output_of()
    )
    runs: list[str] = setting(
        [],
        "mR²AG: finished quick starts (world, index, checkpoint, plain_checkpoint), one per seed; others are made, "
        "and so is a plain_checkpoint that one lacks",
    )
    world: str = setting("", "MMKB-RAG: a finished world; made if unset", check=checks.folder)
    index: str = setting("", "MMKB-RAG: its finished index; made if unset")
    probes: str = setting("", "MMKB-RAG: finished probes of the base model; made if unset")
    probe_limit: int | None = setting(None, "MMKB-RAG: training questions to probe", low=1)
    rule: Literal["paper", "margin"] = setting("paper", "MMKB-RAG: the rule of the own labels")
    srt_balance: float | None = setting(3.0, "MMKB-RAG: most [NoRel] per [Rel]", above=0)
    sizes: list[float] = setting(
        [1.0, 0.5, 0.25, 0.1, 0.02], "MMKB-RAG: shares of the SRT labels in Table 5, 1.0 first", above=0, high=1
    )
    equal_at: float = setting(
        1.0, "MMKB-RAG: of `sizes`, the one at which the external labeller is compared", above=0, high=1
    )
    least_steps: int = setting(150, "MMKB-RAG: a training on few labels takes at least so many steps", low=1)
    splits: list[str] = setting(
        ["val_unseen_question", "val_unseen_entity"], "splits to answer", check=checks.split_name
    )
    limit: int | None = setting(None, "questions per split, drawn by seed; all if unset", low=1)
    encoder: str = setting("miniature/clip", "the index's encoder", check=encoder_name)
    top_n: int = setting(5, "entries to retrieve for a question", low=1)
    passages: int = setting(5, "mR²AG: of their passages, those that the reranker picks", low=1)
    documents: int = setting(20, "MMKB-RAG: passages of the entries to take", low=1)
    k: list[int] = setting([1, 5, 10, 15, 20], "MMKB-RAG: documents to keep, beside `auto`", low=1)
    mct: Literal["filter", "merge", "rerank"] = setting(
        "merge", "MMKB-RAG: what MCT does in Table 2; the paper's best on InfoSeek is merge"
    )
    answer_model: Literal["base", "tuned"] = setting("base", "MMKB-RAG: who answers")
    gamma: float = setting(0.5, "the gate's threshold", low=0, high=1)
    max_new_tokens: int = setting(16, "longest answer, in tokens", low=1)
    max_reply_tokens: int = setting(64, "MMKB-RAG: longest reply of MCT, in tokens", low=1)
    token_budget: int | None = setting(
        None, "most tokens in one forward pass; what the memory has room for if unset", low=1
    )
    batch_questions: int = setting(8, "questions kept in memory together", low=1)
    dtype: str = setting("float32", "of answering and probing: float32, bfloat16 or float16", choices=DTYPES)
    device: str = setting("cpu", "cpu, cuda, or auto: each process's own", check=checks.device)
    seed: int = setting(
        0, "seed of MMKB-RAG's world, of drawing questions, and of intervals", low=0, high=checks.MOST_SEED
    )
    dry_run: bool = setting(False, "say what would be done, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = [] if self.output else ["`output` is needed: a folder for what is built and for the tables"]
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            issues.append(f"`seeds` should be different numbers, at least one; found {self.seeds}")
        if len(self.runs) > len(self.seeds):
            issues.append(f"`runs` has {len(self.runs)} folders for {len(self.seeds)} seeds; give at most one per seed")
        for folder in self.runs:
            if not Path(folder, "checkpoint", "scheme.json").is_file():
                issues.append(f"`runs`: {folder} has no finished checkpoint (checkpoint/scheme.json)")
            elif not any(Path(folder, name).is_file() for name in ("plain_checkpoint/scheme.json", REFLECTION)):
                issues.append(
                    f"`runs`: {folder} has neither a plain_checkpoint nor the data to train one on ({REFLECTION})"
                )
        issues += self._split_problems()
        if bool(self.index or self.probes) and not self.world:
            issues.append("`world` is needed beside `index` and `probes`: they belong to it")
        elif self.world:
            named = {"index": checks.folder(self.index), "probes": checks.folder(self.probes)}
            issues += [f"`{name}`: {told}" for name, told in named.items() if told]
        issues += self.metric_issues(self.world)
        issues += self._size_problems()
        return issues + bound_problems(self, TablesConfig) + self.reranker_problems()

    def reading(self, world: Path, index: Path, checkpoint: Path, plain: Path | None = None) -> ReadingConfig:
        """The settings that points start from."""
        return ReadingConfig(
            dataset=str(world),
            index=str(index),
            encoder=self.encoder,
            model=str(checkpoint),
            base_model=self.base_model,
            plain_model=str(plain or ""),
            scheme=self.paper,
            top_n=self.top_n,
            passages=self.passages,
            gamma=self.gamma,
            documents=self.documents,
            answer_model=self.answer_model,
            max_new_tokens=self.max_new_tokens,
            max_reply_tokens=self.max_reply_tokens,
            token_budget=self.token_budget,
            dtype=self.dtype,
            device=self.device,
            **{item.name: getattr(self, item.name) for item in dataclasses.fields(RerankerConfig)},
        )

    def _split_problems(self) -> list[str]:
        """Which splits are missing in a world that is there, or that will be made."""
        worlds = [str(Path(folder, "world")) for folder in self.runs] + [self.world]
        issues = [issue for world in worlds for issue in split_issues("splits", world, self.splits)]
        if not issues and not self.world and len(self.runs) < len(self.seeds):
            missing = [name for name in self.splits if name not in SPLITS]
            issues += [f"`splits`: a world has no split {name}; it has {', '.join(SPLITS)}" for name in missing]
        return issues if self.splits else ["`splits` is empty; name at least one split, e.g. val_unseen_entity"]

    def _size_problems(self) -> list[str]:
        """What is wrong with the sizes of Tables 4 and 5 of MMKB-RAG."""
        issues = []
        if not self.sizes or self.sizes[0] != 1.0 or any(not 0 < size <= 1 for size in self.sizes):
            issues.append(f"`sizes` should be shares above 0 and at most 1, 1.0 first; found {self.sizes}")
        elif self.equal_at not in self.sizes:
            issues.append(f"`equal_at` should be one of `sizes`, found {self.equal_at}")
        if any(not 1 <= k <= self.documents for k in self.k):
            issues.append(f"`k` should be numbers from 1 to `documents`, {self.documents}; found {self.k}")
        return issues
