"""Visual benchmarks before and after reflection: `python -m reflectune.inference.visual_benchmarks --results DIR`.

DIR holds what lmms-eval wrote (`--output_path DIR --log_samples`), one run a mode; see docs/visual_benchmarks.md.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.core.config import Settings, setting
from reflectune.core.values import InputFolder


class VisualBenchmarksConfig(Settings):
    """Whose results are set side by side."""

    results: InputFolder = setting(
        "", "folder below which lmms-eval wrote its results", needed="what lmms-eval's --output_path named"
    )
    dry_run: bool = setting(False, "say what would be read, and stop")


@command(VisualBenchmarksConfig)
def visual_benchmarks(config: VisualBenchmarksConfig) -> None:
    """Print visual benchmarks before and after reflection."""
    from reflectune.inference.lmms.results import RESULTS, read_outcomes, table

    if config.dry_run:
        print(f"would read {len([*Path(config.results).rglob(f'*{RESULTS}')])} results below {config.results}")
        return
    print(table(read_outcomes(Path(config.results))))


if __name__ == "__main__":
    visual_benchmarks.main()
