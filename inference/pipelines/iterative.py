"""What iterative pipelines share: how they are put together, how a budget is split, how they ask for an answer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.inference.config import SERVER, ReadingConfig
from reflectune.inference.operators import parsing
from reflectune.inference.operators.budget import Budget
from reflectune.inference.operators.models import LocalModel, ServedModel
from reflectune.inference.operators.requests import Box, ModelName
from reflectune.inference.operators.searching import PairText, knowledge_bases, reranked
from reflectune.inference.operators.trajectory import Model, Tools, TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps
from reflectune.inference.pipelines.extraction import drawn_shots, with_extraction
from reflectune.inference.pipelines.noise import drawn_passages, with_noise
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, knowledge_based, needed
from reflectune.models.rendering.turns import answer_prompt
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.joint import split_budget
from reflectune.retrieval.web.pages import KnowledgePages, SearchTool

Budgets = Mapping[str, int]
"""The most passages of an iteration, by knowledge base: `texts` and `pairs`."""
Trajectory = Callable[[Question], Steps[TrajectoryResult]]

DETAILED = "Based on the information, provide a detailed answer to the question."
"""How MI-RAG and PMSR ask for an answer."""


def answer_instruction(question: Question, *, detailed: bool) -> str:
    """Return the instruction for an answer: the papers' words, or those of every other pipeline here."""
    return DETAILED if detailed else answer_prompt(question.answer_style, documents=True).removeprefix("{passage} ")


def expanded(question: str, record: str) -> str:
    """Expand a query, [Q; r]: the question and the latest record, or at first the picture's description."""
    return f"Question: {question}\n{record}\n"


def is_expanded(query: str, question: str) -> bool:
    """Return True if a query is a question expanded by some record; see `expanded`."""
    return query.startswith(f"Question: {question}\n")


def part_of_picture(question: Question, crop: float, box_field: str) -> tuple[Box, ...]:
    """Return the part of a question's picture to search with in addition to the whole, if any.

    Args:
        question: The question.
        crop: Share of the picture's width and height, about its centre; 0 for none.
        box_field: Field of the question's `meta` with a box, which takes precedence over the centre; "" for none.

    Raises:
        UserError: The field's value is not a box.
    """
    if box_field and (value := question.meta.get(box_field, "")):
        if (box := parsing.box(value)) is None:
            raise UserError(
                f"question {question.id}: `{box_field}` is `{value}`, not a box: give left, top, right and bottom as "
                "shares of the picture from 0 to 1"
            )
        return (box,)
    edge = (1 - crop) / 2
    return ((edge, edge, 1 - edge, 1 - edge),) if crop else ()


def split(budgets: Budgets, shares: Sequence[int]) -> dict[str, list[int]]:
    """Split each base's budget among queries by their shares; see `split_budget`.

    Example:
        >>> split({"texts": 20, "pairs": 2}, [2, 1, 1])
        {'texts': [10, 5, 5], 'pairs': [1, 1, 0]}
    """
    return {base: split_budget(most, shares) for base, most in budgets.items()}


def searched(question: Question, budgets: Budgets) -> Budgets:
    """Return the budgets of the bases that a question can be searched in: without a picture those of texts.

    Raises:
        UserError: There are none.
    """
    if question.image:
        return budgets
    if not (left := {base: number for base, number in budgets.items() if base == "texts"}):
        raise UserError(
            f"question {question.id} has no image, and there are only pairs to search, which are found by one; give a "
            "`text_index`, and `text_passages` above 0"
        )
    return left


def entry_retriever(name: str, parts: PipelineParts) -> EntryRetriever:
    """Return the retriever that finds entries by images and texts.

    Raises:
        UserError: The retriever reads a list of ranked entities.
    """
    entries = needed(parts.retriever)
    if not isinstance(entries, EntryRetriever):
        raise UserError(f"{name} searches with texts, too: give it an `index`; a list of ranked entities has none")
    return entries


