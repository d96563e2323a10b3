"""The settings of `evaluate.py`, `answer.py` and `recall.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from reflectune.core.config import cross_check, setting
from reflectune.core.values import Device, InputFile, OutputFile, Seed, Share, SplitName, output_of
from reflectune.formats.dataset import split_issues
from reflectune.inference.config import ModelRole, ReadingConfig
from reflectune.inference.pipelines.recipe import Recipe
from reflectune.inference.pipelines.registry import all_forms, all_recipes, find_recipe
from reflectune.inference.trace_files.keeping import TraceForm
from reflectune.metrics.config import MetricConfig
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.retrieval.config import IndexKeys
from reflectune.retrieval.retrievers.queries import Fusion


class EvaluateConfig(RemoteConfig, MetricConfig, ReadingConfig):
    """Run pipelines over a data set's questions; write traces, metrics.json and report.html."""

    splits: list[SplitName] = setting(["val_unseen_question", "val_unseen_entity"], "splits to answer")
    pipelines: list[str] = setting(["closed_book", "naive_rag", "oracle", "mr2ag"], f"of {', '.join(all_forms())}")
    output: Annotated[str, output_of()] = setting(
        "",
        "folder for traces/, metrics.json and report.html",
        needed="a folder for traces/, metrics.json and report.html",
    )
    limit: int | None = setting(None, "questions per split, drawn by seed; all if unset", ge=1)
    batch_questions: int = setting(8, "questions answered together", ge=1)
    traces: TraceForm = setting(
        "auto", "jsonl: text to read and grep; parquet: a twentieth of that; auto: parquet beyond 64 MiB of JSONL"
    )
    report_questions: int = setting(1000, "questions to list in the report", ge=0)
    text_index: str = setting("", "text_rag, iterative: index of passages; see retrieval.build_text_index")
    text_knowledge: str = setting("", "the knowledge base of that index; default: the data set's")
    on_error: Literal["stop", "skip"] = setting(
        "stop", "a question with a bad image or no text: stop, or count it as wrong and list it"
    )
    seed: Seed = setting(0, "seed of sampling and of bootstrap intervals")

    @cross_check
    def metric_problems(self) -> Iterator[str]:
        """Yield the problems of the metric."""
        yield from self.metric_issues(self.dataset)

    @cross_check
    def split_problems(self) -> Iterator[str]:
        """Yield the problems of the splits."""
        yield from split_issues("splits", self.dataset, self.splits)
        if not self.splits:
            yield "`splits` is empty; name at least one split, e.g. val_unseen_entity"

    @cross_check
    def form_problems(self) -> Iterator[str]:
        """Yield the pipelines that are unknown."""
        known = {*all_forms(), *(name for names in all_forms().values() for name in names)}
        unknown = [name for name in self.pipelines if name not in known]
        yield from [f"`pipelines`: unknown pipeline `{name}`; one of {', '.join(all_forms())}" for name in unknown]
        if not self.pipelines:
            yield "`pipelines` is empty; name at least one of " + ", ".join(all_forms())

    @cross_check
    def missing_parts(self) -> list[str]:
        """Return the models, indexes and keys that the pipelines lack."""
        known = {*all_forms(), *(name for names in all_forms().values() for name in names)}
        return self._missing_parts({name: find_recipe(name) for name in self.forms() if name in known})

    def _missing_parts(self, recipes: Mapping[str, Recipe]) -> list[str]:
        """Which models, and what else, the pipelines asked for lack."""
        issues: list[str] = []
        by_texts = {name for name, recipe in recipes.items() if recipe.takes_texts and self.text_index}
        retrieving = [name for name, recipe in recipes.items() if recipe.retrieves and name not in by_texts]
        if retrieving and not self.finds_entries:
            issues.append(f"`index` is needed by {', '.join(retrieving)}, or `ranked_entities`")
        iterative = [name for name, recipe in recipes.items() if recipe.is_iterative]
        if iterative and self.ranked_entities:
            issues.append(f"`index` is needed by {', '.join(iterative)}: ranked entities can't be searched with texts")
        asking_web = [name for name, recipe in recipes.items() if recipe.searches_web]
        if asking_web and not (self.web_url or self.text_index):
            issues.append(f"`text_index` is needed by {', '.join(asking_web)}, or `web_url`: one of them finds pages")
        reading_texts = [name for name, recipe in recipes.items() if recipe.searches_text]
        if reading_texts and not self.text_index:
            issues.append(f"`text_index` is needed by {', '.join(reading_texts)}: build one with build_text_index")
        for key, marker in (("text_index", "manifest.json"), ("text_knowledge", "kb.json")):
            if (folder := getattr(self, key)) and not Path(folder, marker).is_file():
                issues.append(f"`{key}`: {folder} has no {marker}")
        reflecting = [name for name, recipe in recipes.items() if recipe.model == "model"]
        schemes = sorted({recipes[name].scheme for name in reflecting})
        if reflecting and not self.model:
            issues.append(f"`model` is needed by {', '.join(reflecting)}: a checkpoint that train/sft.py wrote")
        if len(schemes) > 1:
            issues.append(
                f"`pipelines`: {' and '.join(schemes)} need checkpoints of different schemes; run them one by one"
            )
        elif schemes and self.scheme not in ("", *schemes):
            issues.append(f"`scheme` is {self.scheme}, but {reflecting[0]} needs a checkpoint of scheme {schemes[0]}")
        tuned_plainly = [name for name, recipe in recipes.items() if recipe.model == "plain_model"]
        if tuned_plainly and not self.plain_model:
            issues.append(
                f"`plain_model` is needed by {', '.join(tuned_plainly)}: a checkpoint of scheme plain, see build_plain"
            )
        served = any(recipe.asks_server(self) for recipe in recipes.values())
        if served:
            issues += self.llm_problems()
        for key in ("run_tokens", "run_cost"):
            if getattr(self, key) and not served:
                issues.append(f"`{key}` is of a server's model, and none is asked; set `reader` or `answerer`: server")
        if self.run_cost and served and not (self.llm_input_price or self.llm_output_price):
            issues.append("`run_cost` needs `llm_input_price` or `llm_output_price`: without a price nothing costs")
        based = [n for n, r in recipes.items() if r.role(self) == "base_model" or r.answered_by_base(self)]
        if based and not self.base_model:
            issues.append("`base_model` is needed by " + ", ".join(based))
        return issues

    @model_validator(mode="after")
    def _choose_scheme(self) -> Self:
        """Set the scheme of the tuned pipeline that is to be run, if none is named."""
        schemes = {find_recipe(name).scheme for name in self.forms() if name in all_recipes()} - {""}
        self.scheme = self.scheme or (schemes.pop() if len(schemes) == 1 else "")
        return self

    def roles(self) -> list[ModelRole]:
        """The keys that name the models of the pipelines asked for."""
        recipes = [find_recipe(name) for name in self.forms() if name in all_recipes()]
        roles: set[ModelRole] = {role for recipe in recipes if (role := recipe.role(self))}
        if any(recipe.answered_by_base(self) for recipe in recipes):
            roles.add("base_model")
        return sorted(roles)

    def forms(self) -> list[str]:
        """The pipelines to run: `naive_rag`, `oracle` and `tuned_baselines` are several each."""
        return list(dict.fromkeys(form for name in self.pipelines for form in all_forms().get(name, (name,))))


