"""Probe a data set with a model: windows of questions shared by the processes, answered in fixed batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from reflectune.core.resumable import launch_device, launch_processes, run_batches
from reflectune.core.rows import to_row
from reflectune.core.types import Question
from reflectune.data_builders.probing.config import SCHEME, ProbeConfig
from reflectune.data_builders.probing.documents import document_source
from reflectune.data_builders.probing.labels import Rule
from reflectune.data_builders.probing.questions import count_free_form, select_questions
from reflectune.data_builders.probing.statistics import probe_statistics, probe_table
from reflectune.data_builders.probing.store import answered, begin, seal, stream_probes
from reflectune.data_builders.probing.worker import ProbeWorker
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import read_manifest, stream_ids
from reflectune.metrics.judging.bem import Bem
from reflectune.models.loading import Loaded, load

_DECIDES: Final = (
    *("split", "top_n", "documents", "lead", "metric", "max_new_tokens", "samples", "temperature", "gold", "summary"),
    *("max_summary_tokens", "visual", "seed", "window", "batch_questions", "token_budget", "dtype"),
)
"""Settings that decide what is found. `limit` is not one: a higher one adds to the same questions."""


def run(config: ProbeConfig) -> None:
    """Probe as the config says; a dry run shows one prompt and writes nothing.

    Questions are cut into windows, which all processes share. Within a window questions are sorted by length and cut
    into batches; a batch is always run whole and in the same company, so that an interrupted run, or one on another
    number of processes, finds the same. When all are done the first process sorts the probes into Parquet files.

    Raises:
        UserError: A question is bad (and `on_error` is stop), or the folder holds probes of other settings.
    """
    processes, device = launch_processes(), launch_device(config.device)
    dataset = Dataset(Path(config.dataset), config.part)
    bem = config.open_bem(device)
    config.metric = config.scored_by(config.dataset)
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
        dtype=config.dtype,
        device=device,
        images=config.image_settings(),
        device_map=config.device_map,
    )
    worker = ProbeWorker(dataset, document_source(config, dataset, device), loaded, config, bem)
    if config.dry_run:
        if processes.index == 0:
            print(describe(worker, questions, config))
        return
    logs = begin(config.output, settings(config, dataset, loaded, bem))
    done = answered(config.output)

    def finish() -> None:
        count = seal(config.output, about(config, dataset, loaded))
        print(f"{count:,} questions probed: {config.output}")
        if free_form := count_free_form(dataset, config.split, visual=config.visual):
            print(f"{free_form:,} free-form questions left out: whether a sentence is right, no metric can tell")
        print(probe_table(probe_statistics(stream_probes(config.output), Rule())))

    run_batches(
        [questions[start : start + config.window] for start in range(0, len(questions), config.window)],
        lambda window: answer(worker, window, done),
        logs,
        done,
        merge=finish,
        processes=processes,
        desc="probing",
    )


def answer(
    worker: ProbeWorker, window: Sequence[Question], done: Collection[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a window's questions by id, as they come; batches that are done are left out."""
    ready, bad = worker.prepare(window)
    yield from ((probe.question_id, to_row(probe)) for probe in bad)
    for batch in worker.batches(ready):
        if any(prepared.question.id not in done for prepared in batch):
            yield from ((probe.question_id, to_row(probe)) for probe in worker.probe(batch))


def settings(config: ProbeConfig, dataset: Dataset, loaded: Loaded, bem: Bem | None = None) -> dict[str, Any]:
    """Everything that determines a probe, by name; the config's metric is settled."""
    return {
        "model": loaded.fingerprint,
        "prompts": loaded.renderer.fingerprint,
        "dataset": dataset.fingerprint,
        "knowledge": dataset.knowledge.fingerprint,
        "index": config.finder_fingerprint() if config.documents_of == "retrieved" else None,
        **{name: getattr(config, name) for name in _DECIDES},
        "part": config.part or None,  # probes that are older than a key have none
        "documents_of": None if config.documents_of == "retrieved" else config.documents_of,
        "documents_random": config.documents_random or None,
        "trained_on": read_manifest(config.trained_on).fingerprints[config.split] if config.trained_on else None,
        "leave_out_facts": config.leave_out_facts or None,
        "title_weight": None if config.title_weight == 0.5 else config.title_weight,
        "summary_share": config.summary_share or None,
        **({"metric": f"{config.metric} (BEM {bem.fingerprint})"} if bem else {}),
    }


def about(config: ProbeConfig, dataset: Dataset, loaded: Loaded) -> dict[str, Any]:
    """What to remember of probes beside what determines them."""
    name = str(dataset.manifest.get("name", dataset.root.resolve().name))
    return {"model": loaded.name, "dataset": name, "encoder": config.encoder, "limit": config.limit}


def describe(worker: ProbeWorker, questions: Sequence[Question], config: ProbeConfig) -> str:
    """How much there is to ask, and what the model would read of the first question."""
    ready, bad = worker.prepare(questions[:1])
    lines = [
        f"{len(questions):,} questions of {config.split} in {config.dataset}, each alone and with up to "
        f"{config.documents} documents, scored by {config.metric}",
        *(f"{probe.question_id} can't be asked: {probe.problem}" for probe in bad),
        *(text for prepared in ready for text in [f"{prepared.question.id}:", *worker.shown(prepared)]),
    ]
    return "\n".join(lines)