def reading_models(parts: PipelineParts) -> Mapping[ModelName, Model]:
    """Return the models of a pipeline: the reader, which also writes and reasons, and the answerer; often one model."""
    config = parts.config
    served = ServedModel(needed(parts.remote)) if SERVER in (config.reader, config.answerer) else None
    reader: Model = served if served and config.reader == SERVER else LocalModel(needed(parts.engine), _PICTURES)
    if parts.answerer is not None:
        return {"reader": reader, "answerer": LocalModel(parts.answerer, _PICTURES)}
    return {"reader": reader, "answerer": served if served and config.answerer == SERVER else reader}


def search_tool(parts: PipelineParts) -> SearchTool:
    """Return the search tool: a server's if there is one, else the articles of the text knowledge base."""
    return parts.pages if parts.pages is not None else KnowledgePages(needed(parts.texts), parts.article_source)


SETTINGS = ("iterations", "text_passages", "pair_passages", "text_weight", "detailed_answer", "max_record_tokens")
PAPER_BUDGETS: Final[Mapping[str, float | None]] = {
    "iterations": 4,
    "text_passages": 20,
    "pair_passages": 10,
    "text_weight": 0.5,
    "max_record_tokens": None,
}
"""How far MI-RAG (§3.4, §4.1) and PMSR go in their papers, and how much they read, by key; None: they don't say."""
_PICTURES = 64
"""Pictures whose reading is kept while their questions are under way."""


def iterative_recipe(
    name: str,
    make: Callable[[ReadingConfig, Budgets], Trajectory],
    settings: Sequence[str] = (),
    *,
    common: Sequence[str] = SETTINGS,
    pair_text: PairText = "passages",
    by_picture: bool = False,
    reranks: bool = False,
    has_records: bool = False,
    searches_web: bool = False,
    takes_texts: bool = False,
) -> Mapping[str, Recipe]:
    """The recipe of an iterative pipeline: it reads with the base model, without training.

    Args:
        name: The pipeline's.
        make: Its trajectory, from the settings and how much may be read of each knowledge base.
        settings: Config fields that it depends on, beyond those of all iterative pipelines.
        common: Those of all iterative pipelines.
        pair_text: What stands beside a pair's image.
        by_picture: Whether pairs are searched by the picture alone.
        reranks: Whether it has passages compared by the config's reranker.
        has_records: Whether it keeps records, among which irrelevant passages may be put, and answers in detail if the
            config wants it, so that a short answer may be extracted.
        searches_web: Whether it searches a search tool: the config's server, or the text knowledge base's articles.
        takes_texts: Whether it answers questions without a picture, from the index of passages alone.
    """

    def build(name: str, parts: PipelineParts) -> TrajectoryPipeline:
        config = parts.config
        by_texts = takes_texts and parts.retriever is None and parts.texts is not None
        entries = None if by_texts else entry_retriever(name, parts)
        tool = search_tool(parts) if searches_web else None
        bases = knowledge_bases(
            entries, parts.texts, parts.knowledge, config, pair_text, by_picture=by_picture, tool=tool
        )
        most = {"texts": config.text_passages if parts.texts else 0, "pairs": config.pair_passages if entries else 0}
        budgets = {base: number for base, number in most.items() if number}
        rank = functools.partial(reranked, reranker=needed(parts.reranker)) if reranks else None
        tools = Tools(reading_models(parts), bases.search, bases.embed, rank, Budget.of(config, parts.remote))
        extracts = has_records and config.extract_answer
        longest = max(config.max_new_tokens, config.max_record_tokens if extracts else 0)
        trajectory = make(config.model_copy(update={"max_new_tokens": longest}), budgets)
        if has_records and config.noise:
            drawn = drawn_passages(parts.knowledge, config.noise, config.noise_seed, config.lead)
            trajectory = with_noise(trajectory, drawn, config.noise_seed)
        if extracts:
            shots = drawn_shots(Path(config.dataset), config.extract_split, parts.knowledge, config.lead)
            trajectory = with_extraction(trajectory, shots, config.max_new_tokens)
        return TrajectoryPipeline(name, trajectory, tools, parts.journal, takes_texts=takes_texts)

    recipe = Recipe(
        build,
        "base_model",
        True,
        knowledge_based,
        (*common, *settings),
        form=name,
        is_iterative=True,
        reranks=reranks,
        searches_web=searches_web,
        takes_texts=takes_texts,
        variants=("noise", "noise_seed", "extract_answer", "extract_split") if has_records else (),
    )
    return {name: recipe}
