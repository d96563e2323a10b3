"""Print lmms-eval's scores before and after reflection, and shares of open gates.

    python -m reflectune.examples.lmms_eval.table --results runs/lmms_eval/miniature

A run is a `DATE_results.json`. With `--log_samples` lmms-eval writes a `DATE_samples_TASK.jsonl` per task next to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from reflectune.core.durable import read_record, read_row
from reflectune.core.entry_point import entry_point
from reflectune.core.errors import UserError
from reflectune.examples.lmms_eval.config import MODES

RESULTS: Final = "_results.json"
_QUANTILE: Final = NormalDist().inv_cdf(0.975)
TITLES: Final = {"base": "before", "no_retrieval": "[No Retrieval]", "gate": "free gate", "pipeline": "pipeline"}
CAPTION: Final = (
    "Scores as lmms-eval scales them, ± its standard error, in brackets the difference from before. Gate opens:\n"
    "share of documents, in %, whose gate opens, with Wilson's 95 % interval: false retrievals, where a benchmark is\n"
    "answered by looking. Such a document stays unanswered in `free gate`, and retrieves in `pipeline`."
)


@dataclass(frozen=True)
class BenchmarkRun:
    """Numbers of one run on one benchmark.

    Attributes:
        mode: The mode that answered, or the name of another model of lmms-eval's.
        scores: Scores as lmms-eval names and scales them; `errors` has their standard errors.
        settings: `checkpoint`, `style` and `gamma` of our model; empty for another model.
        documents: Place and reference of each document, sorted; empty without `--log_samples`.
        opened: True for each document whose gate opened; empty where no gate was read.
        unanswered: Number of empty answers.
    """

    task: str
    mode: str
    file: Path
    scores: Mapping[str, float]
    errors: Mapping[str, float]
    settings: Mapping[str, Any]
    documents: tuple[str, ...]
    opened: tuple[bool, ...]
    unanswered: int


def read_runs(folder: Path) -> list[BenchmarkRun]:
    """Read all runs below a folder; the newest of repeated ones.

    Raises:
        UserError: There is none, a file is damaged, or the runs can't be compared.
    """
    newest: dict[tuple[str, str], BenchmarkRun] = {}
    for file in sorted(folder.rglob(f"*{RESULTS}"), key=lambda path: path.name):  # the name begins with the date
        for run in _read_run(file):
            before = newest.get((run.task, run.mode))
            if before is not None and before.settings != run.settings:
                raise UserError(
                    f"{run.task}, {run.mode}: {before.file} and {file} are of different models or settings; give each "
                    "its own folder"
                )
            newest[run.task, run.mode] = run
    if not newest:
        raise UserError(f"{folder} holds no *{RESULTS}; give the --output_path of lmms-eval")
    _check_same(list(newest.values()))
    return list(newest.values())


def _read_run(file: Path) -> list[BenchmarkRun]:
    record = read_record(file, "a result of lmms-eval", results=dict, config=dict)
    config = record["config"]
    arguments = dict(part.split("=", 1) for part in str(config.get("model_args", "")).split(",") if "=" in part)
    runs = []
    for task, table in record["results"].items():
        numbers = {name.split(",")[0]: v for name, v in table.items() if "," in name and type(v) in (int, float)}
        scores = {name: value for name, value in numbers.items() if "_stderr" not in name}
        rows = _sample_rows(file, task)
        decisions = [row["token_counts"][0] or {} for row in rows if row.get("token_counts")]
        ours = next((decision for decision in decisions if "mode" in decision), {})
        runs.append(
            BenchmarkRun(
                task=task,
                mode=str(ours.get("mode") or arguments.get("mode") or config.get("model", "?")),
                file=file,
                scores=scores,
                errors={name: numbers[f"{name}_stderr"] for name in scores if f"{name}_stderr" in numbers},
                settings={key: ours[key] for key in ("checkpoint", "style", "gamma") if key in ours},
                documents=tuple(sorted(f"{row.get('doc_id')} {row.get('target')}" for row in rows)),
                opened=tuple(bool(decision["opened"]) for decision in decisions if "opened" in decision),
                unanswered=sum(row.get("filtered_resps") in ("", [""]) for row in rows),
            )
        )
    return runs


def _sample_rows(results: Path, task: str) -> list[dict[str, Any]]:
    path = results.with_name(results.name.removesuffix(RESULTS) + f"_samples_{task}.jsonl")
    if not path.is_file():
        return []
    with path.open("rb") as file:
        return [read_row(line, f"{path}, line {number}") for number, line in enumerate(file, start=1)]


def _check_same(runs: Sequence[BenchmarkRun]) -> None:
    """Refuse runs of different documents or instructions, and modes of different checkpoints or γ."""
    for task in dict.fromkeys(run.task for run in runs):
        logged = [run for run in runs if run.task == task and run.documents]
        ours = [run for run in logged if run.settings]
        tuned = [run for run in ours if run.mode != "base"]
        for key, group in (("documents", logged), ("style", ours), ("checkpoint", tuned), ("gamma", tuned)):
            values = [run.documents if key == "documents" else run.settings.get(key) for run in group]
            differing = [run.file for run, value in zip(group, values, strict=True) if value != values[0]]
            if differing:
                raise UserError(f"{task}: {key} differ between {group[0].file} and {differing[0]}; make them equal")


def table(runs: Sequence[BenchmarkRun]) -> str:
    """Return scores by benchmark and mode with their difference from `base`, and open gates, as plain text."""
    found = {run.mode for run in runs}
    modes = [*(mode for mode in MODES if mode in found), *sorted(found - set(MODES))]
    rows = [["benchmark", "", *(TITLES.get(mode, mode) for mode in modes)]]
    for task in sorted({run.task for run in runs}):
        by_mode = {run.mode: run for run in runs if run.task == task}
        every = [by_mode.get(mode) for mode in modes]
        for metric in dict.fromkeys(name for run in by_mode.values() for name in run.scores):
            rows.append([task, metric, *(_score(run, by_mode.get("base"), metric) for run in every)])
        if any(run.opened for run in by_mode.values()):
            rows.append([task, "gate opens", *(_gate_opens(run) for run in every)])
        if any(run.documents for run in by_mode.values()):
            cells = (f"{run.unanswered} of {len(run.documents)}" if run and run.documents else "–" for run in every)
            rows.append([task, "unanswered", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([CAPTION, "", *lines])


def _score(run: BenchmarkRun | None, base: BenchmarkRun | None, metric: str) -> str:
    if run is None or metric not in run.scores:
        return "–"
    error = f" ±{run.errors[metric]:.2g}" if metric in run.errors else ""
    if base is None or run is base or metric not in base.scores:
        return f"{run.scores[metric]:.4g}{error}"
    return f"{run.scores[metric]:.4g}{error} ({run.scores[metric] - base.scores[metric]:+.3g})"


def _gate_opens(run: BenchmarkRun | None) -> str:
    if run is None or not run.opened:
        return "–"
    low, high = share_interval(sum(run.opened), len(run.opened))
    return f"{100 * sum(run.opened) / len(run.opened):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def share_interval(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a share, which has a width even at 0 and 1.

    Args:
        count: Number of items counted.
        total: Number of all items, at least one.

    Returns:
        (low, high), in [0, 1].

    Raises:
        ValueError: `count` is not between 0 and `total`, or `total` is 0.
    """
    if not 0 <= count <= total or not total:
        raise ValueError(f"expected 0 <= count <= total and total > 0, found {count} of {total}")
    share, weight = count / total, _QUANTILE**2 / total
    centre, half = share + weight / 2, _QUANTILE * (share * (1 - share) / total + weight / (4 * total)) ** 0.5
    low = (centre - half) / (1 + weight) if count else 0.0  # exact, without a rounding error
    high = (centre + half) / (1 + weight) if count < total else 1.0
    return low, high


@entry_point
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder below which lmms-eval wrote its results")
    print(table(read_runs(parser.parse_args().results)))


if __name__ == "__main__":
    main()
