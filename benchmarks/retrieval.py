"""Measure vector search at Wikipedia's size: what building takes, and recall, latency and memory of searching.

    python benchmarks/retrieval.py

Vectors are a mixture of clusters of clusters, along principal axes whose variances fall as those of real text
embeddings do. Queries are drawn from the same clusters and are not rows. Two fields of half the dimensions each stand
for images and titles; λ is the weight of the second. The reference is FAISS's flat index in float32 on the same
machine: it is timed on as many rows as fit into `--flat_gib`, and scaled to all rows, since a scan is linear in them.
"""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
from results import Benchmark, table

from reflectune.retrieval.stores.exact import ExactStore
from reflectune.retrieval.stores.ivf import CODES, FaissStore, Search, overlap

Vectors = npt.NDArray[np.float32]

QUERIES, TOP = 200, 20
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
CELLS, CANDIDATES = (4, 16, 64), (50, 200)
BLOCK = 50_000
"""Rows drawn and added at a time."""
DECAY = 0.9
"""Exponent by which the variances of the principal axes fall: variance ~ rank^-DECAY."""


@dataclass(frozen=True)
class Mixture:
    """A source of unit vectors in two fields that are similar as an image and a title of one thing are.

    Attributes:
        axes: Standard deviations along principal axes, shape (dimensions of a field,).
        centres: Centres of clusters, shape (clusters, dimensions of a field).
    """

    axes: Vectors
    centres: Vectors

    @classmethod
    def of(cls, dimensions: int, clusters: int) -> Mixture:
        """Draw clusters of clusters."""
        axes = (np.arange(1, dimensions + 1) ** (-DECAY / 2)).astype(np.float32)
        axes /= np.linalg.norm(axes)
        rng = np.random.default_rng(7)
        topics = axes * rng.standard_normal((clusters // 100 + 1, dimensions), dtype=np.float32)
        spread = 0.7 * axes * rng.standard_normal((clusters, dimensions), dtype=np.float32)
        return cls(axes, topics[rng.integers(len(topics), size=clusters)] + spread)

    def draw(self, count: int, seed: int) -> dict[str, Vectors]:
        """Return the fields `image` and `title`, shape (count, dimensions of a field) each."""
        rng = np.random.default_rng(seed)
        shape = (count, len(self.axes))
        own = self.centres[rng.integers(len(self.centres), size=count)]
        thing = own + 0.7 * self.axes * rng.standard_normal(shape, dtype=np.float32)
        fields = (thing + 0.3 * self.axes * rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
        image, title = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in fields)
        return {"image": image.astype(np.float32), "title": title.astype(np.float32)}


def store_at(folder: Path, size: int) -> FaissStore:
    """Open the store of a folder."""
    return FaissStore(folder, ExactStore(folder, {"image": size, "title": size}, precision="float16"))


def build(folder: Path, mixture: Mixture, rows: int) -> dict[str, Any]:
    """Write, fill and calibrate a store in a process of its own; return its seconds, memory and size."""
    context: Any = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_build, args=(folder, mixture, rows, queue))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"building {rows:,} rows ended with status {process.exitcode}")
    return dict(queue.get())


def _build(folder: Path, mixture: Mixture, rows: int, queue: Any) -> None:
    peak = [0]
    threading.Thread(target=_watch_memory, args=(peak,), daemon=True).start()
    store = store_at(folder, len(mixture.axes))
    start = time.perf_counter()
    for number, first in enumerate(range(0, rows, BLOCK)):
        store.add(mixture.draw(min(BLOCK, rows - first), seed=1000 + number))
    written = time.perf_counter()
    store.finish()
    filled = time.perf_counter()
    record = store.calibrate(weighted(mixture.draw(128, seed=1), 0.5), top=TOP)
    queue.put(
        {
            "writing, s": round(written - start, 1),
            "filling, s": round(filled - written, 1),
            "peak, bytes": peak[0],
            "disk, bytes": sum(path.stat().st_size for path in folder.iterdir()),
            "codes, bytes": (folder / CODES).stat().st_size,
            "cells": record["cells"],
        }
    )


def _watch_memory(peak: list[int]) -> None:
    """Keep the process's most anonymous memory; pages of mapped files can be taken back and don't count."""
    while True:
        status = Path("/proc/self/status").read_text()
        peak[0] = max(peak[0], 1024 * int(status.split("RssAnon:")[1].split()[0]))
        time.sleep(0.1)


def weighted(query: Mapping[str, Vectors], weight: float) -> dict[str, Vectors]:
    """Return a query with the weight λ on its second field."""
    return {"image": query["image"] * np.float32(1 - weight), "title": query["title"] * np.float32(weight)}


def milliseconds(store: FaissStore, settings: Search, query: Mapping[str, Vectors]) -> float:
    """Return the milliseconds of a query, one at a time: the better of two turns."""
    turns = []
    for _ in range(2):
        start = time.perf_counter()
        for row in range(QUERIES):
            store.search_with(settings, {name: vectors[row : row + 1] for name, vectors in query.items()}, TOP)
        turns.append((time.perf_counter() - start) / QUERIES)
    return round(1000 * min(turns), 2)


def flat_milliseconds(mixture: Mixture, rows: int, gib: float) -> float:
    """Return the milliseconds of a query by FAISS's flat index, scaled from the rows that fit into memory."""
    size = 2 * len(mixture.axes)
    fitting = min(rows, int(gib * 2**30 / 4 / size))
    index = faiss.IndexFlatIP(size)
    for number, first in enumerate(range(0, fitting, BLOCK)):
        index.add(np.concatenate(list(mixture.draw(min(BLOCK, fitting - first), 1000 + number).values()), axis=1))
    query = np.concatenate(list(mixture.draw(20, seed=2).values()), axis=1)
    index.search(query[:1], TOP)
    start = time.perf_counter()
    for row in query:
        index.search(row[None], TOP)
    return round(1000 * (time.perf_counter() - start) / len(query) * rows / fitting, 1)


