"""Both papers' methods on pocket, stage by stage, each the command that a user would type; ends with the marks.

    python examples/pocket/pocket.py --output benchmarks/pocket.md
    python examples/pocket/pocket.py --shipped
    python examples/pocket/pocket.py --quick

Stages that don't need each other run side by side, with a core each; what they print stands in `runs/pocket/STAGE.log`.
A stage that is finished is not run again; one that was cut off goes on. `--shipped` takes the models that are shipped
and trains MMKB-RAG alone; `--quick` trains nothing and evaluates what is shipped. A run with what is shipped and one
that trains everything need a folder each (`--run`); so it says if they meet.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import at, command_line, page_file
from quickstart import equal_depth
from staging import ROOT, cores, finished, forecast, module, run_in_lanes, run_stages

from reflectune.retrieval.contexts import CONTEXT_FORMS

RUN = Path("runs/pocket")
"""Where the recipes in `configs/examples/pocket` write."""
TUNED = tuple(f"{name}_tuned" for name in ("closed_book", *(f"naive_rag_{form}" for form in CONTEXT_FORMS)))
"""mR²AG's baselines, tuned on the same questions."""
QUESTIONS = 40
"""Questions of each split that what is shipped is asked."""
MINUTES = {
    "parts": 1,
    "assemble": 1,
    "gallery": 2,
    "captions": 1,
    "stage1": 80,
    "visual": 1,
    "stage2": 70,
    "look": 6,
    "index": 6,
    "reflection": 2,
    "baseline": 4,
    "mr2ag": 50,
    "plain_tuned": 55,
    "evaluate": 150,
    "reader": 1,
    "probe": 75,
    "labels": 1,
    "mmkb": 110,
    "evaluate_mmkb": 40,
    "quick": 20,
}
"""About how long each stage takes with one thread of an idle core."""
NEEDS = {
    "assemble": ("parts",),
    "gallery": ("parts",),
    "captions": ("gallery",),
    "caption_prompts": ("captions",),
    "stage1": ("assemble", "caption_prompts"),
    "visual": ("stage1",),  # beside stage 1's data, which it would otherwise read too
    "visual_prompts": ("visual",),
    "stage2": ("visual_prompts",),
    "look": ("stage2",),
    "index": ("gallery",),
    "reflection": ("gallery",),
    "baseline": ("reflection", "index"),
    "mr2ag": ("reflection",),
    "plain_tuned": ("baseline",),
    "evaluate": ("mr2ag", "plain_tuned"),
    "reader": ("plain_tuned",),
    "probe": ("reader",),
    "labels": ("probe",),
    "mmkb": ("labels",),
    "evaluate_mmkb": ("mmkb",),
    "quick": ("index",),
}
"""What must be finished before a stage begins; each also needs what these need."""


def recipe(name: str, config: str) -> list[str]:
    """The command that runs a module with a recipe of pocket's."""
    return module(name, f"{config}.yaml", "pocket")


def captions(split: str) -> list[list[str]]:
    """The commands that make stage 1's or stage 2's training data of one split of the captions."""
    python = [sys.executable, "-m"]
    visual = f"reflectune.data_builders.build_mr2ag --dataset {RUN}/captions --output {RUN}/visual --split {split}"
    plain = f"reflectune.data_builders.build_plain --dataset {RUN}/captions --reflection {RUN}/visual"
    return [
        [*python, *f"{visual} --visual_ratio 1 --negatives_retrieved 0".split()],
        [*python, *f"{plain} --output {RUN}/plain --split {split} --evidence none".split()],
    ]


