"""Validation by answers: a sample of questions is answered greedily, each from its gold passage."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.metrics.official import evqa, infoseek
from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import Generation, PrefixEngine
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.base import AskedAnswer, Scheme
from reflectune.models.schemes.examples import TrainingExample
from reflectune.train.runs.packing import uncompiled

MAX_NEW_TOKENS = 32
"""Maximum tokens of an answer."""


class AnswerReader:
    """Scores greedy answers of the model in training; processes share the work.

    The sample is the same each time. The scheme provides the prompts (`Scheme.ask`). Answers in sentences (style
    `free`) are not scored.

    Args:
        loaded: The model, with or without adapters.
        examples: The validation data.
        roots: Folders that its image paths may lead into; relative paths start at the first.
        count: Maximum questions in the sample.
        batch_size: Questions answered together.
        compiling: Allow `torch.compile`.
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
        compiling: bool = True,
    ) -> None:
        self._loaded, self._roots, self._batch_size, self._compiling = loaded, roots, batch_size, compiling
        self._scheme = Scheme.of(loaded.renderer)
        answerable = [example for example in examples if has_answer(example, self._scheme)]
        self.sample = random.Random(seed).sample(answerable, min(count, len(answerable)))

    def read(self, rank: int, processes: int) -> list[bool]:
        """Return for each answer of this process's share (every `processes`-th question) True if it is right.

        If the passage doesn't fit into the context, the answer is wrong, as in inference.
        """
        self._loaded.model.eval()
        share = self.sample[rank::processes]
        right: list[bool] = []
        with uncompiled(self._loaded.model):
            engine = self._engine
            for start in range(0, len(share), self._batch_size):
                right += self._read_batch(engine, share[start : start + self._batch_size])
        engine.reader.free()  # training needs the memory
        return right

    @functools.cached_property
    def _engine(self) -> PrefixEngine:
        """The engine, made on first use: it measures the GPU memory that training leaves free."""
        return PrefixEngine(self._loaded, compiling=self._compiling)

    def _read_batch(self, engine: PrefixEngine, examples: Sequence[TrainingExample]) -> list[bool]:
        prompts = [prompt for prompt in map(self._ask, examples) if prompt is not None]
        prefixes = engine.read([prompt.prefix for prompt in prompts])
        branches = engine.branch(prefixes, [[prompt.branch] for prompt in prompts])
        right = [False] * len(prompts)
        for role in sorted({prompt.role for prompt in prompts}):
            rows = [i for i, prompt in enumerate(prompts) if prompt.role == role]
            forced = [engine.renderer.token_id(role)] if role else []
            generations = engine.generate(branches, [(i, 0) for i in rows], forced, MAX_NEW_TOKENS)
            for i, generation in zip(rows, generations, strict=True):
                right[i] = is_right(engine.renderer, generation, prompts[i].answer)
        return right + [False] * (len(examples) - len(prompts))

    def _ask(self, example: TrainingExample) -> AskedAnswer | None:
        """Return the prompt of an answer, with shortened documents if necessary; None if it doesn't fit."""
        image = load_image(example.image, root=self._roots, needed_by=f"validation example {example.id}")
        renderer, room = self._loaded.renderer, self._engine.max_length - MAX_NEW_TOKENS
        prompt = self._scheme.ask(renderer, example, image)
        if len(prompt.prefix.ids) + len(prompt.branch) > room:
            prompt = self._scheme.ask(renderer, self._scheme.shortened(renderer, example, image, room), image)
        return prompt if len(prompt.prefix.ids) + len(prompt.branch) <= room else None


def has_answer(example: TrainingExample, scheme: Scheme) -> bool:
    """Return True if an example has an answer to compare with, which is not in sentences."""
    return example.style != "free" and scheme.has_answer(example)


def check_answers(examples: Sequence[TrainingExample], scheme: Scheme, path: Path) -> None:
    """Raise a `UserError` if validation data has no answer."""
    if not any(has_answer(example, scheme) for example in examples):
        raise UserError(
            f"`eval_answers`: {path} has no answer to compare with (those in sentences can't be compared); leave it "
            "out, or derive labels with `answer_model: shared`"
        )


def is_right(renderer: Renderer, generation: Generation, answer: str) -> bool:
    """Compare by InfoSeek's exact match, or by E-VQA's list overlap for answers joined by `&&`.

    `evaluate` scores such questions by the same two metrics.
    """
    text = renderer.strip(generation.text)
    if "&&" in answer and any(map(evqa.preprocess_answer, answer.split("&&"))):
        return evqa.list_match(text, [answer])
    return bool(infoseek.exact_match(text, [answer]))
