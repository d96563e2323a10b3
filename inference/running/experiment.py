"""An evaluation from its config to its report: which pipelines run on which model, over which questions."""

from __future__ import annotations

import dataclasses
import functools
import gc
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reflectune.core.devices import find_device
from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.launching import launch_device, launch_processes, launch_state
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.config import SERVER, ModelRole
from reflectune.inference.operators.budget import Budget, outgrown
from reflectune.inference.operators.journal import Journal, remove_journal
from reflectune.inference.pipelines.diagnostics import DiagnosticPassages
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline, find_recipe, stages_for
from reflectune.inference.reading.collaborators import (
    open_engine,
    open_model,
    open_plain,
    open_reranker,
    open_retriever,
    require_models,
)
from reflectune.inference.report.page import write_report
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.facts import budgets, data_set_name, minutes, peak_gib, run_facts
from reflectune.inference.running.runner import run_pipeline
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.notices import ModelFacts, notices
from reflectune.inference.scoring.scores import Traces, TraceScorer, check_scorable
from reflectune.inference.trace import Trace
from reflectune.inference.trace_files.keeping import Reopen
from reflectune.models.remote.client import RemoteModel
from reflectune.retrieval.retrievers.text_retriever import TextRetriever, open_text_retriever
from reflectune.retrieval.web.server import ServedPages

Plan = dict[str, list[Question]]


def run(config: EvaluateConfig) -> dict[str, Any]:
    """Run all pipelines of a config, then write `metrics.json` and `report.html` into its output folder.

    Returns:
        The content of metrics.json; of all processes only the first one scores the answers, the others return {}.

    Raises:
        UserError: A question can't be answered or can't be scored, or the folder holds traces of other settings.
    """
    state = launch_state()
    dataset = Dataset(Path(config.dataset))
    questions = select(dataset, config.splits, config.limit, config.seed)
    metric, device = config.scored_by(config.dataset), launch_device(config.device)
    check_scorable(questions, metric)
    measure = TraceScorer(metric, config.open_bem(device) if state.is_main_process else None)
    planned = plan(config, questions)
    require_models(_models(config, planned))
    parts = PipelineParts(
        config=config,
        knowledge=dataset.knowledge,
        probes=DiagnosticPassages(dataset.root, dataset.manifest, dataset.knowledge, config.lead, config.seed),
        retriever=open_retriever(config, dataset.knowledge) if config.finds_entries else None,
        reranker=open_reranker(config) if any(find_recipe(name).reranks for name in planned) else None,
        texts=_open_texts(config, dataset, device) if any(_reads_texts(name, config) for name in planned) else None,
        text_knowledge=KnowledgeBase(config.text_knowledge) if config.text_knowledge else None,
    )
    with _remote(config, planned) as remote, _pages(config, planned) as pages:
        traces, models = _answer(config, dataset, dataclasses.replace(parts, remote=remote, pages=pages), planned)
    if not state.is_main_process:
        return {}
    metrics = {
        **evaluate(questions, traces, measure=measure, gamma=config.gamma, seed=config.seed),
        "budgets": budgets(config, planned),
        "minutes": minutes(traces),
        "peak_gib": peak_gib(Path(config.output)),
    }
    write_json(Path(config.output, "metrics.json"), metrics)
    write_report(
        Path(config.output, "report.html"),
        dataset=dataset,
        questions=questions,
        traces=traces,
        metrics=metrics,
        title=f"reflectune on {data_set_name(dataset)}",
        facts=run_facts(config, dataset, models),
        notices=notices(questions, traces, metrics, dataset.manifest, models, measure),
        measure=measure,
        gamma=config.gamma,
        most=config.report_questions,
        seed=config.seed,
    )
    return metrics


def select(dataset: Dataset, splits: Sequence[str], limit: int | None, seed: int) -> list[Question]:
    """The questions of the splits; of each at most `limit`, drawn at random.

    Raises:
        UserError: There is no question in them.
    """
    chosen: list[Question] = []
    for split in splits:
        questions = dataset.questions(split)
        if limit is not None and len(questions) > limit:
            questions = random.Random(f"{seed} {split}").sample(questions, limit)
        chosen += questions
    if not chosen:
        raise UserError(f"{dataset.root}: no questions in {', '.join(splits)}; name splits that the data set has")
    return chosen


