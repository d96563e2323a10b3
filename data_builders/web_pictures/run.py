"""Fetches a knowledge base's pictures: addresses are read once, each picture is had once, failures are listed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.parquet import WRITING
from reflectune.core.partials import writing
from reflectune.core.progress import progress_bar
from reflectune.core.resumable import Logs
from reflectune.data_builders.readers.images import ADDRESSES
from reflectune.data_builders.web_pictures.addresses import (
    CHUNK,
    addresses_key,
    count_addresses,
    read_chunks,
    read_key,
    write_addresses,
)
from reflectune.data_builders.web_pictures.client import PictureClient
from reflectune.data_builders.web_pictures.config import PictureConfig

MANIFEST: Final = "pictures.parquet"
"""`url`, `path`, `state` and `why` of every picture, written when all were tried."""
FAILURES: Final = "failures.jsonl"
"""Those of them that are not there."""

_LOG = ".fetched.jsonl"
_TELLING = 32
"""Of so many requests one is good as a rule; if none is, something is wrong with the network or with who asks."""
_LEAST_FREE = 1 << 30
_GROUP = 1 << 14

Pair = tuple[str, str]
Failure = tuple[int, str, str]
"""A picture's place in its chunk, its state, and why."""


def fetch_pictures(config: PictureConfig) -> Counter[str]:
    """Fetch what is not there yet; what may pass is tried again, what is gone or refused is not.

    Returns:
        How many pictures are in which state.

    Raises:
        UserError: Nothing at all is had, the disk can't hold the pictures, or another knowledge base's are there.
    """
    output = Path(config.output)
    key, table = addresses_key(config), output / ADDRESSES
    if (recorded_key := read_key(table)) and recorded_key != key:
        raise UserError(f"{table} was read from another file than {config.source()}; choose another `output`")
    if not recorded_key:
        write_addresses(config, table, key)
    total = count_addresses(table)
    total = min(total, config.limit or total)
    logs = Logs(output, _LOG, key)
    _fetch_chunks(config, table, total, logs)
    return _write_manifest(output, table, config.limit, logs)


def preview(config: PictureConfig) -> str:
    """What would be fetched, from where; nothing is written or asked."""
    table = Path(config.output, ADDRESSES)
    if not table.is_file():
        return f"would read the addresses of pictures off {config.source()} into {table}, and fetch them"
    total = count_addresses(table)
    there = sum(Path(config.output, path).is_file() for chunk in read_chunks(table, config.limit) for _, path in chunk)
    wanted = min(total, config.limit or total)
    seconds = (wanted - there) / config.requests_per_second
    return (
        f"{wanted:,} pictures, {there:,} of them there; the others take {seconds / 3600:,.1f} h or more at "
        f"{config.requests_per_second:g} requests a second"
    )


def _fetch_chunks(config: PictureConfig, table: Path, total: int, logs: Logs) -> None:
    passing = _passing(logs)
    with (
        logs.open() as log,
        closing(PictureClient(config)) as client,
        progress_bar(total=total, desc="pictures", unit="picture") as bar,
        ThreadPoolExecutor(config.concurrency) as pool,
    ):
        for number, chunk in enumerate(read_chunks(table, config.limit)):
            name = _name(number, len(chunk))
            before = passing.get(name)
            if name in log.done and not before:
                bar.update(len(chunk))
                continue
            kept = [failure for failure in before or () if failure[1] != "failed"]
            places = [failure[0] for failure in before if failure[1] == "failed"] if before else range(len(chunk))
            try:
                failures, size = _fetch_chunk(config, chunk, list(places), client, pool)
            except BaseException:
                client.stop()  # what waits for its turn is given up; what is under way is had
                raise
            log.append(name, {"failures": sorted([*kept, *failures])})
            bar.update(len(chunk))
            _refuse_full_disk(config, size, len(places), total - bar.n)


def _name(number: int, size: int) -> str:
    """A chunk's name; one that a limit cut short has another."""
    return str(number) if size == CHUNK else f"{number}:{size}"


