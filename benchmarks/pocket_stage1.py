"""What a projector has learned: captions of things it never saw, and visual questions of the gallery's validation.

    python benchmarks/pocket_stage1.py --model runs/pocket/stage1 --output benchmarks/pocket_stage1.md

For each held-out picture its own caption's loss stands against seven others', and against its own under another
picture; the picture is read once for all of them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from page import command_line

from reflectune.core.images import load_image
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.metrics.official.infoseek import exact_match
from reflectune.metrics.reporting.breakdown import mean
from reflectune.models.loading import load
from reflectune.models.prefix.engine import Branches, PrefixEngine
from reflectune.models.schemes.plain import SCHEME

CHOICES = 8
"""Captions to choose from, the right one among them."""
SHOWN = 12
"""Captions that are generated for the page."""
SPLITS = ("val_unseen_question", "val_unseen_entity")
BATCH = 8
"""Pictures that are read together."""
_MAX_NEW_TOKENS = 24


@dataclass(frozen=True)
class Choice:
    """One held-out picture's losses, in nats a token.

    Attributes:
        right: Of its own caption.
        others: Of the captions that it is chosen against.
        strange: Of the next picture's caption that is of another thing.
    """

    right: float
    others: tuple[float, ...]
    strange: float

    @property
    def is_right(self) -> bool:
        """Whether its own caption has the least loss."""
        return self.right < min(self.others)


class Examiner:
    """Asks one model about a data set's pictures.

    Args:
        engine: The model's.
        dataset: Where the pictures are.
    """

    def __init__(self, engine: PrefixEngine, dataset: Dataset) -> None:
        self._engine, self._dataset = engine, dataset

    def choices(self, captions: Sequence[Question], seed: int) -> list[Choice]:
        """The losses of each caption's picture; what it is chosen against is said of other things.

        Args:
            captions: Of two different things at least.
            seed: Of the draws.
        """
        rng = random.Random(seed)
        things: dict[str, set[str]] = {}
        for question in captions:
            things.setdefault(question.answers[0], set()).add(question.meta["thing"])
        lists = []
        for place, question in enumerate(captions):
            others = [sentence for sentence, of in things.items() if question.meta["thing"] not in of]
            following = [each.answers[0] for each in (*captions[place:], *captions[:place])]
            strange = next(sentence for sentence in following if sentence in others)
            lists.append([question.answers[0], *rng.sample(others, min(CHOICES - 1, len(others))), strange])
        made: list[Choice] = []
        for start in range(0, len(captions), BATCH):
            losses = self.losses(captions[start : start + BATCH], lists[start : start + BATCH])
            made += [Choice(row[0], tuple(row[1:-1]), row[-1]) for row in losses]
        return made

    def losses(self, questions: Sequence[Question], answers: Sequence[Sequence[str]]) -> list[list[float]]:
        """Mean loss of a token of each answer to each question."""
        read = self._read(questions)
        rows = [(place, 0) for place, of_one in enumerate(answers) for _ in of_one]
        ids = [self._engine.renderer.reply_ids(answer) for of_one in answers for answer in of_one]
        scored = iter(self._engine.score(read, rows, ids))
        return [[-sum(values) / len(values) for _, values in zip(of_one, scored, strict=False)] for of_one in answers]

    def answers(self, questions: Sequence[Question]) -> Iterator[str]:
        """What the model says to each question."""
        for start in range(0, len(questions), BATCH):
            read = self._read(questions[start : start + BATCH])
            rows = [(place, 0) for place in range(len(read.ids))]
            for generation in self._engine.generate(read, rows, max_new_tokens=_MAX_NEW_TOKENS):
                yield self._engine.renderer.strip(generation.text)

    def _read(self, questions: Sequence[Question]) -> Branches:
        """Read pictures and questions, each with the prompt that asks for its style of answer."""
        renderer = self._engine.renderer
        roots = self._dataset.image_roots
        images = [load_image(question.image, root=roots, needed_by=question.id) for question in questions]
        prefixes = self._engine.read(
            [renderer.question_prefix(question.text, image) for question, image in zip(questions, images, strict=True)]
        )
        prompts = [[SCHEME.prompt_branch(renderer, "vqa", style=question.answer_style)] for question in questions]
        return self._engine.branch(prefixes, prompts)


def caption_lines(choices: Sequence[Choice], things: int, seed: int) -> list[str]:
    """The table of the caption choice."""
    count = len(choices[0].others) + 1
    right = sum(choice.right for choice in choices) / len(choices)
    strange = sum(choice.strange for choice in choices) / len(choices)
    share = shown([choice.is_right for choice in choices], seed)
    return [
        f"{len(choices)} pictures of {things} things whose captions training never showed.",
        "",
        "| | |",
        "|---|---|",
        f"| own caption chosen out of {count} (chance {100 / count:.1f} %) | {share} |",
        f"| loss of a caption, nats a token, under its own picture | {right:.3f} |",
        f"| under another one | {strange:.3f} |",
    ]


def visual_lines(results: Sequence[tuple[Question, bool]], seed: int) -> list[str]:
    """The table of visual questions: a row for each attribute, a column for each split."""
    splits = sorted({question.split for question, _ in results})
    lines = [f"| exact match | {' | '.join(splits)} |", "|---" * (len(splits) + 1) + "|"]
    attributes = sorted({question.meta["attribute"] for question, _ in results})
    for name, wanted in (("all", attributes), *((each, [each]) for each in attributes)):
        cells = []
        for split in splits:
            right = [ok for question, ok in results if question.split == split and question.meta["attribute"] in wanted]
            cells.append(shown(right, seed) if name == "all" and right else of_count(right))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def shown(right: Sequence[bool], seed: int) -> str:
    """A share in per cent with its interval over questions."""
    made = mean([float(each) for each in right], seed)
    assert made is not None
    return f"{100 * made['value']:.1f} % [{100 * made['low']:.1f}, {100 * made['high']:.1f}] of {made['n']}"


def in_cell(text: str) -> str:
    """A model's words as a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "/")


