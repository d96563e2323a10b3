"""Derives a folder of MMKB-RAG's training data from a folder of probes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.durable import read_json, read_record, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.types import Question
from reflectune.data_builders.mmkb.card import card
from reflectune.data_builders.mmkb.config import DeriveConfig
from reflectune.data_builders.mmkb.derivation import Labels, assemble, derive, take
from reflectune.data_builders.mmkb.mct import RelScores
from reflectune.data_builders.mmkb.proofread import write_label_page
from reflectune.data_builders.mmkb.rescoring import judged_again
from reflectune.data_builders.mmkb.statistics import label_statistics, truth_table, truth_text
from reflectune.data_builders.probing.labels import SrtLabel
from reflectune.data_builders.probing.statistics import probe_statistics, probe_table
from reflectune.data_builders.probing.store import probes_fingerprint, read_settings, stream_probes
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import (
    MANIFEST,
    earlier_manifest,
    read_manifest,
    write_examples,
    write_manifest,
)
from reflectune.models.schemes.examples import PromptedExample

SCHEME = "mmkb_rag"
STATISTICS = "statistics.json"
_PROBED = dict.fromkeys(("model", "prompts", "dataset", "knowledge", "split", "metric", "summary"), str) | {"seed": int}
"""What is read of the settings that the probes were made by."""


def run(config: DeriveConfig) -> str:
    """Derive as the config says, and say in a few lines what came of it.

    Writes `{split}.parquet` (its name is the probed split's, usually `train`), `reflection.json`, `statistics.json`,
    `README.md` and `proofread_{split}.html`. Other splits of the folder stay in the manifest and in the statistics.

    Raises:
        UserError: The probes are not of this data set, the folder holds other data, or there is no label.
    """
    dataset, settings = Dataset(Path(config.dataset)), read_settings(config.probes, **_PROBED)
    if settings["dataset"] != dataset.fingerprint:
        raise UserError(
            f"{config.probes} was probed on the data set {settings['about'].get('dataset')} (fingerprint "
            f"{settings['dataset']}), {config.dataset} has {dataset.fingerprint}; give the data set that was probed"
        )
    split, output = str(settings["split"]), Path(config.output)
    _check_output(output, dataset)
    probes = list(stream_probes(config.probes))
    questions = _questions(dataset, split, {probe.question_id for probe in probes})
    if config.metric:
        probes, settings = judged_again(probes, questions, settings, config)
    scores = read_rel_scores(config.rel_scores) if config.rel_scores else None
    derived = derive(probes, questions, config, summaries=settings["summary"] != "none", rel_scores=scores)
    taken = take(derived, config)
    examples = assemble(taken, derived, questions, config)
    if not examples:
        raise UserError(f"{config.probes}: the rule `{config.rule}` gives no label; try another rule, or probe more")
    by_question = _by_question(derived)
    numbers = {
        "examples": len(examples),
        "branches": sum(len(example.branches) for example in examples),
        "taken": label_statistics(taken.ret, taken.srt, taken.mct, taken.without_summary),
        "derived": label_statistics(derived.ret, derived.srt, derived.mct, derived.without_summary),
        "probes": probe_statistics(probes, config.how()),
        "truth": truth_table(probes, by_question, questions),
    }
    key = fingerprint(
        [
            config.what_decides(),
            settings,
            probes_fingerprint(config.probes),
            file_fingerprint(config.rel_scores) if config.rel_scores else "",
        ]
    )
    target = output / f"{split}.parquet"
    write_examples(target, examples, PromptedExample)
    before = earlier_manifest(output, SCHEME, dataset.root)
    by_split = dict(sorted({**_other_statistics(output, before.fingerprints), split: numbers}.items()))
    write_json(output / STATISTICS, by_split)
    write_atomically(output / "README.md", card(SCHEME, split, settings, config.what_decides(), by_split))
    if config.proofread:
        page = output / f"proofread_{split}.html"
        title = f"{split} of {dataset.root.name}"
        write_label_page(page, probes, derived, questions, dataset.image_roots, title, config.proofread, config.seed)
    write_manifest(output, dataclasses.replace(before, fingerprints={**before.fingerprints, split: key}))
    return summary(target, numbers)


def summary(target: Path, numbers: Mapping[str, Any]) -> str:
    """The statistics in a few lines."""
    lines = [f"{target}: {numbers['examples']:,} questions with {numbers['branches']:,} prompts"]
    for task, taken in numbers["taken"].items():
        total = numbers["derived"][task]["examples"]
        told = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in list(taken.items())[1:])
        lines.append(f"  {task.upper()} {taken['examples']:,} of {total:,}: {told}")
    return "\n".join([*lines, "probes:", probe_table(numbers["probes"]), truth_text(numbers["truth"])])


def read_rel_scores(path: str | Path) -> RelScores:
    """A trained model's [Rel] probabilities by question id and passage id, from Parquet or JSONL.

    Raises:
        UserError: The file is damaged, or a row lacks a column.
    """
    try:
        if Path(path).suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
        else:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
        return {(row["question_id"], row["passage_id"]): float(row["score"]) for row in rows}
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"`rel_scores`: {path} can't be read: {error!r}; it needs the columns question_id, passage_id and score"
        ) from error


def _other_statistics(output: Path, splits: Collection[str]) -> dict[str, Any]:
    """The statistics of the splits that the folder has already."""
    known = read_json(output / STATISTICS, "statistics") if (output / STATISTICS).is_file() else {}
    return {split: numbers for split, numbers in known.items() if split in splits}


def _questions(dataset: Dataset, split: str, wanted: set[str]) -> dict[str, Question]:
    questions = {question.id: question for question in dataset.stream(split) if question.id in wanted}
    missing = sorted(wanted - set(questions))
    if missing:
        raise UserError(f"{dataset.root}: split {split} has no question {missing[0]}, which was probed; build it again")
    return questions


def _by_question(labels: Labels) -> dict[str, list[SrtLabel]]:
    by_question: dict[str, list[SrtLabel]] = {}
    for label in labels.srt:
        by_question.setdefault(label.question_id, []).append(label)
    return by_question


def _check_output(output: Path, dataset: Dataset) -> None:
    """Refuse a folder that holds what another command built, or another data set's labels."""
    if not (output / MANIFEST).is_file():
        return
    scheme = read_record(output / MANIFEST, "the manifest of the reflection data").get("scheme")
    if scheme != SCHEME:
        raise UserError(f"{output} holds data for the scheme {scheme}; choose another `output`")
    root = read_manifest(output).image_root
    if root != dataset.root.resolve():
        raise UserError(f"{output} holds data of {root}, not of {dataset.root}; choose another `output`")
