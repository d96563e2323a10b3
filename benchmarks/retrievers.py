"""mR²AG's Table 8 in miniature: how often each retriever finds the right entry, and what mR²AG answers with it.

    python -m reflectune.retrieval.build_index --config configs/examples/miniature/index.yaml --summaries \
        --output runs/summaries
    python benchmarks/retrievers.py --index runs/summaries --output benchmarks/retrievers.md

Retrievers are weights on one index; the questions, the checkpoint and the depth are the same for all.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from reflectune.formats.dataset import Dataset
from reflectune.inference.running.experiment import select
from reflectune.inference.scoring.recall import measure_entries
from reflectune.inference.sweeps import run as sweep_run
from reflectune.inference.sweeps.config import Grid, SweepConfig
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.entry_index import load_index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever

START = (0.5, 0.0)
SPLITS = ["val_unseen_question", "val_unseen_entity"]
RETRIEVERS: dict[str, tuple[float, float]] = {
    "images alone": (0.0, 0.0),
    "images ¾, titles ¼": (0.25, 0.0),
    "images ½, titles ½ (equation 3)": (0.5, 0.0),
    "images ¼, titles ¾": (0.75, 0.0),
    "titles alone": (1.0, 0.0),
    "images ½, summaries ½": (0.5, 1.0),
    "summaries alone": (1.0, 1.0),
}
"""By name: `title_weight` and `summary_share`."""

TEXT = """# Retrievers against accuracy

`python benchmarks/retrievers.py --index runs/summaries --output benchmarks/retrievers.md`, on the quick start's world
and checkpoint, and an index by
`python -m reflectune.retrieval.build_index --config configs/examples/miniature/index.yaml --summaries --output
runs/summaries`.

mR²AG's Table 8 in miniature: one checkpoint of mR²AG reads {top_n} entries of each retriever. Recall is of the
questions that name an entry, accuracy the metric's over {questions} questions of the validation splits, in per cent
with 95 % intervals over questions. The oracle gives the right entry alone. Miniature numbers: read their order.

{table}

The checkpoint learned with look-alikes that equation 3 found, and was not tuned for the others.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="folder of the quick start")
    parser.add_argument("--index", required=True, help="an index of its world with summaries")
    parser.add_argument("--limit", type=int, help="questions of each split; default: all")
    parser.add_argument("--top_n", type=int, default=5, help="entries to read")
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    answered = answers(arguments)
    points = {point["name"]: point for point in answered["points"]}
    found = recalls(arguments)
    lines = [f"| retriever | article_recall@1 | article_recall@{arguments.top_n} | accuracy |", "|---|--:|--:|--:|"]
    for name, weights in RETRIEVERS.items():
        cells = [shown(found[name][f"article_recall@{depth}"]) for depth in (1, arguments.top_n)]
        lines.append(f"| {name} | {' | '.join(cells)} | {shown(points[point_name(*weights)]['accuracy'])} |")
    lines.append(f"| oracle | 100 | 100 | {shown(points[point_name(*START, entries='gold')]['accuracy'])} |")
    page = TEXT.format(top_n=arguments.top_n, questions=answered["questions"], table="\n".join(lines))
    print(page)
    if arguments.output:
        arguments.output.write_text(page, encoding="utf-8")


def point_name(title_weight: float, summary_share: float, entries: str = "retrieved") -> str:
    """What a sweep calls a point of all combinations; the starting point has a name of its own."""
    if (title_weight, summary_share, entries) == (*START, "retrieved"):
        return "start"
    return f"title_weight={title_weight} summary_share={summary_share} entries={entries}"


def answers(arguments: argparse.Namespace) -> dict[str, Any]:
    """A sweep over all combinations of weights, and the oracle."""
    with tempfile.TemporaryDirectory() as folder:
        config = SweepConfig(
            dataset=str(arguments.run / "world"),
            index=arguments.index,
            model=str(arguments.run / "checkpoint"),
            pipeline="mr2ag",
            grid=Grid(
                {
                    "title_weight": sorted({title for title, _ in RETRIEVERS.values()}),
                    "summary_share": [0.0, 1.0],
                    "entries": ["retrieved", "gold"],
                }
            ),
            product=True,
            splits=SPLITS,
            top_n=arguments.top_n,
            limit=arguments.limit,
            max_new_tokens=16,
            output=folder,
            device="cpu",
        )
        return sweep_run.run(config)


def recalls(arguments: argparse.Namespace) -> dict[str, Mapping[str, Any]]:
    """Article recall of each retriever over the questions of both splits."""
    dataset = Dataset(arguments.run / "world")
    encoder = load_encoder("miniature/clip")
    entries = EntryRetriever(load_index(arguments.index, dataset.knowledge, encoder), encoder)
    searches = {
        name: entries.weighted(title_weight=title, summary_share=share).search_queries
        for name, (title, share) in RETRIEVERS.items()
    }
    asked = select(dataset, SPLITS, arguments.limit, 0)
    together = [dataclasses.replace(question, split="validation") for question in asked]
    figures = measure_entries(dataset, together, searches, [1, arguments.top_n])
    return figures["validation"]["searches"]


def shown(score: Any) -> str:
    """A score in per cent, with its interval."""
    return f"{100 * score['value']:.1f} ({100 * score['low']:.1f} to {100 * score['high']:.1f})"


if __name__ == "__main__":
    main()
