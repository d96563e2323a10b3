"""Google Lens results for Encyclopedic-VQA's test pictures, as its authors published them, as ranked entities."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.rejected import stop
from reflectune.data_builders.readers.evqa import DATASETS, inaturalist_names
from reflectune.data_builders.readers.files import read_csv
from reflectune.data_builders.readers.rows import SourceRow, each, one_of, text
from reflectune.retrieval.retrievers.ranked_retriever import Ranking

RANKED = "lens.jsonl"
"""File of ranked entities in the data set's folder, a value of `ranked_entities`."""


def write_lens(path: Path, source: Path, pictures: Iterable[str], inaturalist: Path | None) -> str:
    """Write the ranked entities of a data set's pictures as JSONL.

    Args:
        path: File to write.
        source: See `lens_rankings`.
        pictures: See `lens_rankings`.
        inaturalist: See `lens_rankings`.

    Returns:
        A line that counts the rankings.

    Raises:
        UserError: `source` is damaged, or has a row for none of the pictures.
    """
    pictures = dict.fromkeys(picture for picture in pictures if picture)
    rankings = {ranking.image: ranking for ranking in lens_rankings(source, pictures, inaturalist)}
    if not rankings:
        raise UserError(
            f"{source} has a row for none of the {len(pictures):,} pictures; it is for E-VQA's test split, and needs "
            "`images`"
        )
    rows = [dataclasses.asdict(ranking) for ranking in rankings.values()]
    lines = [{name: value for name, value in row.items() if value is not None} for row in rows]
    write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    empty = sum(not ranking.entities for ranking in rankings.values())
    return f"{path}: rankings of {len(rankings):,} of {len(pictures):,} pictures, {empty:,} of them empty"


def lens_rankings(source: Path, pictures: Iterable[str], inaturalist: Path | None = None) -> Iterator[Ranking]:
    """Yield the rankings of pictures, in the order of the file.

    `lens_entities.csv` of google-research/encyclopedic_vqa has a row for each picture of the test split, with the
    columns `dataset_name` (`inaturalist`, `landmarks`), `dataset_image_id`, and `lens_wiki_urls`: a Python list of
    Wikipedia addresses, best first, without scores, which may be empty.

    Args:
        source: The CSV file.
        pictures: Paths of pictures in a data set's questions. The name of a landmark's file is its id.
        inaturalist: iNaturalist 2021's `val.json`, which maps ids to file names; None skips rows of iNaturalist.

    Raises:
        UserError: The file is missing, or a row of it is damaged.
    """
    by_name: dict[str, list[str]] = {}
    for picture in dict.fromkeys(pictures):
        by_name.setdefault(PurePosixPath(picture).stem, []).append(picture)
    results = list(each(read_csv(source), _result, stop))
    numbers = {image_id for dataset, image_id, _ in results if dataset == "inaturalist"}
    files = inaturalist_names(inaturalist, numbers) if inaturalist else {}
    for dataset, image_id, addresses in results:
        file_name = files.get(image_id, "") if dataset == "inaturalist" else image_id
        for picture in by_name.get(PurePosixPath(file_name).stem, ()):
            yield Ranking(picture, addresses)


def _result(row: SourceRow) -> tuple[str, str, tuple[str, ...]]:
    """Return the image data set, the id of the picture, and the addresses of its entities."""
    literal = row.get("lens_wiki_urls") or ""
    try:
        addresses = ast.literal_eval(literal)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        addresses = None
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        problem = f"is {literal[:80]!r}"
        raise row.bad("lens_wiki_urls", problem, "it should be a list of addresses: download the file again")
    named = tuple(dict.fromkeys(address.strip() for address in addresses if address.strip()))
    return one_of(row, "dataset_name", DATASETS), text(row, "dataset_image_id"), named
