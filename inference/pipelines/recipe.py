"""Recipe of a pipeline: its settings, required parts, the questions that it takes, and the function that builds it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from reflectune.core.config import Settings
from reflectune.core.types import Question
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.config import ModelRole, ModelSettings
from reflectune.inference.operators.budget import Budget
from reflectune.inference.operators.requests import WriteOperator
from reflectune.inference.operators.trajectory import Trajectory
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.diagnostics import DiagnosticPassages
from reflectune.inference.pipelines.relevance_gate import RelevanceGateSettings
from reflectune.inference.pipelines.requirements import ANY_INDEX, MODELS, REMOTE, SERVER, Requirement, RoleSettings
from reflectune.inference.trace_files.columns import StoredTraces
from reflectune.models.remote.client import RemoteModel
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.retrievers.web import SearchTool

if TYPE_CHECKING:  # slow to import
    from reflectune.models.prefix.interface import Engine
    from reflectune.retrieval.retrievers.entry_retriever import Retriever
    from reflectune.retrieval.retrievers.text_retriever import TextRetriever

Part = TypeVar("Part")
PipelineSettings = TypeVar("PipelineSettings", bound=Settings)


@dataclass(frozen=True)
class ModelUse:
    """Models that a pipeline uses under its settings.

    Attributes:
        reader: The key of the model that is loaded to read; None if none is, or a server's model reads.
        base_answers: True if the base model answers in addition to the tuned model.
        is_served: True if a server's model reads or answers.
        answerer: The model that answers in place of the reader: `server` or a name; "" for the reader.
        reads: See `Recipe.reads`.
        step_models: Other models of the server, by the step that they do.
        judges: True if the tuned model also judges, in addition to the models that read and answer.
    """

    reader: ModelRole | None
    base_answers: bool = False
    is_served: bool = False
    answerer: str = ""
    reads: str = ""
    step_models: Mapping[WriteOperator, str] = field(default_factory=dict)
    judges: bool = False

    def checkpoint(self, models: ModelSettings) -> str:
        """Return the name of the model that is loaded to read; "" for none."""
        return models.checkpoint(self.reader, self.reads) if self.reader else ""

    def other_answerer(self, models: ModelSettings) -> str:
        """Return `server`, or the name of a second model, if another model than the reader answers; else ""."""
        reader = self.checkpoint(models) if self.reader else SERVER
        return "" if self.answerer == reader else self.answerer

    def second_model(self, models: ModelSettings) -> str:
        """Return the name of the model that is loaded to answer in addition to the reader; "" for none."""
        answerer = self.other_answerer(models)
        return "" if answerer == SERVER else answerer

    @property
    def required(self) -> tuple[Requirement, ...]:
        """The models that must be given."""
        others: list[ModelRole | None] = ["base_model" if self.base_answers else None, "model" if self.judges else None]
        return tuple(MODELS[role] for role in dict.fromkeys([self.reader, *others]) if role)


@dataclass(frozen=True)
class PipelineParts:
    """Parts of pipelines; a pipeline need not use all.

    Attributes:
        knowledge: The entries.
        folder: The data set's folder.
        probes: Source of a diagnosis' passages; None without a diagnosis.
        engine: Reads with the model of the recipe.
        base: Reads with the base model, if it answers after the tuned model's reflection.
        retriever: Finds entries.
        reranker: Ranks passages.
        texts: Finds passages of a text knowledge base, its `knowledge`.
        pages: A search server; None: pages are the articles of that knowledge base.
        answerer: Reads with a second model of this machine, which answers; None for none.
        gate: Reads with the tuned model, which judges for an iterative pipeline; None for none.
        remote: A model behind a server, for iterative pipelines; None for none.
        use: The roles of these models.
        budget: Limits of a question and of the run.
        batch_questions: Questions answered together, whose images stay cached.
        earlier: Traces of the run's earlier pipelines: by pipeline, then by question id.
    """

    knowledge: KnowledgeBase
    folder: Path = Path()
    probes: DiagnosticPassages | None = None
    engine: Engine | None = None
    base: Engine | None = None
    retriever: Retriever | None = None
    reranker: Reranker | None = None
    texts: TextRetriever | None = None
    pages: SearchTool | None = None
    answerer: Engine | None = None
    gate: Engine | None = None
    remote: RemoteModel | None = None
    use: ModelUse = ModelUse("base_model")
    budget: Budget = dataclasses.field(default_factory=Budget)
    batch_questions: int = 8
    earlier: Mapping[str, StoredTraces] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Recipe(Generic[PipelineSettings]):
    """Recipe of a pipeline, or of a stage that measures a pipeline's parts.

    Attributes:
        make: Builds it from the name of its traces, its settings and its parts.
        settings: Its settings: everything that its answers depend on but data, models and required parts.
        model: The key of the model that reads: `model` (tuned to reflect), `plain_model` (tuned without reflection),
            `base_model`, or None.
        requires: The other parts that it needs.
        takes: Returns True for a question that it answers.
        reads_gold: True if it reads the entries of a question's truth; all must be in the knowledge base.
        title: Its plain name in reports, with settings in braces: `Naive RAG, {top_n} articles`; "" for a stage.
        form: The name in a config that selects it, perhaps with others; "" for a stage.
        scheme: The scheme that the checkpoint must have; "" for any.
        measured_by: The stage that measures its decisions; "" for none.
        base_answers: Returns True if the base model answers after the tuned model's reflection; None: it never does.
        choices: Choices of a sweep's grid points in addition to its settings; empty if it can't be swept.
        trajectory: Builds its trajectory of steps; None if it is none.
        has_own_depth: True if its settings, and not `top_n`, set how many passages it reads.
        reads: The contexts that it reads, which select its reader of several plain models: `none`, or a form of
            `ContextBuilder`; "" if its model is never a plain one.
        answer_each: Builds a pipeline that answers from each passage alone, independent of any gate; for rewards.
    """

    make: Callable[[str, PipelineSettings, PipelineParts], Pipeline]
    settings: type[PipelineSettings]
    model: ModelRole | None
    takes: Callable[[Question], bool]
    reads_gold: bool = False
    requires: tuple[Requirement, ...] = ()
    title: str = ""
    form: str = ""
    scheme: str = ""
    measured_by: str = ""
    base_answers: Callable[[PipelineSettings], bool] | None = None
    choices: tuple[str, ...] = ()
    trajectory: Callable[[PipelineSettings, PipelineParts], Trajectory] | None = None
    has_own_depth: bool = False
    reads: str = ""
    answer_each: Callable[[PipelineSettings, PipelineParts], Pipeline] | None = None

    @property
    def is_iterative(self) -> bool:
        """True if it is a trajectory of steps."""
        return self.trajectory is not None

    @property
    def takes_texts(self) -> bool:
        """True if it also answers questions without an image; with an index of passages it needs no entries."""
        return ANY_INDEX in self.requires

    @property
    def takes_images(self) -> bool:
        """True if it shows all images of a question. A model that was tuned to reflect reads one."""
        return self.model != "model"

    def plain_name(self, settings: Settings) -> str:
        """Return `title` with the numbers of the pipeline's settings, small ones in words."""
        counts = {key: _WORDS.get(value, value) for key, value in settings if isinstance(value, int)}
        return re.sub(r"\b(one \w+)s\b", r"\1", self.title.format(**counts))

    def settings_of(self, config: Settings) -> PipelineSettings:
        """Return the pipeline's part of a command's config."""
        return self.settings.of(config)

    def models(self, config: Settings) -> ModelUse:
        """Return the models that the pipeline uses under a command's config."""
        settings = self.settings_of(config)
        if not self.is_iterative:
            if self.model == "base_model" and isinstance(config, RoleSettings) and config.reader == SERVER:
                return ModelUse(None, is_served=True, reads=self.reads, step_models=config.step_models)
            base_answers = self.base_answers is not None and self.base_answers(settings)
            return ModelUse(self.model, base_answers=base_answers, reads=self.reads)
        roles = RoleSettings.of(config)
        return ModelUse(
            None if roles.reader == SERVER else self.model,
            is_served=roles.is_served,
            answerer=roles.answerer,
            step_models=roles.step_models,
            judges=isinstance(settings, RelevanceGateSettings) and settings.has_gate,
        )

    def required(self, config: Settings) -> tuple[Requirement, ...]:
        """Return the parts that the pipeline needs under a command's config, its models included."""
        use = self.models(config)
        return tuple(dict.fromkeys((*use.required, *self.requires, *([REMOTE] if use.is_served else []))))

    def needs(self, part: str) -> bool:
        """Return True if it requires a part, or reads it if there is one; see `Requirement.name`."""
        return any(requirement.name == part for requirement in self.requires)

    @property
    def varied(self) -> tuple[str, ...]:
        """Settings and choices that a sweep may vary in addition to the retriever's weights."""
        return (*self.settings.model_fields, *self.choices)


