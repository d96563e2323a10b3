"""Visual benchmarks before and after reflection: `python -m reflectune.inference.visual_benchmarks --results DIR`.

DIR holds what lmms-eval wrote (`--output_path DIR --log_samples`), one run a mode; see docs/visual_benchmarks.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectune.core import checks
from reflectune.core.config import bound_problems, parse_config, setting
from reflectune.core.errors import entry_point


@dataclass
class VisualBenchmarksConfig:
    """Whose results are set side by side."""

    results: str = setting("", "folder below which lmms-eval wrote its results", check=checks.folder)
    dry_run: bool = setting(False, "say what would be read, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values."""
        issues = [] if self.results else ["`results` is needed: what lmms-eval's --output_path named"]
        return issues + bound_problems(self, VisualBenchmarksConfig)


@entry_point
def main() -> None:
    """Read the results and print the table."""
    (config,) = parse_config(VisualBenchmarksConfig)
    from reflectune.inference.lmms.results import RESULTS, read_outcomes, table

    if config.dry_run:
        print(f"would read {len([*Path(config.results).rglob(f'*{RESULTS}')])} results below {config.results}")
        return
    print(table(read_outcomes(Path(config.results))))


if __name__ == "__main__":
    main()
