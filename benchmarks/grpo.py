"""Gates refined by reward against the γ sweep of the checkpoint they start from: accuracy, and passages read for it.

    python benchmarks/grpo.py --worlds runs/s0 runs/s1 runs/s2 --work runs/grpo --output benchmarks/grpo.md

Each world is a finished quick start (`benchmarks/quickstart.py`), one a seed; with the configuration grpo_mmkb.yaml and
`--checkpoints` it is MMKB-RAG's. For each and each λ the command of the README is run, with what other flags are given
here; the training questions are answered once for all λ. Every checkpoint then answers the validation questions both
ways, which gives its whole γ sweep: a question's answer depends on γ only by which way it takes. What is finished is
not run again.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from quickstart import LAUNCH, ROOT
from running import alone

from reflectune.core.config import parse_config
from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.gate_outcomes import GateOutcome
from reflectune.core.types import Question
from reflectune.data_builders.dataset import Dataset
from reflectune.inference.both_ways import BothWays
from reflectune.inference.charts import Line, line_chart
from reflectune.models.loading import load
from reflectune.train.grpo import GrpoConfig

SPLITS = ("val_unseen_question", "val_unseen_entity")


@dataclass(frozen=True)
class Answered:
    """A checkpoint's validation questions, answered both ways; arrays of shape (questions,)."""

    direct: np.ndarray
    retrieved: np.ndarray
    read: np.ndarray
    log_odds: np.ndarray
    known: np.ndarray
    knowledge: np.ndarray

    @classmethod
    def of(cls, questions: Sequence[Question], outcomes: Sequence[GateOutcome]) -> Answered:
        """Arrays of what was measured; `known` are questions about entities that the base model knows by heart."""
        columns = [[getattr(own, name) for own in outcomes] for name in ("direct", "retrieved", "passages_read")]
        return cls(
            *(np.array(column, dtype=float) for column in columns),
            log_odds=np.array([own.log_odds for own in outcomes]),
            known=np.array([q.meta.get("famous") == "yes" and q.requires_retrieval is True for q in questions]),
            knowledge=np.array([q.requires_retrieval is True for q in questions]),
        )

    def at(self, looked_up: np.ndarray) -> tuple[float, float]:
        """Mean passages read, and accuracy, if these questions are looked up."""
        return float((self.read * looked_up).mean()), float(np.where(looked_up, self.retrieved, self.direct).mean())

    def default(self) -> np.ndarray:
        """Who is looked up at γ = 0.5."""
        return self.log_odds >= 0

    def sweep(self) -> list[tuple[float, float]]:
        """The γ sweep, from never to always: one point for each distinct gate."""
        values = np.unique(self.log_odds)[::-1]
        return [self.at(np.zeros_like(self.known)), *(self.at(self.log_odds >= value) for value in values)]

    def oracle(self) -> list[tuple[float, float]]:
        """The best that any gate could do with these answers: questions in the order of what a passage gains."""
        order = np.argsort(-(self.retrieved - self.direct) / np.maximum(self.read, 1.0), kind="stable")
        looked_up, points = np.zeros_like(self.known), [self.at(np.zeros_like(self.known))]
        for place in order:
            looked_up[place] = True
            points.append(self.at(looked_up))
        return points

    def reward(self, cost: float, looked_up: np.ndarray) -> float:
        """Mean reward at a cost per passage."""
        read, accuracy = self.at(looked_up)
        return accuracy - cost * read


def between(points: Sequence[tuple[float, float]], cost: float) -> float:
    """The most accuracy of a sweep at a cost or below it; between two thresholds, that of drawing one of them."""
    costs, values = zip(*sorted(points), strict=True)
    return float(np.interp(cost, costs, np.maximum.accumulate(values)))


def above(points: Sequence[tuple[float, float]], sft: Answered) -> float:
    """How far a sweep lies above SFT's, on the mean over costs from 0 to SFT's at γ = 0.5."""
    costs = np.linspace(0.0, sft.at(sft.default())[0], 101)
    own = sft.sweep()
    return float(np.mean([between(points, cost) - between(own, cost) for cost in costs]))