def of_count(right: Sequence[bool]) -> str:
    """A share without an interval: of few questions."""
    return f"{100 * sum(right) / len(right):.1f} % of {len(right)}" if right else "none"


def measured(arguments: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """The lines of the whole section, and its two scores: `caption` and `visual`, as metrics.json has scores."""
    loaded = load(arguments.model, scheme="plain", dtype=arguments.dtype, device=arguments.device)
    engine = PrefixEngine(loaded)
    captions, rng = Dataset(arguments.captions), random.Random(arguments.seed)
    captioned = [question for question in captions.questions("val") if question.answer_style == "free"]
    rng.shuffle(captioned)
    captioned = captioned[: arguments.limit or None]
    examiner = Examiner(engine, captions)
    things = len({question.meta["thing"] for question in captioned})
    choices = examiner.choices(captioned, arguments.seed)
    scores = {"caption": mean([float(choice.is_right) for choice in choices], arguments.seed)}
    lines = ["## Captions", "", *caption_lines(choices, things, arguments.seed), ""]
    lines += ["| the picture's caption | what the model says |", "|---|---|"]
    some = captioned[:SHOWN]
    for question, said in zip(some, examiner.answers(some), strict=True):
        lines.append(f"| {question.answers[0]} | {in_cell(said)} |")
    gallery = Dataset(arguments.gallery)
    visual = [q for split in SPLITS for q in gallery.questions(split) if q.requires_retrieval is False]
    rng.shuffle(visual)
    visual = visual[: arguments.limit or None]
    if visual:
        replies = list(Examiner(engine, gallery).answers(visual))
        results = [(q, bool(exact_match(text, q.answers))) for q, text in zip(visual, replies, strict=True)]
        scores["visual"] = mean([float(right) for _, right in results], arguments.seed)
        lines += ["", "## Visual questions", "", *visual_lines(results, arguments.seed)]
        lines += ["", "| question | answer | what the model says |", "|---|---|---|"]
        for question, said in zip(visual[:SHOWN], replies, strict=False):
            lines.append(f"| {question.text} | {question.answers[0]} | {in_cell(said)} |")
    return lines, scores


def main() -> None:
    """Measure one checkpoint, print the section, and write it if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint of stage 1 or 2")
    parser.add_argument("--captions", type=Path, default=Path("runs/pocket/captions"))
    parser.add_argument("--gallery", type=Path, default=Path("runs/pocket/gallery"))
    parser.add_argument("--limit", type=int, default=0, help="most captions, and most visual questions; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the captions chosen against, and of intervals")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    parser.add_argument("--json", type=Path, help="JSON file of the two scores")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lines, scores = measured(arguments)
    print("\n".join(lines))
    if arguments.output:
        head = f"# What pocket's projector has learned\n\n{command_line('pocket_stage1.py')}, {arguments.dtype}.\n\n"
        arguments.output.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    if arguments.json:
        arguments.json.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
