"""The settings of `build_mr2ag.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from reflectune.core.addresses import shown_options, shown_url
from reflectune.core.config import cross_check, setting
from reflectune.core.values import Device, OutputFolder, Seed, SplitName, one_of, output_of
from reflectune.data_builders.annotators.choice import NAMES
from reflectune.data_builders.mr2ag.examples import Recipe, StringFilter
from reflectune.formats.dataset import split_issues
from reflectune.formats.parts import PartName
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.retrieval.config import RetrieverConfig


class BuildConfig(RemoteConfig, RetrieverConfig):
    """Build one split of reflection data. The `llm_…` keys say whom the annotator `llm` asks."""

    dataset: str = setting("", "data set folder (questions, images, knowledge base)", needed="")
    output: Annotated[str, output_of("reflection.json")] = setting("", "folder for the reflection data", needed="")
    split: SplitName = setting("train", "whose questions", needed="")
    part: PartName = setting("", "of the questions only a part, e.g. 1/2, divided by entity; default: all")
    device: Device = setting("auto", "where the encoder runs: cpu, cuda, or auto")
    annotator: Annotated[str, one_of(*NAMES)] = setting(
        "string", "what tells evidence: string (the answer occurs), gold (the data set says so), or llm"
    )
    string_filter: StringFilter = setting(
        "strict", "what string search takes out: strict, strict_parts, negatives or off; see mr2ag.Recipe"
    )
    known_sections: bool = setting(
        True, "look for evidence only in the sections that the data set names, if it names some"
    )
    positives: int = setting(1, "most evidence passages of a question", ge=1)
    negatives_same_article: int = setting(2, "other passages of the question's article", ge=0)
    negatives_retrieved: int = setting(2, "passages of look-alikes that the index ranks high", ge=0)
    negatives_random: int = setting(1, "passages of random entries", ge=0)
    retrieval_depth: int = setting(10, "best entries to draw hard negatives from", ge=1)
    visual_ratio: float = setting(0.2, "share of visual-dependent questions in the data; 1: they alone", ge=0, le=1)
    visual_dataset: str = setting(
        "", "data set folder of the visual-dependent questions, e.g. LLaVA-Instruct; default: the same"
    )
    visual_split: SplitName = setting("", "split that they are from; default: the same split")
    without_image: Literal["refuse", "blank"] = setting(
        "refuse", "a question without an image (Natural Questions): a bad row, or give it a black image"
    )
    lead: Literal["none", "first_sentence"] = setting(
        "first_sentence", "what stands before each passage: nothing, or what the entry is"
    )
    limit: int | None = setting(
        None, "most knowledge-based questions (visual_ratio 1: visual ones), drawn by seed", ge=1
    )
    llm_batch: OutputFolder = setting(
        "",
        "folder of a batch API's files: write what the annotator `llm` would be asked, and read the results put there",
    )
    seed: Seed = setting(0, "seed of every draw")
    proofread: int = setting(50, "random examples in the page for proof-reading; 0: no page", ge=0)
    on_error: Literal["stop", "skip"] = setting("stop", "a bad row: stop, or list it in statistics.json and go on")
    dry_run: bool = setting(False, "say what would be built, show one example, and stop")

    @cross_check
    def build_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        issues: list[str] = []
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
            for name, value in self.model_dump().items()
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
