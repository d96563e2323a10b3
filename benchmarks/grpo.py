"""Compare gates refined by reward with the γ sweep of the checkpoint that they start from.

    python benchmarks/grpo.py --seeds 0

For each seed: a world with traffic questions, MMKB-RAG's probes, labels and fine-tuning, GRPO of its RET gate, and a
sweep over γ of both checkpoints on held-out traffic, each by its command. A finished stage is not run again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import Benchmark, table

from reflectune.core.durable import read_json
from reflectune.examples.miniature import quickstart
from reflectune.examples.staging import MMKB, flags, launch, module, run_stages

RECIPES = "examples/miniature"
GAMMAS = [round(0.1 * step, 1) for step in range(11)]
VARIANTS = {
    "refined": (),
    "refined without hold": ("--hold", "0"),
    "refined, policy_loss: grpo": ("--policy_loss", "grpo"),
}


def stages(run: Path, seed: int, traffic: int, cost: float, variants: Sequence[str]) -> dict[str, list[str]]:
    """Return the command of each stage."""
    world, index, probes, labels, tuned = (str(run / name) for name in ("world", "index", "probes", "labels", "sft"))
    shared = quickstart.stages(run, "llava", "full", seed)
    data = ("--dataset", world, "--index", index)

    def sweep(name: str) -> list[str]:
        command = module("inference.sweep", f"{RECIPES}/sweep.yaml")
        model = ("--pipeline", "mmkb_rag", "--base_model", "miniature/llava", "--model", str(run / name))
        options = ("--documents", "10", "--splits", "traffic_val", "--grid", json.dumps({"gamma": GAMMAS}))
        return [*command, *model, *data, "--output", str(run / f"sweep_{name}"), *options]

    made = {
        "world": [*shared["world"], "--traffic", str(traffic)],
        "index": shared["index"],
        "probe": [*launch("data_builders.probe", f"{RECIPES}/probe.yaml"), *data, "--output", probes],
        "labels": [
            *module("data_builders.derive_labels", f"{RECIPES}/derive_labels.yaml"),
            *("--dataset", world, "--probes", probes, "--output", labels),
        ],
        "train": [
            *(*launch("train.sft", f"{RECIPES}/sft.yaml"), *flags(MMKB)),
            *("--train_data", labels, "--output_dir", tuned, "--seed", str(seed)),
        ],
        "sweep sft": sweep("sft"),
    }
    for name in variants:
        folder = _folder(name)
        made[name] = [
            *launch("train.grpo", f"{RECIPES}/grpo_mmkb.yaml"),
            *(*data, "--model", tuned, "--output_dir", str(run / folder), "--rewards", str(run / "answers")),
            *("--retrieval_cost", str(cost), "--seed", str(seed), *VARIANTS[name]),
        ]
        made[f"sweep {name}"] = sweep(folder)
    return made


def _folder(variant: str) -> str:
    return variant.replace(",", "").replace(":", "").replace(" ", "_")


def points_of(run: Path, name: str, cost: float) -> list[dict[str, float]]:
    """Return γ, accuracy, passages read and reward of each point of a sweep."""
    record = read_json(run / f"sweep_{name}/sweep.json", "the sweep")
    points = []
    for point in record["points"]:
        if point["settings"] == {**record["start"], "gamma": point["settings"]["gamma"]}:
            accuracy, read = point["accuracy"]["value"], point["passages_read"]
            reward = accuracy - cost * read
            points.append({"gamma": point["settings"]["gamma"], "accuracy": accuracy, "read": read, "reward": reward})
    return points


def measure(run: Path, seed: int, traffic: int, cost: float, variants: Sequence[str]) -> dict[str, Any]:
    """Run the unfinished stages, and return each gate's scores."""
    run.mkdir(parents=True, exist_ok=True)
    minutes = run_stages(run, stages(run, seed, traffic, cost, variants))
    sft = points_of(run, "sft", cost)
    rows = {"SFT, γ = 0.5": _at_half(sft), "SFT, the best γ": max(sft, key=lambda point: point["reward"])}
    rows |= {f"{name}, γ = 0.5": _at_half(points_of(run, _folder(name), cost)) for name in variants}
    return {"rows": rows, "minutes": minutes["refined"]}


def _at_half(points: list[dict[str, float]]) -> dict[str, float]:
    return next(point for point in points if point["gamma"] == 0.5)


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's table: means over seeds, and the lowest and highest reward."""
    seeds, rows = figures["seeds"], []
    for name in seeds[0]["rows"]:
        points = [seed["rows"][name] for seed in seeds if name in seed["rows"]]
        accuracy, read, reward = (statistics.mean(p[key] for p in points) for key in ("accuracy", "read", "reward"))
        spread = f"{min(p['reward'] for p in points):.3f} to {max(p['reward'] for p in points):.3f}"
        rows.append((name, f"{100 * accuracy:.1f}", f"{read:.2f}", f"{reward:.3f}", spread, len(points)))
    return table(("", "accuracy", "passages per question", "reward", "by seed", "seeds"), rows)


BENCHMARK = Benchmark(
    "grpo",
    "Gates refined by reward",
    """
MMKB-RAG on the miniature LLaVA. Each seed has its own world, fine-tuned checkpoint and refined checkpoint. The 400
questions of `traffic_val` were not in any training data; the base model knows the facts of two in five. The reward is
the accuracy minus 0.3 per passage read. *The best γ* is chosen on the same questions, so it is an upper bound.
""",
    tables,
)


def main() -> None:
    """Measure every seed, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cost", type=float, default=0.3, help="λ, the reward's cost of a passage")
    parser.add_argument("--traffic", type=int, default=4000, help="questions to learn from")
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS), help="of the first seed")
    parser.add_argument("--run", type=Path, default=Path("runs/grpo_benchmark"))
    arguments = BENCHMARK.parse(parser)
    seeds = []
    for number, seed in enumerate(arguments.seeds):
        variants = ["refined", *(name for name in arguments.variants if name != "refined" and number == 0)]
        seeds.append(measure(arguments.run / f"seed-{seed}", seed, arguments.traffic, arguments.cost, variants))
    return BENCHMARK.finish({"seeds": seeds}, arguments)


if __name__ == "__main__":
    main()
