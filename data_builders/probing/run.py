"""Probe a data set with a model: windows of questions shared by the processes, answered in fixed batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.launching import launch_processes
from reflectune.core.resumable import run_batches
from reflectune.core.rows import to_row
from reflectune.core.types import Question
from reflectune.data_builders.probing.config import (
    SCHEME,
    DocumentSettings,
    GenerationSettings,
    ProbeConfig,
    WorkerSettings,
)
from reflectune.data_builders.probing.documents import DocumentSource
from reflectune.data_builders.probing.labels import Rule
from reflectune.data_builders.probing.questions import count_free_form, select_questions
from reflectune.data_builders.probing.statistics import probe_statistics, probe_table
from reflectune.data_builders.probing.store import answered, begin, seal, stream_probes
from reflectune.data_builders.probing.worker import ProbeWorker
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import read_manifest, stream_ids
from reflectune.metrics.judging.bem import Bem
from reflectune.metrics.scoring.registry import Metric, find_metric
from reflectune.models.loading import Loaded, load
from reflectune.models.names import recorded_encoder
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.rerankers.loading import open_reranker
from reflectune.retrieval.retrievers.entry_retriever import open_retriever


def run(config: ProbeConfig) -> None:
    """Probe a split; a dry run shows one prompt and writes nothing.

    Questions are divided into windows, which the processes share. In a window, questions are sorted by length and
    divided into batches. A batch always has the same questions, so that an interrupted run, or one on a different
    number of processes, gives the same probes. At the end the first process sorts the probes into Parquet files.

    Raises:
        UserError: A question is bad and `on_error` is `stop`, or the folder holds probes of different settings.
    """
    processes = launch_processes("" if config.dry_run else config.output)
    dataset = Dataset(Path(config.dataset), config.part)
    bem, metric = config.open_bem(config.device), config.scored_by(config.dataset)
    questions = select_questions(
        dataset,
        config.split,
        visual=config.visual,
        limit=config.limit,
        seed=config.seed,
        without=set(stream_ids(config.trained_on, config.split)) if config.trained_on else (),
        without_facts=config.leave_out_facts,
    )
    loaded = load(
        config.model,
        scheme=SCHEME,
        dtype=config.precision,
        device=config.device,
        images=config.image_settings(),
        device_map=config.device_map,
    )
    generation, batches = GenerationSettings.of(config), WorkerSettings.of(config)
    reranker = open_reranker(config, device=config.device) if config.documents_by == "reranker" else None
    source = _document_source(config, dataset, reranker)
    worker = ProbeWorker(dataset, source, loaded, find_metric(metric, bem), generation, batches)
    if config.dry_run:
        if processes.index == 0:
            print(f"{len(questions):,} questions of {config.split} in {config.dataset}, scored by {metric}")
            print(preview(worker, questions[:1]))
        return
    with processes.main_process_first():
        logs = begin(config.output, settings(config, dataset, loaded, metric, bem, reranker))
    done = answered(config.output)

    with worker.images:
        run_batches(
            [questions[start : start + config.window] for start in range(0, len(questions), config.window)],
            lambda window: answer(worker, window, done),
            logs,
            done,
            merge=lambda: _finish(config, dataset, loaded.name),
            processes=processes,
            desc="probing",
            ahead=worker.images.begin,
        )


def _finish(config: ProbeConfig, dataset: Dataset, model: str) -> None:
    """Sort the probes into Parquet files, and print their statistics."""
    name = str(dataset.manifest.get("name", dataset.root.resolve().name))
    about = {"model": model, "dataset": name, "encoder": recorded_encoder(config.index), "limit": config.limit}
    print(f"{seal(config.output, about):,} questions probed: {config.output}")
    if free_form := count_free_form(dataset, config.split, visual=config.visual):
        print(f"{free_form:,} free-form questions left out: no metric can score an answer in sentences")
    print(probe_table(probe_statistics(stream_probes(config.output), Rule())))


def answer(
    worker: ProbeWorker, window: Sequence[Question], done: Collection[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a window's questions with their ids, without finished batches."""
    ready, bad = worker.prepare(window)
    yield from ((probe.question_id, to_row(probe)) for probe in bad)
    for batch in worker.batches(ready):
        if any(prepared.question.id not in done for prepared in batch):
            yield from ((probe.question_id, to_row(probe)) for probe in worker.probe(batch))


def settings(
    config: ProbeConfig,
    dataset: Dataset,
    loaded: Loaded,
    metric: Metric,
    bem: Bem | None,
    reranker: Reranker | None = None,
) -> dict[str, Any]:
    """Return everything that determines a probe, by name."""
    return {
        **config.hashed(),
        "model": loaded.fingerprint,
        "prompts": loaded.renderer.fingerprint,
        "dataset": dataset.fingerprint,
        "questions": dataset.split_fingerprint(config.split),
        "knowledge": dataset.knowledge.fingerprint,
        "reranker": reranker.fingerprint if reranker else None,
        "index": config.finder_fingerprint() if config.documents_of == "retrieved" else None,
        "trained_on": read_manifest(config.trained_on).fingerprints[config.split] if config.trained_on else None,
        "metric": f"{metric} (BEM {bem.fingerprint})" if bem else metric,
    }


def preview(worker: ProbeWorker, questions: Sequence[Question]) -> str:
    """Return the model's input for questions, or the reasons why they can't be asked."""
    ready, bad = worker.prepare(questions)
    lines = [f"{probe.question_id} can't be asked: {probe.problem}" for probe in bad]
    lines += [text for prepared in ready for text in [f"{prepared.question.id}:", *worker.shown(prepared)]]
    return "\n".join(lines)


def _document_source(config: ProbeConfig, dataset: Dataset, reranker: Reranker | None) -> DocumentSource:
    retriever = None
    if config.documents_of == "retrieved":
        retriever = open_retriever(config, dataset.knowledge, image_roots=dataset.image_roots, device=config.device)
    return DocumentSource(dataset.knowledge, retriever, DocumentSettings.of(config), config.seed, reranker)
