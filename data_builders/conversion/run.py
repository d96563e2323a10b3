"""Convert a data set: its questions, then its knowledge base, then its manifest."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.partials import remove_partials
from reflectune.core.rejected import Rejected
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.knowledge import KnowledgeRun, KnowledgeTotals
from reflectune.data_builders.conversion.questions import QuestionRun, QuestionTotals
from reflectune.data_builders.conversion.sources import check_unchanged, list_files, stat_files, with_fingerprints
from reflectune.data_builders.conversion.workers import Workers
from reflectune.data_builders.readers.evqa import RANKED, write_lens
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.formats.dataset import MANIFEST, stream_questions

VERSION = 3
"""Version of the output's layout; an unfinished run with a different one starts again."""

_JOURNAL = ".convert"
_SHOWN = 5
"""Maximum number of missing entries that are listed."""


def convert(config: ConvertConfig) -> tuple[dict[str, Any], bool]:
    """Convert into `config.output`; resume a killed run.

    Returns:
        The manifest, and False if the data set was converted before.

    Raises:
        UserError: A row is bad and `on_error` is stop, every row is bad, a source has changed meanwhile, or the folder
            holds other data.
    """
    output = Path(config.output)
    sources = stat_files(list_files(_source_paths(config)))
    key = fingerprint([VERSION, config.hashed(), sources])
    if (output / MANIFEST).is_file():
        return _existing(output, config), False
    journal = _open_journal(output, key)
    with (
        Workers(config.workers) as workers,
        _open_rejected(output if config.on_error == "skip" else None) as rejected,
        ThreadPoolExecutor(1) as hasher,
    ):
        hashed = hasher.submit(with_fingerprints, sources)
        questions, knowledge, kb_fingerprint = QuestionTotals(), KnowledgeTotals(), ""
        images = question_images(config)
        if config.questions:
            run = QuestionRun(config, images, output, rejected)
            questions = run.convert(workers, journal / "questions.jsonl", key)
            _refuse_empty(config.question_paths(), bool(questions.counts), rejected)
        if config.knowledge:
            gold, kb_images = frozenset(questions.entity_ids), knowledge_images(config)
            kb = KnowledgeRun(config, kb_images, output, rejected, gold)
            named = config.path(config.knowledge_images or config.knowledge_source)
            image_root = _root_in_manifest(kb_images, output / "knowledge", output, named) or ".."
            knowledge, kb_fingerprint = kb.convert(workers, journal / "knowledge.jsonl", key, image_root)
            _refuse_empty([config.path(config.knowledge_source)], _any_entry(knowledge, config), rejected)
        check_unchanged(fingerprinted := hashed.result(), "the conversion began")
    digest = hashlib.sha256("".join(questions.digests).encode()).hexdigest()
    manifest = {
        **_numbers(config, questions, knowledge, rejected),
        "fingerprint": fingerprint([digest, kb_fingerprint]),
        "parts": questions.parts,
        "image_root": _root_in_manifest(images, output, output, config.path(config.images)),
        "made_with": config.hashed(),
        "sources": fingerprinted,
    }
    remove_partials(output)
    _write_lens(config, manifest["image_root"])
    write_json(output / MANIFEST, manifest)
    shutil.rmtree(journal)
    return manifest, True


def check(config: ConvertConfig) -> tuple[dict[str, Any], list[str]]:
    """Read and validate everything, including the rows after a bad one, and write nothing.

    Returns:
        The numbers of the manifest, and the first bad rows.
    """
    rejected, questions, knowledge = Rejected(None), QuestionTotals(), KnowledgeTotals()
    with Workers(config.workers) as workers:
        if config.questions:
            questions = QuestionRun(config, question_images(config, saving=False), None, rejected).check(workers)
            _refuse_empty(config.question_paths(), bool(questions.counts or rejected.count), rejected)
        if config.knowledge:
            gold = frozenset(questions.entity_ids)
            kb_images = knowledge_images(config, saving=False)
            knowledge = KnowledgeRun(config, kb_images, None, rejected, gold).check(workers)
            any_row = _any_entry(knowledge, config) or bool(rejected.count)
            _refuse_empty([config.path(config.knowledge_source)], any_row, rejected)
    return _numbers(config, questions, knowledge, rejected), rejected.first


