"""Gates refined by reward against the γ sweep of the checkpoint they start from: accuracy, and passages read for it.

    python benchmarks/grpo.py --work runs/grpo --output benchmarks/grpo.md

For each seed: a world with its traffic, an index, MMKB-RAG's probes, labels and fine-tuning, then the commands of the
README for each λ, with what other flags are given here; the training questions are answered once for all λ. Every
checkpoint then answers the validation questions both ways, which gives its whole γ sweep: a question's answer depends
on γ only by which way it takes. What is finished is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import quickstart
from gate_sweeps import Answered, above, best_threshold, between
from page import command_line, spread
from running import alone
from staging import CONFIGS, launch, module, run_stages

from reflectune.core.config import parse_config
from reflectune.core.durable import write_atomically
from reflectune.formats.dataset import Dataset
from reflectune.inference.report.curves import Line, line_chart
from reflectune.inference.running.rollout import GateRewardRollout
from reflectune.metrics.scoring.registry import find_metric
from reflectune.models.loading import load
from reflectune.train.grpo import GrpoConfig

CONFIG = CONFIGS / "examples/miniature/grpo_mmkb.yaml"

QUESTIONS = {
    "Traffic": ("traffic_val",),
    "Unseen questions and entities": ("val_unseen_question", "val_unseen_entity"),
}
"""What is reported, and the splits that it takes in."""

VARIANTS = {
    "without `hold`": ["--hold", "0"],
    "`policy_loss: grpo`": ["--policy_loss", "grpo"],
    "mean reward": ["--policy_loss", "expected"],
}
"""Settings that the first seed is refined with as well, at the first λ."""


def stages(
    seed: int, work: Path, costs: Sequence[float], traffic: int, extra: Sequence[str], variants: Sequence[str] = ()
) -> dict[str, list[str]]:
    """The commands of a seed, by stage; `variants` names those of `VARIANTS` to refine as well."""
    world, index, labels, checkpoint = (str(work / name) for name in ("world", "index", "labels", "checkpoint"))
    probed = ["--dataset", world, "--index", index, "--output", str(work / "probes")]
    shared = quickstart.stages(work, "llava", "full", seed)
    made = {
        "world": [*shared["world"], "--traffic", str(traffic)],
        "index": shared["index"],
        "probe": [*launch("data_builders/probe.py", "probe.yaml"), *probed],
        "labels": [
            *module("data_builders.derive_labels", "derive_labels.yaml"),
            *("--dataset", world, "--probes", str(work / "probes"), "--output", labels),
        ],
        "train": [
            *launch("train/sft.py", "mmkb_full.yaml"),
            *("--train_data", labels, "--output_dir", checkpoint, "--seed", str(seed)),
        ],
    }

    def refine(folder: str, cost: float, *changes: str) -> list[str]:
        return [
            *launch("train/grpo.py", "grpo_mmkb.yaml"),
            *settings(work, work / "checkpoint", work / folder),
            *("--rewards", str(work / "answers"), "--retrieval_cost", str(cost), "--seed", str(seed)),
            *(*extra, *changes),
        ]

    made |= {f"refine, λ = {cost:g}": refine(f"lambda-{cost:g}", cost) for cost in costs}
    made |= {f"refine, {name}": refine(_folder(name), costs[0], *VARIANTS[name]) for name in variants}
    return made


def _folder(variant: str) -> str:
    """The folder of a variant's checkpoint."""
    return "variant-" + "-".join(re.findall(r"[a-z_]+", variant))


def settings(work: Path, model: Path, output: Path) -> list[str]:
    """The command line's paths."""
    paths = {"model": model, "dataset": work / "world", "index": work / "index", "output_dir": output}
    return [text for name, value in paths.items() for text in (f"--{name}", str(value))]


