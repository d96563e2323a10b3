"""MMKB-RAG on the miniature: its labels against the truth, the tuned model, and the rule of the labels, as a page.

    python benchmarks/mmkb.py --output benchmarks/mmkb.md

For each family: the world and the index of the quick start, probes, labels by each rule, fine-tuning and evaluation, by
the commands of the README, beside the quick start's reader that is tuned without reflection; for the first family also
a fine-tuning on labels of each of two rules, and a sweep over its settings. What is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import quickstart
from page import command_line
from staging import launch, module, run_stages

from reflectune.data_builders.probing.labels import Rule, is_right, srt_labels
from reflectune.data_builders.probing.store import stream_probes
from reflectune.formats.dataset import Dataset

Numbers = Mapping[str, Any]

FAMILIES = {"llava": "LLaVA", "qwen2_vl": "Qwen2-VL"}
PIPELINES = ("closed_book", "naive_rag", "tuned_baselines", "mmkb_rag")
LABELS = {
    "`rule: paper`": ("--rule", "paper"),
    "`rule: outcome`": ("--rule", "outcome"),
    "`rule: margin`, 1 nat": ("--rule", "margin", "--margin", "1"),
    "`rule: margin`, 8 nats": ("--rule", "margin", "--margin", "8"),
    "`labeller: string`": ("--labeller", "string"),
}
"""The labels that are held against the truth."""
RULES = ("paper", "outcome")
"""The rules of which labels are trained on and compared by a sweep; the configuration is otherwise the same."""
GRID: dict[str, list[Any]] = {"k": ["auto", 1, 5], "threshold": [0.5, 0.9], "srt": [True, False]}
POINTS: dict[str, dict[str, Any]] = {
    "k `auto`": {},
    "threshold 0.9": {"threshold": 0.9},
    "k = 1": {"k": 1},
    "k = 5": {"k": 5},
    "without SRT": {"srt": False},
}
"""Columns of the rules' table: what differs from `k: auto`, a threshold of 0.5, with SRT."""


def stages(work: Path, family: str, seed: int, questions: int | None = None) -> dict[str, list[str]]:
    """The commands of one family, by stage.

    Args:
        work: The folder of it all.
        family: Of the model.
        seed: Of world, training and evaluation.
        questions: How many to probe, and of each split to evaluate; None: all.
    """
    limit = () if questions is None else ("--limit", str(questions))
    model = f"miniature/{family}"
    shared = quickstart.stages(work, family, "full", seed)
    return {
        "world": shared["world"],
        "index": shared["index"],
        **{name: shared[name] for name in ("data", "plain_data", "plain_train")},
        "probe": [
            *launch("data_builders/probe.py", "probe.yaml"),
            *_paths(work, dataset="world", index="index", output="probes"),
            *("--model", model, *limit),
        ],
        **{f"labels, {name}": _derive(work, _folder(name), *changes) for name, changes in LABELS.items()},
        "labels": _derive(work, "labels"),
        "train": [
            *launch("train/sft.py", "mmkb_full.yaml"),
            *_paths(work, train_data="labels", output_dir="checkpoint"),
            *("--model", model, "--seed", str(seed)),
        ],
        "evaluate": [
            *launch("inference/evaluate.py", "evaluate_mmkb.yaml"),
            *_paths(work, dataset="world", index="index", model="checkpoint", plain_model="plain_checkpoint"),
            *_paths(work, output="evaluation"),
            *("--base_model", model, "--seed", str(seed), *limit, "--pipelines", *PIPELINES),
        ],
    }


def rule_stages(work: Path, family: str, seed: int, limit: int, epochs: float) -> dict[str, list[str]]:
    """The commands of the rules' comparison, by stage."""
    made: dict[str, list[str]] = {}
    for rule in RULES:
        made[f"rule {rule}: labels"] = _derive(work, f"rule-{rule}/labels", "--rule", rule)
        made[f"rule {rule}: train"] = [
            *launch("train/sft.py", "mmkb_full.yaml"),
            *_paths(work, train_data=f"rule-{rule}/labels", output_dir=f"rule-{rule}/checkpoint"),
            *("--model", f"miniature/{family}", "--seed", str(seed), "--epochs", f"{epochs:g}"),
        ]
        made[f"rule {rule}: sweep"] = [
            *module("inference.sweep", "sweep_mmkb.yaml"),
            *_paths(work, dataset="world", index="index"),
            *_paths(work, model=f"rule-{rule}/checkpoint", output=f"rule-{rule}/sweep"),
            *("--base_model", f"miniature/{family}", "--documents", "10", "--grid", json.dumps(GRID)),
            *("--limit", str(limit), "--seed", str(seed)),
        ]
    return made