@dataclass(frozen=True)
class Start:
    """What a seed's gates are refined from.

    Attributes:
        seed: The seed.
        config: The recipe.
        world: Folder with `world/` and `index/`.
        checkpoint: What train/sft.py wrote.
        work: Where everything is put.
    """

    seed: int
    config: Path
    world: Path
    checkpoint: Path
    work: Path

    def flags(self, model: Path, output: Path) -> list[str]:
        """The command line's settings."""
        paths = {"model": model, "dataset": self.world / "world", "index": self.world / "index", "output_dir": output}
        told = [text for name, value in paths.items() for text in (f"--{name}", str(value))]
        return ["--config", str(self.config), *told]


def answered(start: Start, model: Path, folder: Path) -> Answered:
    """Have a checkpoint answer the validation questions both ways."""
    (config,) = parse_config(GrpoConfig, argv=start.flags(model, folder))
    dataset = Dataset(start.world / "world")
    questions = [question for split in SPLITS for question in dataset.questions(split)]
    both = BothWays(config, load(str(model), scheme=config.scheme), dataset, questions, folder=folder)
    return Answered.of(questions, both(0))


def refine(own: Start, cost: float, extra: Sequence[str]) -> Path:
    """Refine a checkpoint at a λ, as the README says; the seconds are kept beside the result."""
    output = own.work / f"lambda-{cost:g}"
    if (output / "run.json").exists():
        return output
    command = [*LAUNCH, str(ROOT / "train/grpo.py"), *own.flags(own.checkpoint, output), "--seed", str(own.seed)]
    command += ["--rewards", str(own.work / "answers"), "--retrieval_cost", str(cost), *extra]
    start = time.monotonic()
    subprocess.run(command, check=True)
    write_json(output / "seconds.json", round(time.monotonic() - start, 1))
    return output


@dataclass(frozen=True)
class Seed:
    """What one quick start came to: its checkpoint, and those refined at each λ."""

    sft: Answered
    refined: dict[float, Answered]
    seconds: dict[float, float]


def run_seed(own: Start, costs: Sequence[float], extra: Sequence[str]) -> Seed:
    """Refine at every λ and have every checkpoint answer."""
    folders = {cost: refine(own, cost, extra) for cost in costs}
    return Seed(
        answered(own, own.checkpoint, own.work / "val-sft"),
        {cost: answered(own, folder, own.work / f"val-{cost:g}") for cost, folder in folders.items()},
        {cost: read_json(folder / "seconds.json", "the run's seconds") for cost, folder in folders.items()},
    )


def spread(values: Sequence[float], digits: int = 1, scale: float = 1.0) -> str:
    """Mean ± standard deviation over seeds."""
    own = [scale * value for value in values]
    deviation = statistics.stdev(own) if len(own) > 1 else 0.0
    return f"{statistics.mean(own):.{digits}f} ± {deviation:.{digits}f}"


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


def best_threshold(found: Answered, cost: float) -> np.ndarray:
    """Who is looked up at the γ that earns most on these very questions: more than a user could choose."""
    values = [*np.unique(found.log_odds), np.inf]
    return max((found.log_odds >= value for value in values), key=lambda own: found.reward(cost, own))


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
            points = [found.at(looked_up) for found, looked_up in rows]
            shares = [
                spread([float(looked_up[pick(found)].mean()) for found, looked_up in rows], scale=100)
                for pick in (
                    lambda found: found.knowledge,
                    lambda found: found.known,
                    lambda found: ~found.knowledge,
                )
            ]
            cells = [
                spread([accuracy for _, accuracy in points], scale=100),
                spread([read for read, _ in points], 2),
                *shares,
                spread([found.reward(cost, looked_up) for found, looked_up in rows], 3),
            ]
            lines.append(f"| {cost:g} | {name} | {' | '.join(cells)} |")
    return lines


