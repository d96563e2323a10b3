"""Examine a checkpoint of stage 1 or 2: captions of things that training never showed, and visual questions.

    python -m reflectune.examples.pocket.look --model runs/pocket/stage1 --output looked.md

For each held-out image, the caption with the lowest loss is chosen out of eight. The loss of its own caption is
compared with the loss of a different image's caption. An image is read once for all of its captions.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reflectune.core.durable import write_atomically, write_json
from reflectune.core.entry_point import entry_point
from reflectune.core.images import load_image
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.metrics.official.infoseek import exact_match
from reflectune.metrics.reporting.breakdown import mean
from reflectune.models.loading import load
from reflectune.models.prefix.engine import Branches, PrefixEngine
from reflectune.models.schemes.plain import SCHEME

CHOICES = 8
"""Captions to choose from, the right one included."""
SHOWN = 12
"""Captions and answers that are printed."""
SPLITS = ("val_unseen_question", "val_unseen_entity")
BATCH = 8
"""Images that are read together."""
_MAX_NEW_TOKENS = 24


@dataclass(frozen=True)
class CaptionChoice:
    """Caption losses under one held-out image, in nats a token.

    Attributes:
        right: Loss of its own caption.
        others: Losses of the captions that it is chosen against.
        strange: Loss of the caption of the next image that shows a different thing.
    """

    right: float
    others: tuple[float, ...]
    strange: float

    @property
    def is_right(self) -> bool:
        """True if its own caption has the lowest loss."""
        return self.right < min(self.others)


class Examiner:
    """Questions to one model about a data set's images."""

    def __init__(self, engine: PrefixEngine, dataset: Dataset) -> None:
        self._engine, self._dataset = engine, dataset

    def choices(self, captions: Sequence[Question]) -> list[CaptionChoice]:
        """Compute the losses under each caption's image; the other captions are of different things.

        Args:
            captions: Captioned images of at least two different things.
        """
        rng = random.Random(0)
        things_by_caption: dict[str, set[str]] = {}
        for question in captions:
            things_by_caption.setdefault(question.answers[0], set()).add(question.meta["thing"])
        candidates = []
        for number, question in enumerate(captions):
            others = [caption for caption, things in things_by_caption.items() if question.meta["thing"] not in things]
            following = [other.answers[0] for other in (*captions[number:], *captions[:number])]
            strange = next(caption for caption in following if caption in others)
            candidates.append([question.answers[0], *rng.sample(others, min(CHOICES - 1, len(others))), strange])
        choices: list[CaptionChoice] = []
        for start in range(0, len(captions), BATCH):
            losses = self.losses(captions[start : start + BATCH], candidates[start : start + BATCH])
            choices += [CaptionChoice(row[0], tuple(row[1:-1]), row[-1]) for row in losses]
        return choices

    def losses(self, questions: Sequence[Question], answers: Sequence[Sequence[str]]) -> list[list[float]]:
        """Compute the mean loss of a token of each answer to each question."""
        read = self._read(questions)
        rows = [(number, 0) for number, choices in enumerate(answers) for _ in choices]
        ids = [self._engine.renderer.reply_ids(answer) for choices in answers for answer in choices]
        scored = iter(self._engine.score(read, rows, ids))
        return [[-sum(values) / len(values) for _, values in zip(choices, scored, strict=False)] for choices in answers]

    def answers(self, questions: Sequence[Question]) -> Iterator[str]:
        """Yield the model's answer to each question."""
        for start in range(0, len(questions), BATCH):
            read = self._read(questions[start : start + BATCH])
            rows = [(number, 0) for number in range(len(read.ids))]
            for generation in self._engine.generate(read, rows, max_new_tokens=_MAX_NEW_TOKENS):
                yield self._engine.renderer.strip(generation.text)

    def _read(self, questions: Sequence[Question]) -> Branches:
        """Read images and questions, each with the prompt that asks for its style of answer."""
        renderer = self._engine.renderer
        roots = self._dataset.image_roots
        images = [load_image(question.image, root=roots, needed_by=question.id) for question in questions]
        prefixes = self._engine.read(
            [renderer.question_prefix(question.text, image) for question, image in zip(questions, images, strict=True)]
        )
        prompts = [[SCHEME.prompt_branch(renderer, "vqa", style=question.answer_style)] for question in questions]
        return self._engine.branch(prefixes, prompts)


