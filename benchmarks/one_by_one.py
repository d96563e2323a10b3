"""The engine against a loop of one `generate` call per passage, on the same model, questions and passages.

    python benchmarks/one_by_one.py --model runs/quickstart/checkpoint --dataset runs/quickstart/world

Both sides read the gate, judge 20 passages a question (its own article's among them) and answer, 16 tokens at most. The
engine reads a question's image and prefix once and answers from the passages judged relevant; the loop decodes for
every one, as peers do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from reflectune.core.images import load_image
from reflectune.core.types import Passage, Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages
from reflectune.inference.reading.passage_reader import PassageReader
from reflectune.models.loading import Loaded, load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.mr2ag import SCHEME

PASSAGES, NEW_TOKENS = 20, 16


def run_engine(
    loaded: Loaded, root: Path, questions: list[Question], passages: list[list[Passage]], token_budget: int | None
) -> int:
    """All questions as one batch; returns how many answers were decoded."""
    reader = PassageReader(PrefixEngine(loaded, token_budget), NEW_TOKENS)
    opened = reader.open(questions, [load_image(q.image, root=root) for q in questions])
    reader.gates(opened)
    judged = reader.judge(opened, passages)
    rows = [(q, k) for q, pairs in enumerate(judged.relevance) for k, (yes, no) in enumerate(pairs) if yes > no]
    reader.answer_from(judged, rows)
    return len(rows)


@torch.no_grad()
def run_loop(loaded: Loaded, root: Path, questions: list[Question], passages: list[list[Passage]]) -> int:
    """One `generate` for the gate and one per passage, each from the pixels on."""
    decoded = 0
    model: Any = loaded.model
    for question, question_passages in zip(questions, passages, strict=True):
        prefix = loaded.renderer.prefix(question.text, load_image(question.image, root=root))
        branches = [[], *(SCHEME.passage_branch(loaded.renderer, passage) for passage in question_passages)]
        for branch in branches:
            ids = torch.tensor([[*prefix.ids, *branch]], device=model.device)
            vision = {name: value.to(model.device) for name, value in prefix.vision.items()}
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **vision}
            if loaded.model.config.model_type == "qwen2_vl":
                inputs["mm_token_type_ids"] = (ids == loaded.model.config.image_token_id).int()
            model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
            decoded += 1
    return decoded


def timed(runs: Sequence[Callable[[], int]], turns: int = 3) -> list[tuple[float, int]]:
    """The least seconds of each of some calls, in turns after one that warms up, and what it returned."""
    best, results = [float("inf")] * len(runs), [run() for run in runs]
    for _ in range(turns):
        for i, run in enumerate(runs):
            start = time.perf_counter()
            results[i] = run()
            best[i] = min(best[i], time.perf_counter() - start)
    return list(zip(best, results, strict=True))


def compare(
    model: str,
    dataset: Dataset,
    questions: int,
    token_budget: int | None = None,
    turns: int = 3,
    device: str = "cpu",
) -> list[str]:
    """Both sides on a model's checkpoint and so many questions of a data set: what was measured, in three lines."""
    loaded = load(model, scheme="mr2ag", device=device)
    wanted = [q for q in dataset.questions("val_unseen_entity") if q.requires_retrieval][:questions]
    pool = [p for entry in dataset.knowledge for p in split_passages(entry, lead="first_sentence")]
    passages = []
    for number, question in enumerate(wanted):
        gold = [p for p in pool if p.entry_id in question.entity_ids]
        others = [p for p in pool[number * PASSAGES :] if p.entry_id not in question.entity_ids]
        passages.append([*gold, *others][:PASSAGES])
    work = (loaded, dataset.root, wanted, passages)
    (fast, answered), (slow, decoded) = timed([lambda: run_engine(*work, token_budget), lambda: run_loop(*work)], turns)
    return [
        f"{len(wanted)} questions, {PASSAGES} passages each, {torch.get_num_threads()} threads",
        f"engine: {fast:.2f} s, {answered} answers decoded; one by one: {slow:.2f} s, {decoded} calls of generate",
        f"ratio: {slow / fast:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--token_budget", type=int, help="the engine's; what it finds if unset")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    asked = (Dataset(arguments.dataset), arguments.questions, arguments.token_budget)
    print("\n".join(compare(arguments.model, *asked, device=arguments.device)))


if __name__ == "__main__":
    main()
