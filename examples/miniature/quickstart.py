"""The quick start, stage by stage, each the command that a user would type; ends with the minutes and the scores.

    python examples/miniature/quickstart.py --family llava --method full --seed 0 --run runs/quickstart
    python examples/miniature/quickstart.py --device cuda --run runs/quickstart_gpu

A stage that is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from page import command_line
from staging import ROOT, cores, launch, module, run_stages

BATCH = 8
"""Questions a step, over all processes."""


def stages(
    run: Path, family: str, method: str, seed: int, processes: int = 1, *, device: str = "cpu"
) -> dict[str, list[str]]:
    """The commands of the main job, by stage; training and evaluation in several processes of a CPU if wanted."""
    placed = [] if device == "cpu" else ["--device", device]  # where the recipes compute by themselves
    model, batch = f"miniature/{family}", ("--per_device_train_batch_size", str(BATCH // processes))
    world, index, data, checkpoint = (str(run / name) for name in ("world", "index", "reflection", "checkpoint"))
    plain, plain_checkpoint = str(run / "plain"), str(run / "plain_checkpoint")
    return {
        "world": [*module("data_builders.build_world", "world.yaml"), "--output", world, "--seed", str(seed)],
        "index": [
            *module("retrieval.build_index", "index.yaml"),
            *("--knowledge", f"{world}/knowledge", "--output", index, *placed),
        ],
        "data": [
            *module("data_builders.build_mr2ag", "mr2ag_data.yaml"),
            *("--dataset", world, "--index", index, "--output", data, "--seed", str(seed), *placed),
        ],
        "plain_data": [
            *module("data_builders.build_plain", "plain_data.yaml"),
            *("--dataset", world, "--reflection", data, "--index", index, "--output", plain, *placed),
        ],
        "train": [
            *launch("train/sft.py", f"mr2ag_{method}.yaml", processes, device=device),
            *("--model", model, "--train_data", data, "--output_dir", checkpoint, "--seed", str(seed)),
            *(*batch, *placed),
        ],
        "plain_train": [
            *launch("train/sft.py", f"plain_{'full' if method == 'full' else 'lora'}.yaml", processes, device=device),
            *("--model", model, "--train_data", plain, "--output_dir", plain_checkpoint, "--seed", str(seed)),
            *(*batch, *placed),
        ],
        "evaluate": [
            *launch("inference/evaluate.py", "evaluate.yaml", processes, device=device),
            *("--dataset", world, "--index", index, "--model", checkpoint, "--base_model", model),
            *("--plain_model", plain_checkpoint, "--output", str(run), "--seed", str(seed), *placed),
        ],
    }


def summary(metrics: dict[str, dict]) -> list[str]:
    """The scores as lines of a table."""

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


EQUAL_DEPTH_CAPTION = (
    "InfoSeek score of mR²AG and of what reads as much without reflection, in per cent: the same retrieval and\n"
    "instruction; tuned on the same questions, with as many tokens."
)


def equal_depth(metrics: dict[str, Any]) -> list[str]:
    """Baselines at one entry and at as many as mR²AG reads, untuned and tuned, as lines of a table."""

    def cell(name: str) -> str:
        score = (metrics["pipelines"].get(name) or {}).get("overall")
        return f"{100 * score['value']:.1f}" if score else "–"

    rows = {
        "closed book": "closed_book",
        "naive RAG, 1 entry": "naive_rag_article",
        "naive RAG, 5 entries": "naive_rag_articles",
        "filter: best 5 passages of 5 entries": "naive_rag_passages",
        "oracle: gold entry among 5": "oracle_articles",
        "oracle: gold entry alone": "oracle_article",
    }
    lines = [f"{'':38}{'untuned':>9}{'tuned':>9}"]
    lines += [f"{title:38}{cell(name):>9}{cell(f'{name}_tuned'):>9}" for title, name in rows.items()]
    lines += [f"{'mR²AG, 5 entries':38}{'':>9}{cell('mr2ag'):>9}"]
    lines += [f"{'mR²AG, oracle entry':38}{'':>9}{cell('mr2ag_oracle'):>9}"]
    lead = metrics["comparisons"].get("mr2ag - best_baseline")
    if lead:
        low, high = 100 * lead["low"], 100 * lead["high"]
        lines.append(
            f"lead over the best of them ({metrics['best_baseline']}): {100 * lead['value']:+.1f} "
            f"({low:+.1f} to {high:+.1f})"
        )
    return lines


def main() -> None:
    """Parse the options, then run the quick start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("llava", "qwen2_vl"), default="llava")
    parser.add_argument("--method", choices=("full", "lora", "qlora"), default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, choices=(1, 2, 4, 8), help="default: 2 if there are two cores")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one process there")
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--output", type=Path, help="Markdown file of what is printed at the end")
    arguments = parser.parse_args()
    run, device = arguments.run, arguments.device
    if arguments.processes and device != "cpu":
        parser.error("--processes are of a CPU: leave it out beside --device cuda")
    processes = arguments.processes or (min(2, cores()) if device == "cpu" else 1)
    run.mkdir(parents=True, exist_ok=True)
    commands = stages(run, arguments.family, arguments.method, arguments.seed, processes, device=device)
    minutes = run_stages(run, commands, processes)
    path = run / "metrics.json"
    metrics = json.loads(path.read_text())
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    metrics["minutes"], metrics["peak_gib"] = minutes, round(max(children, metrics.get("peak_gib") or 0), 2)
    path.write_text(json.dumps(metrics, indent=2) + "\n")
    score_lines = results(metrics)
    print(f"\n{score_lines}\n\nthe engine against one generate call per passage:", flush=True)
    models = ["--model", str(run / "checkpoint"), "--dataset", str(run / "world"), "--device", device]
    one_by_one = [sys.executable, str(ROOT / "benchmarks/one_by_one.py"), *models]
    compared = subprocess.run(one_by_one, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(compared, end="")
    print(f"\nreport: {(run / 'report.html').resolve()}")
    if arguments.output:
        arguments.output.write_text(page(score_lines, compared), encoding="utf-8")


def results(metrics: dict[str, Any]) -> str:
    """The scores, the table at equal depth, the minutes and the memory of a finished quick start."""
    minutes = metrics["minutes"]
    spent = ", ".join(f"{name} {value}" for name, value in minutes.items())
    return "\n".join(
        [
            "\n  ".join(["miniature numbers, in per cent (95 % intervals):", *summary(metrics)]),
            "",
            "\n  ".join([EQUAL_DEPTH_CAPTION, *equal_depth(metrics)]),
            "",
            f"minutes: {spent}; in all {sum(minutes.values()):.1f}; peak memory {metrics['peak_gib']} GiB",
        ]
    )


def page(score_lines: str, compared: str) -> str:
    """What the quick start prints, as Markdown."""
    return "\n".join(
        [
            "# The quick start",
            "",
            f"{command_line('quickstart.py')}, as `bash scripts/quickstart.sh` runs it: what it prints at its end. "
            "Minutes are by the clock, whatever else ran on the machine.",
            "",
            *("```", score_lines, "```", ""),
            "The engine against one `generate` call per passage, on the same checkpoint:",
            "",
            *("```", *compared.splitlines(), "```", ""),
            "A miniature's picture takes 16 tokens and a question's prefix 36, so that there is little to share here: "
            "[shared_prefix.md](shared_prefix.md) and [train_tree.md](train_tree.md) have pictures of 576 tokens.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
