"""The settings of `probe.py`, and of them what says how a model is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from reflectune.core.config import cross_check, setting
from reflectune.core.launching import spreading_problem
from reflectune.core.values import Device, DeviceMap, Dtype, Seed, SplitName, output_of
from reflectune.formats.dataset import split_issues
from reflectune.formats.parts import PartName
from reflectune.formats.passages import Lead
from reflectune.formats.reflection_data import MANIFEST
from reflectune.metrics.config import MetricConfig
from reflectune.models.names import ModelName
from reflectune.models.processing.image_config import ImageKeys
from reflectune.retrieval.config import RetrieverConfig

SCHEME = "mmkb_rag"


@dataclass(frozen=True)
class Asking:
    """How a model is asked.

    Attributes:
        max_new_tokens: The longest answer.
        samples: Answers drawn beside the greedy one, for the rule `rate`.
        temperature: That they are drawn with.
        seed: Of the draws, together with the question's and the passage's id.
        gold: Whether to score the accepted answer too, for the rule `margin`.
        summary: How several relevant documents are summed up: by the model's own `words`, by the `sentences` that it
            finds most telling, or not at all.
        max_summary_tokens: The longest summary in words.
    """

    max_new_tokens: int = 32
    samples: int = 0
    temperature: float = 1.0
    seed: int = 0
    gold: bool = True
    summary: str = "none"
    max_summary_tokens: int = 96


class ProbeConfig(MetricConfig, ImageKeys, RetrieverConfig):
    """Ask a model a split's questions, without and with each retrieved document, and keep what it answers."""

    dataset: str = setting("", "data set folder (questions, images, knowledge base)", needed="")
    split: SplitName = setting("train", "whose questions", needed="")
    part: PartName = setting(
        "",
        "of the questions only a part, e.g. 2/2, divided by entity: one that the model was not trained on",
    )
    trained_on: str = setting("", "reflection data that the model was tuned on: its questions are left out")
    leave_out_facts: bool = setting(
        False, "of `trained_on` leave out the facts, too: all questions on the same entity with an answer in common"
    )
    model: ModelName = setting("", "the target model: base, checkpoint or adapter of MMKB-RAG", needed="")
    output: Annotated[str, output_of("probes.json")] = setting("", "folder for the probes", needed="")
    top_n: int = setting(5, "entries to retrieve for a question", ge=1)
    documents: int = setting(10, "passages to ask with, those that share most words with it", ge=1)
    documents_of: Literal["retrieved", "own"] = setting(
        "retrieved", "whose they are: the retrieved entries', or those of the question's own entry"
    )
    documents_random: int = setting(0, "passages of entries drawn at random to ask with, beside them", ge=0)
    lead: Lead = setting("first_sentence", "what stands before each passage: nothing, or what the entry is")
    max_new_tokens: int = setting(32, "longest answer, in tokens", ge=1)
    samples: int = setting(0, "answers drawn beside the greedy one, for `rule: rate`", ge=0)
    temperature: float = setting(1.0, "that they are drawn with", gt=0)
    gold: bool = setting(True, "score the accepted answer too, for `rule: margin`")
    summary: Literal["words", "sentences", "none"] = setting(
        "words", "of several relevant documents: the model's own words, sentences that it chooses, or none"
    )
    max_summary_tokens: int = setting(96, "longest summary in words, in tokens", ge=1)
    visual: bool = setting(True, "probe visual-dependent questions too; RET needs them")
    limit: int | None = setting(None, "most questions, drawn by seed; a higher one adds to them", ge=1)
    seed: Seed = setting(0, "seed of the order of questions and of drawn answers")
    window: int = setting(32, "questions that a process takes at a time and sorts by length", ge=1)
    batch_questions: int = setting(8, "questions answered together", ge=1)
    token_budget: int | None = setting(
        None, "most tokens in one forward pass; if unset, many, and half as many when memory runs out", ge=1
    )
    dtype: Dtype = setting("float32", "float32, bfloat16 or float16")
    device: Device = setting("auto", "cpu, cuda, cuda:1, or auto: this process's own")
    device_map: DeviceMap | None = setting(
        None, "spread the model's layers over all GPUs: auto, balanced_low_0, sequential"
    )
    on_error: Literal["stop", "skip"] = setting(
        "stop", "a question with a bad image, no text, no answer or no own entry to read: stop, or count and list it"
    )
    dry_run: bool = setting(False, "say what would be asked, show one prompt, and stop")

    @cross_check
    def probe_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        issues: list[str] = []
        if self.documents_of == "retrieved" and not self.finds_entries:
            issues.append("`index` is needed, or `ranked_entities`; or `documents_of: own`")
        if self.dataset and not Path(self.dataset, "dataset.json").is_file():
            issues.append(
                f"`dataset`: {self.dataset} has no dataset.json; give a folder that build_world or convert wrote"
            )
        if self.leave_out_facts and not self.trained_on:
            issues.append("`leave_out_facts` needs `trained_on`: the data whose facts are left out")
        if self.trained_on and not Path(self.trained_on, MANIFEST).is_file():
            issues.append(f"`trained_on`: {self.trained_on} has no {MANIFEST}; give a folder that a data builder wrote")
        issues += split_issues("split", self.dataset, [self.split]) + self.metric_issues(self.dataset)
        if self.summary == "sentences" and not self.gold:
            issues.append("`summary: sentences` needs `gold: true`: sentences are chosen by the accepted answer")
        issues += filter(None, [spreading_problem(self.device_map)])
        return issues

    def asking(self) -> Asking:
        """How the model is asked."""
        return Asking(**{name: getattr(self, name) for name in Asking.__dataclass_fields__})
