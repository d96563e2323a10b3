"""Run pipelines over a data set's questions: `accelerate launch inference/evaluate.py --config …`, or `python -m`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.inference.config import EvaluateConfig


@entry_point
def main() -> None:
    """Read the config, run the pipelines, and print the scores."""
    (config,) = parse_config(EvaluateConfig)
    from accelerate import PartialState  # slow to import, so only once the config is known to be right

    from reflectune.inference import experiment

    if config.dry_run:
        print(experiment.describe(config))
        return
    metrics = experiment.run(config)
    if PartialState().is_main_process:
        print(summary(metrics))
        print(f"report: {Path(config.output, 'report.html')}")


def summary(metrics: dict[str, Any]) -> str:
    """The official scores as a small table, in %."""
    columns = ("overall", "unseen_question", "unseen_entity")
    lines = ["".join(["pipeline".ljust(22), *(column.rjust(17) for column in columns)])]
    for name, table in metrics["pipelines"].items():
        cells = (f"{100 * table[c]['value']:.1f}" if table[c] else "–" for c in columns)
        lines.append("".join([name.ljust(22), *(cell.rjust(17) for cell in cells)]))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