def stages() -> dict[str, list[str]]:
    """The commands of everything, by stage, in order."""
    python = [sys.executable, "-m"]
    assemble = "reflectune.train.assemble_llava --language pocket/language --vision pocket/vision --image_size 112"
    (train_rows, train_prompts), (visual_rows, visual_prompts) = captions("train"), captions("visual")
    return {
        "parts": [*python, "reflectune.examples.pocket.fetch"],
        "assemble": [*python, *assemble.split(), "--dtype", "float32", "--output", str(RUN / "stage0")],
        "gallery": recipe("data_builders.build_gallery", "gallery"),
        "captions": train_rows,
        "caption_prompts": train_prompts,
        "stage1": recipe("train.sft", "stage1"),
        "visual": visual_rows,
        "visual_prompts": visual_prompts,
        "stage2": recipe("train.sft", "stage2"),
        "look": [
            *(sys.executable, str(ROOT / "benchmarks/pocket_stage1.py"), "--model", str(RUN / "stage2")),
            *("--json", str(RUN / "looked.json"), "--output", str(RUN / "looked.md")),
        ],
        "index": recipe("retrieval.build_index", "index"),
        "reflection": recipe("data_builders.build_mr2ag", "mr2ag_data")
        + f"--visual_dataset {RUN}/captions --visual_split visual".split(),
        "baseline": recipe("data_builders.build_plain", "plain_data"),
        "mr2ag": recipe("train.sft", "mr2ag_lora"),
        "plain_tuned": recipe("train.sft", "plain_lora"),
        "evaluate": recipe("inference.evaluate", "evaluate"),
        "reader": [
            *(*python, "reflectune.train.merge", "--checkpoint", str(RUN / "plain_tuned")),
            *("--output", str(RUN / "reader")),
        ],
        "probe": recipe("data_builders.probe", "probe"),
        "labels": recipe("data_builders.derive_labels", "derive_labels"),
        "mmkb": recipe("train.sft", "mmkb_lora"),
        "evaluate_mmkb": recipe("inference.evaluate", "evaluate_mmkb"),
    }


MAKE_SHIPPED = (
    *("assemble", "captions", "caption_prompts", "stage1", "visual", "visual_prompts", "stage2"),
    *("baseline", "mr2ag", "plain_tuned"),
)
"""Stages that only make what is shipped."""


def shipped_stages() -> dict[str, list[str]]:
    """The commands with the models that are shipped, which leaves MMKB-RAG's to be trained."""
    shipped = {str(RUN / "stage2"): "pocket/llava", str(RUN / "plain_tuned"): "pocket/plain"}
    commands = {
        name: [shipped.get(part, part) for part in command]
        for name, command in stages().items()
        if name not in MAKE_SHIPPED
    }
    return {**commands, "evaluate": evaluate_shipped("evaluation")}


def quick_stages(limit: int = QUESTIONS) -> dict[str, list[str]]:
    """The commands without training: the models that are shipped, on so many questions of each split."""
    return {
        **{name: command for name, command in stages().items() if name in ("parts", "gallery", "index")},
        "quick": evaluate_shipped("quick", limit),
    }


def evaluate_shipped(output: str, limit: int = QUESTIONS) -> list[str]:
    """The command that evaluates the models that are shipped.

    Of the untuned baselines it has the one that reads least badly: pocket/llava can't read.
    """
    pipelines = ["closed_book", "naive_rag_passages", *TUNED, "mr2ag"]
    return evaluate_trained(output, "pocket/mr2ag", "pocket/plain", pipelines, limit)


def evaluate_trained(
    output: str, model: str, plain_model: str, pipelines: Sequence[str], limit: int = QUESTIONS
) -> list[str]:
    """The command that evaluates mR²AG beside its baselines, on so many questions of each split."""
    settings = f"--model {model} --plain_model {plain_model} --pipelines {' '.join(pipelines)}"
    return [*recipe("inference.evaluate", "evaluate"), *f"{settings} --limit {limit} --output {RUN / output}".split()]


@dataclass(frozen=True)
class Mark:
    """A number that is wanted.

    Attributes:
        what: It is of.
        wanted: In words.
        value: A score (`value`, `low`, `high`, `n`, as metrics.json has them), or None if it was not measured.
        least: What is wanted of its value at least.
        most: And at most.
        above_zero: Whether its interval must lie above 0 as well.
    """

    what: str
    wanted: str
    value: dict[str, Any] | None
    least: float = 0.0
    most: float = 1.0
    above_zero: bool = False

    @property
    def verdict(self) -> str:
        """Reached, missed, or not measured."""
        if self.value is None:
            return "not measured"
        reached = self.least <= self.value["value"] <= self.most
        return "reached" if reached and (not self.above_zero or self.value["low"] > 0) else "missed"

    @property
    def line(self) -> str:
        """Its row of the table."""
        return f"| {self.what} | {self.wanted} | {shown(self.value)} | {self.verdict} |"