def _derive(work: Path, output: str, *changes: str) -> list[str]:
    command = module("data_builders.derive_labels", "derive_labels.yaml")
    return [*command, *_paths(work, dataset="world", probes="probes", output=output), "--proofread", "0", *changes]


def _paths(work: Path, **folders: str) -> list[str]:
    return [text for name, folder in folders.items() for text in (f"--{name}", str(work / folder))]


def _folder(labels: str) -> str:
    return "labels-" + "-".join(LABELS[labels][1::2])


def statistics_of(folder: Path) -> Numbers:
    """The statistics that `derive_labels` wrote."""
    statistics: Numbers = json.loads((folder / "statistics.json").read_text())["train"]
    return statistics


def who_was_right(work: Path) -> Counter[str]:
    """Counts that `derive_labels` does not write: of questions that the base answers alone, and of `[NoRel]`."""
    questions = {question.id: question for question in Dataset(work / "world").questions("train")}
    rule, counts = Rule(), Counter[str]()
    for probe in stream_probes(work / "probes"):
        question = questions[probe.question_id]
        knowledge = question.requires_retrieval is not False
        alone = is_right(probe.replies, rule) is True
        famous = question.meta.get("famous") == "yes"
        worse = sum(not label.relevant for label in srt_labels(probe, rule))
        counts.update(
            questions=1,
            alone_visual=alone and not knowledge,
            alone_knowledge=alone and knowledge,
            alone_famous=alone and knowledge and famous,
            worse=worse,
            worse_visual=0 if knowledge else worse,
        )
    return counts


def label_lines(family: str, by_rule: Mapping[str, Numbers], label_statistics: Numbers, counts: Numbers) -> list[str]:
    """A family's labels: what the probes say, and each rule against the truth."""
    probes, ret = label_statistics["probes"], label_statistics["derived"]["ret"]
    changes = probes["changes"]
    lines = [
        f"### {FAMILIES[family]}",
        "",
        "| | |",
        "|---|---|",
        f"| RET | {ret['[Ret]']:,} `[Ret]`, {ret['[NoRet]']:,} `[NoRet]`; of those that the base answers alone "
        f"{counts['alone_visual']:,} are visual; of the other {counts['alone_knowledge']:,}, "
        f"{counts['alone_famous']:,} are about famous entities |",
        f"| documents | {_changes(changes)} |",
        f"| `[NoRel]`, paper's rule | {counts['worse']:,}, of them {counts['worse_visual']:,} of visual questions |",
        f"| questions that MCT takes | {probes.get('with_several_relevant', 0):,} have two `[Rel]` or more |",
        "",
        "| labels | `[Rel]` precision | recall of labelled documents | recall of all probed |",
        "|---|---|---|---|",
    ]
    for name, numbers in by_rule.items():
        cells = [_percent(numbers["truth"][key]) for key in ("precision", "recall", "recall_of_probed")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _changes(changes: Mapping[str, int]) -> str:
    words = {
        "wrong_right": "turn a wrong answer right",
        "right_wrong": "a right one wrong",
        "right_right": "leave it right",
        "wrong_wrong": "leave it wrong",
        "unclear": "can't be judged",
    }
    return ", ".join(f"{changes[name]:,} {text}" for name, text in words.items() if changes.get(name))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def tuned_lines(metrics: Mapping[str, Numbers]) -> list[str]:
    """The tuned models' table, one column a family."""

    def score(interval: Mapping[str, float] | None) -> str:
        if not interval:
            return "–"
        low, high = 100 * interval["low"], 100 * interval["high"]
        return f"{100 * interval['value']:.1f} ({low:.1f} to {high:.1f}, n = {interval['n']})"

    def first(metrics: Numbers) -> str:
        srt = metrics["reflection"]["srt"]["overall"]
        return f"{score(srt['stating_first'])}; in the retriever's order {score(srt['stating_first_retriever'])}"

    def malformed(metrics: Numbers) -> str:
        return f"{metrics['reflection']['mct']['malformed']} of {metrics['reflection']['mct']['replies']}"

    columns = list(metrics.values())
    rows = {
        'RET: AUROC against "the base model is wrong", unseen entities': [
            score(m["reflection"]["ret"]["unseen_entity"]["auroc"]) for m in columns
        ],
        "the same, knowledge-based questions alone": [
            score(m["reflection"]["ret_knowledge"]["unseen_entity"]["auroc"]) for m in columns
        ],
        "SRT: a stating document is first, where one was retrieved": [first(m) for m in columns],
    }
    names = [name for name in columns[0]["pipelines"] if all(name in m["pipelines"] for m in columns)]
    rows |= {f"`{name}`": [score(m["pipelines"][name]["overall"]) for m in columns] for name in names}
    pairs = [pair for pair in columns[0]["comparisons"] if pair.startswith("mmkb_rag - ")]
    rows |= {
        f"`mmkb_rag` less `{pair.removeprefix('mmkb_rag - ')}`, paired": [
            score(m["comparisons"][pair]) for m in columns
        ]
        for pair in pairs
    }
    rows["replies to P_MCT that were malformed"] = [malformed(m) for m in columns]
    head = ["| | " + " | ".join(FAMILIES[family] for family in metrics) + " |", "|---|" + "---|" * len(columns)]
    return [*head, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())]


