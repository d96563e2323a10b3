"""Compare quick starts of every family and method over several seeds with the miniature's marks.

    python benchmarks/quickstart.py --jobs 2

Each run is `python -m reflectune.examples.miniature.quickstart` in its own folder. A finished run is not run again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from results import Benchmark, table

from reflectune.core.durable import read_json
from reflectune.examples.miniature.models.architecture import FAMILIES
from reflectune.examples.scores import at
from reflectune.examples.staging import METHODS, cores

PIPELINES = (
    *("closed_book", "naive_rag_article", "naive_rag_articles", "naive_rag_passages"),
    *("oracle_article", "oracle_articles", "mr2ag", "mr2ag_oracle"),
)
LEAD = "mr2ag - best_baseline"


@dataclass(frozen=True)
class Mark:
    """A score of `metrics.json` and the range that its value over seeds should lie in.

    Attributes:
        name: Row of the table.
        read: Returns the score from a run's metrics.
        low: Lower bound.
        high: Upper bound.
        percent: True for a share, False for minutes or GiB.
        strict: True if the mean must be above `low`: a lead of 0 is a tie.
        least: True if the minimum over seeds counts, not the mean: other processes can make a run slower.
    """

    name: str
    read: Callable[[Mapping[str, Any]], float]
    low: float = float("-inf")
    high: float = float("inf")
    percent: bool = True
    strict: bool = False
    least: bool = False

    def over_seeds(self, values: Sequence[float]) -> float:
        """Return the mean over seeds, or the minimum if `least`."""
        return min(values) if self.least else statistics.mean(values)

    def holds(self, value: float) -> bool:
        """Return True if a value lies in the range."""
        value = round(value, 4)
        return (self.low < value if self.strict else self.low <= value) and value <= self.high

    def shown(self, value: float) -> str:
        """Return a value in per cent, or with two digits."""
        return f"{100 * value:.1f}" if self.percent else f"{value:.2f}"

    @property
    def expected(self) -> str:
        """The range in words."""
        low, high = (self.shown(bound).removesuffix(".0") for bound in (self.low, self.high))
        if self.low == float("-inf"):
            return f"≤ {high}"
        if self.strict:
            return f"> {low}"
        return f"≥ {low}" if self.high == float("inf") else f"{low} to {high}"


def _value(*path: str, end: str = "value") -> Callable[[Mapping[str, Any]], float]:
    return lambda metrics: at(metrics, *path)[end]


MARKS = (
    Mark("gate: accuracy", _value("gate", "accuracy"), low=0.99),
    Mark("relevance within the article, balanced", _value("relevance", "within_article"), low=0.97),
    Mark("relevance against look-alikes, balanced", _value("relevance", "look_alikes"), low=0.90),
    Mark("answer, gold passage given", _value("answer", "gold_passage"), low=0.92),
    Mark("answer, gold article given (naive reader)", _value("answer", "gold_article"), low=0.85),
    Mark("visual questions", _value("visual", "tuned"), low=0.95),
    Mark(
        "visual questions, less the base model's",
        lambda metrics: metrics["visual"]["tuned"]["value"] - metrics["visual"]["base"]["value"],
        low=-0.01,
    ),
    Mark("gold entry in the top 5", _value("retrieval", "article_recall@5"), low=0.85, high=0.97),
    Mark("gold entry first", _value("retrieval", "article_recall@1"), high=0.70),
    Mark("mR²AG − best baseline at equal depth", _value("comparisons", LEAD), low=0.05),
    Mark("the same, lower end of its interval", _value("comparisons", LEAD, end="low"), low=0.0, strict=True),
    Mark("mR²AG − closed book", _value("comparisons", "mr2ag - closed_book"), low=0.30),
    Mark("fine-tuning, minutes", lambda metrics: metrics["minutes"]["train"], high=4, percent=False, least=True),
    Mark("all stages, minutes", lambda metrics: sum(metrics["minutes"].values()), high=10, percent=False, least=True),
    Mark("peak memory, GiB", lambda metrics: metrics["peak_gib"], high=4, percent=False),
)


def run_all(folder: Path, runs: Sequence[tuple[str, str, int]], jobs: int) -> None:
    """Run the unfinished quick starts, `jobs` at a time, each in one process."""
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // jobs)), **os.environ}

    def start(run: tuple[str, str, int]) -> None:
        family, method, seed = run
        path = folder / f"{family}-{method}-{seed}"
        if is_finished(path):
            return
        options = f"--family {family} --method {method} --seed {seed} --processes 1 --run {path}"
        path.mkdir(parents=True, exist_ok=True)
        print(f"{path}: its output goes to {path}/log.txt", flush=True)
        with (path / "log.txt").open("a") as log:
            command = [sys.executable, "-m", "reflectune.examples.miniature.quickstart", *options.split()]
            subprocess.run(command, check=True, env=environment, stdout=log, stderr=subprocess.STDOUT)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(start, runs))  # raises the error of a run that failed


def is_finished(run: Path) -> bool:
    """Return True if a quick start has ended: it adds the minutes of its stages to the scores last."""
    path = run / "metrics.json"
    return path.exists() and "train" in read_json(path, "the scores")["minutes"]


def figures_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the marks' scores and the pipelines' of a run."""
    scores = {}
    for name in PIPELINES:
        for row in (name, f"{name}_tuned"):
            if score := at(metrics, "pipelines", row, "overall"):
                scores[row] = score["value"]
    return {"marks": {mark.name: mark.read(metrics) for mark in MARKS}, "scores": scores}


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the table of marks, and that of scores at equal depth."""
    names = [f"{name}, {len(runs)} seed(s)" for name, runs in figures.items()]
    rows = []
    for mark in MARKS:
        values = [[run["marks"][mark.name] for run in runs] for runs in figures.values()]
        rows.append((mark.name, mark.expected, *(_cell(mark, column) for column in values)))
    found = dict.fromkeys(name for runs in figures.values() for run in runs for name in run["scores"])
    scores = [
        (name, *(_spread(MARKS[0], [run["scores"][name] for run in runs]) for runs in figures.values()))
        for name in found
    ]
    return [*table(("", "mark", *names), rows), "", *table(("InfoSeek score", *names), scores)]


def _cell(mark: Mark, values: Sequence[float]) -> str:
    return _spread(mark, values) + ("" if mark.holds(mark.over_seeds(values)) else " ✗")


def _spread(mark: Mark, values: Sequence[float]) -> str:
    value = mark.shown(mark.over_seeds(values))
    if len(values) == 1 or mark.least:
        return value
    return f"{value} ({mark.shown(min(values))} to {mark.shown(max(values))})"


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    rows = []
    for name, runs in figures.items():
        lead, low = (statistics.mean(run["marks"][mark.name] for run in runs) for mark in MARKS[9:11])
        gate = statistics.mean(run["marks"][MARKS[0].name] for run in runs)
        value = f"{100 * lead:+.1f} points (lower end {100 * low:+.1f}); gate {100 * gate:.1f} %"
        rows.append((f"miniature {name}: mR²AG − best baseline at equal depth", value, "aim ≥ 5 points; gate ≥ 99 %"))
    return rows


BENCHMARK = Benchmark(
    "quickstart",
    "The miniature against its marks",
    """
Quick starts of the miniature: toy models in a drawn world. Per cent on both validation splits, in phrasings that are
not in the training data.

- *Cells* have the mean over seeds, with the lowest and the highest in parentheses; minutes have the minimum.
- *Marks* were set before the first training. ✗: the mark is missed.
- *Baselines* have the same retrieval and instruction. Those that end in `_tuned` are tuned on the same questions with
  as many tokens.
- *Minutes* are wall-clock, each run in one process.
""",
    tables,
    claims,
)


def main() -> None:
    """Run the unfinished quick starts, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/marks"), help="folder of the quick starts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["full", "lora"])
    parser.add_argument("--jobs", type=int, default=1, help="quick starts at a time")
    arguments = BENCHMARK.parse(parser)
    runs = list(product(arguments.families, arguments.methods, arguments.seeds))
    run_all(arguments.run, runs, arguments.jobs)
    figures: dict[str, list[dict[str, Any]]] = {}
    for family, method, seed in runs:
        metrics = read_json(arguments.run / f"{family}-{method}-{seed}/metrics.json", "the scores")
        figures.setdefault(f"{family} {method}", []).append(figures_of(metrics))
    return BENCHMARK.finish(figures, arguments)


if __name__ == "__main__":
    main()
