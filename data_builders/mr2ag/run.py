"""Build a split of mR²AG-IT from questions and articles. An interrupted build resumes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.launching import ALONE, Processes, launch_processes
from reflectune.core.resumable import Logs, Row, run_chunks
from reflectune.core.rows import from_row, to_row
from reflectune.core.types import Question
from reflectune.data_builders.annotators.llm import PROMPT_HASH, LlmAnnotator
from reflectune.data_builders.annotators.proofreading import PAGE_EXAMPLES, write_page
from reflectune.data_builders.annotators.protocol import Annotator
from reflectune.data_builders.annotators.string import by_string
from reflectune.data_builders.mr2ag.builder import BLANK_SIDE, BuiltExamples, ExampleBuilder, ExampleSettings
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.cost import estimate
from reflectune.data_builders.mr2ag.report import page_article, statistics, summary
from reflectune.data_builders.mr2ag.selection import QuestionSettings, image_roots, select_questions
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import (
    Manifest,
    add_split,
    add_statistics,
    is_built,
    write_examples,
)
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.retrieval.retrievers.entry_retriever import Retriever, open_retriever

CHUNK = 64
"""Number of images per search, and of questions annotated and logged at a time."""


def run(config: BuildConfig) -> None:
    """Build a split; a dry run shows one example, sends no request and writes nothing.

    The processes of a launch share the search and the building. Only the first process sends requests to a server.
    """
    processes = launch_processes("" if config.dry_run else config.output)
    dataset = Dataset(Path(config.dataset), config.part)
    retriever = None
    if config.negatives_retrieved:
        retriever = open_retriever(config, dataset.knowledge, image_roots=dataset.image_roots, device=config.device)
    if config.dry_run:
        if processes.index == 0:
            print(preview(dataset, retriever, config))
        return
    if processes.index and config.annotator == "llm":
        build_split(dataset, retriever, None, config, processes)
        return
    with config.open_annotator() as annotate:
        build_split(dataset, retriever, annotate, config, processes)
        if isinstance(annotate, LlmAnnotator):
            print(annotate.model.summary())


def build_split(
    dataset: Dataset,
    retriever: Retriever | None,
    annotate: Annotator | None,
    config: BuildConfig,
    processes: Processes = ALONE,
) -> None:
    """Write `{split}.parquet`, its proofreading page, and its part of the manifest and of `statistics.json`.

    Each image is searched for once, and the files have the same bytes for any number of processes.

    Args:
        dataset: Questions, images and knowledge base.
        retriever: Retriever for hard negatives, or None.
        annotate: Annotator of evidence; None in a process that only helps with the search.
        config: Settings of the build.
        processes: The processes of the launch.

    Raises:
        UserError: A row is bad and `on_error` is `stop`, or no question has an example.
    """
    output, split, is_first = Path(config.output), config.split, processes.index == 0
    key = _fingerprint(config, dataset)
    if is_built(output, split, Manifest("mr2ag", dataset.root, {}), key):
        if is_first:
            print(f"nothing to do: {output / split}.parquet is built")
        return
    knowledge, visual = select_questions(dataset, QuestionSettings.of(config), config.seed)
    builder = _builder(config, dataset, retriever, annotate or by_string)
    if config.without_image == "blank" and is_first:
        _write_blank(output)
    _search_logged(builder, knowledge, Logs(output, f".{split}.{key}.hits.*.jsonl", key), processes)
    if annotate is None:
        return
    if isinstance(annotate, LlmAnnotator):
        requests = estimate(builder, knowledge, config.endpoint(), config.replies_file())
        print(
            requests.describe(config.endpoint()) if requests.requests else "every reply is cached: no request is sent"
        )
    sharing = ALONE if config.annotator == "llm" else processes
    logs = Logs(output, f".{split}.{key}.examples.*.jsonl", key)
    built, count = _build_logged(builder.build_knowledge, knowledge, logs, sharing)
    visual_count = len(visual) if config.visual_ratio == 1 else config.visual_count(count)
    logs = Logs(output, f".{split}.{key}.visual.*.jsonl", key)
    visual_built, _ = _build_logged(builder.build_visual, visual[:visual_count], logs, sharing, "visual questions")
    if not is_first:
        return
    built.extend(visual_built)
    missing = visual_count - len(visual_built.examples)  # bad rows
    built.extend(builder.build_visual(visual[visual_count:], missing))
    _refuse_skipped(built, config, f".{split}.{key}")
    numbers = statistics(built, knowledge, visual_count) | {"annotator": _annotator_record(config, annotate)}
    if not built.examples:
        raise UserError(f"no question of split {split} of {dataset.root} has an example: {_reasons(numbers)}")
    write_examples(output / f"{split}.parquet", built.examples, ReflectionExample)
    page, title = output / f"proofread_{split}.html", f"{split} of {dataset.root.name}"
    roots = image_roots(dataset, QuestionSettings.of(config), output)
    write_page(page, built.examples, page_article, roots, title, count=PAGE_EXAMPLES)
    _record(config, dataset, key, numbers)
    for log_path in output.glob(f".{split}.{'?' * len(key)}.*.jsonl"):  # also those of abandoned builds
        log_path.unlink()
    print(summary(output / f"{split}.parquet", numbers))


def preview(dataset: Dataset, retriever: Retriever | None, config: BuildConfig) -> str:
    """Return the size of a build and its first example; for the annotator `llm`, the cost and the first request."""
    knowledge, visual = select_questions(dataset, QuestionSettings.of(config), config.seed)
    lines = [
        f"{config.split} of {dataset.root}: {len(knowledge):,} knowledge-based questions, "
        f"{len(visual):,} visual ones to draw from"
    ]
    if config.annotator == "llm":
        endpoint = config.endpoint()
        requests = estimate(_builder(config, dataset, None, by_string), knowledge, endpoint, config.replies_file())
        first = ["the first one:", requests.first] if requests.first else []
        return "\n".join([*lines, requests.describe(endpoint), *first])
    with config.open_annotator() as annotate:
        builder = _builder(config, dataset, retriever, annotate)
        builder.add_ranking(builder.search(builder.images_to_search(knowledge[:8])))
        for example in builder.build_knowledge(knowledge[:8]).examples[:1]:
            lines.append(f"{example.id}: {example.question} ({example.image})")
            lines += [
                f"  {'[Relevant] ' + branch.answer if branch.relevant else '[Irrelevant]'} {branch.source}: "
                f"{passage_text(branch.passage)}"
                for branch in example.branches
            ]
    return "\n".join(lines)


def _fingerprint(config: BuildConfig, dataset: Dataset) -> str:
    index = config.finder_fingerprint() if config.negatives_retrieved else ""
    visual = config.open_visual() or dataset
    prompt_hash = PROMPT_HASH if config.annotator == "llm" else ""
    splits = dict.fromkeys([(dataset, config.split), (visual, config.visual_split or config.split)])
    # rows are logged by position, so those of edited questions would be taken twice or lost; images may be moved
    questions = [[source.split_fingerprint(split), source.manifest.get("image_root", "")] for source, split in splits]
    return fingerprint([config.hashed(), dataset.fingerprint, index, visual.fingerprint, prompt_hash, questions])


def _builder(config: BuildConfig, dataset: Dataset, retriever: Retriever | None, annotate: Annotator) -> ExampleBuilder:
    output = Path(config.output)
    blank = Path(os.path.relpath((output / "blank.png").resolve(), dataset.root.resolve())).as_posix()
    roots = image_roots(dataset, QuestionSettings.of(config), output)
    return ExampleBuilder(dataset, retriever, annotate, ExampleSettings.of(config), roots, blank)


def _search_logged(builder: ExampleBuilder, questions: Sequence[Question], logs: Logs, processes: Processes) -> None:
    """Search for each image once, in chunks that the processes share, and give all of them the results."""
    if not (searched := builder.images_to_search(questions)):
        return

    def search(chunk: Sequence[Question]) -> Row:
        return {"entries": builder.search(chunk)}

    with builder.images as images:
        rows = run_chunks(searched, CHUNK, search, logs, processes=processes, desc="searching", ahead=images.begin)
    for row in rows:
        builder.add_ranking(row["entries"])
    processes.wait()  # the process that finishes first deletes the logs


def _build_logged(
    build: Callable[[Sequence[Question]], BuiltExamples],
    questions: Sequence[Question],
    logs: Logs,
    processes: Processes,
    desc: str = "questions",
) -> tuple[BuiltExamples, int]:
    """Build in chunks, each logged as one row.

    Returns:
        The examples, in the first process only, and their number.
    """
    built, count = BuiltExamples(), 0
    rows = run_chunks(questions, CHUNK, lambda chunk: to_row(build(chunk)), logs, processes=processes, desc=desc)
    for row in rows:
        count += len(row["examples"])
        if processes.index == 0:
            built.extend(from_row(BuiltExamples, row))
    processes.wait()  # the first process deletes the logs, which the others still scan
    return built, count


def _refuse_skipped(built: BuiltExamples, config: BuildConfig, logs: str) -> None:
    """With `stop`, refuse the bad rows that an interrupted run with `skip` left out."""
    bad = [row for row in built.rejected if row.bad]
    if bad and config.on_error == "stop":
        raise UserError(
            f"question {bad[0].id}: {bad[0].reason}; this and {len(bad) - 1:,} more bad rows were left out before this "
            f"build was interrupted: set `on_error: skip` again, or fix them and delete {Path(config.output, logs)}.*"
        )


def _reasons(numbers: dict[str, Any]) -> str:
    reasons = [f"{count} × {reason}" for reason, count in numbers["questions_left_out"].items()]
    if bad := numbers["bad_rows"]:
        reasons.append(f"{len(bad):,} bad rows, the first: question {bad[0]['id']}: {bad[0]['reason']}")
    return "; ".join(reasons) or "none there"


def _annotator_record(config: BuildConfig, annotate: Annotator) -> dict[str, Any]:
    """Return the annotator's name; for an LLM also the prompt's hash and the usage of all replies in its file."""
    if not isinstance(annotate, LlmAnnotator):
        return {"name": config.annotator}
    return {"name": "llm", "model": config.llm_model, "prompt": PROMPT_HASH, **annotate.model.usage()}


def _write_blank(output: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (BLANK_SIDE, BLANK_SIDE)).save(buffer, "PNG")
    write_atomically(output / "blank.png", buffer.getvalue())


def _record(config: BuildConfig, dataset: Dataset, key: str, numbers: dict[str, Any]) -> None:
    """Write the split's statistics, then the manifest, which makes the split count."""
    output, visual = Path(config.output), config.open_visual()
    add_statistics(output, config.split, numbers)
    folders = tuple(str(folder.resolve()) for folder in visual.image_roots) if visual else ()
    add_split(output, config.split, Manifest("mr2ag", dataset.root, {}, folders), key)
