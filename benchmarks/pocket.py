"""Evaluate pocket's shipped models: real weights, photographs and Wikipedia, on a CPU in about twenty minutes.

    python benchmarks/pocket.py
    python benchmarks/pocket.py --run FOLDER     # where `bash scripts/pocket.sh --quick` ran

The stages are those of `python -m reflectune.examples.pocket.run --quick`. A finished stage is not run again. The
trainings take eleven hours: their scores are kept in results/pocket_trained.json, with the commit that they are of.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from results import Benchmark, table

from reflectune.examples.pocket.marks import marks
from reflectune.examples.pocket.run import RUN
from reflectune.examples.scores import at
from reflectune.metrics.reporting.breakdown import in_per_cent

LEAD = "mr2ag - best_baseline"


def figures_of(metrics: dict[str, Any], minutes: dict[str, float]) -> dict[str, Any]:
    """Return the marks that were measured, the score of each pipeline, and mR²AG's leads."""
    scores = {name: found["overall"] for name, found in metrics["pipelines"].items()}
    return {
        "marks": [
            {"name": mark.name, "expected": mark.expected, "score": mark.score, "verdict": mark.verdict}
            for mark in marks({}, metrics, {})
            if mark.score is not None
        ],
        "scores": scores,
        "leads": metrics["comparisons"],
        "minutes": minutes,
    }


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the tables of the shipped models."""
    scores = [(f"`{name}`", in_per_cent(score)) for name, score in {**figures["scores"], **figures["leads"]}.items()]
    spent = ", ".join(f"{name} {minutes:.0f}" for name, minutes in figures.get("minutes", {}).items())
    return [
        *_mark_table(figures["marks"]),
        "",
        *table(("InfoSeek score", ""), scores),
        *(["", f"Minutes: {spent}."] if spent else []),
    ]


def trained_tables(figures: dict[str, Any]) -> list[str]:
    """Return the tables of the models that were trained by `scripts/pocket.sh`, and of three seeds."""
    depth = [(name, *map(in_per_cent, scores)) for name, scores in figures["equal depth"].items()]
    mmkb = [(f"`{name}`", in_per_cent(score)) for name, score in figures["mmkb_rag"].items()]
    lines = [*_mark_table(figures["marks"]), "", *table(("at equal depth", "untuned", "tuned"), depth), ""]
    lines += [*table(("MMKB-RAG, InfoSeek score", ""), mmkb), ""]
    for title, rows in figures["seeds"].items():
        names = list(next(iter(rows.values())))
        cells = [(seed, *(in_per_cent(scores[name]) for name in names)) for seed, scores in rows.items()]
        lines += [*table((title, *names), cells), ""]
    return lines[:-1]


def _mark_table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [(row["name"], row["expected"], in_per_cent(row["score"]), row["verdict"]) for row in rows]
    return table(("", "mark", "per cent", ""), cells)


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    score, lead = at(figures, "scores", "mr2ag"), at(figures, "leads", LEAD)
    if not score or not lead:
        return []
    value = f"{in_per_cent(score)}; lead {in_per_cent(lead)}"
    return [("pocket, shipped: mR²AG on photographs", value, "best baseline at equal depth, tuned ones included")]


BENCHMARK = Benchmark(
    "pocket",
    "Pocket: real weights, photographs and Wikipedia",
    """
SmolLM2-135M, CLIP ViT-B/16 and the gallery's pictures and articles. The first tables have the shipped models, by
`bash scripts/pocket.sh --quick`; the others the trained ones, by `bash scripts/pocket.sh`, and further seeds of mR²AG's
and the baselines' trainings. Per cent, with 95 % intervals over questions; the marks were set before anything was
trained. The baselines have the same retrieval and instruction; the tuned ones were tuned on the same questions, and on
five passages alone. A reader that was tuned on articles ties with mR²AG, and MMKB-RAG with the present recipe leads:
the fresh test in docs/pocket.md. MMKB-RAG's rows here are of an earlier recipe: the reader of five passages was
probed with four passages of each entry.
""",
    tables,
    claims,
    {"pocket_trained": trained_tables},
)


def main() -> None:
    """Run the unfinished stages, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--run", type=Path, default=Path(), help="folder that `runs/pocket` is below")
    arguments = parser.parse_args()
    if arguments.page:
        return BENCHMARK.write_page(arguments)
    command = [sys.executable, "-m", "reflectune.examples.pocket.run", "--quick", "--run", str(arguments.run)]
    subprocess.run(command, check=True)
    folder = arguments.run / RUN
    metrics = json.loads((folder / "quick/metrics.json").read_text(encoding="utf-8"))
    stages = json.loads((folder / "stages.json").read_text(encoding="utf-8"))
    minutes = {name: stage["minutes"] for name, stage in stages.items() if "minutes" in stage}
    return BENCHMARK.finish(figures_of(metrics, minutes), arguments)


if __name__ == "__main__":
    main()