def rule_lines(sweeps: Mapping[str, Numbers]) -> list[str]:
    """The rules' table, one row a rule."""
    lines = ["| labels | " + " | ".join(POINTS) + " |", "|---|" + "---|" * len(POINTS)]
    for rule, sweep in sweeps.items():
        cells = []
        for changes in POINTS.values():
            wanted = {**sweep["start"], **changes}
            accuracy = next(point["accuracy"] for point in sweep["points"] if point["settings"] == wanted)
            low, high = 100 * accuracy["low"], 100 * accuracy["high"]
            cells.append(f"{100 * accuracy['value']:.1f} ({low:.1f} to {high:.1f})")
        lines.append(f"| `{rule}` | {' | '.join(cells)} |")
    return lines


def page(settings: argparse.Namespace, labels: Sequence[str], tuned: Sequence[str], rules: Sequence[str]) -> str:
    """The Markdown file."""
    asked = "every training question" if settings.questions is None else f"{settings.questions} training questions"
    verb, evaluated = ("is", "all of") if settings.questions is None else ("are", f"{settings.questions} each of")
    return "\n".join(
        [
            "# MMKB-RAG on the miniature",
            "",
            f"{command_line('mmkb.py')}: one run of each family, seed {settings.seed}; {asked} {verb} asked alone and "
            f"with 10 documents; {evaluated} val_unseen_question and val_unseen_entity, phrasings not seen in "
            "training. Per cent, with 95 % intervals. Miniature numbers.",
            "",
            "## Labels",
            "",
            "Each rule against the world's truth: does the document belong to the question's entity and state an "
            "accepted answer?",
            "",
            *labels,
            "## The tuned model (`configs/examples/miniature/mmkb_full.yaml`, `evaluate_mmkb.yaml`)",
            "",
            "Pipelines that end in `_tuned`: the same base, tuned without reflection (`plain_full.yaml`) on mR²AG-IT's "
            "questions of the same world, all of them among those that were probed. `best_baseline` is the best of "
            "all, untuned and tuned, at one entry and at five.",
            "",
            *tuned,
            "",
            f"## The rule of the labels ({settings.limit} questions of each split, {settings.epochs:g} epochs, "
            f"{FAMILIES[settings.families[0]]})",
            "",
            "Both rows have the configuration of `derive_labels.yaml` but for the rule. By the paper's rule no "
            "question has both labels, so that SRT learns an order and no threshold.",
            "",
            *rules,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=[*FAMILIES], default=[*FAMILIES])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=int, help="a trial: to probe, and of each split to evaluate (default: all)")
    parser.add_argument("--limit", type=int, default=100, help="questions of each split of the rules' comparison")
    parser.add_argument("--epochs", type=float, default=3.0, help="of the rules' comparison")
    parser.add_argument("--work", type=Path, default=Path("runs/mmkb_page"))
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    arguments = parser.parse_args()
    labels: list[str] = []
    metrics: dict[str, Numbers] = {}
    for family in arguments.families:
        work = arguments.work / f"{family}-{arguments.seed}"
        work.mkdir(parents=True, exist_ok=True)
        run_stages(work, stages(work, family, arguments.seed, arguments.questions))
        by_rule = {name: statistics_of(work / _folder(name)) for name in LABELS}
        labels += [*label_lines(family, by_rule, statistics_of(work / "labels"), who_was_right(work)), ""]
        metrics[family] = json.loads((work / "evaluation/metrics.json").read_text())
    work = arguments.work / f"{arguments.families[0]}-{arguments.seed}"
    run_stages(work, rule_stages(work, arguments.families[0], arguments.seed, arguments.limit, arguments.epochs))
    sweeps = {rule: json.loads((work / f"rule-{rule}/sweep/sweep.json").read_text()) for rule in RULES}
    text = page(arguments, labels, tuned_lines(metrics), rule_lines(sweeps))
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
