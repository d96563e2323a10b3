"""Facts of an evaluation in addition to its scores: its data, models, settings, budgets, minutes and memory."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.config import Settings
from reflectune.core.durable import read_json
from reflectune.core.secrets import shown_url
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelSettings, TextIndexSettings
from reflectune.inference.pipelines.iterative import PAPER_BUDGETS
from reflectune.inference.pipelines.mi_rag import RecordSettings
from reflectune.inference.pipelines.recipe import ModelUse, PipelineParts
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.pipelines.requirements import RoleSettings
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.scoring.notices import ModelFacts
from reflectune.inference.scoring.scores import Traces
from reflectune.models.names import recorded_encoder
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.config import RerankerConfig


def run_facts(
    config: EvaluateConfig, dataset: Dataset, models: Sequence[ModelFacts], settings: Mapping[str, Settings]
) -> Mapping[str, str]:
    """Return the name and value of everything that determined a run, for its report.

    Args:
        models: The models that were loaded.
        settings: The settings of the pipelines and stages, by name.
    """
    texts = TextIndexSettings.of(config)
    return {
        "data set": f"{data_set_name(dataset)}, {dataset.root}, fingerprint {dataset.fingerprint}",
        "metric": config.scored_by(config.dataset) + (f", BEM {config.bem}" if config.bem else ""),
        "splits": ", ".join(config.splits)
        + (f", at most {config.limit} questions of each" if config.limit else "")
        + (f", without those that limits {', '.join(map(str, config.skip))} draw" if config.skip else ""),
        "knowledge base": f"{len(dataset.knowledge)} entries, fingerprint {dataset.knowledge.fingerprint}",
        **_retriever_facts(RetrieverConfig.of(config)),
        "text index": texts.text_index or "none",
        **_model_facts(models),
        **_server_facts(ModelSettings.of(config)),
        **_part_facts(config, settings),
        "batches": f"{config.batch_questions} questions",
        **_settings_facts(settings),
        "seed": str(config.seed),
        "output": config.output,
    }


def reader_facts(
    uses: Mapping[str, ModelUse], models: ModelSettings, loaded: Sequence[ModelFacts]
) -> dict[str, dict[str, Any]]:
    """Return for each tuned baseline its checkpoint, the contexts that it reads, and those it was tuned on.

    `tuned_on` is empty if the checkpoint doesn't record it, and `as_tuned` is None then.
    """
    contexts = {model.name: model.tuned_on for model in loaded if model.role == "plain_model"}
    facts = {}
    for name, use in uses.items():
        if use.reader == "plain_model":
            checkpoint = use.checkpoint(models)
            forms = contexts[checkpoint]
            as_tuned = use.reads in forms or (use.reads == "passage" and "gold" in forms) if forms else None
            facts[name] = {"model": checkpoint, "reads": use.reads, "tuned_on": [*forms], "as_tuned": as_tuned}
    return facts


def budgets(settings: Mapping[str, Settings], parts: PipelineParts) -> dict[str, dict[str, float]]:
    """Return the budgets of MI-RAG and PMSR by pipeline and key; 0 for a knowledge base that doesn't exist."""
    absent = {"text_passages": parts.texts is None, "pair_passages": parts.retriever is None}
    return {
        name: {key: 0 if absent.get(key) else getattr(pipeline_settings, key) for key in PAPER_BUDGETS}
        for name, pipeline_settings in settings.items()
        if isinstance(pipeline_settings, RecordSettings) and not find_recipe(name).needs("pages")
    }


def minutes(traces: Traces) -> dict[str, float]:
    """Return the minutes that each pipeline or stage spent, summed over processes and interrupted runs."""
    spent = {
        f"evaluate/{name}": sum(sum(trace.seconds.values()) for trace in pipeline_traces.values()) / 60
        for name, pipeline_traces in traces.items()
    }
    return {name: round(value, 5) for name, value in {"evaluate": sum(spent.values()), **spent}.items()}


def peak_gib(output: Path) -> float:
    """Return the peak memory of any run into this folder on the main process, in GiB."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # ru_maxrss is in KiB on Linux
    before = output / "metrics.json"
    earlier = read_json(before, "the earlier metrics").get("peak_gib", 0.0) if before.exists() else 0.0
    return round(max(used, earlier), 2)


def data_set_name(dataset: Dataset) -> str:
    """Return a data set's name, from its manifest or its folder."""
    return str(dataset.manifest.get("name", dataset.root.resolve().name))


def _model_facts(models: Sequence[ModelFacts]) -> Mapping[str, str]:
    roles = {"model": "fine-tuned model", "plain_model": "model fine-tuned without reflection", "answerer": "answerer"}
    names: dict[str, list[str]] = {}
    for model in models:
        contexts = f", tuned on {', '.join(model.tuned_on)}" if model.tuned_on else ""
        names.setdefault(roles.get(model.role, "base model"), []).append(f"{model}{contexts}")
    return {role: "; ".join(texts) for role, texts in names.items()}


def _server_facts(models: ModelSettings) -> Mapping[str, str]:
    """Return the servers that have the models' weights."""
    servers = {"": models.server} if isinstance(models.server, str) else models.server
    shown = [f"{name} {shown_url(url)}".strip() for name, url in servers.items() if url]
    return {"server": ", ".join(shown)} if shown else {}


def _retriever_facts(retriever: RetrieverConfig) -> Mapping[str, str]:
    if retriever.ranked_entities:
        found = f"{retriever.ranked_entities}, fingerprint {retriever.finder_fingerprint()}"
        return {"ranked entities": found}
    if not retriever.index:
        return {}
    summaries = f", summary_share {retriever.summary_share:g}" if retriever.summary_share else ""
    return {
        "index": f"{retriever.index}, manifest {retriever.finder_fingerprint()}",
        "encoder": recorded_encoder(retriever.index),
        "retriever": f"title_weight {retriever.title_weight:g}{summaries}",
    }


def _part_facts(config: Settings, settings: Mapping[str, Settings]) -> Mapping[str, str]:
    """Return the reranker and the models of iterative pipelines, if a pipeline uses them."""
    recipes = [find_recipe(name) for name in settings]
    facts: dict[str, str] = {}
    if any(recipe.needs("reranker") for recipe in recipes):
        reranker = RerankerConfig.of(config)
        facts["reranker"] = f"{reranker.reranker} {reranker.reranker_model}".strip()
    if any(recipe.is_iterative for recipe in recipes):
        roles, remote = RoleSettings.of(config), RemoteConfig.of(config)
        server = f"; server {remote.endpoint().shown_url}, {remote.llm_model}" if remote.llm_url else ""
        steps = "".join(f", {step} by {name}" for step, name in roles.step_models.items())
        facts["iterative"] = f"reader {roles.reader}, answerer {roles.answerer or roles.reader}{server}{steps}"
    return facts


def _settings_facts(settings: Mapping[str, Settings]) -> Mapping[str, str]:
    """Return the settings of pipelines by their names; pipelines with equal settings share a row."""
    names: dict[str, list[str]] = {}
    for name, pipeline_settings in settings.items():
        values = ", ".join(f"{key} {_in_words(value)}" for key, value in pipeline_settings.model_dump().items())
        names.setdefault(values, []).append(name)
    return {", ".join(used_by): values for values, used_by in names.items()}


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"
