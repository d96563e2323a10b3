"""Approximate search by FAISS over a memory-mapped index, with exact scores of the best rows.

The index is `IVF,RaBitQ4`: k-means cells and RaBitQ codes of 4 bits per number (arXiv 2409.09913). `IO_FLAG_MMAP_IFC`
maps it, so that all processes of a machine share one copy; FastScan's layout can't be mapped. Codes alone rank rows
poorly, so candidates are rescored with the vectors of an `ExactStore`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np

from reflectune.core.errors import UserError
from reflectune.core.partials import writing
from reflectune.retrieval.stores.base import Found, Rows, Vectors, checked_query, joined, rescored
from reflectune.retrieval.stores.exact import ExactStore

CODES: Final = "codes.faiss"
_CENTRES: Final = "centres.faiss"
MADE_OF_ROWS: Final = (CODES, _CENTRES)
"""Files to rebuild when the rows change."""
_ADVICE: Final = "delete it and build the index again"

_SAMPLE_OF_A_CELL = 50
"""Training vectors per cell for k-means; FAISS warns below 39."""
_BLOCK = 65_536
"""Rows added at once."""
_SEED = 0
"""Seed of k-means' sample; k-means itself has the next one."""


@dataclass(frozen=True)
class Search:
    """Search parameters, set by `calibrate`.

    Attributes:
        cells: Cells to search for a query (`nprobe`).
        candidates: Rows to rescore exactly; at least the number requested.
    """

    cells: int = 32
    candidates: int = 200


_search_parameters: Any = faiss.SearchParametersIVF
"""Typed Any, since its stub lacks the parameters."""


def cells_for(rows: int) -> int:
    """Return the number of cells for an index of `rows`: the power of two nearest to 4 √rows."""
    return 2 ** round(math.log2(max(4 * math.sqrt(rows), 1)))


class FaissStore:
    """Rows of an `ExactStore` with an approximate index over them.

    Args:
        folder: Folder of its files, next to those of the rows.
        rows: The vectors, by which candidates are rescored.
        cells: Number of cells of the index; None: `cells_for` its rows.
        search: Search parameters, a record of `calibrate`; None: the defaults of `Search`.
        progress: Called with the number of rows added to the index.

    Attributes:
        settings: Search parameters in use.
    """

    def __init__(
        self,
        folder: str | Path,
        rows: ExactStore,
        *,
        cells: int | None = None,
        search: Mapping[str, Any] | None = None,
        progress: Any = None,
    ) -> None:
        self.folder, self.rows, self.fields = Path(folder), rows, rows.fields
        self._cells, self._progress = cells, progress
        self._index: Any = None
        self.settings = Search(search["cells"], search["candidates"]) if search else Search()
        if (self.folder / CODES).is_file():
            self._open()

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, vectors: Mapping[str, Vectors]) -> None:
        """See `VectorStore`."""
        self.rows.add(vectors)

    def get(self, rows: Rows) -> dict[str, Vectors]:
        """See `VectorStore`."""
        return self.rows.get(rows)

    def finish(self) -> None:
        """Add the rows that the index lacks. A new index's cells are trained first.

        The trained cells are stored, so that a killed process loses only codes. Resuming yields the same files.
        """
        if not len(self) or (self._index is not None and self._index.ntotal == len(self)):
            return
        index = self._read(CODES, mapped=False) if (self.folder / CODES).is_file() else self._trained()
        for first in range(index.ntotal, len(self), _BLOCK):
            rows = np.arange(first, min(first + _BLOCK, len(self)))
            index.add(joined(self.rows.get(rows), self.fields))
            if self._progress is not None:
                self._progress(len(rows))
        self._write(CODES, index)
        (self.folder / _CENTRES).unlink(missing_ok=True)
        self._open()

    def search(self, query: Mapping[str, Vectors], top: int) -> Found:
        """See `VectorStore`. Only candidates that the index finds are ranked, by exact scores."""
        return self.search_with(self.settings, query, top)

    def search_with(self, settings: Search, query: Mapping[str, Vectors], top: int) -> Found:
        """Search with the given parameters instead of the store's own."""
        vectors = checked_query(query, self.fields, top)
        if self._index is None:
            return self.rows.search(vectors, top)  # the index isn't built yet
        parameters: Any = _search_parameters(nprobe=min(settings.cells, self._index.nlist))
        count = min(max(settings.candidates, top), len(self))
        _, candidates = self._index.search(joined(vectors, self.fields), count, params=parameters)
        return rescored(vectors, self, candidates, top)

    def calibrate(self, query: Mapping[str, Vectors], *, top: int = 20, min_recall: float = 0.995) -> dict[str, Any]:
        """Set the smallest power of two of cells whose recall of an exact search's results suffices.

        Args:
            query: Sample of queries, shape (queries, dimensions) of each field.
            top: Number of rows to compare.
            min_recall: Recall to reach. All cells are searched if fewer don't reach it.

        Returns:
            The parameters and their recall, for the index's manifest.
        """
        exact = self.rows.search(query, top)
        cells = 1
        while True:
            self.settings = Search(min(cells, self._index.nlist), max(10 * top, 200))
            recall = overlap(self.search(query, top).rows, exact.rows)
            if recall >= min_recall or cells >= self._index.nlist:
                return {**dataclasses.asdict(self.settings), "recall": recall, "top": top}
            cells *= 2

    def _trained(self) -> Any:
        """Return an empty index whose cells are trained on a sample of the rows."""
        if (self.folder / _CENTRES).is_file():
            return self._read(_CENTRES, mapped=False)
        cells = min(self._cells or cells_for(len(self)), len(self))
        generator = np.random.default_rng(_SEED)
        size = min(len(self), cells * _SAMPLE_OF_A_CELL)
        sample = np.sort(generator.choice(len(self), size, replace=False))
        index: Any = faiss.index_factory(sum(self.fields.values()), f"IVF{cells},RaBitQ4", faiss.METRIC_INNER_PRODUCT)
        index.cp.seed, index.cp.min_points_per_centroid = _SEED + 1, 1
        index.train(joined(self.rows.get(sample), self.fields))
        self._write(_CENTRES, index)
        return index

    def _write(self, name: str, index: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with writing(self.folder / name) as partial:
            faiss.write_index(index, str(partial))

    def _read(self, name: str, *, mapped: bool) -> Any:
        path = self.folder / name
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
        except RuntimeError as error:
            raise UserError(f"{path} is damaged: {error}; {_ADVICE}") from error
        if index.d != sum(self.fields.values()) or not isinstance(index, faiss.IndexIVF):
            raise UserError(f"{path} is an index of {index.d} dimensions, not {sum(self.fields.values())}; {_ADVICE}")
        return index

    def _open(self) -> None:
        """Map the index into memory."""
        self._index = self._read(CODES, mapped=True)
        if self._index.ntotal > len(self):
            raise UserError(
                f"{self.folder / CODES} has {self._index.ntotal:,} rows, the vector files have {len(self):,}; {_ADVICE}"
            )


def overlap(found: Rows, truth: Rows) -> float:
    """Return the recall: the share of each query's true rows that are found, averaged over queries."""
    recalls = [np.isin(expected[expected >= 0], rows).mean() for rows, expected in zip(found, truth, strict=True)]
    return float(np.mean(recalls))
