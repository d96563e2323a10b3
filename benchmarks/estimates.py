"""How long the estimates say that reading, answering, probing and training take, beside real runs on the same data.

    python benchmarks/estimates.py --work runs/estimates --output benchmarks/estimates.md

Questions, pictures and passages are the miniature world's, which is drawn first; the models are the miniature's own
weights and a model of 99 M random ones with 576 tokens a picture. A run goes through the classes that the commands use:
`Reader`, `PassageReader`, `Prober` and `ReflectionTrainer`. What an average question takes is counted on a few
questions; the estimate is made of these counts and of rates measured on a few layers; and other questions are run.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from geometry import SIZES, save_as_base
from page import command_line
from PIL import Image
from trainers import Clock, ours, settings, subset

from reflectune.core.images import load_image
from reflectune.core.types import Passage, Question
from reflectune.data_builders.probing.config import SCHEME, Asking
from reflectune.data_builders.probing.probe import Prober
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages
from reflectune.inference.reading.passage_reader import PassageReader
from reflectune.inference.reading.reader import Reader
from reflectune.metrics.scoring.registry import find_metric
from reflectune.models.loading import Loaded, load
from reflectune.models.prefix.engine import Generation, PrefixEngine
from reflectune.retrieval.contexts import Document
from reflectune.train.estimates.architecture import Architecture
from reflectune.train.estimates.rates import TRAINED, measure_rates, measure_training
from reflectune.train.estimates.work import Work, flop

ROOT = Path(__file__).resolve().parents[1]
PILOT = 8
"""Questions that are counted, and warm up what the process keeps."""
BATCH, TRAINING_BATCH = 8, 4
NEAR = 0.25
"""How far an estimate may be from what is measured."""
ENTRIES, ANSWERED, DOCUMENTS, NEW_TOKENS = 5, 3, 10, 16


@dataclass(frozen=True)
class Case:
    """A question as it is run: its picture, and passages of its own entry and of others."""

    question: Question
    image: Image.Image
    passages: list[Passage]


@dataclass(frozen=True)
class Count:
    """Averages of what questions took, without their pictures."""

    prefix: float
    branches: float
    branch_tokens: float
    rows: float
    row_tokens: float
    longest: float


Run = Callable[[Sequence[Case]], Count]


def world(work: Path) -> Path:
    """The miniature world, its index and mR²AG-IT, made once."""
    steps = {
        "world": ("data_builders.build_world", "world", []),
        "index": ("retrieval.build_index", "index", ["--knowledge", work / "world/knowledge", "--device", "cpu"]),
        "reflection": (
            "data_builders.build_mr2ag",
            "mr2ag_data",
            ["--dataset", work / "world", "--index", work / "index"],
        ),
    }
    for name, (module, config, more) in steps.items():
        file = ROOT / f"configs/examples/miniature/{config}.yaml"
        argv = ["-m", f"reflectune.{module}", "--config", file, "--output", work / name, *more]
        subprocess.run([sys.executable, *map(str, argv)], check=True)
    return work


def drawn_cases(root: Path, count: int) -> list[Case]:
    """Knowledge-based questions, each with the passages of its entry and of the next ones."""
    dataset = Dataset(root)
    entries = list(dataset.knowledge.ids)
    chosen = [q for q in dataset.questions("val_unseen_question") if q.entity_ids and q.is_knowledge_based][:count]
    made = []
    for number, question in enumerate(chosen):
        ids = [question.entity_ids[0], *(entries[(number * ENTRIES + i) % len(entries)] for i in range(ENTRIES - 1))]
        passages = [p for key in ids for p in split_passages(dataset.knowledge.get(key), lead="first_sentence")]
        made.append(Case(question, load_image(question.image, root=dataset.image_roots), passages))
    return made


def closed_book(loaded: Loaded, cases: Sequence[Case]) -> Count:
    """Answer without passages."""
    return plainly(loaded, cases, [[] for _ in cases])


def naive_rag(loaded: Loaded, cases: Sequence[Case]) -> Count:
    """Answer from all passages in one prompt, as far as the context holds."""
    return plainly(loaded, cases, [case.passages for case in cases])


def plainly(loaded: Loaded, cases: Sequence[Case], contexts: Sequence[Sequence[Passage]]) -> Count:
    """Answer from one prompt each, which a baseline reads as one prefix."""
    reader = Reader(engine(loaded), NEW_TOKENS)
    answers = []
    for i in range(0, len(cases), BATCH):
        part = cases[i : i + BATCH]
        images = [case.image for case in part]
        answers += reader.answer_plainly([case.question for case in part], images, contexts[i : i + BATCH])
    return Count(fmean(a.read for a in answers), 0, 0, *written([a.tokens for a in answers], len(cases)))


def mr2ag(loaded: Loaded, cases: Sequence[Case]) -> Count:
    """Open, read the gate, judge all passages, and answer from some."""
    reader = PassageReader(engine(loaded), NEW_TOKENS)
    scheme: Any = loaded.scheme
    prefixes: list[int] = []
    branches: list[list[int]] = []
    words: list[int] = []
    for i in range(0, len(cases), BATCH):
        part = cases[i : i + BATCH]
        opened = reader.open([case.question for case in part], [case.image for case in part])
        reader.gates(opened)
        judged = reader.judge(opened, [case.passages for case in part])
        rows = [(q, k) for q in range(len(part)) for k in range(min(ANSWERED, len(judged.passages[q])))]
        answers = reader.answer_from(judged, rows)
        prefixes += opened.lengths
        words += [answer.tokens for answer in answers]
        branches += [
            [len(scheme.passage_branch(loaded.renderer, p, case.question.answer_style)) for p in passages]
            for case, passages in zip(part, judged.passages, strict=True)
        ]
    return Count(*averages(prefixes, branches), *written(words, len(cases)))


def probe(loaded: Loaded, cases: Sequence[Case]) -> Count:
    """Answer alone and with each document, as `data_builders.probe` has it."""
    watched = Watched(loaded)
    prober = Prober(watched, find_metric("vqa", None), Asking(max_new_tokens=NEW_TOKENS, gold=False))
    ready = []
    for case in cases:
        documents = [Document(passage, 0.5, k + 1) for k, passage in enumerate(case.passages[:DOCUMENTS])]
        ready.append(prober.prepare(case.question, case.image, documents))
    for i in range(0, len(ready), BATCH):
        prober.probe(ready[i : i + BATCH])
    words = watched.written
    prefixes, branches = [len(r.prefix.ids) for r in ready], [[len(b) for b in r.branches] for r in ready]
    return Count(*averages(prefixes, branches), *written(words, len(cases)))


def written(words: Sequence[int], questions: int) -> tuple[float, float, float]:
    """Answers of a question, their tokens, and those of the longest: the batch is one."""
    return len(words) / questions, fmean(words), max(words)


def averages(prefixes: Sequence[int], branches: Sequence[Sequence[int]]) -> tuple[float, float, float]:
    """Of tokens of prefixes, of the number of branches, and of their tokens."""
    return fmean(prefixes), fmean(map(len, branches)), fmean(length for each in branches for length in each)


class Watched(PrefixEngine):
    """An engine that notes the tokens of each answer: what a probe keeps of it is text."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self.written: list[int] = []

    def generate(self, *arguments: Any, **named: Any) -> list[Generation]:
        """As the engine's."""
        made = super().generate(*arguments, **named)
        self.written += [len(generation.token_ids) for generation in made]
        return made


