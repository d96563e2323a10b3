"""Run the stages of the quick start, each the command that a user would type; print the minutes and the scores.

    python -m reflectune.examples.miniature.quickstart --family llava --method full --seed 0 --run runs/quickstart
    python -m reflectune.examples.miniature.quickstart --device cuda --run runs/quickstart_gpu

A finished stage is not run again.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reflectune.core.durable import read_json, write_json
from reflectune.core.entry_point import entry_point
from reflectune.examples.miniature.models.architecture import FAMILIES
from reflectune.examples.scores import equal_depth
from reflectune.examples.staging import METHODS, PLAIN, cores, flags, launch, module, program, run_stages

RECIPES = "examples/miniature"
BATCH = 8
"""Questions a step, over all processes."""
EQUAL_DEPTH_CAPTION = (
    "InfoSeek score of mR²AG and of baselines at equal depth without reflection, in per cent: the same retrieval and\n"
    "instruction; tuned on the same questions, with as many tokens."
)


def stages(
    run: Path, family: str, method: str, seed: int, processes: int = 1, *, device: str = "cpu"
) -> dict[str, list[str]]:
    """Return the command of each stage. On a CPU, training and evaluation may use several processes."""
    placed = [] if device == "cpu" else ["--device", device]  # the recipes' own device is auto
    seeded = ("--seed", str(seed))
    model, batch = f"miniature/{family}", ("--per_device_train_batch_size", str(BATCH // processes))
    world, index, data, checkpoint = (str(run / name) for name in ("world", "index", "reflection", "checkpoint"))
    plain, plain_checkpoint = str(run / "plain"), str(run / "plain_checkpoint")

    def train(keys: Mapping[str, Any], train_data: str, output: str) -> list[str]:
        command = launch("train.sft", f"{RECIPES}/sft.yaml", processes, device=device)
        keys = {**keys, "model": model, "train_data": train_data, "output_dir": output}
        return [*command, *flags(keys), *seeded, *batch, *placed]

    return {
        "world": [*program("examples.miniature.build_world"), "--output", world, *seeded],
        "index": [
            *(*program("retrieval.build_index"), "--encoder", "miniature/clip"),
            *("--knowledge", f"{world}/knowledge", "--output", index, *placed),
        ],
        "data": [
            *module("data_builders.build_mr2ag", f"{RECIPES}/mr2ag_data.yaml"),
            *("--dataset", world, "--index", index, "--output", data, *seeded, *placed),
        ],
        "plain_data": [
            *module("data_builders.build_plain", f"{RECIPES}/plain_data.yaml"),
            *("--dataset", world, "--reflection", data, "--index", index, "--output", plain, *placed),
        ],
        "train": train(METHODS[method], data, checkpoint),
        "plain_train": train({**METHODS["full" if method == "full" else "lora"], **PLAIN}, plain, plain_checkpoint),
        "evaluate": [
            *launch("inference.evaluate", f"{RECIPES}/evaluate.yaml", processes, device=device),
            *("--dataset", world, "--index", index, "--model", checkpoint, "--base_model", model),
            *("--plain_model", plain_checkpoint, "--output", str(run), *seeded, *placed),
        ],
    }


def results(metrics: dict[str, Any]) -> str:
    """Return the scores, the table at equal depth, the minutes and the memory of a finished run."""
    minutes = metrics["minutes"]
    spent = ", ".join(f"{name} {value}" for name, value in minutes.items())
    return "\n".join(
        [
            "\n  ".join(
                [f"miniature numbers, in per cent (95 % intervals over {metrics['resampled']}):", *summary(metrics)]
            ),
            "",
            "\n  ".join([EQUAL_DEPTH_CAPTION, *equal_depth(metrics)]),
            "",
            f"minutes: {spent}; in all {sum(minutes.values()):.1f}; peak memory {metrics['peak_gib']} GiB",
        ]
    )


def summary(metrics: dict[str, dict]) -> list[str]:
    """Return the scores of metrics.json as lines of a table."""

    def show(score: dict | None) -> str:
        if not score or score.get("value") is None:
            return "–"
        return f"{100 * score['value']:5.1f}  ({100 * score['low']:.1f} to {100 * score['high']:.1f}, n = {score['n']})"

    lines = [f"{name:26} {show(scores.get('overall'))}" for name, scores in metrics["pipelines"].items()]
    for group in ("gate", "relevance", "answer", "visual", "retrieval"):
        for name, scores in metrics.get(group, {}).items():
            nested = scores if "value" not in scores else {"": scores}
            lines += [f"{f'{group} {name} {part}'.strip():38} {show(value)}" for part, value in nested.items()]
    return lines


@entry_point
def main() -> None:
    """Run the unfinished stages, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default="llava")
    parser.add_argument("--method", choices=METHODS, default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, choices=(1, 2, 4, 8), help="default: 2 if there are two cores")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda runs one process")
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="folder of the run")
    arguments = parser.parse_args()
    run, device = arguments.run, arguments.device
    if arguments.processes and device != "cpu":
        parser.error("--processes needs --device cpu; leave it out with --device cuda")
    processes = arguments.processes or (min(2, cores()) if device == "cpu" else 1)
    run.mkdir(parents=True, exist_ok=True)
    commands = stages(run, arguments.family, arguments.method, arguments.seed, processes, device=device)
    minutes = run_stages(run, commands, processes)
    path = run / "metrics.json"
    metrics = read_json(path, "the scores")
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    metrics["minutes"], metrics["peak_gib"] = minutes, round(max(children, metrics.get("peak_gib") or 0), 2)
    write_json(path, metrics)
    print(f"\n{results(metrics)}\n\nreport: {(run / 'report.html').resolve()}")


if __name__ == "__main__":
    main()