def shown(score: dict[str, Any] | None) -> str:
    """A score in per cent, with its interval and number if it has them."""
    if score is None:
        return "–"
    value = f"{100 * score['value']:.1f}"
    if "low" not in score:
        return value
    return f"{value} [{100 * score['low']:.1f}, {100 * score['high']:.1f}], n = {score['n']}"


def marks(looked: dict[str, Any], mr2ag: dict[str, Any], mmkb: dict[str, Any]) -> list[Mark]:
    """The table of marks.

    Args:
        looked: What `benchmarks/pocket_stage1.py --json` wrote of stage 2.
        mr2ag: metrics.json of mR²AG's evaluation.
        mmkb: That of MMKB-RAG's.
    """

    def before(metrics: dict[str, Any], gate: str) -> str:
        error = at(metrics, "calibration", gate, "ece")
        return f", {100 * error['value']:.1f} before" if error else ""

    has_tuned = any(name.endswith("_tuned") for name in mr2ag.get("pipelines", {}))
    mct = at(mmkb, "reflection", "mct") or {}
    malformed = {"value": mct["malformed"] / mct["replies"]} if mct.get("replies") else None
    forgetting = None
    if at(mr2ag, "visual", "base") and at(mr2ag, "visual", "tuned"):
        forgetting = {"value": at(mr2ag, "visual", "base")["value"] - at(mr2ag, "visual", "tuned")["value"]}
    return [
        Mark("caption of a held-out picture, out of 8", "≥ 65", looked.get("caption"), 0.65),
        Mark("visual questions, base", "≥ 60", at(mr2ag, "visual", "base"), 0.6),
        Mark("lost on them by reflection tuning", "≤ 2", forgetting, -1.0, 0.02),
        Mark("closed book", "5 to 50", at(mr2ag, "pipelines", "closed_book", "overall"), 0.05, 0.5),
        Mark("article retrieved first, of 10,033", "≤ 60", at(mr2ag, "retrieval", "article_recall@1"), 0.0, 0.6),
        Mark("article among the first 5", "≥ 70", at(mr2ag, "retrieval", "article_recall@5"), 0.7),
        Mark("gate: knowledge against visual", "≥ 97", at(mr2ag, "gate", "accuracy"), 0.97),
        Mark(
            "RET: known against unknown, AUROC",
            "≥ 70",
            at(mmkb, "reflection", "ret_knowledge", "overall", "auroc"),
            0.7,
        ),
        Mark("stating passage against its article's others", "≥ 85", at(mr2ag, "relevance", "within_article"), 0.85),
        Mark("stating passage against look-alikes'", "≥ 75", at(mr2ag, "relevance", "look_alikes"), 0.75),
        Mark("answer, stating passage given", "≥ 70", at(mr2ag, "answer", "gold_passage"), 0.7),
        Mark(
            "mR²AG over the best baseline at equal depth, tuned ones included",
            "≥ 5, interval above 0",
            at(mr2ag, "comparisons", "mr2ag - best_baseline") if has_tuned else None,
            0.05,
            above_zero=True,
        ),
        Mark(
            "MMKB-RAG over naive RAG at equal depth",
            "≥ 5, interval above 0",
            at(mmkb, "comparisons", "mmkb_rag - best_baseline"),
            0.05,
            above_zero=True,
        ),
        Mark(
            "SRT: a stating document first where one was retrieved",
            "≥ 80",
            at(mmkb, "reflection", "srt", "overall", "stating_first"),
            0.8,
        ),
        Mark("MCT: malformed replies", "≤ 5", malformed, 0.0, 0.05),
        *(
            Mark(
                f"{of}: calibration error after temperature scaling{before(metrics, gate)}",
                "≤ 5",
                at(metrics, "calibration", gate, "ece_scaled"),
                0.0,
                0.05,
            )
            for metrics, gate, of in (
                (mr2ag, "gate", "gate"),
                (mr2ag, "relevance", "S_rel"),
                (mmkb, "ret", "RET"),
                (mmkb, "srt", "SRT"),
            )
        ),
    ]


