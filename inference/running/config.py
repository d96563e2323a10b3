"""Configs of `evaluate`, `answer`, `caption` and `recall`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.types import Question
from reflectune.core.values import Device, InputFile, OutputFile, Share
from reflectune.formats.dataset import SplitsKeys
from reflectune.inference.config import (
    BaseModelSettings,
    DatasetSettings,
    EngineSettings,
    ModelRole,
    ModelSettings,
    TextIndexSettings,
)
from reflectune.inference.operators.budget import BudgetSettings
from reflectune.inference.pipelines.recipe import TUNED_BASELINES, Recipe
from reflectune.inference.pipelines.registry import (
    all_forms,
    all_recipes,
    find_recipe,
    missing_parts,
    pipeline_settings,
    reflecting,
    sweepable,
)
from reflectune.inference.pipelines.requirements import DOCUMENT_RERANKER, SERVER
from reflectune.inference.running.runner import RunSettings
from reflectune.inference.trace_files.reading import trace_files
from reflectune.metrics.config import MetricConfig
from reflectune.models.names import PlacementKeys, recorded_scheme
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.models.rendering.image_config import ImageKeys
from reflectune.retrieval.config import IndexKeys, RetrieverConfig
from reflectune.retrieval.retrievers.queries import Fusion

# Type checkers don't see the pipelines' keys here, so that only the pipelines' own files can use them.
if TYPE_CHECKING:
    AllPipelines = Settings
    ReflectingPipelines = Settings
    SweptPipelines = Settings
else:
    AllPipelines = pipeline_settings(all_recipes())
    """Settings of all registered pipelines."""
    ReflectingPipelines = pipeline_settings(reflecting(), without=(DOCUMENT_RERANKER,))
    """Settings of pipelines that are named like the scheme of their checkpoint."""
    SweptPipelines = pipeline_settings((*sweepable(), "closed_book"))
    """Settings of pipelines that a sweep varies, and of the one that it holds RET against."""


def unread_settings(config: type[Settings], pipelines: type[Settings], names: Iterable[str]) -> Set[str]:
    """Return the keys of pipelines that none of the named ones reads; none if no name is known.

    Args:
        config: A config class. Keys that its other base classes declare too are read.
        pipelines: Its base class with the settings of pipelines.
        names: The pipelines that run.
    """
    chosen = [form for name in names for form in all_forms().get(name, (name,)) if form in all_recipes()]
    if not chosen:
        return frozenset()
    kinds = [kind for kind in config.__mro__ if issubclass(kind, Settings)]
    others = [kind for kind in kinds if not issubclass(kind, pipelines) and not issubclass(pipelines, kind)]
    read = {key for kind in (*others, pipeline_settings(chosen)) for key in kind.model_fields}
    return pipelines.model_fields.keys() - read


class SelectedPipelines(ModelSettings, AllPipelines):
    """Pipelines that are selected by name, and their models.

    Attributes:
        selector: The key of a subclass that names them.
    """

    selector: ClassVar[str]

    def names(self) -> Sequence[str]:
        """Return the names that are given."""
        names: Sequence[str] = getattr(self, self.selector)
        return names

    @cross_check
    def pipelines_problems(self) -> Iterator[str]:
        """Yield the pipelines that are unknown."""
        known = {*all_forms(), *(name for names in all_forms().values() for name in names)}
        unknown = [name for name in self.names() if name not in known]
        yield from [
            f"`{self.selector}`: unknown pipeline `{name}`; one of {', '.join(all_forms())}" for name in unknown
        ]

    @cross_check
    def part_problems(self) -> list[str]:
        """Return the problems of models and parts that the pipelines require."""
        recipes = self.recipes()
        reflecting_names = [name for name, recipe in recipes.items() if recipe.model == "model"]
        schemes = sorted({recipes[name].scheme for name in reflecting_names})
        issues = missing_parts(self, recipes)
        if isinstance(self.plain_model, dict) and self.plain_model:
            issues += [
                f"`plain_model` has no checkpoint for {name}, which reads {recipe.reads}; found {[*self.plain_model]}"
                for name, recipe in recipes.items()
                if recipe.model == "plain_model" and recipe.reads not in self.plain_model
            ]
        plain = {self.checkpoint("plain_model", it.reads) for it in recipes.values() if it.model == "plain_model"}
        issues += [
            f"`plain_model`: {name} was not fine-tuned with scheme plain; see `build_plain`"
            for name in sorted(plain)
            if name and Path(name).is_dir() and recorded_scheme(name) != "plain"
        ]
        if len(schemes) > 1:
            issues.append(
                f"`pipelines`: {' and '.join(schemes)} need checkpoints of different schemes; run them one by one"
            )
        elif schemes and self.scheme not in ("", *schemes):
            issues.append(
                f"`scheme` is {self.scheme}, but {reflecting_names[0]} needs a checkpoint of scheme {schemes[0]}"
            )
        elif schemes and (trained := recorded_scheme(self.model)) not in ("", *schemes):
            issues.append(
                f"`model`: {self.model} was trained with scheme {trained}, and {reflecting_names[0]} needs a "
                f"checkpoint of scheme {schemes[0]}"
            )
        return issues

    @model_validator(mode="after")
    def _choose_scheme(self) -> Self:
        """Set the scheme of the tuned pipeline to run, if none is named."""
        schemes = {recipe.scheme for recipe in self.recipes().values()} - {""}
        self.scheme = self.scheme or (schemes.pop() if len(schemes) == 1 else "")
        return self

    def roles(self) -> list[ModelRole]:
        """Return the keys that name the models of the selected pipelines."""
        uses = [recipe.models(self) for recipe in self.recipes().values()]
        roles: set[ModelRole] = {use.reader for use in uses if use.reader}
        if any(use.base_answers for use in uses):
            roles.add("base_model")
        if any(use.judges for use in uses):
            roles.add("model")
        return sorted(roles)

    def forms(self) -> list[str]:
        """Return the selected pipelines. `naive_rag`, `oracle` and `tuned_baselines` select several each.

        If `plain_model` maps contexts to models, `tuned_baselines` selects only the baselines that have one. A baseline
        that is also named by itself is always selected.
        """
        selected: dict[str, str] = {}
        for name in self.names():
            for form in all_forms().get(name, (name,)):
                selected[form] = selected.get(form, name) if name == TUNED_BASELINES else name
        readers = self.plain_model if isinstance(self.plain_model, dict) else {}
        return [
            form
            for form, name in selected.items()
            if not readers or name != TUNED_BASELINES or find_recipe(form).reads in readers
        ]

    def recipes(self) -> dict[str, Recipe[Any]]:
        """Return the recipes of the selected pipelines, without unknown ones."""
        return {name: find_recipe(name) for name in self.forms() if name in all_recipes()}


class PipelinesConfig(SelectedPipelines):
    """Pipelines that are run together, and their models."""

    selector = "pipelines"

    pipelines: list[str] = setting(
        ["closed_book", "naive_rag", "oracle", "mr2ag"],
        f"of {', '.join(all_forms())}; `--pipelines NAME --help` lists the keys of NAME alone",
    )

    @classmethod
    def unread_keys(cls, values: Mapping[str, Any]) -> Set[str]:
        """Return the settings that none of the selected pipelines reads."""
        given = values.get("pipelines", cls.model_fields["pipelines"].default)
        names = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
        return super().unread_keys(values) | unread_settings(cls, AllPipelines, names)

    @cross_check
    def empty_problems(self) -> Iterator[str]:
        """Yield the problem of a config without pipelines."""
        if not self.pipelines:
            yield "`pipelines` is empty; name at least one of " + ", ".join(all_forms())


class AskedPipelines(SelectedPipelines):
    """Pipelines that answer a user's questions, and the form of the answers."""

    answer_type: Literal["string", "multi_answer", "free_form"] = setting(
        "string", "ask for a short answer, for a list joined by && (multi_answer), or for sentences (free_form)"
    )

    @cross_check
    def asked_problems(self) -> Iterator[str]:
        """Yield the problems of pipelines that need more than an image and a question."""
        asked = Question(id="", image="", text="", answer_type=self.answer_type)
        for name, recipe in self.recipes().items():
            if not recipe.takes(asked) or not recipe.form:
                yield f"`{self.selector}`: {name} needs a data set's gold evidence, which a user's question lacks"


