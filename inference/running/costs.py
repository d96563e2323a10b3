"""Forecast the requests and tokens of a pipeline behind a server, by a dry run with a model that only counts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from PIL import Image

from reflectune.core.config import Settings
from reflectune.core.images import Images, each_image
from reflectune.core.types import Passage, Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.hits import PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import split_passages
from reflectune.inference.config import TextIndexSettings
from reflectune.inference.operators.budget import Budget, BudgetSettings
from reflectune.inference.operators.models import conversation
from reflectune.inference.operators.parsing import STATE_FIELDS
from reflectune.inference.operators.requests import (
    JudgeEachReply,
    JudgeReply,
    ModelName,
    Prompt,
    RerankReply,
    RerankRequest,
    SearchReply,
    SearchRequest,
    WriteReply,
)
from reflectune.inference.operators.searching import ENTRIES, PAIRS
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.pipelines.recipe import ModelUse, PipelineParts, Recipe
from reflectune.inference.pipelines.requirements import SERVER
from reflectune.inference.pipelines.settings import DepthSettings
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.retrievers.two_stage import article_of
from reflectune.retrieval.retrievers.web import WEB

ASKED: Final = 16
"""Number of questions that are simulated."""
_BYTES_OF_TOKEN: Final = 4
_IMAGE_TOKENS: Final = 576
"""Tokens of an image: LLaVA-1.5's, and Qwen2-VL's of 672 x 672 pixels."""
_IMAGE: Final = Image.new("RGB", (1, 1))
_ENTRIES: Final = 1000
"""Entries of the knowledge base that simulated searches find."""
_MAX_QUERIES: Final = 9
"""Queries in a simulated reply; a pipeline uses as many as its settings allow."""


@dataclass(frozen=True)
class Cost:
    """Requests and tokens of a question, on average.

    Attributes:
        requests: Number of requests.
        read: Tokens sent: a token for four bytes of text, and 576 for an image.
        written: Tokens received, if each reply has the maximum length.
        judged: Judgements of passages and records by `model` (`gate_filter`, `gate_stop`), not sent to `llm_url`.
    """

    requests: float
    read: float
    written: float
    judged: float = 0.0


def forecast(recipe: Recipe[Any], settings: Any, parts: PipelineParts, questions: Sequence[Question]) -> Cost | None:
    """Return the maximum cost of an iterative pipeline; None if it uses neither a served model nor a relevance gate.

    Trajectories of a few questions are simulated so that none stops early: replies have the requested form and the
    maximum length, and all differ; each query finds other passages; a gate keeps every passage and never ends a
    trajectory. With `retry_unread` each reply that may be unreadable counts twice.

    Args:
        recipe: The pipeline's recipe.
        settings: Its settings.
        parts: `knowledge`, `use` and the budget. In place of an index, an object with `knowledge` is enough.
        questions: The questions.
    """
    use = parts.use
    if recipe.trajectory is None or not questions or not (use.is_served or use.judges):
        return None
    asked = questions[:: max(1, len(questions) // ASKED)][:ASKED]
    retries = settings.retry_unread
    names: tuple[ModelName, ...] = ("reader", "answerer", "gate")
    models = {name: _Counting(retries) for name in names}
    depth = settings.top_n if isinstance(settings, DepthSettings) and not recipe.has_own_depth else 0
    keys = settings.model_dump()
    found = _Found(parts, depth, keys.get("unit") != "passage", all_differ=bool(keys.get("gate_filter")))
    tools = Tools(models, found.search, lambda texts: np.eye(len(texts), dtype=np.float32), found.rerank, parts.budget)
    pipeline = TrajectoryPipeline(recipe.form, recipe.trajectory(settings, parts), tools)
    pipeline.run(asked, [(_IMAGE,) * len(question.images) or None for question in asked])
    served = []
    if use.reader is None:
        served.append(models["reader"])
    if use.answerer == SERVER or (use.reader is None and not use.answerer):
        served.append(models["answerer"])
    requests, read, written = (sum(it.counts[k] for it in served) / len(asked) for k in range(3))
    return Cost(requests, read, written, models["gate"].counts[0] / len(asked))


def describe_cost(
    config: Settings, dataset: Dataset, recipe: Recipe[Any], use: ModelUse, questions: Sequence[Question]
) -> list[str]:
    """Return lines with the requests, tokens and price behind a server, and with the judgements of a relevance gate.

    Args:
        config: The command's config.
        dataset: The data set, with its knowledge base.
        recipe: The pipeline's recipe.
        use: The models that it uses.
        questions: The questions.
    """
    if use.is_served and not recipe.is_iterative:
        return [f"    one request a question; in all {len(questions):,}"]
    texts = TextIndexSettings.of(config)
    indexed: Any = SimpleNamespace(knowledge=texts.article_source(dataset))
    parts = PipelineParts(
        dataset.knowledge,
        dataset.root,
        retriever=indexed if RetrieverConfig.of(config).finds_entries else None,
        texts=indexed if texts.text_index else None,
        use=use,
        budget=Budget.of(BudgetSettings.of(config), None),
    )
    cost = forecast(recipe, recipe.settings_of(config), parts, questions)
    if cost is None:
        return []
    lines = []
    if cost.judged:
        total = round(cost.judged * len(questions))
        lines.append(f"    at most {cost.judged:,.1f} judgements a question by `model`; in all {total:,}")
    if not use.is_served:
        return lines
    totals = [round(mean * len(questions)) for mean in (cost.requests, cost.read, cost.written)]
    price = RemoteConfig.of(config).endpoint().cost(*totals[1:])
    priced = f", cost {price:,.2f}" if price else ""
    return [
        *lines,
        f"    at most {cost.requests:,.1f} requests a question, with about {cost.read:,.0f} tokens read and "
        f"{cost.written:,.0f} written; in all {totals[0]:,}, {totals[1]:,} and {totals[2]:,}{priced}",
    ]


class _Counting:
    """A model that counts what a server would read and write.

    Args:
        retries: True if unreadable replies are requested twice.

    Attributes:
        counts: Requests, tokens read, and tokens written.
    """

    def __init__(self, retries: bool) -> None:
        self._retries, self.counts = retries, [0, 0, 0]

    def write(self, prompts: Sequence[tuple[Images, Prompt]], max_tokens: int) -> list[WriteReply]:
        """Return a reply of the requested form and of maximum length to each prompt."""
        replies = []
        for image, prompt in prompts:
            text = _reply(prompt, max_tokens, self.counts[0])
            times = 2 if self._retries and prompt.form != "free" else 1
            read = [self._read(image, prompt, max_tokens) for _ in range(times)]
            replies.append(WriteReply(text, prompt.documents_shown, read[0], max_tokens))
        return replies

    def judge(self, prompts: Sequence[tuple[Images, Prompt]], yes: str, no: str) -> list[JudgeReply]:
        """Judge documents as relevant, and responses and records as wrong, so that trajectories continue."""
        replies = []
        for image, prompt in prompts:
            probability = _probability(prompt)
            read = self._read(image, prompt, 1)
            replies.append(JudgeReply(probability, 1 - probability, prompt.documents_shown, read))
        return replies

    def judge_each(self, prompts: Sequence[tuple[Images, Prompt]], yes: str, no: str) -> list[JudgeEachReply]:
        """Judge each document alone."""
        return [
            JudgeEachReply(tuple(self.judge([(image, alone) for alone in prompt.split_documents()], yes, no)))
            for image, prompt in prompts
        ]

    def _read(self, image: Images, prompt: Prompt, written: int) -> int:
        question_images = [""] * len(each_image(image)) if prompt.image else []
        images = len(prompt.shown_images(prompt.droppable)) + len(question_images)
        parts = [part for turn in conversation(question_images, prompt) for part in _parts(turn["content"])]
        texts = [part["text"] for part in parts if "text" in part]
        read = sum(len(text.encode()) for text in texts) // _BYTES_OF_TOKEN + _IMAGE_TOKENS * images
        self.counts = [count + more for count, more in zip(self.counts, (1, read, written), strict=True)]
        return read


@dataclass
class _Found:
    """Simulated searches that find different passages each time.

    Attributes:
        parts: Have the knowledge bases.
        depth: Maximum number of entries whose passages a search for pairs finds; 0: unlimited.
        reads_articles: True if an entry's document is the whole article.
        all_differ: True to rename entries, so that passages differ even in a small knowledge base.
    """

    parts: PipelineParts
    depth: int
    reads_articles: bool
    all_differ: bool = False

    def __post_init__(self) -> None:
        self._texts = self._passages(self.parts.texts.knowledge if self.parts.texts else self.parts.knowledge)
        self._entries = itertools.cycle(itertools.islice(self.parts.knowledge, _ENTRIES))
        self._pairs, self._pages = self._passages(self.parts.knowledge), itertools.count()

    def search(self, searches: Sequence[tuple[Images, SearchRequest]]) -> list[SearchReply]:
        """Return the requested number of passages for each query; of pairs at most those of `depth` entries."""
        return [
            SearchReply(
                tuple(
                    {base: tuple(self._hits(base, tops[query])) for base, tops in request.tops.items()}
                    for query in range(len(request.queries))
                )
            )
            for _, request in searches
        ]

    def rerank(self, asked: Sequence[tuple[Images, RerankRequest]]) -> list[RerankReply]:
        """Score earlier passages higher."""
        return [RerankReply(tuple(-float(n) for n in range(len(it.passages)))) for _, it in asked]

    def _hits(self, base: str, top: int) -> Iterator[PassageHit]:
        if base == PAIRS and self.depth:
            entries = itertools.islice(self._entries, self.depth)
            passages = [passage for entry in entries for passage in split_passages(entry)][:top]
        elif base in (PAIRS, "texts") or (base == ENTRIES and not self.reads_articles):
            passages = list(itertools.islice(self._texts if base == "texts" else self._pairs, top))
        else:
            articles = (article_of(entry) for entry in itertools.islice(self._entries, top))
            passages = [article for article in articles if article is not None]
        if base == WEB or self.all_differ:  # the web has more pages than the knowledge base
            passages = [dataclasses.replace(page, entry_id=f"page {next(self._pages)}") for page in passages]
        for rank, passage in enumerate(passages, start=1):
            yield PassageHit(passage, 1 / rank, rank, base)

    @staticmethod
    def _passages(knowledge: KnowledgeBase) -> Iterator[Passage]:
        entries = itertools.islice(knowledge, _ENTRIES)
        return itertools.cycle(passage for entry in entries for passage in split_passages(entry))


def _probability(prompt: Prompt) -> float:
    """Return P(yes) of a judgement, so that a gate keeps every passage, and no record ends a trajectory."""
    if kind := prompt.texts.get("kind"):
        return float(kind == "passage")
    return 0.1 if "response" in prompt.texts else 0.9


def _parts(content: Any) -> Sequence[dict[str, str]]:
    return [{"text": content}] if isinstance(content, str) else content


def _reply(prompt: Prompt, length: int, number: int) -> str:
    """Return a reply of a prompt's form and of about `length` tokens, which differs from replies of other numbers."""
    documents, words = len(prompt.documents), " ".join([f"w{number:03}"] * length)
    form = prompt.form
    if form == "queries":
        asked = (f"Question {n}: Which one is {number}-{n}?" for n in range(1, _MAX_QUERIES))
        return "## Queries\n" + "\n".join(asked)
    if form in ("order", "documents"):
        return " > ".join(f"[Document {n}]" for n in range(1, documents + 1))
    if form == "shares":
        return str([0.5] * documents)
    if form == "state":
        return "\n".join(f"{name}: {words}" for name in STATE_FIELDS)
    if form == "action":  # text searches while they are allowed, then image searches
        is_spent = any(result.endswith("calls of text_search.") for _, result in prompt.rounds)
        tool = "image_search" if is_spent else "text_search"
        return f'<tool_call>{{"name": "{tool}", "arguments": {{"query": "{number}"}}}}</tool_call>'
    return {"preferred": "Document A", "letters": "Answer: A"}.get(form, words)
