"""Measure iterative pipelines against a straight loop of `generate` calls with the same prompts and model.

    python benchmarks/iterative.py

Each question has a picture of 576 tokens, and three iterations follow the first. A prompt's words are one token each,
passages are drawn by the query, and the reply's token ids go into the next queries. The loop takes one question and one
prompt at a time, each from its pixels on; the toolkit carries out equal steps of all questions together and reads each
picture once. Both must write the same texts. Weights are random.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from results import Benchmark, table
from transformers import PreTrainedModel
from workload import FAMILIES, SIZES, build, engine_of, question, row_inputs, timed

from reflectune.core.images import Pictures
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import PassageHit
from reflectune.inference.operators.requests import Prompt, SearchReply, SearchRequest, WriteReply
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.pmsr import PmsrFixed, PmsrFixedSettings
from reflectune.inference.trace import Trace
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.rendering.turns import prompt_parts

BUDGETS = {"texts": 6, "pairs": 3}
ITERATIONS, RECORD, ANSWER, PASSAGE_WORDS = 3, 32, 16, 48
TOKEN_BUDGET = 16_384
SETTINGS: dict[str, Any] = {"iterations": ITERATIONS, "max_new_tokens": ANSWER, "max_record_tokens": RECORD}
TRAJECTORIES: dict[str, Callable[[Question], Steps[TrajectoryResult]]] = {
    "mi_rag": MiRag(MiRagSettings(**SETTINGS), BUDGETS),
    "pmsr": PmsrFixed(PmsrFixedSettings(**SETTINGS), BUDGETS),
}
Prompts = Sequence[tuple[Image.Image, Prompt]]


class WordModel:
    """A model of random weights whose prompts are words; an image's width selects the question's picture."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._high = model.config.get_text_config().vocab_size

    def rendered(self, image: Image.Image, prompt: Prompt) -> Rendered:
        """Return a picture of 576 tokens and a token for each word."""
        texts = prompt.text(len(prompt.documents))
        words = "".join(part if isinstance(part, str) else texts[part.name] for part in prompt_parts(prompt.template))
        picture = question(self.model, words=4, seed=image.width)
        ids = [10 + _number(word) % (self._high - 10) for word in words.split()]
        return Rendered([*picture.ids, *ids], [], picture.vision)


class ByEngine(WordModel):
    """Replies of the shared-prefix engine: all prompts of a step together, each picture read once."""

    def __init__(self, model: PreTrainedModel, pictures: int) -> None:
        super().__init__(model)
        self._engine = engine_of(model, TOKEN_BUDGET)
        self._engine.image_prefixes.keep(pictures)

    def write(self, prompts: Prompts, max_tokens: int) -> list[WriteReply]:
        """Return a reply to each prompt."""
        state = self._engine.read([self.rendered(*prompt) for prompt in prompts])
        rows = [(number, 0) for number in range(len(prompts))]
        return [WriteReply(_text(reply.token_ids)) for reply in self._engine.generate(state, rows, (), max_tokens)]


class ByLoop(WordModel):
    """Replies of transformers, one `generate` a prompt."""

    def write(self, prompts: Prompts, max_tokens: int) -> list[WriteReply]:
        """Return a reply to each prompt."""
        return [WriteReply(self._generate(self.rendered(*prompt), max_tokens)) for prompt in prompts]

    @torch.no_grad()
    def _generate(self, rendered: Rendered, max_tokens: int) -> str:
        model: Any = self.model
        inputs = row_inputs(model, rendered, [[]])
        reply = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)
        return _text(reply[0, len(rendered.ids) :].tolist())


def find(requests: Sequence[tuple[Pictures, SearchRequest]]) -> list[SearchReply]:
    """Return passages of random words, drawn by the query."""
    return [
        SearchReply(tuple(_found(query, request, number) for number, query in enumerate(request.queries)))
        for _, request in requests
    ]