def plan(config: EvaluateConfig, questions: Sequence[Question]) -> Plan:
    """The pipelines and stages to run, in order, each with the questions it takes; one that takes none is left out."""
    stages = {name: find_recipe(name) for name in stages_for(config.forms())}
    if config.text_index and not config.finds_entries:
        stages = {name: recipe for name, recipe in stages.items() if recipe.takes_texts or not recipe.retrieves}
    taken = {name: [question for question in questions if recipe.takes(question)] for name, recipe in stages.items()}
    return {name: pipeline_questions for name, pipeline_questions in taken.items() if pipeline_questions}


def describe(config: EvaluateConfig) -> str:
    """What a run would do, for `--dry_run`: it reads the questions, and loads no model."""
    dataset = Dataset(Path(config.dataset))
    questions = select(dataset, config.splits, config.limit, config.seed)
    require_models(_models(config, plan(config, questions)))
    find_device(config.device)
    lines = [f"{len(questions)} questions of {', '.join(config.splits)} in {config.dataset}, scored by "]
    lines[0] += config.scored_by(config.dataset)
    for name, pipeline_questions in plan(config, questions).items():
        role = find_recipe(name).role(config)
        reader = f" with {role} {getattr(config, role)}" if role else ""
        reader += f", answers by base_model {config.base_model}" if find_recipe(name).answered_by_base(config) else ""
        answerer = find_recipe(name).answerer(config)
        reader += f", answers by answerer {answerer}" if answerer else ""
        lines.append(f"  {name}: {len(pipeline_questions)} questions in batches of {config.batch_questions}{reader}")
    lines.append(f"into {config.output}: traces/, metrics.json, report.html")
    return "\n".join(lines)


def _models(config: EvaluateConfig, planned: Plan) -> list[str]:
    """The names of the models that the planned pipelines read with."""
    recipes = [find_recipe(name) for name in planned]
    named = [str(getattr(config, role)) for recipe in recipes if (role := recipe.role(config))]
    named += [config.base_model for recipe in recipes if recipe.answered_by_base(config)]
    return [*named, *filter(None, (recipe.second_model(config) for recipe in recipes))]


def _answer(
    config: EvaluateConfig, dataset: Dataset, parts: PipelineParts, planned: Plan
) -> tuple[Traces, list[ModelFacts]]:
    """Run what is planned, model by model, so that only those are in memory that are needed at once."""
    traces: dict[str, Mapping[str, Trace]] = {}
    models: list[ModelFacts] = []
    base_stays = any(find_recipe(name).answered_by_base(config) for name in planned)
    for role in (None, "base_model", "plain_model", "model"):
        names = [name for name in planned if find_recipe(name).role(config) == role]
        if not names and not (role == "base_model" and base_stays):
            continue
        ready = parts
        if role:
            ready, facts = _with_model(config, parts, role)
            models.append(facts)
        if role == "base_model" and base_stays:
            parts = dataclasses.replace(parts, base=ready.engine)
        if any(find_recipe(name).second_model(config) for name in names):
            ready, facts = _with_answerer(config, ready)
            models.append(facts)
        for name in names:
            determined = _fingerprint(name, config, dataset, models, ready)
            with open_journal(config, name, determined, traces) as journal:
                traces[name] = run_pipeline(
                    name,
                    functools.partial(build_pipeline, name, dataclasses.replace(ready, journal=journal)),
                    planned[name],
                    image_root=dataset.root,
                    folder=Path(config.output, "traces"),
                    fingerprint=determined,
                    batch_questions=config.batch_questions,
                    on_error=config.on_error,
                    form=config.traces,
                    reopen=_outgrown_by(config) if find_recipe(name).is_iterative else None,
                )
        del ready
        gc.collect()
    return {name: traces[name] for name in planned}, models


def _outgrown_by(config: EvaluateConfig) -> Reopen:
    """Whether a trajectory that a budget ended would go on with this config's."""
    return functools.partial(outgrown, now=Budget.of(config, None).limits)


@contextmanager
def open_journal(
    config: EvaluateConfig, name: str, determined: str, traces: Mapping[str, Mapping[str, Trace]]
) -> Iterator[Journal | None]:
    """The journal of an iterative pipeline, which is deleted when all its questions have been answered.

    It stays where a budget has ended trajectories, which a higher one goes on with.
    """
    if not find_recipe(name).is_iterative:
        yield None
        return
    launch, folder = launch_processes(), Path(config.output, "traces", "journal")
    with Journal(folder, name, determined, launch.index, Budget.of(config, None).limits) as journal:
        yield journal
    launch.wait()
    if launch.index == 0 and not any(trace.limit for trace in traces[name].values()):
        remove_journal(folder, name)
    launch.wait()  # nobody opens the next one in the folder while it is removed


