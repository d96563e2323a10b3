"""What Google Lens saw in Encyclopedic-VQA's pictures, as its authors published it, as ranked entities."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from reflectune.core.rejected import stop
from reflectune.data_builders.readers.evqa import inaturalist_names
from reflectune.data_builders.readers.files import read_csv
from reflectune.data_builders.readers.rows import Row, each, one_of, text
from reflectune.retrieval.retrievers.ranked_retriever import Ranking

_DATASETS = ("inaturalist", "landmarks")


def lens_rankings(source: Path, pictures: Iterable[str], inaturalist: Path | None = None) -> Iterator[Ranking]:
    """The rankings of those pictures that Lens was asked about, in the order of the file.

    `lens_entities.csv` of google-research/encyclopedic_vqa has a row for each picture of the test split, with the
    columns `dataset_name` (`inaturalist`, `landmarks`), `dataset_image_id`, and `lens_wiki_urls`: a list of the
    Wikipedia addresses of what Lens saw, the most certain first, as Python writes a list; an empty one where it saw
    nothing. There are no scores.

    Args:
        source: The CSV file.
        pictures: Paths of pictures as the questions of a data set have them; a file's name is its id among landmarks,
            and in iNaturalist what its json says.
        inaturalist: iNaturalist 2021's `val.json`, which has the file names of its numbers; None: rows of iNaturalist
            are passed over.

    Raises:
        UserError: The file is missing, or a row of it is damaged; the error names it.
    """
    by_name: dict[str, list[str]] = {}
    for picture in dict.fromkeys(pictures):
        by_name.setdefault(PurePosixPath(picture).stem, []).append(picture)
    seen = list(each(read_csv(source), _seen, stop))
    numbers = {name for where, name, _ in seen if where == "inaturalist"}
    files = inaturalist_names(inaturalist, numbers) if inaturalist else {}
    for where, name, addresses in seen:
        file_name = files.get(name, "") if where == "inaturalist" else name
        for picture in by_name.get(PurePosixPath(file_name).stem, ()):
            yield Ranking(picture, addresses)


def _seen(row: Row) -> tuple[str, str, tuple[str, ...]]:
    """The data set and the id of a row's picture, and the addresses of what Lens saw in it."""
    said = row.get("lens_wiki_urls") or ""
    try:
        addresses = ast.literal_eval(said)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        addresses = None
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        problem = f"is {said[:80]!r}"
        raise row.bad("lens_wiki_urls", problem, "it should be a list of addresses: download the file again")
    named = tuple(dict.fromkeys(address.strip() for address in addresses if address.strip()))
    return one_of(row, "dataset_name", _DATASETS), text(row, "dataset_image_id"), named