def preview(config: ConvertConfig) -> str:
    """Return a description of the sources and the output."""
    lines = [f"would write the data set {_name(config)} to {config.output}"]
    for split in config.chosen() if config.questions else []:
        source = config.source(split)
        shown = ", ".join(f"{key}: {value}" for key, value in source.items()) if isinstance(source, dict) else source
        lines.append(f"  questions, {split}: {shown} (reader {config.questions})")
    if config.knowledge:
        lines.append(f"  knowledge base: {config.path(config.knowledge_source)} (reader {config.knowledge})")
    total = sum(source["bytes"] for source in stat_files(list_files(_source_paths(config))))
    return "\n".join([*lines, f"  {total / 2**20:,.1f} MiB to read, by {Workers(config.workers).count} processes"])


def question_images(config: ConvertConfig, saving: bool = True) -> ImageFolder:
    """Return the folder of the questions' images: `images`, or for `own` data the folder of the file."""
    save_to = Path(config.output, "images") if saving else None
    if config.images:
        return ImageFolder(config.path(config.images).resolve(), save_to)
    if config.questions != "own":
        return ImageFolder(None, save_to)
    return ImageFolder(next(iter(config.question_folders()), Path(config.output).resolve()), save_to)


def knowledge_images(config: ConvertConfig, saving: bool = True) -> ImageFolder:
    """Return the folder of the entries' images: `knowledge_images`, or for `own` data the folder of the file."""
    save_to = Path(config.output, "images") if saving else None
    if config.knowledge_images:
        return ImageFolder(config.path(config.knowledge_images).resolve(), save_to)
    if not config.knowledge.startswith("own"):
        return ImageFolder(None, save_to)
    source = config.path(config.knowledge_source)
    return ImageFolder((source if source.is_dir() else source.parent).resolve(), save_to)


def _write_lens(config: ConvertConfig, image_root: str) -> None:
    """Write the ranked entities of the split whose sources have the role `lens`, if there is one."""
    for split in config.chosen() if config.questions else []:
        source = config.source(split)
        if isinstance(source, dict) and "lens" in source:
            # The manifest, which would put `image_root` before each path, is not there yet.
            questions = stream_questions(config.output, split)
            images = (str(Path(image_root, question.image)) for question in questions if question.image)
            print(write_lens(Path(config.output, RANKED), source["lens"], images, source.get("inaturalist")))


def _source_paths(config: ConvertConfig) -> list[Path]:
    paths = config.question_paths() if config.questions else []
    return paths + ([config.path(config.knowledge_source)] if config.knowledge else [])


def _refuse_empty(paths: list[Path], any_row: bool, rejected: Rejected | None) -> None:
    """Raise UserError if the sources had no row, or if each of their rows was left out."""
    if any_row:
        return
    files = ", ".join(map(str, paths)) or "the source"
    bad = rejected.first if rejected is not None else []
    if first := next((row for row in bad if row.startswith(tuple(map(str, paths)))), ""):
        raise UserError(f"every row of {files} is bad; the first: {first}")
    raise UserError(f"nothing to read in {files}: is it the right file?")


def _any_entry(knowledge: KnowledgeTotals, config: ConvertConfig) -> bool:
    """Return True if entries were found, or if a sample of the questions' own articles may be empty."""
    return knowledge.entries > 0 or config.sample_knowledge == 0


