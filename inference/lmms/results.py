"""What lmms-eval's runner wrote, as one table: benchmarks before and after reflection, and false retrievals.

A run is a `DATE_results.json`; beside it, by `--log_samples`, each task's `DATE_samples_TASK.jsonl`, a row a document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import read_record, read_row
from reflectune.core.errors import UserError
from reflectune.inference.lmms.config import MODES
from reflectune.metrics.reporting.intervals import share_interval

RESULTS: Final = "_results.json"
TITLES: Final = {"base": "before", "no_retrieval": "[No Retrieval]", "gate": "free gate", "pipeline": "pipeline"}
NONE: Final = "–"


@dataclass(frozen=True)
class Outcome:
    """One run's outcome on one benchmark.

    Attributes:
        task: The benchmark.
        run: The mode that answered, or the name of another model of lmms-eval's.
        file: The run's `DATE_results.json`.
        scores: Its scores as lmms-eval names and scales them.
        errors: The standard errors of those that it gives one for.
        checkpoint: The fingerprint of the model that answered; "" for another model of lmms-eval's.
        style: Its `answer_style`; "" for another model of lmms-eval's.
        gamma: Its γ; None where no gate was read.
        documents: What was asked: each document's place and reference, sorted; empty without `--log_samples`.
        opened: Whether the gate opened, by document; empty where no gate was read.
        unanswered: How many answers are empty.
    """

    task: str
    run: str
    file: Path
    scores: Mapping[str, float]
    errors: Mapping[str, float]
    checkpoint: str = ""
    style: str = ""
    gamma: float | None = None
    documents: tuple[str, ...] = ()
    opened: tuple[bool, ...] = ()
    unanswered: int = 0

    @property
    def settings(self) -> tuple[str, str, float | None]:
        """What a repeated run has in common with the first."""
        return self.checkpoint, self.style, self.gamma


@dataclass
class _Documents:
    """What the rows of one task's samples say."""

    names: list[str] = field(default_factory=list)
    opened: list[bool] = field(default_factory=list)
    unanswered: int = 0
    decision: Mapping[str, Any] = field(default_factory=dict)


def read_outcomes(folder: Path) -> list[Outcome]:
    """The outcomes of all runs below a folder; of a run that was repeated, the newest.

    Raises:
        UserError: There is none; a file is damaged; or runs that stand side by side can't be compared.
    """
    files = sorted(folder.rglob(f"*{RESULTS}"), key=lambda path: path.name)  # the date is its beginning
    newest: dict[tuple[str, str], Outcome] = {}
    for file in files:
        for outcome in _read_run(file):
            key = (outcome.task, outcome.run)
            before = newest.get(key)
            if before is not None and before.settings != outcome.settings:
                raise UserError(
                    f"{outcome.task}, {outcome.run}: {before.file} and {outcome.file} are of different models or "
                    "settings; give each its own folder"
                )
            newest[key] = outcome
    if not newest:
        raise UserError(f"`results`: {folder} holds no *{RESULTS}; give what lmms-eval's --output_path named")
    outcomes = list(newest.values())
    _check_same(outcomes)
    return outcomes


def _read_run(file: Path) -> list[Outcome]:
    """A run's outcome on each of its benchmarks."""
    record = read_record(file, "a result of lmms-eval", results=dict, config=dict)
    config = record.get("config", {})
    samples = {task: _read_documents(file, task) for task in record.get("results", {})}
    told = next((each.decision for each in samples.values() if each.decision), {})
    run = str(told.get("mode") or _argument(str(config.get("model_args", "")), "mode") or config.get("model", "?"))
    return [_outcome(file, run, task, table, samples[task]) for task, table in record.get("results", {}).items()]


def _outcome(file: Path, run: str, task: str, table: Mapping[str, Any], documents: _Documents) -> Outcome:
    """A benchmark's numbers, which stand as `METRIC,FILTER` in its table, and what its documents' rows say."""
    values = {name.split(",")[0]: value for name, value in table.items() if "," in name and type(value) in (int, float)}
    scores = {name: value for name, value in values.items() if "_stderr" not in name}
    errors = {name: values[f"{name}_stderr"] for name in scores if f"{name}_stderr" in values}
    decision = documents.decision
    return Outcome(
        *(task, run, file, scores, errors),
        checkpoint=str(decision.get("checkpoint", "")),
        style=str(decision.get("style", "")),
        gamma=decision.get("gamma"),
        documents=tuple(sorted(documents.names)),
        opened=tuple(documents.opened),
        unanswered=documents.unanswered,
    )


