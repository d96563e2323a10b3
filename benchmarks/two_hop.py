"""Compare iterative pipelines whose model was taught by lessons with one search, on two-hop questions of the miniature.

    bash scripts/quickstart.sh
    python benchmarks/two_hop.py
    python benchmarks/two_hop.py --agent

Lessons are about the worlds of some seeds. The questions are of other worlds, with other entities, articles, images and
phrasings. `--agent` trains ProMSA on a scripted teacher's trajectories, after fewer lessons. Each stage is a command. A
finished stage is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results import Benchmark, score_cells, table

from reflectune.core.durable import read_json
from reflectune.examples.staging import PLAIN, flags, launch, module, program, run_stages

RECIPES = "examples/miniature"
SPLITS = ("two_hop_val", "two_hop_test")
WORLD_QUESTIONS, LONGER_QUESTIONS = 200, 120
"""Questions of a world in the first lessons, and in the longer ones."""
NEIGHBOURS = {"train": 1.0, "test": 0.5}
"""Share of the articles that name a neighbour. The default, one of seven, gives twenty pairs of entities a world."""
TEXT_ENCODER = "pocket/text"
"""all-MiniLM-L6-v2. The miniature's own text encoder doesn't know names, so a query with a name misses its passage."""
READING = {"text_passages": "4", "pair_passages": "3", "text_weight": "0.3", "saturation": "0.999"}
LONGER = ("--iterations", "2", "--renamed", "1", "--limit", str(LONGER_QUESTIONS), "--seed", "1")
LESSONS = {
    **PLAIN,  # one epoch: each lesson is repeated under other names
    "train_split": "two_hop_train",
    "learning_rate": 8e-4,
    "per_device_train_batch_size": 4,  # rows are long, and attention grows with the square of the length
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

AGENT_QUESTIONS = 400
"""Questions of a world that an agent's lessons and trajectories are of."""
SHORT = {**LESSONS, "max_steps": 600, "save_steps": 200}
TRAJECTORIES = {
    **LESSONS,
    "learning_rate": 5e-4,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "max_steps": 2900,
    "save_steps": 400,
    "logging_steps": 50,
}
"""Keys that differ from `sft.yaml` in the two trainings of an agent."""
SEARCHING = {"call_passages": 3, "describe_tools": "false", "max_record_tokens": 160, "batch_questions": 40}
AGENT_ROWS = {
    ("agent", "promsa"): "`promsa`, SFT on the trajectories",
    ("gspo", "promsa"): "the same, then 20 steps of TN-GSPO",
    ("taught", "mi_rag"): "`mi_rag`, the model before the trajectories, 3 searches",
    ("once", "mr2ag"): "`mr2ag`, the quick start's checkpoint, 1 search",
}


def stages(run: Path, checkpoint: Path, train: Sequence[int], test: Sequence[int]) -> dict[str, list[str]]:
    """Return the command of each stage."""
    made: dict[str, list[str]] = {}
    for seed in (*train, *test):
        neighbours, two_hop = NEIGHBOURS["train" if seed in train else "test"], WORLD_QUESTIONS if seed in train else 0
        made |= _world(run, seed, neighbours, two_hop)
    for seed in train:
        lessons = [*module("examples.lessons.write_lessons", f"{RECIPES}/lessons.yaml"), *_searched(run, seed)]
        for name, options in (("lessons", ()), ("longer_lessons", LONGER)):
            made[f"{name} {seed}"] = [*lessons, *options, "--output", str(run / f"{name}_{seed}")]
    first, last = str(run / "checkpoint"), str(run / TAUGHT)
    made["train"] = [*_training(run, "lessons", train, LESSONS), "--output_dir", first]
    longer = ("--model", first, "--learning_rate", "4e-4", "--output_dir", last)
    made["train longer"] = [*_training(run, "longer_lessons", train, LESSONS), *longer]
    for seed in test:
        for name, (model, pipelines, iterations) in EVALUATIONS.items():
            base = str(run / model) if model == TAUGHT else model
            keys = {"model": str(checkpoint), "base_model": base, **READING, "iterations": iterations}
            made[f"evaluate {seed} {name}"] = _evaluation(run, seed, name, pipelines, keys | {"max_record_tokens": 64})
    return made


