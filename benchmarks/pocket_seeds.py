"""mR²AG's lead on pocket over more seeds: what is shipped, trained anew, and asked the same questions.

    python benchmarks/pocket_seeds.py --seeds 1 2 --output benchmarks/pocket_seeds.md
    python benchmarks/pocket_seeds.py --seeds 1 2 --limit 150 --device cuda --lanes 4   # on a GPU

Each seed trains mR²AG and its tuned baselines once more, from `pocket/llava` and on the same data: another order of the
questions and other first adapters. What is shipped stands beside them. Two to three hours for each seed on one core;
two fine-tunings at a time on two; all of it in ten minutes on a GPU. What is finished is not run again.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from page import at, command_line, page_file, spread
from pocket import (
    MINUTES,
    NEEDS,
    QUESTIONS,
    RUN,
    TUNED,
    evaluate_shipped,
    evaluate_trained,
    recipe,
    shipped_stages,
    shown,
    stages,
)
from staging import CONFIGS, ROOT, cores, run_in_lanes

from reflectune.core.durable import read_json
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.running.experiment import select
from reflectune.inference.scoring.scores import Measure
from reflectune.inference.trace_files.opening import trace_files, traces_of
from reflectune.metrics.reporting.breakdown import OVERALL

SHIPPED = "shipped"
BEFORE = ("parts", "gallery", "index", "reflection", "baseline", "evaluate")
"""Stages of `pocket.py` that all seeds share; the last evaluates what is shipped."""
FINE_TUNINGS = {"mr2ag": "mr2ag_lora", "plain_tuned": "plain_lora"}
"""Recipes, by the name of the stage that trains with it."""
DECISIONS = {
    "gate: knowledge against visual": ("gate", "accuracy"),
    "stating passage against its article's others": ("relevance", "within_article"),
    "stating passage against look-alikes'": ("relevance", "look_alikes"),
    "answer, stating passage given": ("answer", "gold_passage"),
    "visual questions": ("visual", "tuned"),
    "calibration error of the gate": ("calibration", "gate", "ece"),
    "calibration error of S_rel": ("calibration", "relevance", "ece"),
}
"""What else is told of each seed: where in metrics.json it stands."""


def seed_stages(seed: int, limit: int) -> tuple[dict[str, list[str]], dict[str, tuple[str, ...]]]:
    """The commands that train and evaluate with a seed, by stage, and what each needs."""
    trained = {name: str(RUN / f"{name}_{seed}") for name in FINE_TUNINGS}
    commands = {
        f"{name}_{seed}": [*recipe("train.sft", FINE_TUNINGS[name]), "--seed", str(seed), "--output_dir", folder]
        for name, folder in trained.items()
    }
    needs = {f"{name}_{seed}": NEEDS[name] for name in FINE_TUNINGS}
    models = (trained["mr2ag"], trained["plain_tuned"])
    evaluation = evaluate_trained(f"evaluation_{seed}", *models, [*TUNED, "mr2ag"], limit)
    return (
        {**commands, f"evaluate_{seed}": evaluation},
        {**needs, f"evaluate_{seed}": ("index", *commands)},
    )


@dataclass(frozen=True)
class Seed:
    """What was measured with a seed.

    Attributes:
        metrics: The content of metrics.json.
        worth: What each pipeline's answers are worth, by its name, in the order of the questions.
    """

    metrics: dict[str, Any]
    worth: dict[str, list[float]]


def read_seed(folder: Path, questions: Sequence[Question], measure: Measure) -> Seed:
    """What an evaluation has written."""
    files, ids = trace_files(folder / "traces"), [question.id for question in questions]
    worth = {}
    for name in (*TUNED, "mr2ag"):
        traces = traces_of(files[name], ids)
        worth[name] = [measure.correctness(question, traces[question.id]) for question in questions]
    return Seed(read_json(folder / "metrics.json", "what was measured with a seed"), worth)


def leads(seeds: Mapping[str, Seed], questions: Sequence[Question], measure: Measure) -> list[str]:
    """Answers and leads of each seed, and of the mean over them, as a Markdown table.

    The last row has for each question the mean of what its answers are worth: its interval is of the questions alone,
    as those of single seeds are.
    """
    names = (*TUNED, "mr2ag")
    lines = [f"| | {' | '.join(f'`{name}`' for name in names)} | lead over the best of them |"]
    lines.append(f"|---|{'---|' * (len(names) + 1)}")
    worth = {name: seed.worth for name, seed in seeds.items()}
    worth[f"mean of {len(seeds)}"] = {
        name: [statistics.fmean(values) for values in zip(*(seed.worth[name] for seed in seeds.values()), strict=True)]
        for name in names
    }
    for name, answers in worth.items():
        scores = {each: _overall(questions, answers[each], measure) for each in names}
        best = max(TUNED, key=scores.__getitem__)
        lead = measure.difference(questions, answers["mr2ag"], answers[best], 0)
        cells = [f"{100 * scores[each]:.1f}" for each in names]
        lines.append(f"| {name} | {' | '.join(cells)} | {shown(lead)} |")
    return lines


def _overall(questions: Sequence[Question], values: Sequence[float], measure: Measure) -> float:
    score = measure.breakdown(questions, values, 0)[OVERALL]
    return score["value"] if score else 0.0


def decisions(seeds: Mapping[str, Seed]) -> list[str]:
    """Gate, relevance and answers from the stating passage, by seed, with mean and standard deviation."""
    lines = [f"| | {' | '.join(seeds)} | mean ± deviation |", f"|---|{'---|' * (len(seeds) + 1)}"]
    for what, path in DECISIONS.items():
        values = [100 * at(seed.metrics, *path)["value"] for seed in seeds.values()]
        lines.append(f"| {what} | {' | '.join(f'{value:.1f}' for value in values)} | {spread(values)} |")
    return lines


def page(seeds: Mapping[str, Seed], questions: Sequence[Question], measure: Measure) -> str:
    """The whole page, as Markdown."""
    return "\n".join(
        [
            "# mR²AG on pocket, over seeds",
            "",
            f"{command_line('pocket_seeds.py')}. A seed decides the order of the questions in training and the first",
            "values of the adapters, of mR²AG and of its tuned baselines; data, search and the questions asked are the",
            f"same. {len(questions)} knowledge questions, per cent; intervals of 95 % are over the questions.",
            "",
            *leads(seeds, questions, measure),
            "",
            *decisions(seeds),
            "",
        ]
    )


def asked(measure: Measure, limit: int) -> list[Question]:
    """The knowledge questions that every evaluation asks."""
    settings = yaml.safe_load((CONFIGS / "examples/pocket/evaluate.yaml").read_text(encoding="utf-8"))
    return measure.official(select(Dataset(Path(settings["dataset"])), settings["splits"], limit, 0))


def stages_of(
    seeds: Sequence[int], limit: int = QUESTIONS, device: str = "cpu"
) -> tuple[dict[str, list[str]], dict[str, tuple[str, ...]], dict[str, float]]:
    """All commands by stage, what each needs, and about how many minutes it takes on a core.

    Args:
        seeds: Beside what is shipped.
        limit: Most questions of each split.
        device: Where models are trained and asked.
    """
    every = {**stages(), **shipped_stages(), "evaluate": evaluate_shipped("evaluation", limit)}
    commands = {name: every[name] for name in BEFORE}
    needs: dict[str, tuple[str, ...]] = {**NEEDS, "evaluate": ("index",)}
    minutes: dict[str, float] = {**MINUTES, "evaluate": MINUTES["quick"]}
    for seed in seeds:
        added, needed = seed_stages(seed, limit)
        commands |= added
        needs |= needed
        minutes |= {f"{name}_{seed}": MINUTES[name] for name in FINE_TUNINGS}
        minutes[f"evaluate_{seed}"] = MINUTES["quick"]
    if device != "cpu":
        for name in commands:
            if name.startswith(("evaluate", *FINE_TUNINGS)):
                commands[name] = [*commands[name], "--device", device]
    return commands, needs, minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="beside what is shipped")
    parser.add_argument("--limit", type=int, default=QUESTIONS, help="most questions of each split")
    parser.add_argument("--device", default="cpu", help="where models are trained and asked: cpu, cuda …")
    parser.add_argument("--output", type=page_file, help="Markdown file of what is printed at the end")
    parser.add_argument("--run", type=Path, default=ROOT, help="folder that the recipes' `runs/pocket` is below")
    parser.add_argument("--lanes", type=int, default=min(2, cores()), help="stages at a time; the cores are shared out")
    arguments = parser.parse_args()
    os.chdir(arguments.run)  # the recipes' folders are relative
    RUN.mkdir(parents=True, exist_ok=True)
    commands, needs, minutes = stages_of(arguments.seeds, arguments.limit, arguments.device)
    run_in_lanes(RUN, commands, needs, arguments.lanes, minutes)
    measure = Measure("infoseek")
    questions = asked(measure, arguments.limit)
    folders = {SHIPPED: "evaluation", **{f"seed {seed}": f"evaluation_{seed}" for seed in arguments.seeds}}
    seeds = {name: read_seed(RUN / folder, questions, measure) for name, folder in folders.items()}
    text = page(seeds, questions, measure)
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