def answered(work: Path, model: Path, folder: Path) -> Answered:
    """Have a checkpoint answer the validation questions both ways."""
    (config,) = parse_config(GrpoConfig, argv=["--config", str(CONFIG), *settings(work, model, folder)])
    dataset = Dataset(work / "world")
    questions = [question for splits in QUESTIONS.values() for name in splits for question in dataset.questions(name)]
    both = GateRewardRollout(
        config,
        load(str(model), scheme=config.scheme),
        dataset,
        questions,
        folder=folder,
        correctness=find_metric(dataset.metric),
    )
    return Answered.of(questions, both(0))


@dataclass(frozen=True)
class Seed:
    """A seed's checkpoint, and those refined at each λ."""

    sft: Answered
    refined: dict[float, Answered]
    minutes: dict[str, float]
    variants: dict[str, Answered] = dataclasses.field(default_factory=dict)

    def of_splits(self, splits: Sequence[str]) -> Seed:
        """The questions of some splits."""
        refined = {cost: answers.of_splits(splits) for cost, answers in self.refined.items()}
        variants = {name: answers.of_splits(splits) for name, answers in self.variants.items()}
        return Seed(self.sft.of_splits(splits), refined, self.minutes, variants)


def run_seed(
    seed: int, work: Path, costs: Sequence[float], traffic: int, extra: Sequence[str], variants: Sequence[str] = ()
) -> Seed:
    """Run all stages and have every checkpoint answer."""
    work.mkdir(parents=True, exist_ok=True)
    minutes = run_stages(work, stages(seed, work, costs, traffic, extra, variants))
    return Seed(
        answered(work, work / "checkpoint", work / "val-sft"),
        {cost: answered(work, work / f"lambda-{cost:g}", work / f"val-{cost:g}") for cost in costs},
        minutes,
        {name: answered(work, work / _folder(name), work / f"val-{_folder(name)}") for name in variants},
    )


def policies(cost: float) -> dict[str, Callable[[Seed], tuple[Answered, np.ndarray]]]:
    """At a λ: who answers, and which questions are looked up."""
    return {
        "SFT, γ = 0.5": lambda seed: (seed.sft, seed.sft.default()),
        "SFT, the best γ of its sweep": lambda seed: (seed.sft, best_threshold(seed.sft, cost)),
        "refined, γ = 0.5": lambda seed: (seed.refined[cost], seed.refined[cost].default()),
        "oracle gate, SFT's answers": lambda seed: (
            seed.sft,
            seed.sft.retrieved - seed.sft.direct > cost * seed.sft.read,
        ),
    }


