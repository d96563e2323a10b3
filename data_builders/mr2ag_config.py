"""The settings of `build_mr2ag.py`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reflectune.data_builders.annotators import ANNOTATORS
from reflectune.data_builders.mr2ag import Recipe


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass
class BuildConfig:
    """Build one split of reflection data."""

    dataset: str = field(default="", metadata=_help("data set folder (questions, images, knowledge base)"))
    output: str = field(default="", metadata=_help("folder for the reflection data"))
    split: str = field(default="train", metadata=_help("whose questions"))
    index: str = field(default="", metadata=_help("index folder, for hard negatives"))
    encoder: str = field(default="miniature/clip", metadata=_help("the encoder that the index was built with"))
    device: str = field(default="auto", metadata=_help("where the encoder runs: cpu, cuda, or auto"))
    annotator: str = field(default="string", metadata=_help("what tells evidence: string"))
    positives: int = field(default=1, metadata=_help("most evidence passages of a question"))
    negatives_same_article: int = field(default=2, metadata=_help("other passages of the question's article"))
    negatives_retrieved: int = field(default=2, metadata=_help("passages of look-alikes that the index ranks high"))
    negatives_random: int = field(default=1, metadata=_help("passages of random entries"))
    retrieval_depth: int = field(default=10, metadata=_help("best entries to draw hard negatives from"))
    visual_ratio: float = field(default=0.2, metadata=_help("share of visual-dependent questions in the data"))
    lead: Literal["none", "first_sentence"] = field(
        default="first_sentence", metadata=_help("what stands before each passage: nothing, or what the entry is")
    )
    limit: int | None = field(default=None, metadata=_help("most knowledge-based questions, drawn by seed"))
    seed: int = field(default=0, metadata=_help("seed of every draw"))
    on_error: Literal["stop", "skip"] = field(
        default="stop", metadata=_help("a bad row: stop, or list it in statistics.json and go on")
    )
    dry_run: bool = field(default=False, metadata=_help("say what would be built, show one example, and stop"))

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = [f"`{name}` is needed" for name in ("dataset", "output", "split") if not getattr(self, name)]
        counts = ("negatives_same_article", "negatives_retrieved", "negatives_random")
        issues += [
            f"`{name}` must be at least 0, found {getattr(self, name)}" for name in counts if getattr(self, name) < 0
        ]
        for name in ("positives", "retrieval_depth", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                issues.append(f"`{name}` must be at least 1, found {value}")
        if not 0 <= self.visual_ratio < 1:
            issues.append(f"`visual_ratio` must be at least 0 and below 1, found {self.visual_ratio}")
        if self.annotator not in ANNOTATORS:
            issues.append(f"`annotator` is one of {', '.join(ANNOTATORS)}; found `{self.annotator}`")
        if self.dataset and not Path(self.dataset, "dataset.json").is_file():
            issues.append(
                f"`dataset`: {self.dataset} has no dataset.json; give a folder that build_world or a reader wrote"
            )
        if self.negatives_retrieved and not self.index:
            issues.append(
                "`negatives_retrieved` needs an `index`; build one with retrieval.build_index, or set it to 0"
            )
        if self.index and not Path(self.index, "manifest.json").is_file():
            issues.append(f"`index`: {self.index} has no manifest.json; build it with retrieval.build_index")
        return issues

    def recipe(self) -> Recipe:
        """How many passages of which source."""
        return Recipe(
            positives=self.positives,
            same_article=self.negatives_same_article,
            retrieved=self.negatives_retrieved,
            random=self.negatives_random,
            annotator=self.annotator,
            seed=self.seed,
        )

    def what_decides(self) -> dict[str, Any]:
        """The settings that decide what is built; the data set and the index are hashed apart."""
        elsewhere = ("dataset", "output", "index", "device", "on_error", "dry_run")
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in elsewhere}