@contextmanager
def preparing(renderer: Any) -> Iterator[list[float]]:
    """Notes the seconds in which text is tokenised and pictures are fitted, call by call."""
    spent: list[float] = []
    names = ("plain", "question_prefix", "after_prefix", "reply_ids")
    before = {name: getattr(renderer, name) for name in names}

    def watched(made: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return made(*arguments, **named)
            finally:
                spent.append(time.process_time() - began)

        return call

    for name, made in before.items():
        object.__setattr__(renderer, name, watched(made))
    try:
        yield spent
    finally:
        for name in names:
            object.__delattr__(renderer, name)


def engine(loaded: Loaded) -> PrefixEngine:
    """A new engine on a model."""
    return PrefixEngine(loaded)


def hold(name: str, run: Run, loaded: Loaded, cases: Sequence[Case]) -> str:
    """A row of the table: the estimate made from a few questions, and the others run."""
    run(cases[:PILOT])
    with preparing(loaded.renderer) as spent:
        count = run(cases[:PILOT])
    vision: Any = loaded.model.config.vision_config
    tile = (vision.image_size // vision.patch_size) ** 2
    work = Work(
        tile, tile, count.prefix, count.branches, count.branch_tokens, count.rows, count.row_tokens, count.longest
    )
    rates = measure_rates(loaded.model.config, work, batch=BATCH, dtype=torch.float32, device="cpu")
    others = cases[PILOT:]
    prepared = len(others) * sum(spent) / PILOT
    predicted = len(others) * rates.seconds(flop(Architecture.of(loaded.model.config), work)) + prepared
    began = time.process_time()
    run(others)
    return row(name, len(others), predicted, time.process_time() - began, prepared)


def train(model: str, source: Path, questions: int, folder: Path) -> str:
    """A row for training, of which the counts are those of its own data, as a dry run has them."""
    data = folder / "data"
    if not data.exists():
        subset(source, data, questions)
    config = settings("full", model, data, epochs=2, per_device_train_batch_size=TRAINING_BATCH)
    trainer = ours(config)
    dataset: Any = trainer.train_dataset
    trees = [tree for i in range(len(dataset)) for tree in dataset[i].trees]
    network: Any = trainer.model
    vision = network.config.vision_config
    tile = (vision.image_size // vision.patch_size) ** 2
    count = averages([len(t.prefix.ids) for t in trees], [[len(b.ids) + 1 for b in t.branches] for t in trees])
    supervised = fmean(t.supervised for t in trees) / max(count[1], 1)
    work = Work(tile, tile, *count, row_tokens=supervised)
    rates = measure_training(network.config, work, batch=TRAINING_BATCH, autocast=False, device="cpu")
    one = flop(Architecture.of(network.config), work)
    predicted = questions * (one.vision / rates.vision + TRAINED * (one.prefix + one.branches) / rates.prefix)
    clock = Clock(trainer, "cpu")
    trainer.train()
    return row("training, an epoch", questions, predicted, clock.epochs()[-1].cpu_seconds)


def row(name: str, questions: int, predicted: float, measured: float, prepared: float = 0.0) -> str:
    """A row without its model."""
    return f"{name} | {questions} | {prepared:.2f} | {predicted:.2f} | {measured:.2f} | {predicted / measured:.2f}"


def main() -> None:
    """Run, print and write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, default=Path("runs/estimates"), help="world, index and data, made once")
    options.add_argument("--questions", type=int, default=96, help="questions that are run with the miniature")
    options.add_argument("--large_questions", type=int, default=4, help="questions that are run at 99 M")
    options.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    folder = world(arguments.work.resolve())
    large = folder / "llava-99m"
    if not (large / "config.json").exists():
        save_as_base("llava", SIZES["small"], large)
    lines = [
        "| model | stage | questions | preparing, s | predicted with it, s | measured, s | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    models = {"miniature": ("miniature/llava", arguments.questions), "99 M": (str(large), arguments.large_questions)}
    for name, (model, questions) in models.items():
        cases = drawn_cases(folder / "world", PILOT + questions)
        runs = {"closed book": closed_book, "naive RAG": naive_rag, "mR²AG": mr2ag, "probing": probe}
        for stage, run in runs.items():
            loaded = load(model, scheme=SCHEME if stage == "probing" else "mr2ag" if stage == "mR²AG" else None)
            lines.append(f"| {name} | {hold(stage, functools.partial(run, loaded), loaded, cases)} |")
            print(lines[-1], flush=True)
        trained = train(model, folder / "reflection", questions, folder / f"train-{questions}-{name[:2].strip()}")
        lines.append(f"| {name} | {trained} |")
        print(lines[-1], flush=True)
    if arguments.output:
        arguments.output.write_text(page(lines), encoding="utf-8")


def page(lines: Sequence[str]) -> str:
    """The whole page."""
    head = (
        f"{command_line('estimates.py')}, one thread, float32. Seconds are the process's own, of the rate and of the "
        "run alike, since the machine does other work. Pictures are the miniature world's; the larger model reads each "
        "as 576 tokens. The rates are of at most 4 of the decoder's layers. What a question takes, and the seconds of "
        f"preparing its text and picture, are counted on {PILOT} other questions (of training, on its own data)."
    )
    ratios = [float(line.split("|")[-2]) for line in lines[2:]]
    near = sum(abs(ratio - 1) <= NEAR for ratio in ratios)
    verdict = (
        f"{near} of {len(ratios)} are within {NEAR:.0%} of what was measured; the farthest is {farthest(ratios):.2f}."
    )
    return f"# Estimated and measured time\n\n{head}\n\n" + "\n".join(lines) + f"\n\n{verdict}\n"


def farthest(ratios: Sequence[float]) -> float:
    """The ratio that is farthest from 1."""
    return max(ratios, key=lambda ratio: abs(ratio - 1))


if __name__ == "__main__":
    main()
