"""Iterative pipelines by the toolkit against a straight loop of `generate` calls with the same prompts and model.

    python benchmarks/pipelines.py --output benchmarks/pipelines.md
    python benchmarks/pipelines.py --device cuda --size 7b --dtype bfloat16      # on a GPU

Several questions with an image of 576 tokens each, three iterations after the first. A prompt's words are one token
each, what is found is drawn by the query, and what the model writes goes into the next queries as its token ids. The
loop takes question by question and step by step, every prompt from its pixels on; the toolkit carries out equal steps
of all questions together and reads a question's picture once. Both must write the same texts. On a CPU its seconds
count, which other processes don't lengthen.
"""

from __future__ import annotations

import functools
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from geometry import SIZES, build, engine_of, plain_inputs, question
from PIL import Image
from running import parser, timed, write
from transformers import PreTrainedModel

from reflectune.core.types import Passage, Question
from reflectune.formats.hits import PassageHit
from reflectune.inference.operators.requests import Picture, Prompt, SearchReply, SearchRequest, WriteReply
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps
from reflectune.inference.pipelines.mi_rag import MiRag
from reflectune.inference.pipelines.pmsr import Pmsr
from reflectune.inference.trace import Trace
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.rendering.turns import prompt_parts

AboutPictures = Sequence[tuple[Image.Image, Prompt]]
BUDGETS = {"texts": 6, "pairs": 3}
ITERATIONS, RECORD, ANSWER, PASSAGE_WORDS = 3, 32, 16, 48


class Counted:
    """A model of random weights whose prompts are words; a question's picture is known by its image's width."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._high = model.config.get_text_config().vocab_size

    def rendered(self, image: Image.Image, prompt: Prompt) -> Rendered:
        """A picture of 576 tokens, and a token for each word."""
        texts = prompt.text(len(prompt.documents))
        words = "".join(part if isinstance(part, str) else texts[part.name] for part in prompt_parts(prompt.template))
        picture = question(self.model, words=4, seed=image.width)
        ids = [10 + _number(word) % (self._high - 10) for word in words.split()]
        return Rendered([*picture.ids, *ids], [], picture.vision)


class ByEngine(Counted):
    """All prompts of a step together, a picture read once."""

    def __init__(self, model: PreTrainedModel, pictures: int, token_budget: int) -> None:
        super().__init__(model)
        self._engine = engine_of(model, token_budget)
        self._engine.image_prefixes.keep(pictures)

    def write(self, asked: AboutPictures, max_tokens: int) -> list[WriteReply]:
        """Replies by the shared-prefix engine."""
        state = self._engine.read([self.rendered(*each) for each in asked])
        made = self._engine.generate(state, [(i, 0) for i in range(len(asked))], max_new_tokens=max_tokens)
        return [WriteReply(_text(each.token_ids)) for each in made]


class ByLoop(Counted):
    """One `generate` a prompt."""

    @torch.no_grad()
    def write(self, asked: AboutPictures, max_tokens: int) -> list[WriteReply]:
        """Replies by transformers."""
        return [WriteReply(self._generate(self.rendered(*each), max_tokens)) for each in asked]

    def _generate(self, rendered: Rendered, max_tokens: int) -> str:
        model: Any = self.model
        inputs = plain_inputs(model, rendered, [])
        out = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)
        return _text(out[0, len(rendered.ids) :].tolist())


def find(asked: Sequence[tuple[Picture, SearchRequest]]) -> list[SearchReply]:
    """Passages of random words, drawn by the query."""
    return [
        SearchReply(tuple(_found(query, request, k) for k, query in enumerate(request.queries))) for _, request in asked
    ]


def _found(query: str, request: SearchRequest, place: int) -> dict[str, tuple[PassageHit, ...]]:
    drawn = random.Random(query)
    return {
        base: tuple(
            PassageHit(Passage(f"{base}{drawn.random()}", 0, 0, "t", "", "", _words(drawn)), 0.5, rank, base)
            for rank in range(1, tops[place] + 1)
        )
        for base, tops in request.tops.items()
    }


def _words(drawn: random.Random) -> str:
    return " ".join(str(drawn.randrange(10_000)) for _ in range(PASSAGE_WORDS))


def _text(ids: Sequence[int]) -> str:
    """A reply that is a query, too, so that all queries are made."""
    return f"## Queries\n1. {' '.join(map(str, ids[: len(ids) // 2]))}?\n2. {' '.join(map(str, ids[len(ids) // 2 :]))}?"


def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest())


TRAJECTORIES: dict[str, Callable[[Question], Steps[TrajectoryResult]]] = {
    "mi_rag": MiRag(ITERATIONS, BUDGETS, ANSWER, RECORD),
    "pmsr": Pmsr(ITERATIONS, BUDGETS, 2.0, ANSWER, RECORD),
}
"""Three iterations each: PMSR with a τ that nothing reaches."""


def _different(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Vectors by which no query is like another: PMSR compares them, and never stops."""
    return np.eye(len(texts), dtype=np.float32)


def traces(name: str, model: Any, questions: int, together: bool) -> list[Trace]:
    """All questions at once, or one after the other."""
    asked = [Question(str(n), "", f"question {n} of {_number(str(n))}") for n in range(questions)]
    pictures = [Image.new("RGB", (n + 1, 1)) for n in range(questions)]
    pipeline = TrajectoryPipeline(
        name, TRAJECTORIES[name], Tools({"reader": model, "answerer": model}, find, _different)
    )
    if together:
        return pipeline.run(asked, pictures)
    return [pipeline.run([one], [picture])[0] for one, picture in zip(asked, pictures, strict=True)]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--questions", type=int, default=8)
    made.add_argument("--token_budget", type=int, default=16_384)
    arguments = made.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = ["| | calls a question | loop | toolkit | |", "|---|--:|--:|--:|--:|"]
    for family in arguments.families:
        model = build(family, SIZES[arguments.size], dtype=getattr(torch, arguments.dtype), device=arguments.device)
        for name in TRAJECTORIES:
            by_engine = ByEngine(model, arguments.questions, arguments.token_budget)
            together = functools.partial(traces, name, by_engine, arguments.questions, True)
            one_by_one = functools.partial(traces, name, ByLoop(model), arguments.questions, False)
            clock = time.perf_counter if arguments.device.startswith("cuda") else time.process_time
            ours, shared = timed(together, arguments.device, clock=clock)
            theirs, alone = timed(one_by_one, arguments.device, clock=clock)
            same = sum(_said(one) == _said(other) for one, other in zip(shared, alone, strict=True))
            row = (
                f"| {family}, {name} | {shared[0].tokens['calls']} | {theirs / arguments.questions:.2f} s "
                f"| {ours / arguments.questions:.2f} s | {theirs / ours:.1f} × |"
            )
            print(row, f"{same} of {arguments.questions} trajectories are equal", flush=True)
            lines.append(row)
            lines.append(f"| trajectories that are equal to the last token | | | {same} of {arguments.questions} | |")
    how = (
        f"{arguments.questions} questions, {ITERATIONS} iterations after the first, {sum(BUDGETS.values())} passages "
        f"of {PASSAGE_WORDS} tokens each, records of {RECORD} tokens, an image of 576"
    )
    write(arguments, "Iterative pipelines against a straight loop", "pipelines.py", how, lines)


def _said(trace: Trace) -> list[str]:
    return [step.text for step in trace.steps]


if __name__ == "__main__":
    main()
