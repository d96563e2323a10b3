"""Store probes in a folder, so that they survive `kill -9`: in logs at first, in sorted Parquet files at the end.

Each process appends to its own log. `seal` merges logs and earlier Parquet files into parts of a new generation, then
writes the manifest. Parts that the manifest doesn't name are ignored.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from reflectune.core.durable import read_json, read_record, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.parquet import open_parquet, stream_rows, write_parquet
from reflectune.core.paths import listed_file
from reflectune.core.resumable import Logs
from reflectune.core.rows import from_row, schema_of, to_row
from reflectune.data_builders.probing.records import Probe, stream_probe_file

MANIFEST = "probes.json"
SETTINGS = "settings.json"
_SHARD = 2048
"""Number of questions in a Parquet file."""


def begin(folder: str | Path, settings: Mapping[str, Any]) -> Logs:
    """Write the settings of a folder of probes, or compare them with its own; return its logs to append rows to.

    Args:
        folder: Folder of the probes.
        settings: Everything that determines a probe (model, prompts, knowledge base, metric, decoding), by name.

    Raises:
        UserError: The folder was begun with different settings.
    """
    folder = Path(folder)
    path, plain = folder / SETTINGS, json.loads(json.dumps(dict(settings)))
    if not path.is_file():
        if any(folder.glob("log-*.jsonl")) or (folder / MANIFEST).is_file():
            raise UserError(f"{path} is missing, so the probes can't be checked against the settings; restore it")
        write_json(path, plain)
    known = read_json(path, "the settings of the probes")
    changed = [name for name in sorted({*known, *plain}) if known.get(name) != plain.get(name)]
    if changed:
        lines = [f"`{name}` was {known.get(name)!r}, is now {plain.get(name)!r}" for name in changed]
        raise UserError(
            f"{folder} was begun with other settings: {'; '.join(lines)}; choose another output folder, or restore them"
        )
    return _logs(folder)


def answered(folder: str | Path) -> set[str]:
    """Return the ids of the questions with a probe in a folder, sealed or in a log.

    Questions that couldn't be asked are left out, so that they are tried again.

    Raises:
        UserError: A file is missing or damaged.
    """
    return _sealed_ids(Path(folder)) | _logs(Path(folder)).finished()


def seal(folder: str | Path, about: Mapping[str, Any] | None = None, shard_size: int = _SHARD) -> int:
    """Turn all logs into Parquet files sorted by question id, and return the number of questions.

    Call it in one process, after all have closed their logs. The files depend on the probes only, not on the number of
    processes, the order of answering, or interruptions.

    Args:
        folder: Folder of the probes.
        about: Facts to record that don't determine the probes, e.g. the model's name.
        shard_size: Number of questions in a Parquet file.
    """
    folder = Path(folder)
    logs, known = _logs(folder), _sealed_ids(folder)
    fresh = sorted(logs.positions().keys() - known)
    if fresh or not (folder / MANIFEST).is_file():
        added = (from_row(Probe, row) for row in logs.rows(fresh))
        replaced = set(fresh)
        kept = (probe for probe in _sealed(folder) if probe.question_id not in replaced)
        merged = heapq.merge(kept, added, key=attrgetter("question_id"))
        _write_generation(folder, merged, dict(about or {}), shard_size)
    current = set(_parts(folder))
    for path in folder.glob("part-*.parquet"):
        if path not in current:
            path.unlink()
    logs.remove()
    return int(_manifest(folder)["questions"])


def stream_probes(folder: str | Path) -> Iterator[Probe]:
    """Yield the sealed probes of a folder, sorted by question id.

    Raises:
        UserError: The folder is not sealed, a file is missing or damaged, or a question comes twice.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} holds no finished probes; let data_builders/probe.py run to its end")
    yield from _sealed(folder)


def _sealed(folder: Path) -> Iterator[Probe]:
    before = ""
    for path in _parts(folder):
        for probe in stream_probe_file(path):
            if probe.question_id <= before:
                order = f"{probe.question_id!r} follows {before!r}"
                raise UserError(f"{path}: {order}, but ids must be unique and sorted; copy it again, or probe again")
            before = probe.question_id
            yield probe


def read_settings(folder: str | Path, **needed: type) -> dict[str, Any]:
    """Return the settings that determined the probes of a folder, with the recorded facts under `about`.

    Args:
        folder: Folder of the probes.
        **needed: Settings that must be there, and their types.

    Raises:
        UserError: The folder holds no finished probes, or these files are damaged.
    """
    folder = Path(folder)
    settings = read_record(folder / SETTINGS, "the settings of the probes", **needed)
    if missing := needed.keys() - settings.keys():
        raise UserError(f"{folder / SETTINGS} lacks `{'`, `'.join(sorted(missing))}`; restore it, or probe again")
    return {**settings, "about": _manifest(folder).get("about", {})}


def probes_fingerprint(folder: str | Path) -> str:
    """Return a hash of the sealed probes."""
    return file_fingerprint(*_parts(Path(folder)))


def _manifest(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).is_file():
        return {"generation": 0, "questions": 0, "parts": []}
    keys = {"parts": list, "questions": int, "generation": int}
    manifest = read_record(folder / MANIFEST, "the manifest of the probes", about=dict, **keys)
    if missing := keys.keys() - manifest.keys():
        raise UserError(f"{folder / MANIFEST} lacks `{'`, `'.join(sorted(missing))}`; probe again")
    return manifest


def _parts(folder: Path) -> list[Path]:
    return [listed_file(folder, name, MANIFEST) for name in _manifest(folder)["parts"]]


def _logs(folder: Path) -> Logs:
    key = fingerprint(read_json(folder / SETTINGS, "the settings of the probes"))
    return Logs(folder, "log-*.jsonl", key, is_failed=lambda row: bool(row["problem"]))


def _sealed_ids(folder: Path) -> set[str]:
    question_ids: set[str] = set()
    columns = pa.schema([("question_id", pa.string()), ("problem", pa.string())])
    for path in _parts(folder):
        with open_parquet(path, "copy it again, or probe again") as file:
            question_ids.update(row["question_id"] for row in stream_rows(file, columns) if not row["problem"])
    return question_ids


def _write_generation(folder: Path, probes: Iterator[Probe], about: dict[str, Any], shard_size: int) -> None:
    """Write new Parquet files, then the manifest that names them."""
    generation = _manifest(folder)["generation"] + 1
    names: list[str] = []
    rows = 0
    while shard := list(itertools.islice(probes, shard_size)):
        names.append(f"part-{generation:03d}-{len(names):05d}.parquet")
        table = pa.Table.from_pylist([to_row(probe) for probe in shard], schema=schema_of(Probe))
        write_parquet(folder / names[-1], table)
        rows += len(shard)
    write_json(folder / MANIFEST, {"generation": generation, "questions": rows, "parts": names, "about": about})
