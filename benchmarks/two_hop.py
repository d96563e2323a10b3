"""Compare iterative pipelines whose model was taught by lessons with one search, on two-hop questions of the miniature.

    bash scripts/quickstart.sh
    python benchmarks/two_hop.py

Lessons are written in worlds of some seeds; the questions are those of other worlds, with other entities, articles,
pictures and phrasings. Each stage is a command. A finished stage is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import Benchmark, table

from reflectune.examples.staging import PLAIN, flags, launch, module, program, run_stages

RECIPES = "examples/miniature"
SPLITS = ("two_hop_val", "two_hop_test")
WORLD_QUESTIONS, LONGER_QUESTIONS = 200, 120
"""Questions of a world that lessons are written of, in the first and in the second course."""
NEIGHBOURS = {"train": 1.0, "test": 0.5}
"""Share of the articles that name a neighbour. The default, one of seven, gives twenty pairs of entities a world."""
TEXT_ENCODER = "pocket/text"
"""all-MiniLM-L6-v2: the miniature's own text encoder knows no names, so that a query with one misses its passage."""
READING = {"text_passages": "4", "pair_passages": "3", "text_weight": "0.3", "saturation": "0.999"}
LONGER = ("--iterations", "2", "--renamed", "1", "--limit", str(LONGER_QUESTIONS), "--seed", "1")
LESSONS = {
    **PLAIN,  # each lesson comes several times, under other names
    "train_split": "two_hop_train",
    "learning_rate": 8e-4,
    "per_device_train_batch_size": 4,  # a row of many long ones costs their square
    "gradient_accumulation_steps": 2,
    "save_steps": 60,
    "logging_steps": 10,
}
"""Keys that differ from `sft.yaml` in a training on lessons."""
TAUGHT = "taught"
EVALUATIONS: dict[str, tuple[str, Sequence[str], int]] = {
    "taught": (TAUGHT, ("mi_rag", "pmsr"), 2),
    "one_search": (TAUGHT, ("mi_rag",), 0),
    "untaught": ("miniature/llava", ("mi_rag", "naive_rag", "mr2ag"), 2),
}
"""Reader, pipelines and iterations of each evaluation."""
ROWS = {
    ("taught", "mi_rag"): "`mi_rag`, taught by lessons, 3 searches",
    ("one_search", "mi_rag"): "the same model and pipeline, 1 search",
    ("taught", "pmsr"): "`pmsr`, the same model, at most 3 searches",
    ("untaught", "mi_rag"): "`mi_rag`, the base, not taught",
    ("untaught", "mr2ag"): "`mr2ag`, the quick start's checkpoint, 1 search",
    ("untaught", "naive_rag_passages"): "`naive_rag` (passages), the base",
    ("untaught", "naive_rag_articles"): "`naive_rag` (articles), the base",
}