def _passing(logs: Logs) -> dict[str, list[Failure]]:
    """The failures of the chunks that have some which may pass."""
    rows = ((row["id"], row["failures"]) for row in logs.rows())
    return {name: failures for name, failures in rows if any(state == "failed" for _, state, _ in failures)}


def _fetch_chunk(
    config: PictureConfig, chunk: Sequence[Pair], places: Sequence[int], client: PictureClient, pool: ThreadPoolExecutor
) -> tuple[list[Failure], int]:
    """Fetch some pictures of a chunk that aren't there.

    Returns:
        What failed, and the bytes that were written.
    """
    output = Path(config.output)

    def one(place: int) -> tuple[int, str, str, int] | None:
        url, path = chunk[place]
        if (output / path).is_file():
            return None
        fetched = client.fetch(url)
        if fetched.state == "there":
            write_atomically(output / path, fetched.content)
        return place, fetched.state, fetched.why, len(fetched.content)

    outcomes = [told for told in pool.map(one, places) if told is not None]
    failures: list[Failure] = [(place, state, why) for place, state, why, _ in outcomes if state != "there"]
    if len(outcomes) >= _TELLING:
        _refuse_silence(failures, len(outcomes))
    return failures, sum(size for *_, size in outcomes)


def _refuse_silence(failures: Sequence[Failure], tried: int) -> None:
    """Stop where nothing at all is had.

    Raises:
        UserError: All pictures failed, by reasons that are not their own.
    """
    if len(failures) < tried or any(state == "gone" for _, state, _ in failures):
        return
    ((why, count),) = Counter(why for _, _, why in failures).most_common(1)
    raise UserError(
        f"none of {tried} pictures could be had, {count} of them for: {why}; check the network, `user_agent` and "
        "`requests_per_second`, and run the same command again: what was fetched is kept"
    )


def _refuse_full_disk(config: PictureConfig, size: int, count: int, left: int) -> None:
    """After each chunk see whether the rest, at this size, fits the disk.

    Raises:
        UserError: It doesn't.
    """
    free = shutil.disk_usage(config.output).free
    need = size / max(1, count) * left
    if size and free < max(_LEAST_FREE, need if count >= _TELLING else 0):
        raise UserError(
            f"{config.output} has {free / 2**30:,.1f} GiB free, and {left:,} more pictures take about "
            f"{need / 2**30:,.1f} GiB; free some and run the same command again, or fetch fewer by `limit`"
        )


def _write_manifest(output: Path, table: Path, limit: int, logs: Logs) -> Counter[str]:
    counts: Counter[str] = Counter()
    schema = pa.schema([(name, pa.string()) for name in ("url", "path", "state", "why")])
    with (
        writing(output / MANIFEST) as manifest,
        writing(output / FAILURES) as listed,
        pq.ParquetWriter(manifest, schema, **WRITING) as writer,
        listed.open("w", encoding="utf-8") as failures,
    ):
        for rows in _states(table, limit, logs):
            counts.update(row["state"] for row in rows)
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows if row["state"] != "there")
            failures.writelines(lines)
    return counts


def _states(table: Path, limit: int, logs: Logs) -> Iterator[list[dict[str, Any]]]:
    """The rows of the manifest, in groups."""
    total = count_addresses(table)
    total = min(total, limit or total)
    names = [_name(begin // CHUNK, min(CHUNK, total - begin)) for begin in range(0, total, CHUNK)]
    group: list[dict[str, Any]] = []
    for chunk, row in zip(read_chunks(table, limit), logs.rows(names), strict=True):
        failed = {place: (state, why) for place, state, why in row["failures"]}
        for place, (url, path) in enumerate(chunk):
            state, why = failed.get(place, ("there", ""))
            group.append({"url": url, "path": path, "state": state, "why": why})
        if len(group) >= _GROUP:
            yield group
            group = []
    if group:
        yield group
