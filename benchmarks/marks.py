"""The miniature against its marks: every family and method over several seeds, as a Markdown table.

    python benchmarks/marks.py --jobs 2 --output benchmarks/marks.md

Each run is a quick start of its own (`examples/miniature/quickstart.py`); a run that is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from page import command_line
from staging import cores

from reflectune.inference.reading.ranking import standing
from reflectune.inference.scoring.paper_numbers import ranks

Metrics = dict[str, Any]

FAMILIES, METHODS = ("llava", "qwen2_vl"), ("full", "lora")
LORA_TOLERANCE = 0.03


@dataclass(frozen=True)
class Mark:
    """A row of the table: what is read from `metrics.json`, and between which values its mean has to be."""

    name: str
    read: Callable[[Metrics], float]
    low: float = float("-inf")
    high: float = float("inf")
    percent: bool = True
    strict: bool = False
    """Whether a mean has to be above `low`: a lead of 0 is a tie."""

    def holds(self, value: float) -> bool:
        """Whether a mean reaches the mark."""
        shown = round(value, 4)
        return (self.low < shown if self.strict else self.low <= shown) and shown <= self.high

    def show(self, value: float) -> str:
        """The value as printed."""
        return f"{100 * value:.1f}" if self.percent else f"{value:.2f}"

    def wanted(self) -> str:
        """The mark in words."""
        low, high = (self.show(bound).removesuffix(".0") for bound in (self.low, self.high))
        if self.low == float("-inf"):
            return f"≤ {high}"
        if self.strict:
            return f"> {low}"
        return f"≥ {low}" if self.high == float("inf") else f"{low} to {high}"


def _value(*path: str, end: str = "value") -> Callable[[Metrics], float]:
    """Reads a score, or the `low` or `high` end of its interval."""

    def read(metrics: Metrics) -> float:
        value: Any = metrics
        for key in path:
            value = value[key]
        return value[end]

    return read


MARKS = (
    Mark("gate: accuracy", _value("gate", "accuracy"), low=0.99),
    Mark("relevance within the article, balanced", _value("relevance", "within_article"), low=0.97),
    Mark("relevance against look-alikes, balanced", _value("relevance", "look_alikes"), low=0.90),
    *(
        Mark(f"look-alikes rejected: other {name}", _value("relevance", "by_attribute", name), low=0.80)
        for name in ("kind", "colour", "ground", "mark")
    ),
    Mark("answer, gold passage given", _value("answer", "gold_passage"), low=0.92),
    Mark("answer, gold article given (naive reader)", _value("answer", "gold_article"), low=0.85),
    Mark("visual questions", _value("visual", "tuned"), low=0.95),
    Mark(
        "visual questions, less the base model's",
        lambda m: m["visual"]["tuned"]["value"] - m["visual"]["base"]["value"],
        low=-0.01,
    ),
    Mark("gold entry in the top 5", _value("retrieval", "article_recall@5"), low=0.85, high=0.97),
    Mark("gold entry first", _value("retrieval", "article_recall@1"), high=0.70),
    Mark(
        "answer, gold article among five in random order (naive reader)",
        _value("pipelines", "oracle_articles", "overall"),
        low=0.85,
    ),
    Mark("mr2ag − best baseline at equal depth", _value("comparisons", "mr2ag - best_baseline"), low=0.05),
    Mark(
        "the same, lower end of its interval",
        _value("comparisons", "mr2ag - best_baseline", end="low"),
        low=0.0,
        strict=True,
    ),
    Mark("mr2ag − closed book", _value("comparisons", "mr2ag - closed_book"), low=0.30),
    Mark("fine-tuning, minutes", lambda m: m["minutes"]["train"], high=4, percent=False),
    Mark("all stages, minutes", lambda m: sum(m["minutes"].values()), high=10, percent=False),
    Mark("peak memory, GiB", lambda m: m["peak_gib"], high=4, percent=False),
)
SCORES = (
    "closed_book",
    "closed_book_tuned",
    "naive_rag_article",
    "naive_rag_article_tuned",
    "naive_rag_articles",
    "naive_rag_articles_tuned",
    "naive_rag_passages",
    "naive_rag_passages_tuned",
    "oracle_article",
    "oracle_article_tuned",
    "oracle_articles",
    "oracle_articles_tuned",
    "oracle_passage",
    "best_baseline",
    "mr2ag",
    "mr2ag_oracle",
)


def run_all(folder: Path, seeds: Sequence[int], families: Sequence[str], methods: Sequence[str], jobs: int) -> None:
    """Run the quick starts that have no metrics yet, some at a time, each in one process."""
    threads = str(max(1, cores() // jobs))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}

    def start(family: str, method: str, seed: int) -> None:
        run = folder_of(folder, family, method, seed)
        if (run / "metrics.json").exists():
            return
        command = [sys.executable, str(Path(__file__).with_name("quickstart.py")), "--family", family]
        command += ["--method", method, "--seed", str(seed), "--processes", "1", "--run", str(run)]
        run.mkdir(parents=True, exist_ok=True)
        print(f"{run}: its output goes to {run}/log.txt", flush=True)
        with (run / "log.txt").open("a") as log:
            subprocess.run(command, check=True, env=environment, stdout=log, stderr=subprocess.STDOUT)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(start, *zip(*product(families, methods, seeds), strict=True)))  # raises what a run raised


def finished(folder: Path, family: str, method: str, seeds: Sequence[int]) -> list[Metrics]:
    """The metrics of a family's and method's finished runs."""
    paths = [folder_of(folder, family, method, seed) / "metrics.json" for seed in seeds]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def folder_of(folder: Path, family: str, method: str, seed: int) -> Path:
    """The folder of one quick start."""
    return folder / f"{family}-{method}-{seed}"


def table(runs: dict[tuple[str, str], list[Metrics]]) -> list[str]:
    """One row a mark, one column a family and method: the mean over seeds, lowest and highest; ✗ where missed."""
    columns = list(runs)
    lines = [
        "| | mark | " + " | ".join(f"{' '.join(c)}, {len(runs[c])} seed(s)" for c in columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for mark in MARKS:
        means = {column: statistics.mean(map(mark.read, runs[column])) for column in columns}
        cells = [_cell(mark, [mark.read(m) for m in runs[column]], mark.holds(means[column])) for column in columns]
        lines.append(f"| {mark.name} | {mark.wanted()} | {' | '.join(cells)} |")
    scores = [
        [_cell(MARKS[0], [_value("pipelines", name, "overall")(m) for m in runs[column]], True) for column in columns]
        for name in SCORES
    ]
    lines += [f"| InfoSeek score: {name} | | {' | '.join(cells)} |" for name, cells in zip(SCORES, scores, strict=True)]
    return lines


def _cell(mark: Mark, values: Sequence[float], holds: bool) -> str:
    spread = f" ({mark.show(min(values))} to {mark.show(max(values))})" if len(values) > 1 else ""
    return f"{mark.show(statistics.mean(values))}{spread}{'' if holds else ' ✗'}"


def lora_gaps(runs: dict[tuple[str, str], list[Metrics]]) -> list[str]:
    """For each family, by how many points LoRA falls short of full fine-tuning; one line a row beyond the tolerance."""
    lines = []
    for family in dict.fromkeys(family for family, _ in runs):
        if (family, "full") in runs and (family, "lora") in runs:
            for mark in MARKS:
                means = [statistics.mean(map(mark.read, runs[family, method])) for method in METHODS]
                short = means[0] - means[1] if mark.high > 1 else 0.0
                if mark.percent and short > LORA_TOLERANCE:
                    lines.append(f"- {family}, {mark.name}: full {mark.show(means[0])}, LoRA {mark.show(means[1])}")
    return lines or ["- none"]


def lora_section(runs: dict[tuple[str, str], list[Metrics]]) -> list[str]:
    """The lines of `lora_gaps` under a heading; none where no family has both methods."""
    methods = {family: {method for other, method in runs if other == family} for family, _ in runs}
    if not any(family_methods.issuperset(METHODS) for family_methods in methods.values()):
        return []
    head = f"Rows where LoRA is more than {100 * LORA_TOLERANCE:.0f} points below full fine-tuning:"
    return [head, "", *lora_gaps(runs), ""]


def rankings(runs: dict[tuple[str, str], list[Metrics]]) -> list[str]:
    """The eight rankings of the paper's Table 5: InfoSeek score, mean over seeds, and their order here and there."""
    columns = list(runs)
    paper: dict[str, int] = runs[columns[0]][0]["rankings"]["paper_ranks"]["overall"]
    scores = {column: [m["rankings"]["scores"] for m in seed_metrics] for column, seed_metrics in runs.items()}
    means = {
        column: {
            name: round(100 * statistics.mean(s[name]["overall"]["value"] for s in seed_scores), 1) for name in paper
        }
        for column, seed_scores in scores.items()
    }
    order = {column: ranks(mean_scores) for column, mean_scores in means.items()}
    lines = [
        "| ranking | paper's rank | " + " | ".join(f"{' '.join(c)}: score | rank" for c in columns) + " |",
        "|---|---|" + "---|---|" * len(columns),
    ]
    for name, rank in paper.items():
        cells = [f"{means[column][name]:.1f} | {order[column][name]}" for column in columns]
        lines.append(f"| {name} | {rank} | {' | '.join(cells)} |")
    places = [standing([m["rankings"]["full_product_leads"]["overall"] for m in runs[c]]) for c in columns]
    told = ["yes" if place.is_best else str(place) for place in places]
    agree = [statistics.mean(m["rankings"]["pairs_ordered_as_in_paper"]["overall"] for m in runs[c]) for c in columns]
    return [
        *lines,
        f"| the full product is the best | | {' | '.join(f'{words} |' for words in told)} |",
        f"| pairs ordered as in the paper | | {' | '.join(f'{100 * share:.0f} % |' for share in agree)} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/marks"))
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--methods", nargs="+", choices=(*METHODS, "qlora"), default=METHODS)
    parser.add_argument("--jobs", type=int, default=1, help="how many quick starts at a time")
    parser.add_argument("--collect", action="store_true", help="run nothing; tabulate what is finished")
    arguments = parser.parse_args()
    if not arguments.collect:
        run_all(arguments.runs, arguments.seeds, arguments.families, arguments.methods, arguments.jobs)
    runs = {
        (family, method): seed_metrics
        for family in arguments.families
        for method in arguments.methods
        if (seed_metrics := finished(arguments.runs, family, method, arguments.seeds))
    }
    text = "\n".join(
        [
            "# The miniature against its marks",
            "",
            f"{command_line('marks.py')}: val_unseen_question and val_unseen_entity, phrasings not seen in training, "
            "per cent; mean over seeds (lowest to highest). ✗: mark missed. "
            f"Each run in one process, {arguments.jobs} at a time; minutes are by the clock, whatever else ran on the "
            "machine.",
            "",
            *table(runs),
            "",
            *lora_section(runs),
            "## The eight rankings of mR²AG's Table 5",
            "",
            "Rank 1 is the best of a column; docs/paper_numbers.md has the paper's numbers, of other models and "
            "questions. The full product is the best if the 95 % interval of its lead over every other ranking is "
            "above 0 in every seed, and behind those whose interval is below 0 in every seed; with all others it ties.",
            "",
            *rankings(runs),
            "",
        ]
    )
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