def _reads_texts(name: str, config: EvaluateConfig) -> bool:
    """Whether a pipeline searches the index of passages."""
    recipe = find_recipe(name)
    return recipe.searches_text or (recipe.is_iterative and bool(config.text_index))


def _with_model(config: EvaluateConfig, parts: PipelineParts, role: ModelRole) -> tuple[PipelineParts, ModelFacts]:
    """The parts with an engine for a newly loaded model, and what a report says of that model."""
    loaded = open_model(config, role)
    facts = ModelFacts(role, loaded.name, loaded.fingerprint, loaded.model.num_parameters())
    return dataclasses.replace(parts, engine=open_engine(config, loaded)), facts


def _with_answerer(config: EvaluateConfig, parts: PipelineParts) -> tuple[PipelineParts, ModelFacts]:
    """The parts with an engine for the second model, and what a report says of it."""
    loaded = open_plain(config, config.answerer)
    facts = ModelFacts("answerer", loaded.name, loaded.fingerprint, loaded.model.num_parameters())
    return dataclasses.replace(parts, answerer=open_engine(config, loaded)), facts


def _fingerprint(
    name: str, config: EvaluateConfig, dataset: Dataset, models: Sequence[ModelFacts], parts: PipelineParts
) -> str:
    """Hash of everything that a pipeline's traces depend on; how many questions are asked is not part of it."""
    recipe = find_recipe(name)
    finds_entries = recipe.retrieves and config.finds_entries
    hashes = {model.role: model.fingerprint for model in models}
    settings = ("batch_questions", "lead", *recipe.settings)
    role = recipe.role(config)
    if role or recipe.is_iterative:
        settings += ("max_new_tokens",)
    if role or recipe.second_model(config):
        settings += ("token_budget", "dtype")
    if recipe.is_iterative:
        settings += ("reader",)
    return fingerprint(
        {
            "pipeline": name,
            "dataset": dataset.fingerprint,
            "index": config.finder_fingerprint() if finds_entries else None,
            **({"title_weight": config.title_weight} if finds_entries else {}),
            **({"summary_share": config.summary_share} if finds_entries and config.summary_share else {}),
            **({"fusion": config.fusion} if recipe.is_iterative and config.fusion != "scores" else {}),
            **(
                {"text_index": file_fingerprint(Path(config.text_index, "manifest.json"))}
                if _reads_texts(name, config)
                else {}
            ),
            "model": hashes[role] if role else None,
            **({"server": _server(config)} if recipe.asks_server(config) else {}),
            **({"reranker": parts.reranker.fingerprint} if parts.reranker and recipe.reranks else {}),
            **({"base_model": hashes["base_model"]} if recipe.answered_by_base(config) else {}),
            **({"answerer": hashes.get("answerer", SERVER)} if recipe.answerer(config) else {}),
            "settings": {
                **config.as_used({name: getattr(config, name) for name in settings}),
                **recipe.varied_from(config),
            },
        }
    )


def _server(config: EvaluateConfig) -> Any:
    """What a server's replies depend on, as far as this side knows."""
    endpoint = config.endpoint()
    return endpoint.shown_url, endpoint.request([])


@contextmanager
def _remote(config: EvaluateConfig, planned: Iterable[str]) -> Iterator[RemoteModel | None]:
    """The server's model, if a pipeline asks it; every reply is kept in a file of this process."""
    if not any(find_recipe(name).asks_server(config) for name in planned):
        yield None
        return
    with RemoteModel(config.endpoint(), _own(Path(config.llm_cache or Path(config.output, "replies.jsonl")))) as model:
        yield model
    print(model.summary())


@contextmanager
def _pages(config: EvaluateConfig, planned: Iterable[str]) -> Iterator[ServedPages | None]:
    """The search server, if one is named and a pipeline asks it; what it finds is kept in a file of this process."""
    if not config.web_url or not any(find_recipe(name).searches_web for name in planned):
        yield None
        return
    with ServedPages(config.web_endpoint(), _own(Path(config.output, "pages.jsonl"))) as pages:
        yield pages


def _own(path: Path) -> Path:
    """This process's file of replies."""
    index = launch_processes().index
    return path if index == 0 else path.with_suffix(f".{index}{path.suffix}")


def _open_texts(config: EvaluateConfig, dataset: Dataset, device: str) -> TextRetriever:
    """The retriever over the config's index of passages."""
    kb = KnowledgeBase(config.text_knowledge) if config.text_knowledge else dataset.knowledge
    return open_text_retriever(config.text_index, kb, device=device)