def stages(run: Path, checkpoint: Path, train: Sequence[int], test: Sequence[int]) -> dict[str, list[str]]:
    """Return the command of each stage."""
    made: dict[str, list[str]] = {}
    for seed in (*train, *test):
        world, index, texts = (str(run / f"{name}_{seed}") for name in ("world", "index", "texts"))
        kind = "train" if seed in train else "test"
        made[f"world {seed}"] = [
            *program("examples.miniature.build_world"),
            *("--output", world, "--seed", str(seed), "--neighbours", str(NEIGHBOURS[kind])),
            *(("--two_hop", str(WORLD_QUESTIONS)) if kind == "train" else ()),
        ]
        made[f"index {seed}"] = [
            *(*program("retrieval.build_index"), "--encoder", "miniature/clip"),
            *("--knowledge", f"{world}/knowledge", "--output", index),
        ]
        made[f"text index {seed}"] = [
            *(*program("retrieval.build_index"), "--rows", "passages"),
            *("--knowledge", f"{world}/knowledge", "--encoder", TEXT_ENCODER, "--output", texts),
        ]
    for seed in train:
        courses: dict[str, Sequence[str]] = {"lessons": (), "longer_lessons": LONGER}
        for name, options in courses.items():
            command = module("examples.lessons.write_lessons", f"{RECIPES}/lessons.yaml")
            output = ("--output", str(run / f"{name}_{seed}"))
            made[f"{name} {seed}"] = [*command, *_searched(run, seed), *options, *output]
    first, last = str(run / "checkpoint"), str(run / TAUGHT)
    trainings: dict[str, tuple[str, Sequence[str]]] = {
        "train": ("lessons", ("--output_dir", first)),
        "train longer": ("longer_lessons", ("--model", first, "--learning_rate", "4e-4", "--output_dir", last)),
    }
    for name, (lessons, options) in trainings.items():
        data = json.dumps({str(run / f"{lessons}_{seed}"): 1 for seed in train})
        command = [*launch("train.sft", f"{RECIPES}/sft.yaml"), *flags(LESSONS)]
        made[name] = [*command, "--train_data", data, *options]
    for seed in test:
        for name, (model, pipelines, iterations) in EVALUATIONS.items():
            made[f"evaluate {seed} {name}"] = [
                *module("inference.evaluate", f"{RECIPES}/iterative.yaml"),
                *(*_searched(run, seed), "--splits", *SPLITS, "--limit", "1000", "--pipelines", *pipelines),
                *("--model", str(checkpoint), "--base_model", str(run / model) if model == TAUGHT else model),
                *(word for key, value in READING.items() for word in (f"--{key}", value)),
                *("--iterations", str(iterations), "--max_record_tokens", "64"),
                *("--output", str(run / f"{name}_{seed}")),
            ]
    return made


def _searched(run: Path, seed: int) -> list[str]:
    folders = {"dataset": "world", "index": "index", "text_index": "texts"}
    return [word for key, name in folders.items() for word in (f"--{key}", str(run / f"{name}_{seed}"))]


def figures_of(run: Path, test: Sequence[int]) -> dict[str, Any]:
    """Return the right answers and the questions of each pipeline, over the test worlds."""
    figures = {}
    for (evaluation, pipeline), name in ROWS.items():
        right = count = 0.0
        for seed in test:
            metrics = json.loads((run / f"{evaluation}_{seed}/metrics.json").read_text(encoding="utf-8"))
            score = metrics["pipelines"][pipeline]["overall"]
            right, count = right + score["value"] * score["n"], count + score["n"]
        figures[name] = {"score": right / count, "questions": int(count)}
    return figures


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's table."""
    rows = [(name, f"{100 * row['score']:.1f}", row["questions"]) for name, row in figures.items()]
    return table(("pipeline", "per cent right", "questions"), rows)


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    taught, once = (figures[ROWS[row]]["score"] for row in (("taught", "mi_rag"), ("one_search", "mi_rag")))
    claim = "miniature, two-hop questions: MI-RAG taught by lessons"
    return [(claim, f"{100 * taught:.1f} %", f"the same model with one search {100 * once:.1f} %")]


BENCHMARK = Benchmark(
    "two_hop",
    "Two-hop questions",
    f"""
The picture shows one entity; its article names a second one, whose article has the answer. `miniature/llava` was taught
by lessons of other worlds: trajectories of two searches for {WORLD_QUESTIONS} questions of each world, then
of three for {LONGER_QUESTIONS}. mR²AG's checkpoint learned one-hop questions from one search, as the paper has it. The
fair comparison of searching once with searching again is that of the same model. Passages are found by
`{TEXT_ENCODER}`.
""",
    tables,
    claims,
)


def main() -> None:
    """Run the unfinished stages, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--train_seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="worlds of the lessons")
    parser.add_argument("--test_seeds", type=int, nargs="+", default=[101, 102], help="worlds of the questions")
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/quickstart/checkpoint"), help="mR²AG's")
    parser.add_argument("--run", type=Path, default=Path("runs/two_hop"))
    arguments = parser.parse_args()
    if arguments.page:
        return BENCHMARK.write_page(arguments)
    run, test = arguments.run, arguments.test_seeds
    run.mkdir(parents=True, exist_ok=True)
    run_stages(run, stages(run, arguments.checkpoint, arguments.train_seeds, test))
    return BENCHMARK.finish(figures_of(run, test), arguments)


if __name__ == "__main__":
    main()