class AnswerConfig(ReadingConfig):
    """Answer one question about one image, and show how: with the pipeline of the checkpoint's own scheme."""

    image: InputFile = setting("", "the image, a path", needed="")
    question: str = setting("", "the question", needed="")
    as_json: bool = setting(False, "print the whole trace as JSON")

    @cross_check
    def answer_problems(self) -> Iterator[str]:
        """Yield a problem if there is no checkpoint or nothing to find entries with."""
        if not self.model:
            yield "`model` is needed: a checkpoint that sft wrote"
        if not self.finds_entries:
            yield "`index` is needed, or `ranked_entities`"


class RecallConfig(IndexKeys):
    """Whose pictures or words to search for, in which index, and how."""

    dataset: str = setting("", "data set folder (questions, images, knowledge base)", needed="")
    splits: list[SplitName] = setting(["val_unseen_question", "val_unseen_entity"], "whose questions", needed="")
    title_weights: list[Share] = setting(
        [0.0, 0.25, 0.5, 0.75, 1.0], "weights of titles in an entry's score; eq. 3: 0.5", needed=""
    )
    text_weights: list[Share] = setting(
        [],
        "also search with the question's text, weighted so against titles, the rest image against image",
    )
    fusion: Fusion = setting(
        "scores", "text_weights: add up scores, or search one vector: their sum, or the encoder's own (features)"
    )
    text_index: str = setting("", "index of passages to search by the questions' words; see build_text_index")
    text_knowledge: str = setting("", "the knowledge base of that index; default: the data set's")
    overlap: bool = setting(False, "compare an approximate index with an exact search of its vectors, which is slow")
    depths: list[Annotated[int, Field(ge=1)]] = setting([1, 5, 10, 20, 50], "k of recall@k", needed="")
    limit: int | None = setting(None, "questions per split, drawn by seed; all if unset", ge=1)
    seed: Seed = setting(0, "of the draw, and of the intervals")
    output: OutputFile = setting("", "JSON file for the figures; they are printed in any case")
    device: Device = setting("auto", "where the encoder runs: cpu, cuda, or auto")

    @cross_check
    def search_problems(self) -> Iterator[str]:
        """Yield a problem if nothing finds entries."""
        if not self.finds_entries and not self.text_index:
            yield "`index` is needed, or `ranked_entities`, or `text_index`"
        if self.text_weights and not self.index:
            yield "`index` is needed by `text_weights`, which are of texts against titles in it"

    @cross_check
    def dataset_problems(self) -> Iterator[str]:
        """Yield a problem if the data set is missing."""
        if self.dataset and not Path(self.dataset, "dataset.json").is_file():
            yield f"`dataset`: {self.dataset} has no dataset.json; give a folder that build_world or convert wrote"

    @cross_check
    def text_index_problems(self) -> Iterator[str]:
        """Yield a problem if the index of passages or its knowledge base is missing."""
        for key, marker in (("text_index", "manifest.json"), ("text_knowledge", "kb.json")):
            if (folder := getattr(self, key)) and not Path(folder, marker).is_file():
                yield f"`{key}`: {folder} has no {marker}"
