"""Validation that reads answers: those of a sample, decoded greedily from the passage that holds them."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.core.types import PromptedExample, TrainingExample
from reflectune.metrics import evqa, infoseek
from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import Generation, PrefixEngine
from reflectune.models.rendering import Rendered, Renderer

_MAX_NEW_TOKENS = 32


@dataclass(frozen=True)
class Asked:
    """A question as it is read, and its answer.

    Attributes:
        prefix: Image and question.
        branch: What is read on top: the prompt, with the passage if there is one.
        role: The reflection token that the answer follows, or "".
        answer: The answer that is trained on.
    """

    prefix: Rendered
    branch: list[int]
    role: str
    answer: str


class AnswerReader:
    """Scores greedy answers with the model that is being trained, sharing the work among processes.

    Every reading takes the same sample, and reads image and question once. In mR²AG an answer follows [No Retrieval]
    and how to answer, or the first passage that is relevant and [Relevant]; in MMKB-RAG and in plain fine-tuning the
    first prompt for an answer (`vqa`). Answers in sentences (style `free`) are not compared.

    Args:
        loaded: The model, with or without adapters.
        examples: The validation data.
        roots: The folders that its image paths may lead into; relative ones start at the first.
        count: Questions in the sample; fewer if there are fewer with an answer.
        seed: Of the sample.
        batch_size: Questions that are read together.
    """

    def __init__(
        self,
        loaded: Loaded,
        examples: Sequence[TrainingExample],
        roots: Roots,
        *,
        count: int,
        seed: int,
        batch_size: int,
    ) -> None:
        self._loaded, self._roots, self._batch_size = loaded, roots, batch_size
        answerable = [example for example in examples if has_answer(example)]
        self.sample = random.Random(seed).sample(answerable, min(count, len(answerable)))

    def read(self, rank: int, processes: int) -> list[bool]:
        """Whether this process's share of the answers is right; every n-th of the sample is its own."""
        engine = self._engine
        self._loaded.model.eval()
        own = self.sample[rank::processes]
        right: list[bool] = []
        for start in range(0, len(own), self._batch_size):
            right += self._read_batch(engine, own[start : start + self._batch_size])
        return right

    @functools.cached_property
    def _engine(self) -> PrefixEngine:
        """Made at the first reading, when training has taken its memory: a GPU's budget is found by a trial then."""
        return PrefixEngine(self._loaded)

    def _read_batch(self, engine: PrefixEngine, examples: Sequence[TrainingExample]) -> list[bool]:
        asked = [self._ask(example) for example in examples]
        prefixes = engine.read([each.prefix for each in asked])
        branches = engine.branch(prefixes, [[each.branch] for each in asked])
        right = [False] * len(asked)
        for role in sorted({each.role for each in asked}):
            rows = [i for i, each in enumerate(asked) if each.role == role]
            forced = [engine.renderer.token_id(role)] if role else []
            found = engine.generate(branches, [(i, 0) for i in rows], forced, _MAX_NEW_TOKENS)
            for i, generation in zip(rows, found, strict=True):
                right[i] = is_right(engine.renderer, generation, asked[i].answer)
        return right

    def _ask(self, example: TrainingExample) -> Asked:
        renderer = self._loaded.renderer
        image = load_image(example.image, root=self._roots, needed_by=f"validation example {example.id}")
        if isinstance(example, PromptedExample):
            asking = next(branch for branch in example.branches if branch.prompt == "vqa")
            prompt = renderer.prompt_branch("vqa", asking.documents, example.style)
            return Asked(renderer.question_prefix(example.question, image), prompt, "", asking.reply)
        prefix = renderer.prefix(example.question, image)
        if not example.retrieve:
            return Asked(prefix, renderer.direct_branch(example.style), "", example.answer)
        gold = next(branch for branch in example.branches if branch.relevant)
        return Asked(prefix, renderer.passage_branch(gold.passage, example.style), "relevant", gold.answer)


def has_answer(example: TrainingExample) -> bool:
    """Whether an example has an answer in words to compare with; one in sentences can't be compared."""
    if example.style == "free":
        return False
    if isinstance(example, PromptedExample):
        return any(branch.prompt == "vqa" for branch in example.branches)
    return not example.retrieve or any(branch.relevant for branch in example.branches)


def check_answers(examples: Sequence[TrainingExample], path: Path) -> None:
    """Raise a `UserError` if validation data has no answer."""
    if not any(map(has_answer, examples)):
        raise UserError(
            f"`eval_answers`: {path} has no answer to compare with (those in sentences can't be compared); leave it "
            "out, or derive labels with `answer_model: shared`"
        )


def is_right(renderer: Renderer, generation: Generation, answer: str) -> bool:
    """Exact match after InfoSeek's normalisation; of several answers joined by `&&`, E-VQA's overlap of lists.

    Both are what an evaluation scores such questions by.
    """
    text = renderer.strip(generation.text)
    if "&&" in answer and any(map(evqa.preprocess_answer, answer.split("&&"))):
        return evqa.list_match(text, [answer])
    return bool(infoseek.exact_match(text, [answer]))