def _read_documents(results: Path, task: str) -> _Documents:
    """The documents of a task, from its samples; none if they weren't logged."""
    documents = _Documents()
    path = results.with_name(results.name.removesuffix(RESULTS) + f"_samples_{task}.jsonl")
    if not path.is_file():
        return documents
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = read_row(line, f"{path}, line {number}")
            counts = row.get("token_counts") or [None]
            decision = counts[0] if isinstance(counts, list) and isinstance(counts[0], dict) else {}
            documents.names.append(f"{row.get('doc_id')} {row.get('target')}")
            documents.unanswered += row.get("filtered_resps") in ("", [""])
            documents.decision = documents.decision or decision
            if "opened" in decision:
                documents.opened.append(bool(decision["opened"]))
    return documents


def _argument(text: str, name: str) -> str:
    """A key of `--model_args`."""
    return next((part.split("=", 1)[1] for part in text.split(",") if part.startswith(f"{name}=")), "")


def _check_same(outcomes: Sequence[Outcome]) -> None:
    """Runs side by side answered the same documents in the same words; the modes are of one checkpoint and one γ."""
    for task in dict.fromkeys(outcome.task for outcome in outcomes):
        of_task = [outcome for outcome in outcomes if outcome.task == task and outcome.documents]
        ours = [outcome for outcome in of_task if outcome.checkpoint]
        tuned = [outcome for outcome in ours if outcome.run != "base"]
        for group, name, remedy in (
            (of_task, "documents", "run them with the same task files and --limit"),
            (ours, "style", "set the same answer_style"),
            (tuned, "checkpoint", "give each model's runs a folder of their own"),
            (tuned, "gamma", "set the same gamma"),
        ):
            other = next((each for each in group if getattr(each, name) != getattr(group[0], name)), None)
            if other is not None:
                raise UserError(f"{task}: {name} differ between {group[0].file} and {other.file}; {remedy}")


def table(outcomes: Sequence[Outcome]) -> str:
    """Scores by benchmark and run with their differences from `base`, and what the gate did, as plain text."""
    runs = sorted({outcome.run for outcome in outcomes}, key=lambda run: (run not in MODES, _order(run)))
    head = ["benchmark", "", *(TITLES.get(run, run) for run in runs)]
    rows = [head]
    for task in sorted({outcome.task for outcome in outcomes}):
        by_run = {outcome.run: outcome for outcome in outcomes if outcome.task == task}
        for metric in dict.fromkeys(name for outcome in by_run.values() for name in outcome.scores):
            rows.append([task, metric, *(_score(by_run.get(run), by_run.get("base"), metric) for run in runs)])
        if any(outcome.opened for outcome in by_run.values()):
            rows.append([task, "false retrieval", *(_false_retrieval(by_run.get(run)) for run in runs)])
        if any(outcome.documents for outcome in by_run.values()):
            rows.append([task, "unanswered", *(_unanswered(by_run.get(run)) for run in runs)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(_aligned(cell, width, place) for place, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in [CAPTION, "", *lines])


CAPTION: Final = (
    "Scores as lmms-eval scales them, ± its standard error, in brackets the difference from before. False retrieval:\n"
    "share of documents, in %, whose gate opens, with Wilson's 95 % interval; all are answered by looking, so that\n"
    "each is a mistake. What the gate would look up stays unanswered in `free gate`, and is looked up in `pipeline`."
)


def _order(run: str) -> tuple[int, str]:
    return (list(MODES).index(run) if run in MODES else 0, run)  # type: ignore[arg-type]


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)


def _score(outcome: Outcome | None, base: Outcome | None, metric: str) -> str:
    if outcome is None or metric not in outcome.scores:
        return NONE
    value = f"{outcome.scores[metric]:.4g}"
    if metric in outcome.errors:
        value += f" ±{outcome.errors[metric]:.2g}"
    if base is None or outcome.run == "base" or metric not in base.scores:
        return value
    return f"{value} ({outcome.scores[metric] - base.scores[metric]:+.3g})"


def _false_retrieval(outcome: Outcome | None) -> str:
    if outcome is None or not outcome.opened:
        return NONE
    low, high = share_interval(sum(outcome.opened), len(outcome.opened))
    return f"{100 * sum(outcome.opened) / len(outcome.opened):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _unanswered(outcome: Outcome | None) -> str:
    return NONE if outcome is None or not outcome.documents else f"{outcome.unanswered} of {len(outcome.documents)}"
