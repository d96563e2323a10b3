"""What is told of an evaluation beside its scores: what it was of, its budgets, its minutes and its memory."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from reflectune.core.durable import read_json
from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines.iterative import PAPER_BUDGETS
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.scoring.notices import ModelFacts
from reflectune.inference.scoring.scores import Traces


def run_facts(config: EvaluateConfig, dataset: Dataset, models: Sequence[ModelFacts]) -> Mapping[str, str]:
    """Name and value of everything that determined the run, as its report shows them."""
    roles = {"model": "fine-tuned model", "plain_model": "model fine-tuned without reflection", "answerer": "answerer"}
    named = {roles.get(model.role, "base model"): str(model) for model in models}
    index = {}
    if config.index:
        index = {"index": f"{config.index}, manifest {config.finder_fingerprint()}", "encoder": config.encoder}
    if config.ranked_entities:
        index = {"ranked entities": f"{config.ranked_entities}, fingerprint {config.finder_fingerprint()}"}
    return {
        "data set": f"{data_set_name(dataset)}, {dataset.root}, fingerprint {dataset.fingerprint}",
        "metric": config.scored_by(config.dataset) + (f", BEM {config.bem}" if config.bem else ""),
        "splits": ", ".join(config.splits) + (f", at most {config.limit} questions of each" if config.limit else ""),
        "knowledge base": f"{len(dataset.knowledge)} entries, fingerprint {dataset.knowledge.fingerprint}",
        **index,
        **({"text index": f"{config.text_index}, the best {config.passages} passages"} if config.text_index else {}),
        **named,
        "reranker": f"{config.reranker} {config.reranker_model}, the best {config.passages} passages",
        "retriever": (_weights(config) if config.index else "")
        + f"top_n {config.top_n}"
        + (f", S_ret by softmax / {config.s_ret_temperature:g}" if config.s_ret_temperature else ""),
        "settings": f"γ {config.gamma:g}, fallback {config.fallback}, lead {config.lead}, "
        f"scheme {config.scheme}, max_new_tokens {config.max_new_tokens}, batch_questions {config.batch_questions}",
        **({"MMKB-RAG": _reflection(config)} if any(find_recipe(n).base_answers for n in config.forms()) else {}),
        **({"iterative": _iterative(config)} if any(find_recipe(n).is_iterative for n in config.forms()) else {}),
        "seed": str(config.seed),
        "output": config.output,
    }


def budgets(config: EvaluateConfig, planned: Iterable[str]) -> dict[str, dict[str, float]]:
    """How far MI-RAG and PMSR may go, and how much they may read, by pipeline and key; 0 of a base that isn't there."""
    values = {key: getattr(config, key) for key in PAPER_BUDGETS}
    absent = {"text_passages": not config.text_index, "pair_passages": not config.finds_entries}
    values |= {key: 0 for key, is_absent in absent.items() if is_absent}
    recipes = {name: find_recipe(name) for name in planned}
    bounded = (name for name, each in recipes.items() if "iterations" in each.settings and not each.searches_web)
    return {name: dict(values) for name in bounded}


def minutes(traces: Traces) -> dict[str, float]:
    """Minutes that each pipeline or stage spent answering, all processes and interrupted runs together."""
    spent = {
        f"evaluate/{name}": sum(sum(trace.seconds.values()) for trace in pipeline_traces.values()) / 60
        for name, pipeline_traces in traces.items()
    }
    return {name: round(value, 5) for name, value in {"evaluate": sum(spent.values()), **spent}.items()}


def peak_gib(output: Path) -> float:
    """The highest memory that any run into this folder has needed on the main process, in GiB."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # ru_maxrss is in KiB on Linux
    before = output / "metrics.json"
    earlier = read_json(before, "the earlier metrics").get("peak_gib", 0.0) if before.exists() else 0.0
    return round(max(used, earlier), 2)


def data_set_name(dataset: Dataset) -> str:
    """What a data set is called: by its manifest, else by its folder."""
    return str(dataset.manifest.get("name", dataset.root.resolve().name))


def _weights(config: EvaluateConfig) -> str:
    """How an index of entries is searched, in words."""
    summaries = f"summary_share {config.summary_share:g}, " if config.summary_share else ""
    return f"title_weight {config.title_weight:g}, {summaries}"


def _iterative(config: EvaluateConfig) -> str:
    """The settings of iterative pipelines in words."""
    server = f"; server {config.endpoint().shown_url}, {config.llm_model}" if config.llm_url else ""
    fusion = f", fusion {config.fusion}" if config.fusion != "scores" else ""
    answerer = config.answerer or config.reader
    return (
        f"at most {config.iterations} iterations after the first, {config.text_passages} passages and "
        f"{config.pair_passages} pairs each, λ {config.text_weight:g}{fusion}, τ {config.saturation:g}, records of "
        f"at most {config.max_record_tokens} tokens; reader {config.reader}, answerer {answerer}{server}"
    )


def _reflection(config: EvaluateConfig) -> str:
    """MMKB-RAG's settings in words."""
    kept = f"those that reach {config.threshold:g}" if config.srt else "5"
    return (
        f"documents {config.documents}, RET {'on' if config.ret else 'off'}, SRT {'on' if config.srt else 'off'}, "
        f"k {config.k}{'' if config.k else f' ({kept})'}, MCT {config.mct}, answers by the {config.answer_model} model"
    )
