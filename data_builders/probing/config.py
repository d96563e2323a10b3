"""The settings of `probe.py`, and of them what says how a model is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reflectune.core import checks
from reflectune.core.config import DEVICE_MAPS, DTYPES, bound_problems, setting
from reflectune.core.launching import spreading_problem
from reflectune.formats.dataset import split_issues
from reflectune.formats.parts import part_problem
from reflectune.formats.passages import Lead
from reflectune.formats.reflection_data import MANIFEST
from reflectune.metrics.config import MetricConfig
from reflectune.models.names import model_name
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


@dataclass
class ProbeConfig(MetricConfig, ImageKeys, RetrieverConfig):
    """Ask a model a split's questions, without and with each retrieved document, and keep what it answers."""

    dataset: str = setting("", "data set folder (questions, images, knowledge base)")
    split: str = setting("train", "whose questions", check=checks.split_name)
    part: str = setting(
        "",
        "of the questions only a part, e.g. 2/2, divided by entity: one that the model was not trained on",
        check=part_problem,
    )
    trained_on: str = setting("", "reflection data that the model was tuned on: its questions are left out")
    leave_out_facts: bool = setting(
        False, "of `trained_on` leave out the facts, too: all questions on the same entity with an answer in common"
    )
    model: str = setting("", "the target model: base, checkpoint or adapter of MMKB-RAG", check=model_name)
    output: str = setting("", "folder for the probes", check=checks.output_of("probes.json"))
    top_n: int = setting(5, "entries to retrieve for a question", low=1)
    documents: int = setting(10, "passages to ask with, those that share most words with it", low=1)
    documents_of: Literal["retrieved", "own"] = setting(
        "retrieved", "whose they are: the retrieved entries', or those of the question's own entry"
    )
    documents_random: int = setting(0, "passages of entries drawn at random to ask with, beside them", low=0)
    lead: Lead = setting("first_sentence", "what stands before each passage: nothing, or what the entry is")
    max_new_tokens: int = setting(32, "longest answer, in tokens", low=1)
    samples: int = setting(0, "answers drawn beside the greedy one, for `rule: rate`", low=0)
    temperature: float = setting(1.0, "that they are drawn with", above=0)
    gold: bool = setting(True, "score the accepted answer too, for `rule: margin`")
    summary: Literal["words", "sentences", "none"] = setting(
        "words", "of several relevant documents: the model's own words, sentences that it chooses, or none"
    )
    max_summary_tokens: int = setting(96, "longest summary in words, in tokens", low=1)
    visual: bool = setting(True, "probe visual-dependent questions too; RET needs them")
    limit: int | None = setting(None, "most questions, drawn by seed; a higher one adds to them", low=1)
    seed: int = setting(0, "seed of the order of questions and of drawn answers", low=0, high=checks.MOST_SEED)
    window: int = setting(32, "questions that a process takes at a time and sorts by length", low=1)
    batch_questions: int = setting(8, "questions answered together", low=1)
    token_budget: int | None = setting(
        None, "most tokens in one forward pass; if unset, many, and half as many when memory runs out", low=1
    )
    dtype: str = setting("float32", "float32, bfloat16 or float16", choices=DTYPES)
    device: str = setting("auto", "cpu, cuda, cuda:1, or auto: this process's own", check=checks.device)
    device_map: str | None = setting(
        None, "spread the model's layers over all GPUs: auto, balanced_low_0, sequential", choices=DEVICE_MAPS
    )
    on_error: Literal["stop", "skip"] = setting(
        "stop", "a question with a bad image, no text, no answer or no own entry to read: stop, or count and list it"
    )
    dry_run: bool = setting(False, "say what would be asked, show one prompt, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        needed = ("dataset", "split", "model", "output")
        issues = [f"`{name}` is needed" for name in needed if not getattr(self, name)] + self.image_problems()
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
        issues += (
            split_issues("split", self.dataset, [self.split])
            + bound_problems(self, ProbeConfig)
            + self.retriever_problems()
            + self.metric_issues(self.dataset)
        )
        if self.summary == "sentences" and not self.gold:
            issues.append("`summary: sentences` needs `gold: true`: sentences are chosen by the accepted answer")
        issues += filter(None, [spreading_problem(self.device_map)])
        return issues

    def asking(self) -> Asking:
        """How the model is asked."""
        return Asking(**{name: getattr(self, name) for name in Asking.__dataclass_fields__})
