"""Show pocket's fresh test: real weights, photographs and Wikipedia.

    bash scripts/pocket.sh --fresh --run FOLDER    # hours
    python benchmarks/pocket.py --run FOLDER

A further training seed of mR²AG is in results/pocket_seeds.json, and figures of the recipe's own marks in
results/pocket_trained.json, each with the commit that they are of.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from results import Benchmark, table

from reflectune.core.durable import read_json
from reflectune.examples.pocket.run import BEST_READER, RUN
from reflectune.metrics.reporting.breakdown import in_per_cent

SEARCHES = {"leads": "Images and titles are searched (equation 3)", "leads_by_images": "Images alone are searched"}
"""Folders of the comparisons, and what each searches."""
TITLES = {
    BEST_READER: "the first article, its reader",
    "naive_rag_passage_tuned": "the best passage, its reader",
    "naive_rag_passages_tuned": "five passages, their reader",
    "mr2ag": "mR²AG, the paper's product",
    "mr2ag_fitted": "mR²AG, exponents fitted on other entities",
    "mr2ag (fresh_1)": "the product, a second training seed",
    "mr2ag_fitted (fit_1)": "fitted exponents, the second seed",
    "mr2ag (fresh_2)": "the product, a third training seed",
    "mr2ag_fitted (fit_2)": "fitted exponents, the third seed",
    "mr2ag_first_passage": "control: the first entry's best passage",
    "mr2ag_unjudged": "control: every passage's answer, no verdict",
    "mr2ag_text_scored": "control: a text retriever's scores as verdicts",
    "mr2ag_text_scored_fitted": "the same control, exponents fitted",
    "mmkb_rag (fresh_retrieved)": "MMKB-RAG, the paper's recipe",
    "mmkb_rag (fresh_retrieved_one)": "MMKB-RAG, one document by SRT times S_ret",
    "mmkb_rag (fresh_mmkb)": "the same, SRT trained on the right entry's passages",
    "mmkb_rag (fresh_mmkb_1)": "the same, a second training seed",
}
"""Rows: pipelines, with the folder of a further seed or of MMKB-RAG, without `_by_images`."""
FITTED = ("mr2ag_fitted", "mr2ag_fitted (fit_1)", "mr2ag_fitted (fit_2)")
MMKB = ("mmkb_rag (fresh_mmkb)", "mmkb_rag (fresh_mmkb_1)")


def figures_of(run: Path) -> dict[str, Any]:
    """Return score and lead of each row, by what is searched.

    Args:
        run: Folder that `scripts/pocket.sh --fresh` ran in.
    """
    figures: dict[str, Any] = {}
    for folder, search in SEARCHES.items():
        leads = read_json(run / RUN / folder / "compare.json", "the comparison")["leads"]
        figures[search] = {_row(name): row for name, row in leads["parts"]["overall"].items() if _row(name) in TITLES}
    return figures


def _row(name: str) -> str:
    """Return the row of a pipeline's name in a comparison, e.g. `mr2ag_fitted (runs/pocket/fit_by_images_1)`."""
    pipeline, _, folder = name.rstrip(")").partition(" (")
    folder = Path(folder).name.removesuffix("_by_images").replace("_by_images_", "_")
    return pipeline if folder in ("", "fresh", "fit") else f"{pipeline} ({folder})"


def tables(figures: dict[str, Any], reference: str = TITLES[BEST_READER]) -> list[str]:
    """Return a table for each search; `reference` is what the leads are over."""
    lines: list[str] = []
    for search, rows in figures.items():
        cells = [
            (title, in_per_cent(rows[name]["score"]), in_per_cent(rows[name]["lead"]))
            for name, title in TITLES.items()
            if name in rows
        ]
        lines += [*table((search, "per cent", f"over {reference}"), cells), ""]
    return lines[:-1]


def trained_tables(figures: dict[str, Any]) -> list[str]:
    """Return the tables of the recipe's marks and of equal depth."""
    marks = [(row["name"], row["expected"], in_per_cent(row["score"]), row["verdict"]) for row in figures["marks"]]
    depth = [(name, *map(in_per_cent, scores)) for name, scores in figures["equal depth"].items()]
    return [*table(("", "mark", "per cent", ""), marks), "", *table(("at equal depth", "untuned", "tuned"), depth)]


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    by_images = figures[SEARCHES["leads_by_images"]]
    reference = f"a reader of the first article, {in_per_cent(by_images[BEST_READER]['score'])}"
    claim = "pocket, fresh test by images: lead of"
    titles = {"mR²AG with fitted exponents": FITTED, "MMKB-RAG, a document by SRT · S_ret": MMKB}
    return [
        (
            f"{claim} {title}",
            "; ".join(in_per_cent(by_images[name]["lead"]) for name in seeds if name in by_images),
            reference,
        )
        for title, seeds in titles.items()
    ]


BENCHMARK = Benchmark(
    "pocket",
    "Pocket: real weights, photographs and Wikipedia",
    """
SmolLM2-135M and CLIP ViT-B/16 on [pocket's gallery](../docs/pocket.md). Per cent, with 95 % intervals.

- *The fresh test* comes first: 564 test questions on 285 entities. No choice was based on them. mR²AG is the shipped
  one; each reader was tuned on the context that it reads. Intervals are over entities.
- *A further training seed* of mR²AG follows, on the same questions. The readers were not trained again.
- *The marks* of the recipe come last. They were set before anything was trained, and have an earlier recipe of
  MMKB-RAG, baselines tuned only on five passages, and intervals over questions.
""",
    tables,
    claims,
    {"pocket_seeds": partial(tables, reference="its product"), "pocket_trained": trained_tables},
)


def main() -> None:
    """Write the results of a finished run."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/fresh"), help="folder that `runs/pocket` is below")
    arguments = BENCHMARK.parse(parser)
    return BENCHMARK.finish(figures_of(arguments.run), arguments)


if __name__ == "__main__":
    main()