def table(seeds: Sequence[Seed], costs: Sequence[float]) -> list[str]:
    """One row a λ and policy."""
    lines = [
        "| λ | | accuracy | passages a question | looked up: knowledge-based | of these, known by heart | visual | "
        "reward |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for cost in costs:
        for name, policy in policies(cost).items():
            rows = [policy(seed) for seed in seeds]
            points = [checkpoint.at(looked_up) for checkpoint, looked_up in rows]
            shares = [
                spread([float(looked_up[pick(checkpoint)].mean()) for checkpoint, looked_up in rows], scale=100)
                for pick in (
                    lambda checkpoint: checkpoint.knowledge,
                    lambda checkpoint: checkpoint.known,
                    lambda checkpoint: ~checkpoint.knowledge,
                )
            ]
            cells = [
                spread([accuracy for _, accuracy in points], scale=100),
                spread([read for read, _ in points], 2),
                *shares,
                spread([checkpoint.reward(cost, looked_up) for checkpoint, looked_up in rows], 3),
            ]
            lines.append(f"| {cost:g} | {name} | {' | '.join(cells)} |")
    return lines


def gains(seeds: Sequence[Seed], costs: Sequence[float]) -> list[str]:
    """How far refined gates lie above SFT's sweep, how far an oracle gate would, and how the answers changed."""
    lines = [
        "| λ | accuracy above SFT's sweep: at γ = 0.5 | over the sweep | an oracle gate's, over the sweep | "
        "always retrieving: accuracy less SFT's | never: the same | minutes |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for cost in costs:
        columns = []
        for seed in seeds:
            refined, sft = seed.refined[cost], seed.sft
            read, accuracy = refined.at(refined.default())
            at_default = accuracy - between(sft.sweep(), read)
            always = float(refined.retrieved.mean() - sft.retrieved.mean())
            never = float(refined.direct.mean() - sft.direct.mean())
            columns.append((at_default, above(refined.sweep(), sft), above(sft.oracle(), sft), always, never))
        cells = [spread(values, 2, scale=100) for values in zip(*columns, strict=True)]
        minutes = spread([seed.minutes[f"refine, λ = {cost:g}"] for seed in seeds])
        lines.append(f"| {cost:g} | {' | '.join(cells)} | {minutes} |")
    return lines


def verdicts(seeds: Sequence[Seed], costs: Sequence[float]) -> list[str]:
    """Of each λ, in words: the refined gate's lead over SFT's sweep at the same cost, and which reward is higher."""
    lines = []
    for cost in costs:
        leads = []
        for seed in seeds:
            read, accuracy = seed.refined[cost].at(seed.refined[cost].default())
            leads.append(100 * (accuracy - between(seed.sft.sweep(), read)))
        ours = statistics.mean(s.refined[cost].reward(cost, s.refined[cost].default()) for s in seeds)
        theirs = statistics.mean(s.sft.reward(cost, best_threshold(s.sft, cost)) for s in seeds)
        order = "higher than" if ours > theirs else "no higher than"
        lines.append(
            f"At λ = {cost:g} and γ = 0.5 the refined gate is {statistics.mean(leads):+.1f} points above SFT's sweep "
            f"at the same cost ({min(leads):+.1f} to {max(leads):+.1f} by seed); its reward, {ours:.3f}, is {order} "
            f"that of SFT's best γ, {theirs:.3f}."
        )
    return lines


def variant_table(seed: Seed, cost: float) -> list[str]:
    """One seed refined with other settings: accuracy, passages, known questions looked up, answers, reward."""
    lines = [
        "| | accuracy | passages a question | looked up, of what is known by heart | "
        "always retrieving: accuracy less SFT's | the same, knowledge-based | reward |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, refined in {"as above": seed.refined[cost], **seed.variants}.items():
        looked_up = refined.default()
        read, accuracy = refined.at(looked_up)
        kept = refined.retrieved - seed.sft.retrieved
        known = 100 * float(looked_up[refined.known].mean())
        cells = [f"{100 * accuracy:.1f}", f"{read:.2f}", f"{known:.1f}", f"{100 * float(kept.mean()):+.1f}"]
        cells += [f"{100 * float(kept[refined.knowledge].mean()):+.1f}", f"{refined.reward(cost, looked_up):.3f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def chart(seeds: Sequence[Seed], costs: Sequence[float]) -> str:
    """Mean accuracy over seeds against cost, as a share of the passages that looking up everything takes."""
    grid = np.linspace(0.0, 1.0, 101)

    def line(name: str, points_of: Callable[[Seed], list[tuple[float, float]]]) -> Line:
        accuracies = []
        for seed in seeds:
            everything = float(seed.sft.read.mean())
            accuracies.append([between(points_of(seed), share * everything) for share in grid])
        return Line(name, list(zip(grid.tolist(), np.mean(accuracies, axis=0).tolist(), strict=True)))

    def dots(name: str, policy: Callable[[Seed], tuple[Answered, np.ndarray]]) -> Line:
        points = []
        for seed in seeds:
            checkpoint, looked_up = policy(seed)
            read, accuracy = checkpoint.at(looked_up)
            points.append((read / float(seed.sft.read.mean()), accuracy))
        return Line(name, points, dots=True, joined=False)

    shown = costs[len(costs) // 2]
    lines = [
        line("SFT, γ from 1 to 0", lambda seed: seed.sft.sweep()),
        line(f"refined at λ = {shown:g}, γ from 1 to 0", lambda seed: seed.refined[shown].sweep()),
        line("oracle gate", lambda seed: seed.sft.oracle()),
        dots("SFT, γ = 0.5, each seed", policies(shown)["SFT, γ = 0.5"]),
        dots("refined, γ = 0.5, each seed", policies(shown)["refined, γ = 0.5"]),
    ]
    title = "Accuracy against the cost of retrieval"
    label = "passages read, as a share of looking everything up"
    return alone(
        line_chart(title, label, "accuracy", lines), [shown_line.name for shown_line in lines], legend=(210, 146)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--costs", type=float, nargs="+", default=[0.3], help="values of λ")
    parser.add_argument("--traffic", type=int, default=4000, help="questions to learn from")
    parser.add_argument("--variants", nargs="*", choices=[*VARIANTS], default=[*VARIANTS], help="of the first seed")
    parser.add_argument("--work", type=Path, default=Path("runs/grpo"))
    parser.add_argument("--output", type=Path, help="Markdown file, and an SVG beside it; printed in any case")
    arguments, extra = parser.parse_known_args()
    began = time.monotonic()
    seeds = [
        run_seed(
            *(seed, arguments.work / f"seed-{seed}", arguments.costs, arguments.traffic, extra),
            variants=() if place else arguments.variants,
        )
        for place, seed in enumerate(arguments.seeds)
    ]
    text = page(seeds, arguments.costs, arguments.output.with_suffix(".svg").name if arguments.output else "")
    print(text)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
        first = [seed.of_splits(next(iter(QUESTIONS.values()))) for seed in seeds]
        write_atomically(arguments.output.with_suffix(".svg"), chart(first, arguments.costs))


def page(seeds: Sequence[Seed], costs: Sequence[float], figure: str = "") -> str:
    """The Markdown file: how it was measured, the tables of each set of questions, and the variants.

    Args:
        seeds: What was measured, by seed.
        costs: Values of λ.
        figure: File name of the chart, if there is one.
    """
    lines = [
        "# Gates refined by reward",
        "",
        f"{command_line('grpo.py')}, MMKB-RAG on the miniature LLaVA: {len(seeds)} seeds, each with a world, a "
        "fine-tuned checkpoint and a refined one of its own; mean ± standard deviation over seeds. Per cent, but for "
        "passages and rewards. Miniature numbers.",
        "",
    ]
    for name, splits in QUESTIONS.items():
        seeds_of_splits = [seed.of_splits(splits) for seed in seeds]
        known = statistics.mean(float(seed.sft.known.mean()) for seed in seeds_of_splits)
        lines += [
            f"## {name} (`{'`, `'.join(splits)}`)",
            "",
            f"{len(seeds_of_splits[0].sft.read)} questions a seed, {known:.0%} of them about what the base model knows "
            "by heart. None was trained on.",
            "",
            *table(seeds_of_splits, costs),
            "",
            *gains(seeds_of_splits, costs),
            "",
            *verdicts(seeds_of_splits, costs),
            "",
        ]
    if figure:
        lines += [f"![Accuracy against the cost of retrieval]({figure})", ""]
        lines += ["Traffic, means over seeds; a dot is one seed's checkpoint as it is used by default.", ""]
    if seeds[0].variants:
        name, splits = next(iter(QUESTIONS.items()))
        lines += [
            f"## Other settings ({name}, the first seed, λ = {costs[0]:g}, γ = 0.5)",
            "",
            "`hold` keeps what the checkpoint says besides its gate: without it answers with retrieval may drift.",
            "",
            *variant_table(seeds[0].of_splits(splits), costs[0]),
            "",
        ]
    lines.append("Minutes are of refining alone; the answers both ways are measured once before, for all λ.")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
