"""Vector search at Wikipedia's size: what building takes, and recall, latency and memory of searching.

    python benchmarks/retrieval.py --output benchmarks/retrieval.md

Vectors are a mixture with the spectrum of real embeddings: pocket/text's of the summaries of a knowledge base (the
gallery's: Wikipedia's) give the variances along principal axes; clusters of clusters are drawn in them. Queries are
drawn from the same clusters and are no rows. Two fields of half the dimensions each stand for images and titles: λ is
the weight of the second. FAISS's flat index in float32 is timed on the same machine, on as many rows as fit into
`--flat_gib`, and scaled to all rows: a scan takes as long for each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import psutil
import torch
from page import command_line
from running import alone

from reflectune.core.durable import write_atomically
from reflectune.examples.pocket.mapped_encoder import TitleModel
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.report.curves import Line, line_chart
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.stores.exact import ExactStore
from reflectune.retrieval.stores.ivf import CODES, FaissStore, Search, overlap

Vectors = npt.NDArray[np.float32]

QUERIES = 200
TOP = 20
WEIGHTS = tuple(round(0.1 * step, 1) for step in range(11))
CELLS = (4, 8, 16, 32, 64, 128, 256)
CANDIDATES = (50, 100, 200, 400)
BLOCK = 50_000


@dataclass(frozen=True)
class Source:
    """Draws vectors of length 1 in two fields that are alike as an image and a title of one thing are.

    Attributes:
        axes: Standard deviations along principal axes, largest first, shape (dimensions of a field,).
        centres: Of clusters, shape (clusters, dimensions of a field).
    """

    axes: Vectors
    centres: Vectors

    def draw(self, count: int, seed: int) -> dict[str, Vectors]:
        """Fields `image` and `title`, shape (count, dimensions of a field) each."""
        rng = np.random.default_rng(seed)
        own = self.centres[rng.integers(len(self.centres), size=count)]
        thing = own + 0.7 * self.axes * rng.standard_normal((count, len(self.axes)), dtype=np.float32)
        drawn = (
            thing + 0.3 * self.axes * rng.standard_normal((count, len(self.axes)), dtype=np.float32) for _ in range(2)
        )
        image, title = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in drawn)
        return {"image": image.astype(np.float32), "title": title.astype(np.float32)}


def source(spectrum: Vectors, dimensions: int, clusters: int) -> Source:
    """A source whose axes have the variances of real embeddings, stretched to so many dimensions."""
    places = np.linspace(0, len(spectrum) - 1, dimensions)
    axes = np.interp(places, np.arange(len(spectrum)), spectrum).astype(np.float32)
    axes /= np.linalg.norm(axes)
    rng = np.random.default_rng(7)
    topics = axes * rng.standard_normal((clusters // 100 + 1, dimensions), dtype=np.float32)
    spread = 0.7 * axes * rng.standard_normal((clusters, dimensions), dtype=np.float32)
    return Source(axes, topics[rng.integers(len(topics), size=clusters)] + spread)


def real_spectrum(knowledge: Path) -> Vectors:
    """Standard deviations along the principal axes of pocket/text's vectors of a knowledge base's summaries."""
    encoder = TitleModel(find_checkpoint("pocket/text"), torch.device("cpu"))
    vectors = encoder.encode([f"{entry.title}. {entry.summary}" for entry in islice(KnowledgeBase(knowledge), 2000)])
    return np.sqrt(np.linalg.eigvalsh(np.cov(vectors.T))[::-1].clip(min=0)).astype(np.float32)


def build(folder: Path, made: Source, rows: int) -> dict[str, Any]:
    """Write, fill and calibrate a store in a process of its own; what it took."""
    queue: Any = multiprocessing.get_context("spawn").SimpleQueue()
    process = multiprocessing.get_context("spawn").Process(target=_build, args=(folder, made, rows, queue))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"building {rows:,} rows ended with {process.exitcode}")
    return dict(queue.get())


def _build(folder: Path, made: Source, rows: int, queue: Any) -> None:
    size, memory = len(made.axes), Memory()
    store = FaissStore(folder, ExactStore(folder, {"image": size, "title": size}, precision="float16"))
    start = time.perf_counter()
    for number, first in enumerate(range(0, rows, BLOCK)):
        store.add(made.draw(min(BLOCK, rows - first), seed=1000 + number))
    written = time.perf_counter()
    store.finish()
    filled = time.perf_counter()
    record = store.calibrate(weighted(made.draw(128, seed=1), 0.5), top=TOP)
    queue.put(
        {
            "writing": written - start,
            "filling": filled - written,
            "calibrating": time.perf_counter() - filled,
            "peak": memory.peak,
            "disk": sum(path.stat().st_size for path in folder.iterdir()),
            "codes": (folder / CODES).stat().st_size,
            **record,
        }
    )


class Memory:
    """The most memory of its own that this process had; pages of mapped files can be taken back, and don't count."""

    def __init__(self) -> None:
        self.peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text()
            self.peak = max(self.peak, 1024 * int(status.split("RssAnon:")[1].split()[0]))
            time.sleep(0.1)