def agent_stages(run: Path, checkpoint: Path, train: Sequence[int], test: Sequence[int]) -> dict[str, list[str]]:
    """Return the command of each stage that teaches ProMSA's agent."""
    made: dict[str, list[str]] = {}
    for seed in (*train, *test):
        made |= _world(run, seed, 1, AGENT_QUESTIONS if seed in train else 0)
    for seed in train:
        lessons = [*module("examples.lessons.write_lessons", f"{RECIPES}/lessons.yaml"), *_searched(run, seed)]
        made[f"lessons {seed}"] = [*lessons, "--renamed", "2", "--output", str(run / f"lessons_{seed}")]
        teacher = str(run / f"teacher_{seed}")
        command = [*module("examples.lessons.teach_agent", f"{RECIPES}/promsa_teacher.yaml"), *_searched(run, seed)]
        made[f"teacher {seed}"] = [*command, "--output", teacher]
        kept = ["--dataset", str(run / f"world_{seed}"), "--evaluations", teacher]
        command = module("examples.lessons.keep_trajectories", f"{RECIPES}/promsa_data.yaml")
        made[f"trajectories {seed}"] = [*command, *kept, "--output", str(run / f"trajectories_{seed}")]
    models = {name: str(run / name) for name in (TAUGHT, "agent", "gspo")}
    made[TAUGHT] = [*_training(run, "lessons", train, SHORT), "--output_dir", models[TAUGHT]]
    agent = _training(run, "trajectories", train, TRAJECTORIES)
    made["agent"] = [*agent, "--model", models[TAUGHT], "--output_dir", models["agent"]]
    command = [*launch("train.promsa_grpo", f"{RECIPES}/promsa_grpo.yaml"), *_searched(run, train[0])]
    made["gspo"] = [*command, "--model", models["agent"], "--output_dir", models["gspo"]]
    reading = {**READING, "iterations": 2, "max_record_tokens": 64}
    for seed in test:
        for name, pipeline in AGENT_ROWS:
            own = {"model": str(checkpoint)} if name == "once" else {"base_model": models[name]}
            keys = own | {"promsa": SEARCHING, "mi_rag": reading, "mr2ag": {}}[pipeline]
            made[f"evaluate {seed} {name}"] = _evaluation(run, seed, name, [pipeline], keys)
    return made


def _world(run: Path, seed: int, neighbours: float, two_hop: int) -> dict[str, list[str]]:
    """Return the commands that make a world and its two indexes; `two_hop` is its number of two-hop questions."""
    world = str(run / f"world_{seed}")
    asked = ["--two_hop", str(two_hop)] if two_hop else []
    made = {
        f"world {seed}": [
            *(*program("examples.miniature.build_world"), "--output", world, "--seed", str(seed)),
            *("--neighbours", str(neighbours), *asked),
        ]
    }
    for name, keys in (("index", ["miniature/clip"]), ("texts", [TEXT_ENCODER, "--rows", "passages"])):
        command = [*program("retrieval.build_index"), "--knowledge", f"{world}/knowledge", "--encoder", *keys]
        made[f"{name} {seed}"] = [*command, "--output", str(run / f"{name}_{seed}")]
    return made


def _training(run: Path, data: str, seeds: Sequence[int], keys: Mapping[str, Any]) -> list[str]:
    """Return the command that trains on the data of these worlds, without the folder of its checkpoint."""
    paths = json.dumps({str(run / f"{data}_{seed}"): 1 for seed in seeds})
    return [*launch("train.sft", f"{RECIPES}/sft.yaml"), *flags(keys), "--train_data", paths]


def _evaluation(run: Path, seed: int, name: str, pipelines: Sequence[str], keys: Mapping[str, Any]) -> list[str]:
    return [
        *module("inference.evaluate", f"{RECIPES}/iterative.yaml"),
        *(*_searched(run, seed), "--splits", *SPLITS, "--limit", "1000", "--pipelines", *pipelines),
        *(*flags(keys), "--output", str(run / f"{name}_{seed}")),
    ]


def _searched(run: Path, seed: int) -> list[str]:
    folders = {"dataset": "world", "index": "index", "text_index": "texts"}
    return [word for key, name in folders.items() for word in (f"--{key}", str(run / f"{name}_{seed}"))]