def _found(query: str, request: SearchRequest, number: int) -> dict[str, tuple[PassageHit, ...]]:
    rng = random.Random(query)
    return {
        base: tuple(
            PassageHit(Passage(f"{base}{rng.random()}", 0, 0, "t", "", "", _words(rng)), 0.5, rank, base)
            for rank in range(1, tops[number] + 1)
        )
        for base, tops in request.tops.items()
    }


def _words(rng: random.Random) -> str:
    return " ".join(str(rng.randrange(10_000)) for _ in range(PASSAGE_WORDS))


def _text(ids: Sequence[int]) -> str:
    """Return a reply that is also a list of two queries."""
    half = len(ids) // 2
    return f"## Queries\n1. {' '.join(map(str, ids[:half]))}?\n2. {' '.join(map(str, ids[half:]))}?"


def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest())


def _orthogonal(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return vectors by which no two queries are similar, so that PMSR never stops early."""
    return np.eye(len(texts), dtype=np.float32)


def traces(name: str, model: Any, questions: int, *, together: bool) -> list[Trace]:
    """Answer all questions at once, or one after the other."""
    asked = [Question(str(n), "", f"question {n} of {_number(str(n))}") for n in range(questions)]
    images = [Image.new("RGB", (n + 1, 1)) for n in range(questions)]
    tools = Tools({"reader": model, "answerer": model}, find, _orthogonal)
    pipeline = TrajectoryPipeline(name, TRAJECTORIES[name], tools)
    if together:
        return pipeline.run(asked, images)
    return [pipeline.run([one], [image])[0] for one, image in zip(asked, images, strict=True)]


def measure(family: str, size: str, questions: int) -> dict[str, Any]:
    """Time both sides of each pipeline, and count the equal trajectories."""
    model = build(family, SIZES[size])
    loop, figures = ByLoop(model), dict[str, Any]()
    # the loop first: the engine replaces the model's attention
    alone = {name: timed(partial(traces, name, loop, questions, together=False)) for name in TRAJECTORIES}
    for name, (theirs, expected) in alone.items():
        by_engine = ByEngine(model, questions)
        ours, shared = timed(partial(traces, name, by_engine, questions, together=True))
        texts = [[[step.text for step in trace.steps] for trace in found] for found in (shared, expected)]
        figures[name] = {
            "calls a question": shared[0].tokens["calls"],
            "loop": round(theirs / questions, 3),
            "toolkit": round(ours / questions, 3),
            "equal": sum(one == other for one, other in zip(*texts, strict=True)),
            "questions": questions,
        }
    return figures


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's table."""
    rows = [
        (
            f"{family}, {name}",
            row["calls a question"],
            row["loop"],
            row["toolkit"],
            f"{row['loop'] / row['toolkit']:.1f} ×",
            f"{row['equal']} of {row['questions']}",
        )
        for family in FAMILIES
        for name, row in figures[family].items()
    ]
    head = ("", "calls a question", "loop, s a question", "toolkit, s a question", "faster", "equal trajectories")
    return table(head, rows)


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    row = figures["llava"]["mi_rag"]
    reference = f"one `generate` a prompt {row['loop']:.1f} s"
    return [("MI-RAG on LLaVA, small, a question of a batch", f"{row['toolkit']:.1f} s", reference)]


BENCHMARK = Benchmark(
    "iterative",
    "Iterative pipelines against a straight loop",
    f"""
Random weights, float32, one thread. {ITERATIONS} iterations after the first, {sum(BUDGETS.values())} passages of
{PASSAGE_WORDS} tokens each, records of {RECORD} tokens, a picture of 576. The loop takes one question and one prompt
at a time; the toolkit takes all questions together. A trajectory is equal if every text in it is.
""",
    tables,
    claims,
)


def main() -> None:
    """Measure both families, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.page:
        return BENCHMARK.write_page(arguments)
    torch.set_num_threads(arguments.threads)
    figures = {family: measure(family, arguments.size, arguments.questions) for family in FAMILIES}
    return BENCHMARK.finish(figures, arguments)


if __name__ == "__main__":
    main()