def weighted(query: Mapping[str, Vectors], weight: float) -> dict[str, Vectors]:
    """A query with the weight λ on its second field."""
    return {"image": query["image"] * np.float32(1 - weight), "title": query["title"] * np.float32(weight)}


def searcher(folder: Path, size: int) -> FaissStore:
    """The store, opened for searching."""
    return FaissStore(folder, ExactStore(folder, {"image": size, "title": size}, precision="float16"))


def seconds(store: FaissStore, settings: Search, query: Mapping[str, Vectors]) -> float:
    """Seconds a query, one at a time; the better of two turns."""
    turns = []
    for _ in range(2):
        start = time.perf_counter()
        for place in range(QUERIES):
            one = {name: vectors[place : place + 1] for name, vectors in query.items()}
            store.search_with(settings, one, TOP)
        turns.append((time.perf_counter() - start) / QUERIES)
    return min(turns)


def flat_seconds(made: Source, rows: int, gib: float) -> float:
    """Seconds a query of FAISS's flat index in float32, one at a time, on all rows: scaled from what fits."""
    size = 2 * len(made.axes)
    fitting = min(rows, int(gib * 2**30 / 4 / size))
    index = faiss.IndexFlatIP(size)
    for number, first in enumerate(range(0, fitting, BLOCK)):
        index.add(np.concatenate(list(made.draw(min(BLOCK, fitting - first), 1000 + number).values()), axis=1))
    query = np.concatenate(list(made.draw(20, seed=2).values()), axis=1)
    index.search(query[:1], TOP)
    start = time.perf_counter()
    for one in query:
        index.search(one[None], TOP)
    return (time.perf_counter() - start) / len(query) * rows / fitting


RESIDENT = """
import sys
from pathlib import Path
import numpy as np, psutil
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.examples.pocket.mapped_encoder import TitleModel
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.stores.exact import ExactStore
from reflectune.retrieval.stores.ivf import FaissStore
folder, size = Path(sys.argv[1]), int(sys.argv[2])
before = psutil.Process().memory_full_info().uss
store = FaissStore(folder, ExactStore(folder, {"image": size, "title": size}, precision="float16"))
rng = np.random.default_rng(0)
for _ in range(200):
    one = rng.standard_normal((1, size), dtype=np.float32)
    store.search({"image": one, "title": one}, 20)
print(psutil.Process().memory_full_info().uss - before, flush=True)
sys.stdin.readline()
"""