def _existing(output: Path, config: ConvertConfig) -> dict[str, Any]:
    """Return the manifest of a data set that was converted with these settings from these files."""
    manifest: dict[str, Any] = read_json(output / MANIFEST, "the data set's manifest")
    if manifest.get("made_with") != config.hashed():
        before = manifest.get("made_with") or {}
        other = sorted(name for name, value in config.hashed().items() if before.get(name) != value)
        raise UserError(
            f"{output} holds a data set made with other settings ({', '.join(other)}); choose another `output`, or "
            "delete it"
        )
    check_unchanged(manifest["sources"], f"{output / MANIFEST} was written")
    listed = {source["path"] for source in manifest["sources"]}
    now = [path for path in list_files(_source_paths(config)) if output.absolute() not in path.absolute().parents]
    if added := [path for path in now if str(path) not in listed]:
        raise UserError(f"{added[0]} is new since {output / MANIFEST} was written; choose another `output`")
    shutil.rmtree(output / _JOURNAL, ignore_errors=True)
    return manifest


def _open_journal(output: Path, key: str) -> Path:
    """Return the folder of the journals of an unfinished run; a run with a different key starts again."""
    journal = output / _JOURNAL
    note = journal / "key.json"
    parts = [output / "questions", output / "knowledge"]
    if note.is_file() and read_json(note, "the unfinished run's note")["key"] == key:
        return journal
    taken = " and ".join(path.name for path in parts if path.exists())
    if taken and not journal.is_dir():
        raise UserError(f"{output} holds {taken} and no {MANIFEST}; choose another `output`, or delete it")
    if taken:
        print(f"the unfinished run in {output} had other settings or sources: starting again")
    for path in (*parts, journal):
        shutil.rmtree(path, ignore_errors=True)
    write_json(note, {"key": key})
    return journal


@contextmanager
def _open_rejected(folder: Path | None) -> Iterator[Rejected | None]:
    """Open the list of bad rows; None without a folder."""
    rejected = Rejected(folder) if folder else None
    try:
        yield rejected
    finally:
        if rejected is not None:
            rejected.close()


def _numbers(
    config: ConvertConfig, questions: QuestionTotals, knowledge: KnowledgeTotals, rejected: Rejected | None
) -> dict[str, Any]:
    """Return the numbers for the manifest and for printing."""
    bad = {kind: rejected.images[kind] if rejected else 0 for kind in ("missing", "unreadable")}
    numbers: dict[str, Any] = {
        "name": _name(config),
        **({"metric": metric} if (metric := config.scored_by()) else {}),
        "seed": config.seed,
        "counts": {split: dict(sorted(counts.items())) for split, counts in sorted(questions.counts.items())},
        "images": {"found": questions.images, **bad},
        "kinds": dict(sorted(questions.kinds.items())),
        **({"unanswered": questions.unanswered} if questions.unanswered else {}),
        "dropped": dict(rejected.reasons.most_common()) if rejected is not None else {},
    }
    if config.knowledge:
        numbers["knowledge"] = {
            "entries": knowledge.entries,
            "images": knowledge.images,
            "entries_without_image": knowledge.without_image,
        }
        if config.questions:
            missing = knowledge.missing(questions.entity_ids)
            named = len(questions.entity_ids)
            numbers["knowledge"]["gold_entries"] = {
                "named": named,
                "found": named - len(missing),
                **({"missing": missing[:_SHOWN]} if missing else {}),
            }
    return numbers


def _name(config: ConvertConfig) -> str:
    return config.name or Path(config.output).resolve().name


def _root_in_manifest(images: ImageFolder, start: Path, output: Path, named: Path) -> str:
    """Return an image folder for a manifest; "" for none.

    It is absolute if it is outside the data set and the config names it by an absolute path. Otherwise it is relative
    to `start`, so that data set and images can be moved together.
    """
    if images.start is None or (images.root is None and not images.start.is_dir()):
        return ""
    root, whole = images.start.resolve(), output.resolve()
    is_relative = root == whole or whole in root.parents or not named.is_absolute()
    return os.path.relpath(root, start.resolve()) if is_relative else str(root)
