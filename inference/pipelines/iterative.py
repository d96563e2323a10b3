"""Parts and settings that iterative pipelines share: their recipe, budgets of passages, instructions for an answer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reflectune.core.config import Settings, setting
from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.types import Question
from reflectune.inference.operators import parsing
from reflectune.inference.operators.gate_model import GateModel
from reflectune.inference.operators.models import LocalModel, ServedModel
from reflectune.inference.operators.pair_images import PairImages, PairImageSettings
from reflectune.inference.operators.requests import Box, ModelName
from reflectune.inference.operators.searching import PairText, SearchSettings, knowledge_bases, reranked
from reflectune.inference.operators.trajectory import Model, Tools, Trajectory, TrajectoryPipeline
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, knowledge_based, needed
from reflectune.inference.pipelines.requirements import BUDGET, ENTRY_INDEX, REMOTE, SERVER, Requirement
from reflectune.inference.pipelines.settings import DepthSettings, LeadSettings
from reflectune.models.rendering.turns import answer_prompt
from reflectune.retrieval.retrievers.joint import split_budget
from reflectune.retrieval.retrievers.ranked_retriever import RankedRetriever
from reflectune.retrieval.retrievers.web import KnowledgePages, SearchTool

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever

Budgets = Mapping[str, int]
"""Maximum passages of an iteration, by knowledge base: `texts` and `pairs`."""
Kind = TypeVar("Kind", bound="TrajectorySettings")

DETAILED = "Based on the information, provide a detailed answer to the question."
"""MI-RAG's and PMSR's instruction for an answer."""


class TrajectorySettings(LeadSettings):
    """Settings of all iterative pipelines."""

    max_record_tokens: int = setting(
        256, "iterative: maximum tokens of a record, summary, caption, list of queries, or detailed answer", ge=1
    )
    retry_unread: bool = setting(
        False, "iterative: ask once more for a reply that can't be read, with a reminder of its form"
    )


class PairSettings(Settings):
    """Number of image-text pairs to read."""

    pair_passages: int = setting(
        10,
        "MI-RAG, PMSR: image-text pairs of an iteration, one an entry; WikiSeeker: passages of the `top_n` entries",
        ge=0,
    )


class CandidateSettings(Settings):
    """Number of passages to examine."""

    candidates: int = setting(1000, "ReAG, IBA, MM-R2: maximum number of retrieved entries' passages to examine", ge=1)


def answer_instruction(question: Question, *, detailed: bool) -> str:
    """Return the instruction for an answer: the papers' words, or those of every other pipeline here."""
    return DETAILED if detailed else answer_prompt(question.answer_style, documents=True).removeprefix("{passage} ")


def expand(question: str, record: str) -> str:
    """Return an expanded query, [Q; r]: the question and the latest record, or the image's description at first."""
    return f"Question: {question}\n{record}\n"


def is_expanded(query: str, question: str) -> bool:
    """Return True if a query is a question expanded by some record; see `expand`."""
    return query.startswith(f"Question: {question}\n")