def resident(folder: Path, size: int) -> int:
    """Bytes of its own that a further process takes to search, beside one that searches already."""
    command = [sys.executable, "-c", RESIDENT, str(folder), str(size)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    own = [int(process.stdout.readline()) for process in started if process.stdout]
    for process in started:
        process.communicate("\n")
    return own[-1]


def killed(folder: Path, made: Source, rows: int, times: int) -> bool:
    """Whether a build that is killed so often ends in the bytes of one that is not."""
    results = []
    for name in ("whole", "killed"):
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        store = ExactStore(place, {"image": len(made.axes), "title": len(made.axes)}, precision="float16")
        for number, first in enumerate(range(0, rows, BLOCK)):
            store.add(made.draw(min(BLOCK, rows - first), seed=1000 + number))
        for turn in range(times if name == "killed" else 0):
            process = multiprocessing.get_context("spawn").Process(target=_fill, args=(place, len(made.axes)))
            process.start()
            time.sleep(0.5 * (turn + 1))
            process.kill()
            process.join()
        _fill(place, len(made.axes))
        results.append({path.name: path.read_bytes() for path in sorted(place.iterdir())})
        shutil.rmtree(place)
    return results[0] == results[1]


def _fill(folder: Path, size: int) -> None:
    searcher(folder, size).finish()


def measured(folder: Path, made: Source, rows: int, flat_gib: float) -> dict[str, Any]:
    """Everything about one size."""
    size = len(made.axes)
    took = build(folder, made, rows)
    store = searcher(folder, size)
    query = made.draw(QUERIES, seed=2)
    truth = {weight: store.rows.search(weighted(query, weight), TOP).rows for weight in WEIGHTS}
    by_weight = {weight: overlap(store.search(weighted(query, weight), TOP).rows, truth[weight]) for weight in WEIGHTS}
    half = weighted(query, 0.5)
    curve = []
    for cells in CELLS:
        for candidates in CANDIDATES:
            settings = Search(cells, candidates)
            recall = overlap(store.search_with(settings, half, TOP).rows, truth[0.5])
            curve.append((cells, candidates, recall, seconds(store, settings, half)))
    return {
        **took,
        "rows": rows,
        "by_weight": by_weight,
        "curve": curve,
        "seconds": seconds(store, store.settings, half),
        "flat_seconds": flat_seconds(made, rows, flat_gib),
        "resident": resident(folder, size),
    }


def page(results: list[dict[str, Any]], dimensions: int, cores: int, same: bool | None) -> Iterator[str]:
    """The lines of the report."""
    yield "# Vector search at Wikipedia's size"
    yield ""
    yield (
        f"{command_line(__file__)}, {cores} CPU threads: rows of {dimensions} numbers in two fields, a mixture with "
        "the spectrum of real embeddings; recall@20 against an exact search of the same float16 rows; one query at a "
        "time."
    )
    yield ""
    yield "| | mark | " + " | ".join(f"{result['rows']:,} rows" for result in results) + " |"
    yield "|---|---|" + "--:|" * len(results)

    def row(name: str, mark: str, cells: list[str]) -> str:
        return f"| {name} | {mark} | " + " | ".join(cells) + " |"

    yield row("built in, minutes", "finishes", [f"{(r['writing'] + r['filling']) / 60:.1f}" for r in results])
    yield row("of these cells and codes", "", [f"{r['filling'] / 60:.1f}" for r in results])
    yield row("most memory of its own while building, GiB", "≤ 3", [f"{r['peak'] / 2**30:.2f}" for r in results])
    yield row("bytes a vector on the disk", "≤ 2,200", [f"{r['disk'] / r['rows']:,.0f}" for r in results])
    yield row("of these codes", "", [f"{r['codes'] / r['rows']:,.0f}" for r in results])
    yield row("cells looked into, of its own choice", "", [f"{r['cells']}" for r in results])
    yield row("recall@20, λ = 0.5", "≥ 0.99", [f"{r['by_weight'][0.5]:.4f}" for r in results])
    yield row(
        "lowest recall@20 of λ = 0, 0.1, …, 1", "≥ 0.98", [f"{min(r['by_weight'].values()):.4f}" for r in results]
    )
    yield row("milliseconds a query", "", [f"{1000 * r['seconds']:.2f}" for r in results])
    yield row("flat float32, the same", "", [f"{1000 * r['flat_seconds']:.0f}" for r in results])
    yield row("times faster", "≥ 20", [f"{r['flat_seconds'] / r['seconds']:.0f}" for r in results])
    own = [f"{r['resident'] / 2**20:.0f}" for r in results]
    yield row("MiB of its own that a further searching process takes", "≤ 200", own)
    if same is not None:
        yield row(
            "killed five times while it fills: same bytes",
            "yes",
            ["yes" if same else "**no**"] + [""] * (len(results) - 1),
        )
    codes = [result["codes"] / result["rows"] for result in results]
    yield ""
    yield (
        f"By these, 21 M rows of {dimensions} numbers have {21e6 * codes[-1] / 1e9:.1f} GB of codes (mark 9) and "
        f"{21e6 * results[-1]['disk'] / results[-1]['rows'] / 1e9:.0f} GB on the disk."
    )
    yield ""
    yield "Recall by λ: " + "; ".join(
        f"{result['rows']:,} rows: "
        + ", ".join(f"{weight:g}: {recall:.3f}" for weight, recall in result["by_weight"].items())
        for result in results
    )
    yield ""
    yield "## Recall and latency"
    yield ""
    yield "| rows | cells looked into | rows scored again | recall@20 | ms a query |"
    yield "|--:|--:|--:|--:|--:|"
    for result in results:
        for cells, candidates, recall, took in result["curve"]:
            yield f"| {result['rows']:,} | {cells} | {candidates} | {recall:.4f} | {1000 * took:.2f} |"


def plot(results: list[dict[str, Any]]) -> str:
    """Recall against milliseconds, a line for each size, at 200 rows scored again."""
    slowest = max(took for result in results for *_, took in result["curve"])
    lines = [
        Line(
            f"{result['rows']:,} rows",
            [(took / slowest, recall) for _, candidates, recall, took in result["curve"] if candidates == 200],
            dots=True,
        )
        for result in results
    ]
    label = f"time of a query / {1000 * slowest:.0f} ms"
    chart = line_chart("Recall and latency", label, "recall@20", lines)
    return alone(chart, [line.name for line in lines], legend=(210, 146))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[500_000, 2_000_000])
    parser.add_argument("--dimensions", type=int, default=768, help="of both fields together")
    parser.add_argument("--clusters", type=int, default=20_000)
    gallery = Path("runs/pocket/gallery/knowledge")
    parser.add_argument("--knowledge", type=Path, default=gallery, help="a knowledge base of real texts")
    parser.add_argument("--flat_gib", type=float, default=3.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("runs/retrieval"))
    parser.add_argument("--output", type=Path, help="Markdown file, and an SVG beside it; printed in any case")
    options = parser.parse_args()
    made = source(real_spectrum(options.knowledge), options.dimensions // 2, options.clusters)
    results = []
    for rows in options.rows:
        folder = options.work / str(rows)
        shutil.rmtree(folder, ignore_errors=True)
        results.append(measured(folder, made, rows, options.flat_gib))
        print(json.dumps({key: value for key, value in results[-1].items() if key != "curve"}), flush=True)
        shutil.rmtree(folder)
    same = killed(options.work, made, 100_000, options.kills) if options.kills else None
    threads = int(os.environ.get("OMP_NUM_THREADS", psutil.cpu_count(logical=False) or 1))
    text = "\n".join(page(results, options.dimensions, threads, same)) + "\n"
    print(text)
    if options.output:
        write_atomically(options.output.with_suffix(".svg"), plot(results))
        write_atomically(options.output, text + f"\n![Recall against latency]({options.output.stem}.svg)\n")


if __name__ == "__main__":
    main()