def figures_of(run: Path, test: Sequence[int]) -> dict[str, Any]:
    """Return the right answers and the questions of each pipeline, over the test worlds."""
    figures = {}
    for (evaluation, pipeline), name in ROWS.items():
        right = count = 0.0
        for seed in test:
            score = read_json(run / f"{evaluation}_{seed}/metrics.json", "the scores")["two_hop"][pipeline]
            right, count = right + score["value"] * score["n"], count + score["n"]
        figures[name] = {"score": right / count, "questions": int(count)}
    return figures


def agent_figures(run: Path, test: int) -> dict[str, Any]:
    """Return each row's share of right answers with its interval, and its costs, in a test world."""
    figures = {}
    for (evaluation, pipeline), name in AGENT_ROWS.items():
        metrics = read_json(run / f"{evaluation}_{test}/metrics.json", "the scores")
        costs = metrics["costs"][pipeline]
        figures[name] = {**metrics["two_hop"][pipeline], "searches": costs["searches"], "read": costs["read"]}
    return figures


def agent_tables(figures: dict[str, Any]) -> list[str]:
    """Return the table of an agent."""
    head = ("pipeline", "per cent right", "interval", "searches", "tokens read", "questions")
    rows = [
        (name, *score_cells(row), f"{row['searches']:.1f}", round(row["read"]), row["n"])
        for name, row in figures.items()
    ]
    return ["The agent had fewer lessons than the models above. Questions are of one world:", "", *table(head, rows)]


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's table."""
    rows = [(name, f"{100 * row['score']:.1f}", row["questions"]) for name, row in figures.items()]
    return table(("pipeline", "per cent right", "questions"), rows)


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    if ROWS["taught", "mi_rag"] not in figures:
        agent, once = (figures[AGENT_ROWS[row]]["value"] for row in (("agent", "promsa"), ("once", "mr2ag")))
        claim = "miniature, two-hop questions: ProMSA taught by a scripted teacher"
        return [(claim, f"{100 * agent:.1f} %", f"mR²AG, which searches once, {100 * once:.1f} %")]
    taught, once = (figures[ROWS[row]]["score"] for row in (("taught", "mi_rag"), ("one_search", "mi_rag")))
    claim = "miniature, two-hop questions: MI-RAG taught by lessons"
    return [(claim, f"{100 * taught:.1f} %", f"the same model with one search {100 * once:.1f} %")]


BENCHMARK = Benchmark(
    "two_hop",
    "Two-hop questions",
    f"""
The image shows one entity. Its article names a second entity, whose article has the answer. `{TEXT_ENCODER}` finds the
passages.

- *Taught by lessons*: `miniature/llava` learned trajectories of other worlds, two searches for {WORLD_QUESTIONS}
  questions of each world, then three for {LONGER_QUESTIONS}.
- *mR²AG's checkpoint* learned one-hop questions with one search, as in the paper. So the fair comparison of one search
  with several is between rows of the same model.
""",
    tables,
    claims,
    {"promsa": agent_tables},
)


def main() -> None:
    """Run the unfinished stages, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument(
        "--train_seeds", type=int, nargs="+", help="worlds of the lessons; default: 1 2 3 4 5, with --agent 1 2"
    )
    parser.add_argument(
        "--test_seeds", type=int, nargs="+", help="worlds of the questions; default: 101 102, with --agent 104"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("runs/quickstart/checkpoint"), help="mR²AG's checkpoint"
    )
    parser.add_argument("--run", type=Path, help="folder of the run; default: runs/two_hop, with --agent runs/promsa")
    parser.add_argument("--agent", action="store_true", help="teach ProMSA's agent")
    arguments = BENCHMARK.parse(parser)
    run = arguments.run or Path("runs/promsa" if arguments.agent else "runs/two_hop")
    train = arguments.train_seeds or ([1, 2] if arguments.agent else [1, 2, 3, 4, 5])
    test = arguments.test_seeds or ([104] if arguments.agent else [101, 102])
    run.mkdir(parents=True, exist_ok=True)
    made = agent_stages if arguments.agent else stages
    run_stages(run, made(run, arguments.checkpoint, train, test))
    if not arguments.agent:
        return BENCHMARK.finish(figures_of(run, test), arguments)
    BENCHMARK.write(agent_figures(run, test[0]), arguments, "promsa")
    return BENCHMARK.write_page(arguments)


if __name__ == "__main__":
    main()