def crop_boxes(question: Question, crop: float, box_field: str) -> tuple[Box, ...]:
    """Return the part of a question's image to search with in addition to the whole, if any.

    Args:
        crop: Share of the image's width and height, about its centre; 0 for none.
        box_field: Field of the question's `meta` with a box, which takes precedence over the centre; "" for none.

    Raises:
        UserError: The field's value is not a box.
    """
    if box_field and (value := question.meta.get(box_field, "")):
        if (box := parsing.box(value)) is None:
            raise UnusableInput(
                f"question {question.id}: `{box_field}` is `{value}`, not a box: give left, top, right and bottom as "
                "shares of the image from 0 to 1",
                question.id,
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


def searchable_budgets(question: Question, budgets: Budgets) -> Budgets:
    """Return the budgets of the bases that can be searched for a question. Without an image only `texts` can.

    Raises:
        UnusableInput: No base can be searched.
    """
    if question.image:
        return budgets
    if not (left := {base: number for base, number in budgets.items() if base == "texts"}):
        raise UnusableInput(
            f"question {question.id} has no image, and the only knowledge base, of image-text pairs, needs one; "
            "give a `text_index`, and `text_passages` above 0",
            question.id,
        )
    return left


def entry_retriever(name: str, parts: PipelineParts) -> EntryRetriever:
    """Return the retriever that finds entries by images and texts.

    Raises:
        UserError: The retriever reads a list of ranked entities.
    """
    from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever  # slow to import

    entries = needed(parts.retriever)
    if not isinstance(entries, EntryRetriever):
        raise UserError(f"{name} searches with texts, too: give it an `index`; a list of ranked entities has none")
    return entries


def reading_models(parts: PipelineParts, shown: PairImages | None = None) -> Mapping[ModelName, Model | ServedModel]:
    """Return the models of a pipeline: the reader, the answerer, which is often the same, and the gate if there is one.

    Args:
        shown: Images of pairs, if the reader is shown them.
    """
    served = ServedModel(needed(parts.remote), shown, parts.use.step_models) if parts.use.is_served else None
    reader: Model | ServedModel = (
        LocalModel(needed(parts.engine), parts.batch_questions, shown) if parts.use.reader else needed(served)
    )
    models: dict[ModelName, Model | ServedModel] = {"reader": reader, "answerer": reader}
    if parts.answerer is not None:
        models["answerer"] = LocalModel(parts.answerer, parts.batch_questions)
    elif parts.use.answerer == SERVER:
        models["answerer"] = needed(served)
    if parts.gate is not None:
        models["gate"] = GateModel(parts.gate, parts.batch_questions)
    return models


def _shown(settings: Settings, parts: PipelineParts) -> PairImages | None:
    """Return the images of pairs, if the settings show them."""
    is_shown = isinstance(settings, PairImageSettings) and settings.pair_images
    return PairImages(parts.knowledge) if is_shown else None


def search_tool(parts: PipelineParts) -> SearchTool:
    """Return the search tool: a server's if there is one, else the articles of the text knowledge base."""
    if parts.pages is not None:
        return parts.pages
    texts = needed(parts.texts)
    return KnowledgePages(texts, texts.knowledge)


PAPER_BUDGETS: Final[Mapping[str, float | None]] = {
    "iterations": 4,
    "text_passages": 20,
    "pair_passages": 10,
    "text_weight": 0.5,
    "max_record_tokens": None,
}
"""Budgets of MI-RAG (§3.4, §4.1) and PMSR in their papers, by key; None: unpublished."""


def iterative_recipe(
    name: str,
    title: str,
    settings: type[Kind],
    make: Callable[[Kind, PipelineParts], Trajectory],
    *,
    requires: Sequence[Requirement] = (ENTRY_INDEX,),
    pair_text: PairText = "passages",
    has_own_depth: bool = False,
) -> Mapping[str, Recipe[Any]]:
    """Return the recipe of an iterative pipeline, which reads with the base model, without training.

    Pairs are searched by the image alone unless the settings are `SearchSettings`.

    Args:
        make: Builds the trajectory.
        requires: Parts that the pipeline requires in addition to models.
        pair_text: Text of a pair; `passages` are those of `top_n` entries, a key of `DepthSettings`.
        has_own_depth: True if the number of passages read is set by the pipeline's own settings instead of `top_n`.

    Raises:
        TypeError: The settings lack `top_n`.
    """
    if pair_text == "passages" and not issubclass(settings, DepthSettings):
        raise TypeError(f"{name}: derive {settings.__name__} from DepthSettings, whose `top_n` entries are searched")

    def build(name: str, settings: Kind, parts: PipelineParts) -> TrajectoryPipeline:
        by_texts = recipe.takes_texts and parts.retriever is None and parts.texts is not None
        shown = _shown(settings, parts)
        takes_lists = ENTRY_INDEX not in requires and parts.texts is not None
        entries: EntryRetriever | RankedRetriever | None = None
        if takes_lists and isinstance(parts.retriever, RankedRetriever):
            entries = parts.retriever
        elif not by_texts:
            entries = entry_retriever(name, parts)
        bases = knowledge_bases(
            entries,
            parts.texts if recipe.needs("texts") else None,
            parts.knowledge,
            pair_text,
            search=settings if isinstance(settings, SearchSettings) else None,
            top_n=settings.top_n if isinstance(settings, DepthSettings) else 0,
            lead=settings.lead,
            tool=search_tool(parts) if recipe.needs("pages") else None,
            images=shown,
        )
        models = reading_models(parts, shown)
        tools = Tools(
            models,
            bases.search,
            bases.embed,
            budget=parts.budget,
            too_long=bases.embed_too_long,
            retries=settings.retry_unread,
        )
        if recipe.needs("reranker"):
            rank = functools.partial(reranked, reranker=needed(parts.reranker))
            tools = dataclasses.replace(tools, rerank=rank)
        return TrajectoryPipeline(name, make(settings, parts), tools, takes_texts=recipe.takes_texts)

    recipe = Recipe(
        build,
        settings,
        "base_model",
        knowledge_based,
        requires=(*requires, REMOTE, BUDGET),
        title=title,
        form=name,
        trajectory=make,
        has_own_depth=has_own_depth,
    )
    return {name: recipe}