def pipelines_of(metrics: dict[str, Any]) -> list[str]:
    """The score of every pipeline of an evaluation, and the lead over the best baseline, as a Markdown table."""
    lines = ["| pipeline | per cent of the knowledge questions |", "|---|---|"]
    for name, scores in metrics["pipelines"].items():
        lines.append(f"| `{name}` | {shown(scores['overall'])} |")
    lines += [f"| {name} | {shown(lead)} |" for name, lead in metrics["comparisons"].items()]
    return [
        *lines,
        "",
        "mR²AG's tuned baseline answers in the baselines. It was probed with questions that it was not tuned on; half",
        "of them ask a fact that it was, in other words or beside another picture. MMKB-RAG's model answers its own.",
    ]


def page(table: list[Mark], mr2ag: dict[str, Any], mmkb: dict[str, Any], minutes: dict[str, float], looked: str) -> str:
    """The whole page, as Markdown."""
    lines = [
        "# Pocket on the gallery",
        "",
        f"{command_line('pocket.py')}, as `bash scripts/pocket.sh` runs it. One seed. Per cent, with 95 % intervals;",
        "the marks were set before anything was trained.",
        "",
        "| | mark | | |",
        "|---|---|---|---|",
        *(mark.line for mark in table),
        "",
        *(() if mr2ag else ("mR²AG and what it shares with its baselines: [pocket_quick.md](pocket_quick.md).", "")),
        *(("## At equal depth", "", "```", *equal_depth(mr2ag), "```", "") if mr2ag else ()),
        *(("## MMKB-RAG", "", *pipelines_of(mmkb), "") if mmkb else ()),
        looked.replace("# What", "## What", 1).replace("\n## ", "\n### "),
        "",
    ]
    if minutes:
        lines += [
            "## Minutes",
            "",
            "By the clock; stages that don't need each other ran side by side.",
            "",
            "| stage | minutes |",
            "|---|---|",
        ]
        lines += [
            *(f"| {name} | {value} |" for name, value in minutes.items()),
            f"| all | {sum(minutes.values()):.0f} |",
            "",
        ]
    return "\n".join(lines)


def written(name: str) -> dict[str, Any]:
    """What a stage wrote as JSON; nothing if it did not run."""
    path = RUN / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def main() -> None:
    """Parse the options, then run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=page_file, help="Markdown file of what is printed at the end")
    parser.add_argument("--run", type=Path, default=ROOT, help="folder that the recipes' `runs/pocket` is below")
    less = parser.add_mutually_exclusive_group()
    less.add_argument("--shipped", action="store_true", help="train MMKB-RAG alone, from the models that are shipped")
    less.add_argument("--quick", action="store_true", help="train nothing: evaluate the models that are shipped")
    parser.add_argument("--collect", action="store_true", help="run nothing: the table of what is measured so far")
    parser.add_argument("--lanes", type=int, default=min(2, cores()), help="stages at a time; the cores are shared out")
    arguments = parser.parse_args()
    os.chdir(arguments.run)  # the recipes' folders are relative
    RUN.mkdir(parents=True, exist_ok=True)
    commands = quick_stages() if arguments.quick else shipped_stages() if arguments.shipped else stages()
    minutes = finished(RUN, commands)
    if not arguments.collect:
        left = [name for name in commands if name not in minutes]
        estimates = {**MINUTES, **({"evaluate": MINUTES["quick"]} if arguments.shipped else {})}
        to_do = f"{len(left)} of {len(commands)} stages to do"
        if arguments.quick:  # each of its stages needs the one before, and has all cores
            print(f"{to_do}: about {sum(estimates[name] for name in left) / 2:.0f} minutes on two idle cores")
            minutes = run_stages(RUN, commands)
        else:
            wanted = forecast(left, NEEDS, estimates, arguments.lanes)
            print(f"{to_do}: at least {wanted:.0f} minutes in {arguments.lanes} lanes with an idle core each")
            minutes = run_in_lanes(RUN, commands, NEEDS, arguments.lanes, estimates)
    reports = ("quick",) if arguments.quick else ("evaluation", "evaluation_mmkb")
    looked, evaluated = written("looked.json"), written(f"{reports[0]}/metrics.json")
    evaluated_mmkb = {} if arguments.quick else written("evaluation_mmkb/metrics.json")
    said = (RUN / "looked.md").read_text() if looked else ""
    minutes = {name: minutes[name] for name in commands if name in minutes}
    text = page(marks(looked, evaluated, evaluated_mmkb), evaluated, evaluated_mmkb, minutes, said)
    print(text)
    print("reports:", *(RUN / folder / "report.html" for folder in reports))
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
