"""Visual benchmarks before and after reflection: `python -m reflectune.inference.visual_benchmarks --results DIR`.

DIR holds what lmms-eval wrote (`--output_path DIR --log_samples`), one run a mode; see docs/visual_benchmarks.md.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.config import Settings, cross_check, parse_config, setting
from reflectune.core.errors import entry_point
from reflectune.core.values import InputFolder


class VisualBenchmarksConfig(Settings):
    """Whose results are set side by side."""

    results: InputFolder = setting(
        "", "folder below which lmms-eval wrote its results", needed="what lmms-eval's --output_path named"
    )
    dry_run: bool = setting(False, "say what would be read, and stop")

    @cross_check
    def visual_benchmarks_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        issues: list[str] = []
        return issues


@entry_point
def main() -> None:
    """Read the results and print the table."""
    config = parse_config(VisualBenchmarksConfig)
    from reflectune.inference.lmms.results import RESULTS, read_outcomes, table

    if config.dry_run:
        print(f"would read {len([*Path(config.results).rglob(f'*{RESULTS}')])} results below {config.results}")
        return
    print(table(read_outcomes(Path(config.results))))


if __name__ == "__main__":
    main()