class EvaluateConfig(RunSettings, SplitsKeys, MetricConfig, PipelinesConfig, DatasetSettings):
    """Run pipelines over a data set's questions; write traces, metrics.json and report.html."""

    skip: list[Annotated[int, Field(ge=1)]] = setting(
        [], "leave out the questions that evaluations with these `limit`s and this `seed` asked"
    )
    groups: list[str] = setting(
        [], "also score by group: `type`, a field of the questions' `meta`, or FIELD=VALUE for that value and the rest"
    )
    diagnose: bool = setting(
        True,
        "also measure the gates on evidence and look-alikes; about doubles the cost",
    )
    leave_out: str = setting("", "folder of reflection data whose questions are left out, e.g. the training data")
    fit_calibration: bool = setting(
        False, "fit scalings of the gates to these questions, and write them as calibration.json into `model`'s folder"
    )

    @cross_check
    def calibration_problems(self) -> Iterator[str]:
        """Yield the problems of `fit_calibration`."""
        if self.fit_calibration and (self.calibrated or not Path(self.model).is_dir()):
            yield "`fit_calibration` needs a `model` that is a folder, and `calibrated: false`"
        if self.fit_calibration and not self.diagnose:
            yield "`fit_calibration` needs `diagnose: true`, whose judgements it is fitted to"