def further_process(folder: Path, size: int) -> int:
    """Return the bytes that a second searching process takes for itself."""
    command = [sys.executable, __file__, "--resident", str(folder), str(size)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    own = [int(process.stdout.readline()) for process in processes if process.stdout]
    for process in processes:
        process.communicate("\n")
    return own[-1]


def search_and_wait(folder: Path, size: int) -> None:
    """Search, print this process's own memory, and wait for a line."""
    import psutil

    before = psutil.Process().memory_full_info().uss
    store, rng = store_at(folder, size), np.random.default_rng(0)
    for _ in range(QUERIES):
        vector = rng.standard_normal((1, size), dtype=np.float32)
        store.search({"image": vector, "title": vector}, TOP)
    print(psutil.Process().memory_full_info().uss - before, flush=True)
    sys.stdin.readline()


def measure(folder: Path, mixture: Mixture, rows: int, flat_gib: float) -> dict[str, Any]:
    """Build a store of a number of rows, and measure its searches."""
    shutil.rmtree(folder, ignore_errors=True)
    built = build(folder, mixture, rows)
    store, query = store_at(folder, len(mixture.axes)), mixture.draw(QUERIES, seed=2)
    recalls = {}
    for weight in WEIGHTS:
        truth = store.rows.search(weighted(query, weight), TOP).rows
        recalls[f"{weight:g}"] = round(overlap(store.search(weighted(query, weight), TOP).rows, truth), 4)
    half = weighted(query, 0.5)
    truth = store.rows.search(half, TOP).rows
    curve = []
    for settings in (Search(cells, candidates) for cells in CELLS for candidates in CANDIDATES):
        recall = round(overlap(store.search_with(settings, half, TOP).rows, truth), 4)
        curve.append([settings.cells, settings.candidates, recall, milliseconds(store, settings, half)])
    figures = {
        "rows": rows,
        **built,
        "recall by λ": recalls,
        "curve": curve,
        "ms": milliseconds(store, store.settings, half),
        "flat, ms": flat_milliseconds(mixture, rows, flat_gib),
        "further process, bytes": further_process(folder, len(mixture.axes)),
    }
    shutil.rmtree(folder)
    return figures


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's tables."""
    sizes = figures["sizes"]
    rows = {
        "built in, minutes": [f"{(s['writing, s'] + s['filling, s']) / 60:.1f}" for s in sizes],
        "peak memory while building, GiB": [f"{s['peak, bytes'] / 2**30:.2f}" for s in sizes],
        "bytes of a row on the disk": [round(s["disk, bytes"] / s["rows"]) for s in sizes],
        "bytes of a row's codes": [round(s["codes, bytes"] / s["rows"]) for s in sizes],
        "recall@20, λ = 0.5": [f"{s['recall by λ']['0.5']:.4f}" for s in sizes],
        "lowest recall@20 of all λ": [f"{min(s['recall by λ'].values()):.4f}" for s in sizes],
        "ms a query": [f"{s['ms']:.2f}" for s in sizes],
        "ms a query, flat float32": [f"{s['flat, ms']:.0f}" for s in sizes],
        "MiB of a further searching process": [f"{s['further process, bytes'] / 2**20:.0f}" for s in sizes],
    }
    heads = [f"{s['rows']:,} rows" for s in sizes]
    curve = [(f"{s['rows']:,}", *point) for s in sizes for point in s["curve"]]
    head = ("rows", "cells", "rows scored again", "recall@20", "ms a query")
    return [*table(("", *heads), [(name, *cells) for name, cells in rows.items()]), "", *table(head, curve)]


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    last = figures["sizes"][-1]
    value = f"{last['ms']:.1f} ms, recall@20 {last['recall by λ']['0.5']:.3f}"
    return [(f"Search of {last['rows']:,} rows, one query", value, f"FAISS flat {last['flat, ms']:.0f} ms")]


BENCHMARK = Benchmark(
    "retrieval",
    "Vector search at Wikipedia's size",
    """
Rows are synthetic vectors of 768 numbers in two fields, drawn from a mixture of clusters. Queries run one at a time.

- *Recall@20* is against an exact search of the same float16 rows.
- *First table*: the store's calibration chose the number of cells and of rows that are scored again. The second table
  varies both.
- *Flat float32* is FAISS's flat index, timed on the rows that fit into 3 GiB, and scaled.
""",
    tables,
    claims,
)


def main() -> None:
    """Measure every size, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[500_000, 2_000_000])
    parser.add_argument("--dimensions", type=int, default=768, help="of both fields together")
    parser.add_argument("--clusters", type=int, default=20_000)
    parser.add_argument("--flat_gib", type=float, default=3.0)
    parser.add_argument("--run", type=Path, default=Path("runs/retrieval"), help="folder of the stores, removed")
    parser.add_argument("--resident", nargs=2, metavar=("FOLDER", "SIZE"), help="search a store, print the memory")
    arguments = BENCHMARK.parse(parser)
    if arguments.resident:
        return search_and_wait(Path(arguments.resident[0]), int(arguments.resident[1]))
    mixture = Mixture.of(arguments.dimensions // 2, arguments.clusters)
    sizes = [measure(arguments.run / str(rows), mixture, rows, arguments.flat_gib) for rows in arguments.rows]
    return BENCHMARK.finish({"sizes": sizes}, arguments)


if __name__ == "__main__":
    main()