def gains(seeds: Sequence[Seed], costs: Sequence[float]) -> list[str]:
    """How far refined gates lie above SFT's sweep, and the best gate would; and what has become of the answers."""
    lines = [
        "| λ | accuracy above SFT's sweep: at γ = 0.5 | over the sweep | an oracle gate's, over the sweep | "
        "always retrieving: accuracy less SFT's | never: the same | minutes |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for cost in costs:
        columns = []
        for seed in seeds:
            own, sft = seed.refined[cost], seed.sft
            read, accuracy = own.at(own.default())
            at_default = accuracy - between(sft.sweep(), read)
            always = float(own.retrieved.mean() - sft.retrieved.mean())
            never = float(own.direct.mean() - sft.direct.mean())
            columns.append((at_default, above(own.sweep(), sft), above(sft.oracle(), sft), always, never))
        cells = [spread(values, 2, scale=100) for values in zip(*columns, strict=True)]
        minutes = spread([seed.seconds[cost] / 60 for seed in seeds])
        lines.append(f"| {cost:g} | {' | '.join(cells)} | {minutes} |")
    return lines


def chart(seeds: Sequence[Seed], costs: Sequence[float]) -> str:
    """Mean accuracy over seeds against cost, as a share of the passages that looking up everything takes."""
    grid = np.linspace(0.0, 1.0, 101)

    def line(name: str, points_of: Callable[[Seed], list[tuple[float, float]]]) -> Line:
        own = []
        for seed in seeds:
            everything = float(seed.sft.read.mean())
            own.append([between(points_of(seed), share * everything) for share in grid])
        return Line(name, list(zip(grid.tolist(), np.mean(own, axis=0).tolist(), strict=True)))

    def dots(name: str, policy: Callable[[Seed], tuple[Answered, np.ndarray]]) -> Line:
        points = []
        for seed in seeds:
            found, looked_up = policy(seed)
            read, accuracy = found.at(looked_up)
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
    return alone(line_chart(title, label, "accuracy", lines), [own.name for own in lines], legend=(210, 146))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--worlds", type=Path, nargs="+", required=True, help="folders with world/ and index/, one a seed"
    )
    parser.add_argument(
        "--checkpoints", type=Path, nargs="+", help="one a seed; `checkpoint` in each world's folder if unset"
    )
    parser.add_argument("--config", type=Path, default=ROOT / "configs/miniature/grpo.yaml")
    parser.add_argument("--costs", type=float, nargs="+", default=[0.003, 0.01, 0.03], help="values of λ")
    parser.add_argument("--work", type=Path, default=Path("runs/grpo"))
    parser.add_argument("--output", type=Path, help="Markdown file, and an SVG beside it; printed in any case")
    arguments, extra = parser.parse_known_args()
    began = time.monotonic()
    checkpoints = arguments.checkpoints or [world / "checkpoint" for world in arguments.worlds]
    starts = [
        Start(seed, arguments.config, world, checkpoint, arguments.work / f"seed-{seed}")
        for seed, (world, checkpoint) in enumerate(zip(arguments.worlds, checkpoints, strict=True))
    ]
    seeds = [run_seed(own, arguments.costs, extra) for own in starts]
    text = page(seeds, arguments.costs, arguments.config, len(set(checkpoints)))
    print(text)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
        write_atomically(arguments.output.with_suffix(".svg"), chart(seeds, arguments.costs))


def page(seeds: Sequence[Seed], costs: Sequence[float], config: Path, checkpoints: int) -> str:
    """The Markdown file: how it was measured, and both tables."""
    lines = [
        "# Gates refined by reward",
        "",
        f"`python benchmarks/grpo.py --config {config.resolve().relative_to(ROOT)}`: {len(seeds)} seeds of refining, "
        f"from {checkpoints} fine-tuned checkpoint(s); mean ± standard deviation over seeds. {len(seeds[0].sft.read)} "
        "questions of val_unseen_question and val_unseen_entity, knowledge-based and visual together, none of them "
        "trained on. Per cent, but for passages and rewards. Miniature numbers.",
        "",
        *table(seeds, costs),
        "",
        *gains(seeds, costs),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
