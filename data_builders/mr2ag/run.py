"""Builds a split of mR²AG-IT: questions and articles in, training examples out; goes on where it stopped."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.resumable import ALONE, Logs, Processes, Row, join_launch, run_chunks
from reflectune.core.types import Question
from reflectune.data_builders.annotators.choice import opened
from reflectune.data_builders.annotators.llm import PROMPT_HASH, LlmAnnotator
from reflectune.data_builders.annotators.protocol import Annotator
from reflectune.data_builders.annotators.string import by_string
from reflectune.data_builders.mr2ag.asking import ask_by_batch, estimate
from reflectune.data_builders.mr2ag.builder import BLANK_SIDE, Batch, ExampleBuilder
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.proofread import page_article
from reflectune.data_builders.mr2ag.selection import image_roots, select_questions, visual_beside
from reflectune.data_builders.mr2ag.statistics import STATISTICS, statistics, summary
from reflectune.data_builders.proofreading.page import write_page
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import (
    MANIFEST,
    Manifest,
    read_manifest,
    write_examples,
    write_manifest,
)
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.retrieval.retrievers.entry_retriever import Retriever, open_retriever

CHUNK = 64
"""Pictures that are searched for, and questions that are annotated, and written to the log together."""


def run(config: BuildConfig) -> None:
    """Build as the config says; a dry run shows one example, asks no server and writes nothing.

    The processes of a launch share the pictures that are searched for, and the questions that are annotated; the first
    one alone asks a server.
    """
    processes, device = join_launch(config.device)
    dataset = Dataset(Path(config.dataset), config.part)
    retriever = None
    if config.negatives_retrieved:
        retriever = open_retriever(config, dataset.knowledge, image_roots=dataset.image_roots, device=device)
    if config.dry_run:
        if processes.index == 0:
            print(preview(dataset, retriever, config))
        return
    if processes.index and config.annotator == "llm":
        build_split(dataset, retriever, None, config, processes)
        return
    with opened(config.annotator, config, replies_file(config)) as annotate:
        build_split(dataset, retriever, annotate, config, processes)
        if isinstance(annotate, LlmAnnotator) and not config.llm_batch:
            print(annotate.model.summary())


def replies_file(config: BuildConfig) -> Path:
    """Where the replies to the annotator `llm` are kept, however they came."""
    return Path(config.llm_cache or Path(config.output, "llm_replies.jsonl"))


def build_split(
    dataset: Dataset,
    retriever: Retriever | None,
    annotate: Annotator | None,
    config: BuildConfig,
    processes: Processes = ALONE,
) -> None:
    """Write `{split}.parquet`, its page for proof-reading, and its part of the manifest and of `statistics.json`.

    However many processes there are, a picture is searched for once, and the files have the same bytes.

    Args:
        dataset: Questions, images and knowledge base.
        retriever: For hard negatives; None if the config asks for none.
        annotate: Tells evidence; None in a process that only helps with the search.
        config: What to build.
        processes: Of the launch.

    Raises:
        UserError: A row is bad and `on_error` is stop, or no question gave an example.
    """
    output = Path(config.output)
    target = output / f"{config.split}.parquet"
    index = config.finder_fingerprint() if retriever is not None else ""
    elsewhere = [Dataset(Path(config.visual_dataset)).fingerprint] if config.visual_dataset else []
    prompt_hashes = [PROMPT_HASH] if config.annotator == "llm" else []
    key = fingerprint([config.what_decides(), dataset.fingerprint, index, *elsewhere, *prompt_hashes])
    is_first = processes.index == 0
    if is_built(output, dataset, config.split, key):
        if is_first:
            print(f"nothing to do: {target} is built")
        return
    knowledge, visual = select_questions(dataset, config)
    builder = ExampleBuilder(dataset, retriever, annotate or by_string, config)
    if config.without_image == "blank" and is_first:
        _write_blank(output)
    _search_logged(builder, knowledge, Logs(output, f".{config.split}.{key}.hits.*.jsonl", key), processes)
    if annotate is None:
        return
    if isinstance(annotate, LlmAnnotator):
        if config.llm_batch:
            if not ask_by_batch(dataset, knowledge, config, annotate.model):
                return
        else:
            asked = estimate(builder, knowledge, config, replies_file(config))
            print(asked.told(config.endpoint()) if asked.requests else "every reply is kept: nothing is asked")
    sharing = ALONE if config.annotator == "llm" else processes
    whole = _build_logged(builder, knowledge, Logs(output, f".{config.split}.{key}.examples.*.jsonl", key), sharing)
    if not is_first:
        return
    visual_wanted = len(visual) if config.visual_ratio == 1 else visual_beside(len(whole.examples), config)
    seen = builder.visual(visual, visual_wanted)
    whole.examples += seen.examples
    whole.rejected += seen.rejected
    numbers = statistics(whole, knowledge, visual_wanted) | {"annotator": _described(annotate, config)}
    if not whole.examples:
        reasons = "; ".join(f"{count} × {reason}" for reason, count in numbers["questions_left_out"].items())
        if bad := numbers["bad_rows"]:
            first = f"{len(bad):,} bad rows, the first: question {bad[0]['id']}: {bad[0]['reason']}"
            reasons = f"{reasons}; {first}" if reasons else first
        raise UserError(
            f"no question of split {config.split} of {dataset.root} gave an example: {reasons or 'none there'}"
        )
    write_examples(target, whole.examples, ReflectionExample)
    if config.proofread:
        page = output / f"proofread_{config.split}.html"
        roots = image_roots(dataset, config)
        title = f"{config.split} of {dataset.root.name}"
        write_page(page, whole.examples, page_article, roots, title, count=config.proofread)
    _record(config, dataset, key, numbers)
    for log_path in output.glob(f".{config.split}.*.jsonl"):  # this build's, and those of builds that were given up
        log_path.unlink()
    print(summary(target, numbers))


def preview(dataset: Dataset, retriever: Retriever | None, config: BuildConfig) -> str:
    """How much there is to build, and the first example; of the `llm` annotator, what it would ask."""
    knowledge, visual = select_questions(dataset, config)
    lines = [
        f"{config.split} of {dataset.root}: {len(knowledge):,} knowledge-based questions, "
        f"{len(visual):,} visual ones to draw from"
    ]
    if config.annotator == "llm":
        asked = estimate(ExampleBuilder(dataset, None, by_string, config), knowledge, config, replies_file(config))
        shown = ["the first one:", asked.first] if asked.first else []
        return "\n".join([*lines, asked.told(config.endpoint()), *shown])
    with opened(config.annotator, config, Path()) as annotate:
        builder = ExampleBuilder(dataset, retriever, annotate, config)
        builder.expect(builder.search(builder.pictured(knowledge[:8])))
        for example in builder.knowledge(knowledge[:8]).examples[:1]:
            lines.append(f"{example.id}: {example.question} ({example.image})")
            lines += [
                f"  {'[Relevant] ' + branch.answer if branch.relevant else '[Irrelevant]'} {branch.source}: "
                f"{passage_text(branch.passage)}"
                for branch in example.branches
            ]
    return "\n".join(lines)


def is_built(output: Path, dataset: Dataset, split: str, key: str) -> bool:
    """Whether this very split is there already.

    Raises:
        UserError: The folder holds another data set's splits.
    """
    if not (output / MANIFEST).is_file():
        return False
    manifest = read_manifest(output)
    if manifest.image_root != dataset.root.resolve():
        raise UserError(f"{output} holds data of {manifest.image_root}, not of {dataset.root}; choose another `output`")
    return manifest.fingerprints.get(split) == key and (output / f"{split}.parquet").is_file()


def _search_logged(builder: ExampleBuilder, questions: Sequence[Question], logs: Logs, processes: Processes) -> None:
    """Search for each picture once, in chunks that the processes share; all of them get to know what was found."""
    if not (pictured := builder.pictured(questions)):
        return

    def search(chunk: Sequence[Question]) -> Row:
        return {"entries": builder.search(chunk)}

    for row in run_chunks(pictured, CHUNK, search, logs, processes=processes, desc="searching"):
        builder.expect(row["entries"])
    processes.wait()  # all have read what was found before one of them is done, and deletes it


def _build_logged(builder: ExampleBuilder, questions: Sequence[Question], logs: Logs, processes: Processes) -> Batch:
    """Build in chunks, each one row of a log: what is in a log is not built again. The first process has them all."""

    def build(chunk: Sequence[Question]) -> Row:
        return dataclasses.asdict(builder.knowledge(chunk))

    whole = Batch()
    rows = run_chunks(questions, CHUNK, build, logs, processes=processes)
    for row in rows if processes.index == 0 else ():
        whole.add(row)
    return whole


def _described(annotate: Annotator, config: BuildConfig) -> dict[str, Any]:
    """Who told evidence; of an LLM also the prompt's hash, and what all replies in its file cost."""
    if not isinstance(annotate, LlmAnnotator):
        return {"name": config.annotator}
    return {"name": "llm", "model": config.llm_model, "prompt": PROMPT_HASH, **annotate.model.usage()}


def _write_blank(output: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (BLANK_SIDE, BLANK_SIDE)).save(buffer, "PNG")
    write_atomically(output / "blank.png", buffer.getvalue())


def _record(config: BuildConfig, dataset: Dataset, key: str, numbers: dict[str, Any]) -> None:
    """Write the split's statistics, and then the manifest, which says that the split is there."""
    output, split = Path(config.output), config.split
    known = read_json(output / STATISTICS, "statistics") if (output / STATISTICS).is_file() else {}
    write_json(output / STATISTICS, {**known, split: numbers})
    root = dataset.root
    before = read_manifest(output) if (output / MANIFEST).is_file() else Manifest("mr2ag", root, {})
    visual = Dataset(Path(config.visual_dataset)).image_roots if config.visual_dataset else ()
    folders = tuple(sorted({*before.image_folders, *(str(folder.resolve()) for folder in visual)}))
    write_manifest(output, Manifest("mr2ag", root, {**before.fingerprints, split: key}, folders))
