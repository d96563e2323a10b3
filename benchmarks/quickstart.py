"""The quick start, stage by stage, each the command that a user would type; ends with the minutes and the scores.

    python benchmarks/quickstart.py --family llava --method full --seed 0 --run runs/quickstart

A stage that is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / "accelerate/cpu.yaml")]


def module(name: str, config: str) -> list[str]:
    """The command that runs a module with a configuration of the miniature."""
    return [sys.executable, "-m", f"reflectune.{name}", "--config", str(CONFIGS / "miniature" / config)]


def launch(script: str, config: str) -> list[str]:
    """The command that launches a script with a configuration of the miniature."""
    return [*LAUNCH, str(ROOT / script), "--config", str(CONFIGS / "miniature" / config)]


def stages(run: Path, family: str, method: str, seed: int) -> dict[str, list[str]]:
    """The commands of the main job, by stage."""
    model = f"miniature/{family}"
    world, index, data, checkpoint = (str(run / name) for name in ("world", "index", "reflection", "checkpoint"))
    return {
        "world": [*module("data_builders.build_world", "world.yaml"), "--output", world, "--seed", str(seed)],
        "index": [
            *module("retrieval.build_index", "index.yaml"),
            *("--knowledge", f"{world}/knowledge", "--output", index),
        ],
        "data": [
            *module("data_builders.build_mr2ag", "mr2ag_data.yaml"),
            *("--dataset", world, "--index", index, "--output", data, "--seed", str(seed)),
        ],
        "train": [
            *launch("train/sft.py", f"mr2ag_{method}.yaml"),
            *("--model", model, "--train_data", data, "--output_dir", checkpoint, "--seed", str(seed)),
        ],
        "evaluate": [
            *launch("inference/evaluate.py", "evaluate.yaml"),
            *("--dataset", world, "--index", index, "--model", checkpoint, "--base_model", model),
            *("--output", str(run), "--seed", str(seed)),
        ],
    }


def run_stages(run: Path, commands: dict[str, list[str]]) -> dict[str, float]:
    """Run what isn't finished; the minutes of each stage, also of those that an earlier call finished."""
    log = run / "stages.json"
    minutes: dict[str, float] = json.loads(log.read_text()) if log.exists() else {}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    for name, command in commands.items():
        if name in minutes:
            print(f"{name}: finished earlier")
            continue
        print(f"\n== {name}\n$ {' '.join(command)}", flush=True)
        start = time.monotonic()
        status = subprocess.run(command, env=environment, check=False).returncode
        if status:
            sys.exit(status)
        minutes[name] = round((time.monotonic() - start) / 60, 2)
        log.write_text(json.dumps(minutes))
    return minutes


def summary(metrics: dict[str, dict]) -> list[str]:
    """The scores as lines of a table."""

    def show(found: dict | None) -> str:
        if not found or found.get("value") is None:
            return "–"
        return f"{100 * found['value']:5.1f}  ({100 * found['low']:.1f} to {100 * found['high']:.1f}, n = {found['n']})"

    lines = [f"{name:22} {show(scores.get('overall'))}" for name, scores in metrics["pipelines"].items()]
    for group in ("gate", "relevance", "answer", "visual", "retrieval"):
        for name, found in metrics.get(group, {}).items():
            nested = found if "value" not in found else {"": found}
            lines += [f"{f'{group} {name} {part}'.strip():38} {show(value)}" for part, value in nested.items()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("llava", "qwen2_vl"), default="llava")
    parser.add_argument("--method", choices=("full", "lora", "qlora"), default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    arguments = parser.parse_args()
    arguments.run.mkdir(parents=True, exist_ok=True)
    minutes = run_stages(arguments.run, stages(arguments.run, arguments.family, arguments.method, arguments.seed))
    path = arguments.run / "metrics.json"
    metrics = json.loads(path.read_text())
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    metrics["minutes"], metrics["peak_gib"] = minutes, round(max(children, metrics.get("peak_gib") or 0), 2)
    path.write_text(json.dumps(metrics, indent=2) + "\n")
    print("\nminiature numbers, in per cent (95 % intervals):", *summary(metrics), sep="\n  ")
    spent = ", ".join(f"{name} {value}" for name, value in minutes.items())
    print(f"\nminutes: {spent}; in all {sum(minutes.values()):.1f}; peak memory {metrics['peak_gib']} GiB")
    print("\nthe engine against one generate call per passage:", flush=True)
    models = ["--model", str(arguments.run / "checkpoint"), "--dataset", str(arguments.run / "world")]
    subprocess.run([sys.executable, str(ROOT / "benchmarks/one_by_one.py"), *models], check=True)
    print(f"\nreport: {(arguments.run / 'report.html').resolve()}")


if __name__ == "__main__":
    main()