class AnswerConfig(AskedPipelines, DatasetSettings):
    """Answer one question about one image, or show how an evaluation answered one of its questions."""

    selector = "pipeline"

    image: InputFile = setting("", "the image, a path")
    question: str = setting("", "the question")
    compile: Literal["auto", "off"] = setting("off", "see evaluate; compiling takes longer than one answer")
    as_json: bool = setting(False, "print the whole trace as JSON")
    pipeline: str = setting(
        "",
        "pipeline that answers, as in serve; the checkpoint's if unset; with `evaluation`: whose traces to show",
    )
    evaluation: str = setting("", "folder that evaluate wrote: show its traces of `question_id`, without a new answer")
    question_id: str = setting("", "id of the evaluation's question; if unset, print all questions as JSONL")
    otlp: str = setting(
        "", "OTLP endpoint to send the evaluation's traces to, e.g. http://localhost:6006/v1/traces for Phoenix"
    )

    def names(self) -> Sequence[str]:
        """Return the pipeline that answers, the first one of a form like `naive_rag`; () for the scheme's, or none."""
        named = bool(self.pipeline) and not self.evaluation
        return all_forms().get(self.pipeline, (self.pipeline,))[:1] if named else ()

    @classmethod
    def unread_keys(cls, values: Mapping[str, Any]) -> Set[str]:
        """Return the settings that the pipeline doesn't read; without one, those of no pipeline of a scheme."""
        names = [str(values.get("pipeline"))] if values.get("pipeline") else reflecting()
        return super().unread_keys(values) | unread_settings(cls, AllPipelines, names)

    def roles(self) -> list[ModelRole]:
        """Return the keys whose models are loaded, so that they must exist now."""
        return super().roles() if self.names() else ModelSettings.roles(self)

    def trace_files(self) -> dict[str, Path]:
        """Return the evaluation's files of traces to read, by pipeline."""
        stored = trace_files(Path(self.evaluation, "traces"))
        return {name: path for name, path in stored.items() if self.pipeline in ("", name)}

    @cross_check
    def dataset_problems(self) -> Iterable[str]:
        """Return the problems of the data set's folder; an evaluation's traces are shown without it."""
        return [] if self.evaluation else super().dataset_problems()

    @cross_check
    def answer_problems(self) -> Iterator[str]:
        """Yield the problems of the question, or of the evaluation to read."""
        if self.otlp and not (self.evaluation and self.otlp.startswith(("http://", "https://"))):
            yield "`otlp` must begin with http:// or https://, and needs `evaluation`"
        if not self.evaluation:
            if self.question_id:
                yield "`question_id` selects a trace of `evaluation`, which is not set; leave it out to answer"
            yield from self.missing("image", "question")
            if not self.pipeline:
                yield from self.missing("model", why="a checkpoint that sft wrote")
                if not RetrieverConfig.of(self).finds_entries:
                    yield "`index` is needed, or `ranked_entities`"
        elif not (stored := trace_files(Path(self.evaluation, "traces"))):
            yield f"`evaluation`: {self.evaluation} has no finished pipeline in traces/"
        elif self.pipeline and self.pipeline not in stored:
            yield f"`pipeline`: {self.evaluation} has no traces of {self.pipeline}; one of {', '.join(stored)}"


