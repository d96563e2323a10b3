"""The settings of `build_mr2ag.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from reflectune.core import checks
from reflectune.core.addresses import shown_options, shown_url
from reflectune.core.config import bound_problems, setting
from reflectune.data_builders.annotators.choice import NAMES
from reflectune.data_builders.mr2ag.examples import Recipe, StringFilter
from reflectune.formats.dataset import split_issues
from reflectune.formats.parts import part_problem
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.retrieval.config import RetrieverConfig


@dataclass
class BuildConfig(RemoteConfig, RetrieverConfig):
    """Build one split of reflection data. The `llm_…` keys say whom the annotator `llm` asks."""

    dataset: str = setting("", "data set folder (questions, images, knowledge base)")
    output: str = setting("", "folder for the reflection data", check=checks.output_of("reflection.json"))
    split: str = setting("train", "whose questions", check=checks.split_name)
    part: str = setting(
        "", "of the questions only a part, e.g. 1/2, divided by entity; default: all", check=part_problem
    )
    device: str = setting("auto", "where the encoder runs: cpu, cuda, or auto", check=checks.device)
    annotator: str = setting(
        "string", "what tells evidence: string (the answer occurs), gold (the data set says so), or llm", choices=NAMES
    )
    string_filter: StringFilter = setting(
        "strict", "what string search takes out: strict, strict_parts, negatives or off; see mr2ag.Recipe"
    )
    known_sections: bool = setting(
        True, "look for evidence only in the sections that the data set names, if it names some"
    )
    positives: int = setting(1, "most evidence passages of a question", low=1)
    negatives_same_article: int = setting(2, "other passages of the question's article", low=0)
    negatives_retrieved: int = setting(2, "passages of look-alikes that the index ranks high", low=0)
    negatives_random: int = setting(1, "passages of random entries", low=0)
    retrieval_depth: int = setting(10, "best entries to draw hard negatives from", low=1)
    visual_ratio: float = setting(0.2, "share of visual-dependent questions in the data; 1: they alone", low=0, high=1)
    visual_dataset: str = setting(
        "", "data set folder of the visual-dependent questions, e.g. LLaVA-Instruct; default: the same"
    )
    visual_split: str = setting("", "split that they are from; default: the same split", check=checks.split_name)
    without_image: Literal["refuse", "blank"] = setting(
        "refuse", "a question without an image (Natural Questions): a bad row, or give it a black image"
    )
    lead: Literal["none", "first_sentence"] = setting(
        "first_sentence", "what stands before each passage: nothing, or what the entry is"
    )
    limit: int | None = setting(
        None, "most knowledge-based questions (visual_ratio 1: visual ones), drawn by seed", low=1
    )
    llm_batch: str = setting(
        "",
        "folder of a batch API's files: write what the annotator `llm` would be asked, and read the results put there",
        check=checks.output_folder,
    )
    seed: int = setting(0, "seed of every draw", low=0, high=checks.MOST_SEED)
    proofread: int = setting(50, "random examples in the page for proof-reading; 0: no page", low=0)
    on_error: Literal["stop", "skip"] = setting("stop", "a bad row: stop, or list it in statistics.json and go on")
    dry_run: bool = setting(False, "say what would be built, show one example, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = [f"`{name}` is needed" for name in ("dataset", "output", "split") if not getattr(self, name)]
        issues += bound_problems(self, BuildConfig) + self.retriever_problems()
        if self.visual_ratio == 1 and self.visual_dataset:
            issues.append(
                "`visual_ratio: 1` takes the visual-dependent questions of `dataset`; leave out `visual_dataset`"
            )
        for name in ("dataset", "visual_dataset"):
            folder = getattr(self, name)
            if folder and not Path(folder, "dataset.json").is_file():
                issues.append(
                    f"`{name}`: {folder} has no dataset.json; give a folder that build_world or convert wrote"
                )
        visual = self.visual_split or (self.split if self.visual_dataset else "")
        issues += split_issues("split", self.dataset, [self.split])
        issues += split_issues("visual_split", self.visual_dataset or self.dataset, [visual])
        if self.negatives_retrieved and not self.finds_entries:
            issues.append(
                "`negatives_retrieved` needs an `index`, or `ranked_entities`; build one with retrieval.build_index, "
                "or set it to 0"
            )
        sends = not (self.llm_batch or self.dry_run)
        return issues + (self.llm_problems(sends) if self.annotator == "llm" else [])

    def recipe(self) -> Recipe:
        """How many passages of which source."""
        return Recipe(
            positives=self.positives,
            same_article=self.negatives_same_article,
            retrieved=self.negatives_retrieved,
            random=self.negatives_random,
            seed=self.seed,
            string_filter=self.string_filter,
            known_sections=self.known_sections,
        )

    def what_decides(self) -> dict[str, Any]:
        """The settings that decide what is built; the data sets and the index are hashed apart."""
        llm_settings = _LLM_DECIDES if self.annotator == "llm" else frozenset[str]()
        return {
            name: _SHOWN[name](value) if name in _SHOWN else value
            for name, value in dataclasses.asdict(self).items()
            if (name in llm_settings if name.startswith("llm_") else name not in _ELSEWHERE)
            and not (name in _LATER and value == _LATER[name])
        }


_ELSEWHERE: Final = frozenset(
    ("dataset", "output", "index", "ranked_entities", "device", "on_error", "dry_run", "visual_dataset", "proofread")
)
"""Where things are, and what is shown of them."""

_LLM_DECIDES: Final = frozenset(("llm_url", "llm_model", "llm_max_tokens", "llm_options"))
"""Of the `llm_…` settings: those that decide what is answered, not how fast or at what price."""

_SHOWN: Final[Mapping[str, Callable[[str], str]]] = {"llm_url": shown_url, "llm_options": shown_options}
"""What takes the secrets out of a setting."""

_LATER: Final[Mapping[str, Any]] = {
    "part": "",
    "string_filter": "strict",
    "known_sections": True,
    "visual_split": "",
    "without_image": "refuse",
    "title_weight": 0.5,
    "summary_share": 0.0,
}
"""Settings that came when there was data already: with these values they change nothing, so that it stays valid."""