def caption_lines(captioned: Sequence[Question], choices: Sequence[CaptionChoice]) -> list[str]:
    """Return the table of the caption choice."""
    count, things = len(choices[0].others) + 1, len({question.meta["thing"] for question in captioned})
    right = sum(choice.right for choice in choices) / len(choices)
    strange = sum(choice.strange for choice in choices) / len(choices)
    share = _with_interval(captioned, [choice.is_right for choice in choices])
    return [
        f"{len(choices)} images of {things} things whose captions training never showed.",
        "",
        "| | |",
        "|---|---|",
        f"| own caption chosen out of {count} (chance {100 / count:.1f} %) | {share} |",
        f"| loss of a caption, nats a token, under its own image | {right:.3f} |",
        f"| under a different image | {strange:.3f} |",
    ]


def visual_lines(results: Sequence[tuple[Question, bool]]) -> list[str]:
    """Return the table of visual questions: a row for each attribute, a column for each split."""
    splits = sorted({question.split for question, _ in results})
    lines = [f"| exact match | {' | '.join(splits)} |", "|---" * (len(splits) + 1) + "|"]
    attributes = sorted({question.meta["attribute"] for question, _ in results})
    for name, members in (("all", attributes), *((attribute, [attribute]) for attribute in attributes)):
        cells = []
        for split in splits:
            asked = [row for row in results if row[0].split == split and row[0].meta["attribute"] in members]
            right = [ok for _, ok in asked]
            cells.append(_with_interval([q for q, _ in asked], right) if name == "all" and right else _share(right))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _with_interval(questions: Sequence[Question], right: Sequence[bool]) -> str:
    score = mean(questions, [float(value) for value in right], 0)
    assert score is not None
    return f"{100 * score['value']:.1f} % [{100 * score['low']:.1f}, {100 * score['high']:.1f}] of {score['n']}"


def _share(right: Sequence[bool]) -> str:
    return f"{100 * sum(right) / len(right):.1f} % of {len(right)}" if right else "none"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")


def examine(arguments: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """Return the lines of the report, and the scores `caption` and `visual` as in metrics.json."""
    loaded = load(arguments.model, scheme="plain")
    engine = PrefixEngine(loaded)
    captions, rng = Dataset(arguments.captions), random.Random(0)
    captioned = [question for question in captions.questions("val") if question.answer_style == "free"]
    rng.shuffle(captioned)
    examiner = Examiner(engine, captions)
    choices = examiner.choices(captioned)
    scores = {"caption": mean(captioned, [float(choice.is_right) for choice in choices], 0)}
    lines = ["## Captions", "", *caption_lines(captioned, choices), ""]
    lines += ["| the image's caption | the model's caption |", "|---|---|"]
    some = captioned[:SHOWN]
    for question, reply in zip(some, examiner.answers(some), strict=True):
        lines.append(f"| {question.answers[0]} | {_cell(reply)} |")
    gallery = Dataset(arguments.gallery)
    visual = [q for split in SPLITS for q in gallery.questions(split) if q.requires_retrieval is False]
    rng.shuffle(visual)
    if visual:
        replies = list(Examiner(engine, gallery).answers(visual))
        results = [(q, bool(exact_match(text, q.answers))) for q, text in zip(visual, replies, strict=True)]
        scores["visual"] = mean(visual, [float(right) for _, right in results], 0)
        lines += ["", "## Visual questions", "", *visual_lines(results)]
        lines += ["", "| question | answer | the model's answer |", "|---|---|---|"]
        for question, reply in zip(visual[:SHOWN], replies, strict=False):
            lines.append(f"| {question.text} | {question.answers[0]} | {_cell(reply)} |")
    return lines, scores


@entry_point
def main() -> None:
    """Examine one checkpoint, print the report, and write the files that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint of stage 1 or 2")
    parser.add_argument("--captions", type=Path, default=Path("runs/pocket/captions"))
    parser.add_argument("--gallery", type=Path, default=Path("runs/pocket/gallery"))
    parser.add_argument("--output", type=Path, help="Markdown file of the report")
    parser.add_argument("--json", type=Path, help="JSON file of the two scores")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines, scores = examine(arguments)
    print("\n".join(lines))
    if arguments.output:
        write_atomically(arguments.output, "\n".join(["# Looking", "", *lines]) + "\n")
    if arguments.json:
        write_json(arguments.json, scores)


if __name__ == "__main__":
    main()