_WORDS = dict(enumerate(("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")))

TUNED_BASELINES = "tuned_baselines"
"""The form of baselines whose model was fine-tuned on the same questions, without reflection."""

CONTROLS = "controls"
"""The form of pipelines that read with a reflecting checkpoint, and choose without its verdicts."""


def baseline(name: str, recipe: Recipe[Any]) -> Mapping[str, Recipe[Any]]:
    """Return the recipe of a baseline of the base model, and of the model that was fine-tuned without reflection."""
    return {name: recipe, f"{name}_tuned": tuned(recipe, TUNED_BASELINES)}


def tuned(recipe: Recipe[Any], form: str, **more: Any) -> Recipe[Any]:
    """Return the recipe of a baseline whose model was fine-tuned without reflection."""
    return dataclasses.replace(recipe, model="plain_model", title=f"{recipe.title}, tuned", form=form, **more)


def needed(part: Part | None) -> Part:
    """Return a part that a recipe requires."""
    if part is None:
        raise ValueError("a pipeline was built without a model or retriever that its recipe requires")
    return part


# Predicates of questions, for `Recipe.takes`


def every(question: Question) -> bool:
    """Return True."""
    return True


def knowledge_based(question: Question) -> bool:
    """Return True unless the question is known to need no retrieval."""
    return question.is_knowledge_based is not False


def with_entry(question: Question) -> bool:
    """Return True if the question is knowledge-based and its entry is known."""
    return knowledge_based(question) and bool(question.evidence or question.entity_ids)


def with_evidence(question: Question) -> bool:
    """Return True if the question is knowledge-based and its evidence is known."""
    return knowledge_based(question) and bool(question.evidence)
