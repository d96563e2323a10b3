"""How a pipeline is put together: what it needs, which questions it takes, and the function that makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from reflectune.core.types import Question
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.config import SERVER, ModelRole, PipelineConfig, ReadingConfig
from reflectune.inference.operators.journal import Journal
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.diagnostics import DiagnosticPassages
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.remote.client import RemoteModel
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.retrievers.entry_retriever import Retriever
from reflectune.retrieval.retrievers.text_retriever import TextRetriever
from reflectune.retrieval.web.pages import SearchTool

Part = TypeVar("Part")


@dataclass(frozen=True)
class PipelineParts:
    """What pipelines are put together from; the pipelines at hand need not use all.

    Attributes:
        config: The settings.
        knowledge: The entries.
        probes: Where a diagnosis takes passages from; None where nothing is diagnosed.
        engine: Reads with the model that the pipeline's recipe names.
        base: Reads with the base model, where it answers what the tuned model has reflected on.
        retriever: Finds entries.
        reranker: Picks the passages of naive RAG.
        texts: Finds passages of a text knowledge base.
        text_knowledge: That knowledge base; None: it is `knowledge`.
        pages: A search server; None: pages are the text knowledge base's articles.
        answerer: Reads with a second model of this machine, which answers; None if there is none.
        journal: Keeps the replies to an iterative pipeline's steps; None keeps nothing.
        remote: A model behind a server, for iterative pipelines; None if there is none.
        judging: Whether the relevance of passages is read; without it every passage is answered from.
    """

    config: ReadingConfig
    knowledge: KnowledgeBase
    probes: DiagnosticPassages | None = None
    engine: PrefixEngine | None = None
    base: PrefixEngine | None = None
    retriever: Retriever | None = None
    reranker: Reranker | None = None
    texts: TextRetriever | None = None
    text_knowledge: KnowledgeBase | None = None
    pages: SearchTool | None = None
    answerer: PrefixEngine | None = None
    journal: Journal | None = None
    remote: RemoteModel | None = None
    judging: bool = True

    @property
    def article_source(self) -> KnowledgeBase:
        """The knowledge base that `texts` finds passages of."""
        return self.text_knowledge if self.text_knowledge is not None else self.knowledge


@dataclass(frozen=True)
class Recipe:
    """How one pipeline, or one stage that measures a pipeline's parts, is made.

    Attributes:
        make: Puts it together, given the name that its traces are filed under.
        model: The config's field that names the model it reads with: `model` (tuned to reflect), `plain_model` (tuned
            without reflection), `base_model`, or None.
        retrieves: Whether it needs the retriever.
        takes: Which questions it answers.
        settings: The config's fields that its answers depend on, beyond those that all depend on.
        variants: Further ones, of variants: at their defaults they leave what was answered before as it is.
        varied: What a sweep may vary beside the retriever's settings: settings, and choices that a grid point makes.
        form: The name in a config that stands for it, perhaps with others; "" for a stage.
        scheme: The scheme of the checkpoint that `model` has to be; "" if any will do.
        measured_by: The stage that measures its decisions; "" if there is none.
        reranks: Whether passages are picked by the reranker.
        searches_text: Whether passages are found by a text.
        searches_web: Whether it asks a search tool for pages.
        is_iterative: Whether it is a trajectory of steps, whose replies a journal keeps.
        takes_texts: Whether it answers questions without a picture, too; where there is an index of passages it needs
            none of entries.
        base_answers: Whether the base model answers if `answer_model` is `base`.
        answer_each: Makes a pipeline that answers from each passage alone, whatever the gates say; for rewards.
    """

    make: Callable[[str, PipelineParts], Pipeline]
    model: ModelRole | None
    retrieves: bool
    takes: Callable[[Question], bool]
    settings: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()
    form: str = ""
    scheme: str = ""
    measured_by: str = ""
    reranks: bool = False
    searches_text: bool = False
    searches_web: bool = False
    is_iterative: bool = False
    takes_texts: bool = False
    base_answers: bool = False
    answer_each: Callable[[PipelineParts], Pipeline] | None = None

    def role(self, config: ReadingConfig) -> ModelRole | None:
        """The config's field that names the model that reads, to be loaded; None if there is none, or a server's."""
        return None if self.is_iterative and config.reader == SERVER else self.model

    @property
    def has_own_depth(self) -> bool:
        """Whether keys of its own say how many passages it reads, in place of the first `top_n` entries."""
        return self.searches_text or bool({"text_passages", "pair_passages"}.intersection(self.settings))

    def asks_server(self, config: ReadingConfig) -> bool:
        """Whether a server's model reads or answers."""
        return self.is_iterative and SERVER in (config.reader, config.answerer)

    def varied_from(self, config: PipelineConfig) -> dict[str, Any]:
        """The settings of its variants that aren't at their defaults, with their values."""
        defaults = {name: field.default for name, field in type(config).model_fields.items()}
        values = {name: getattr(config, name) for name in self.variants}
        return {name: value for name, value in values.items() if value != defaults[name]}

    def answered_by_base(self, config: PipelineConfig) -> bool:
        """Whether the base model answers, so that it is needed beside the tuned one."""
        return self.base_answers and config.answer_model == "base"

    def answerer(self, config: ReadingConfig) -> str:
        """Who answers in place of the model that reads: `server`, or a model's name; "" if there is no other."""
        role = self.role(config)
        reader = getattr(config, role) if role else config.reader
        return config.answerer if self.is_iterative and config.answerer != reader else ""

    def second_model(self, config: ReadingConfig) -> str:
        """The name of the model that is loaded to answer, beside the one that reads; "" if there is none."""
        answerer = self.answerer(config)
        return "" if answerer == SERVER else answerer


TUNED_BASELINES = "tuned_baselines"
"""The form of baselines whose model was fine-tuned on the same questions, without reflection."""


def baseline(name: str, recipe: Recipe) -> Mapping[str, Recipe]:
    """A baseline of the base model, and the same of the model that was fine-tuned without reflection."""
    tuned = dataclasses.replace(recipe, model="plain_model", form=TUNED_BASELINES)
    return {name: recipe, f"{name}_tuned": tuned}


def needed(part: Part | None) -> Part:
    """A part that a recipe says the pipeline needs."""
    if part is None:
        raise ValueError("a pipeline was asked for without a model or retriever that its recipe says it needs")
    return part


# Which questions a pipeline takes.


def every(question: Question) -> bool:
    """All."""
    return True


def knowledge_based(question: Question) -> bool:
    """Those that may have to be looked up."""
    return question.is_knowledge_based is not False


def with_entry(question: Question) -> bool:
    """Those of them whose entry is known."""
    return knowledge_based(question) and bool(question.evidence or question.entity_ids)


def with_evidence(question: Question) -> bool:
    """Those of them whose evidence is known."""
    return knowledge_based(question) and bool(question.evidence)
