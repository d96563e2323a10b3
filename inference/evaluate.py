"""Run pipelines over a data set's questions: `accelerate launch inference/evaluate.py --config …`, or `python -m`.

Exit status: 0, or 3 if questions failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectune.core.command import command
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.inference.running.config import EvaluateConfig


@command(EvaluateConfig, writes="output")
def evaluate(config: EvaluateConfig) -> int | None:
    """Run pipelines over a data set's questions, score them, and write a report."""
    # slow to import, so only once the config is known to be right
    from reflectune.inference.running import experiment, planning
    from reflectune.inference.scoring.trajectories import reply_sentences

    if config.dry_run:
        print(planning.describe(config))
        return None
    if not (metrics := experiment.run(config)):
        return None
    print("\n".join([summary(metrics), *failures(metrics), *reply_sentences(metrics)]))
    print(f"report: {Path(config.output, 'report.html')}")
    return ROWS_LEFT_OUT if metrics["failed"] else None


def summary(metrics: dict[str, Any]) -> str:
    """Return the scores of the data set's metric as a small table, in %, with calls and tokens a question."""
    from reflectune.inference.report.comparison import headline_score  # slow to import
    from reflectune.inference.report.tables import COMPUTE, COST_HEADS, number
    from reflectune.metrics.reporting.breakdown import in_per_cent

    metric = metrics["metric"]
    heads = [*metric["columns"].values(), *(COST_HEADS[cost] for cost in COMPUTE)]
    names = max(22, *(len(name) + 2 for name in metrics["pipelines"]))
    widths = [max(17, len(head) + 2) for head in heads]
    titles = (head.rjust(width) for head, width in zip(heads, widths, strict=True))
    scores = map(headline_score, metrics["pipelines"].values())
    asked = max((score["n"] for score in scores if score), default=0)
    lines = [f"{metric['caption']}, in %, {asked:,} scored questions.", "".join(["pipeline".ljust(names), *titles])]
    for name, table in metrics["pipelines"].items():
        columns = (table.get(column) for column in metric["columns"])
        cells = [f"{100 * score['value']:.1f}" if score else "–" for score in columns]
        cells += [number(metrics["costs"][name][cost]) for cost in COMPUTE]
        lines.append("".join([name.ljust(names), *(c.rjust(w) for c, w in zip(cells, widths, strict=True))]))
    best = metrics["best_baseline"]  # None without a baseline
    keys = ("score", "lead") if best else ("score",)
    for part, table in metrics["groups"].items():
        lead = f"; lead over {best}" if best else ""
        lines.append(f"{part}, with 95 % intervals{lead}")
        for name, row in table.items():
            lines.append("".join([f"  {name}".ljust(names), *(in_per_cent(row[key]).rjust(34) for key in keys)]))
    return "\n".join(lines)


def failures(metrics: dict[str, Any]) -> list[str]:
    """Return a line for each pipeline with questions that failed; the report has their errors."""
    return [
        f"{name}: {count:,} of the questions failed and count as wrong" for name, count in metrics["failed"].items()
    ]


if __name__ == "__main__":
    evaluate.main()