class AgreementConfig(ModelSettings, SplitsKeys, DatasetSettings, ReflectingPipelines):
    """Compare a checkpoint behind a server with the same checkpoint in this process, on a data set's questions."""

    batch_questions: int = setting(8, "questions answered together", ge=1)
    tolerance: float = setting(1e-3, "maximum difference of a gate's probability; above it the exit status is 1", ge=0)
    output: OutputFile = setting("", "JSON file for the figures; they are printed in any case")

    @cross_check
    def parts_problems(self) -> Iterator[str]:
        """Yield the problems of parts that are missing."""
        yield from self.missing("model", why="a checkpoint that sft wrote")
        yield from self.missing("server", why="vLLM that serves it, e.g. http://localhost:8000/v1")
        if not RetrieverConfig.of(self).finds_entries:
            yield "`index` is needed, or `ranked_entities`"


class CaptionConfig(
    RunSettings, BaseModelSettings, EngineSettings, PlacementKeys, ImageKeys, RemoteConfig, BudgetSettings
):
    """Caption the first image of each entry of a knowledge base, and write `captions.jsonl`."""

    knowledge: str = setting("", "knowledge base folder, e.g. DATASET/knowledge", needed="")
    reader: Literal["base_model", "server"] = setting(
        "base_model", "the model that writes: base_model, or a server's, `llm_model`"
    )
    max_new_tokens: int = setting(128, "maximum number of tokens of a caption", ge=1)
    dry_run: bool = setting(False, "describe the run without starting it")

    @cross_check
    def caption_problems(self) -> Iterator[str]:
        """Yield the problems of the knowledge base and the model."""
        if self.knowledge and not Path(self.knowledge, "kb.json").is_file():
            yield f"`knowledge`: {self.knowledge} has no kb.json; give a knowledge base's folder"
        if self.reader == SERVER:
            yield from self.llm_problems()
        elif not self.base_model:
            yield "`base_model` is needed, or `reader: server`"

    def roles(self) -> list[ModelRole]:
        """Return the keys whose models are loaded."""
        return [] if self.reader == SERVER else ["base_model"]


class RecallConfig(SplitsKeys, TextIndexSettings, IndexKeys):
    """Measure how often an index finds the right entries and passages."""

    title_weights: list[Share] = setting(
        [0.0, 0.25, 0.5, 0.75, 1.0], "weights of titles in an entry's score; eq. 3: 0.5", needed=""
    )
    text_weights: list[Share] = setting(
        [], "also search with the question's text: weights of its similarity to titles; the rest is the images'"
    )
    fusion: Fusion = setting(
        "scores", "text_weights: add up scores, or search one vector: their sum, or the encoder's own (features)"
    )
    overlap: bool = setting(False, "compare an approximate index with an exact search of its vectors, which is slow")
    depths: list[Annotated[int, Field(ge=1)]] = setting([1, 5, 10, 20, 50], "k of recall@k", needed="")
    output: OutputFile = setting("", "JSON file for the figures; they are printed in any case")
    device: Device = setting("auto", "where the encoder runs: cpu, cuda, or auto")

    @cross_check
    def search_problems(self) -> Iterator[str]:
        """Yield the problem of a missing index."""
        if not self.finds_entries and not self.text_index:
            yield "`index` is needed, or `ranked_entities`, or `text_index`"
        if self.text_weights and not self.index:
            yield "`text_weights` need an `index`, whose titles they compare with the question"
