"""mRAG (arXiv 2505.24073): retrieve by a choice of modalities, rerank with the model itself, read the first.

`top_n` documents are retrieved (§3) and ordered (§4), and the first `answer_documents` of them are answered from (§5):
one in the paper's recipe. Its unified agent (§6) is `mrag_agent`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from reflectune.core.config import setting
from reflectune.core.errors import UnusableInput
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.requests import WriteReply
from reflectune.inference.operators.reranking import Pairs, Reranking, paragraphs, rerank
from reflectune.inference.operators.searching import (
    ENTRIES,
    EntryDocuments,
    FusionSettings,
    KnowledgeBases,
    document_of,
    reranked,
)
from reflectune.inference.operators.trajectory import Tools, Trajectory, TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, merge, search, write
from reflectune.inference.pipelines.iterative import (
    TrajectorySettings,
    answer_instruction,
    entry_retriever,
    reading_models,
)
from reflectune.inference.pipelines.oracle import gold_entries, has_gold
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, knowledge_based, needed
from reflectune.inference.pipelines.requirements import BUDGET, ENTRY_INDEX, REMOTE, UNIT_RERANKER
from reflectune.inference.pipelines.settings import DepthSettings
from reflectune.models.rendering.turns import answer_prompt
from reflectune.retrieval.retrievers.joint import JointSearch
from reflectune.retrieval.retrievers.queries import Target, Weights, modality_weights

QueryModality = Literal["I", "IQ", "IC", "C"]

CAPTION: Final = """\
Given the image and question: {question}

To answer the question, generate an image caption that provides the essential clues within three sentences."""
"""Figure 4: the query's caption."""

GENERATE: Final = """\
Read the provided documents under RELATED DOCUMENTS section and answer the question according to what is provided. Do \
not use your own knowledge!

RELATED DOCUMENTS:
{documents}

Now given the image and the following question, answer the question with the image by referring to the RELATED \
DOCUMENTS.

{question}

"""
"""Figure 8, without its "in a few words" (`few_words`): the instruction of all pipelines here follows."""
GENERATE_ALONE: Final = """\
Given the image and the following question, answer the question with the image.

{question}

"""
"""Figure 8 without documents, for the lower bound of §5, whose prompt isn't published."""


class DocumentStageSettings(FusionSettings, DepthSettings, TrajectorySettings):
    """Settings of the search, and of an answer."""

    query_modality: QueryModality = setting(
        "I", "mRAG: search with the image (I), with the question (IQ) or a generated caption (IC), or the caption (C)"
    )
    entry_modality: Target = setting(
        "IT", "mRAG: search the entries' images (I), with titles (IT) or captions (IC), or titles (T), captions (C)"
    )
    unit: Literal["article", "passage"] = setting(
        "article", "mRAG: an entry's document: the whole article, or its passage by the reranker"
    )
    few_words: bool = setting(
        False, "mRAG: ask for an answer in a few words, as in the paper; else as all pipelines do"
    )


class MragSettings(DocumentStageSettings):
    """Settings of mRAG."""

    rerank: Reranking = setting(
        "listwise", "mrag: order the `top_n` documents by the model, by `reranker`, or leave them as found"
    )
    pairs: Pairs = setting("all", "mrag: pairs that pairwise reranking compares: all, in both orders, or neighbours")
    max_rank_tokens: int = setting(64, "mrag: maximum tokens of a reply of pairwise and listwise reranking", ge=1)
    answer_documents: int = setting(1, "mrag: documents to answer from, the first ones", ge=1)
    answer_from: Literal["retrieved", "nothing", "gold"] = setting(
        "retrieved", "mrag: answer from documents found; or without search, from nothing or the gold article (§5)"
    )


GoldDocuments = Callable[[Question], tuple[Passage, ...]]
Stages = TypeVar("Stages", bound=DocumentStageSettings)


def entry_weights(settings: DocumentStageSettings) -> Weights:
    """Return the weights of an entry's score. A caption alone is one vector already, without the image."""
    weights = modality_weights(settings.query_modality, settings.entry_modality)
    fusion = "scores" if settings.query_modality == "C" else settings.fusion
    return weights.with_summaries(settings.summary_share).fused(fusion)


def find_documents(question: Question, settings: DocumentStageSettings) -> Steps[tuple[Passage, ...]]:
    """Retrieve the documents of a question, best first."""
    text = question.text if "Q" in settings.query_modality else ""
    if "C" in settings.query_modality:
        slots = {"question": question.text}
        caption = yield from write("caption", 0, CAPTION, slots, max_tokens=settings.max_record_tokens, form="text")
        text = caption.text.strip() or question.text  # without an image there must be a text to search with
    return tuple(merge((yield from search(0, [text], {ENTRIES: [settings.top_n]}, question=question.text))))


def generate(
    iteration: int, question: Question, documents: Sequence[Passage], settings: DocumentStageSettings
) -> Steps[WriteReply]:
    """Answer from the documents' leading paragraphs that fit the context; without documents from the image alone."""
    template, asked = GENERATE if documents else GENERATE_ALONE, {"question": question.text}
    if settings.few_words:
        template = template.replace(".\n\n{question}", " in a few words.\n\n{question}").rstrip()
    elif documents:
        template += answer_instruction(question, detailed=False)
    else:
        template += answer_prompt(question.answer_style, documents=False)
    texts, max_tokens = paragraphs(documents), settings.max_new_tokens
    return (
        yield from write("answer", iteration, template, asked, documents=texts, max_tokens=max_tokens, model="answerer")
    )


def documents_shown(documents: Sequence[Passage], shown: int) -> int:
    """Return the number of documents with a paragraph among the first `shown` ones."""
    lengths = [len(paragraphs([document])) for document in documents]
    return sum(start < shown for start in itertools.accumulate(lengths[:-1], initial=0)) if lengths else 0


@dataclass(frozen=True)
class Mrag:
    """mRAG's pipeline for one question.

    Attributes:
        settings: Its settings.
        gold: Returns the documents of a question's gold entries, for `answer_from: gold`.
    """

    settings: MragSettings
    gold: GoldDocuments

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        ranked, settings = tuple[Passage, ...](), self.settings
        if settings.answer_from == "retrieved":
            with contextlib.suppress(BudgetSpent):
                ranked = yield from find_documents(question, settings)
                method, longest = settings.rerank, settings.max_rank_tokens
                ranked = yield from rerank(method, question.text, ranked, pairs=settings.pairs, max_tokens=longest)
        elif settings.answer_from == "gold":
            ranked = self.gold(question)
        given = ranked[: settings.answer_documents]
        answer = yield from generate(0, question, given, settings)
        read = documents_shown(given, answer.shown)
        ended = f"answered from {read} of {len(ranked)} documents"
        return TrajectoryResult(
            answer.text,
            ended,
            answer.score,
            ranked,
            chosen=0 if read == 1 else None,
            used=tuple(range(read)),
        )


def mrag_recipe(
    name: str, title: str, settings: type[Stages], make: Callable[[Stages, PipelineParts], Trajectory]
) -> Mapping[str, Recipe[Any]]:
    """Return the recipe of a pipeline over such documents, which reads with the base model, without training.

    Args:
        make: Builds its trajectory.
    """

    def build(name: str, settings: Stages, parts: PipelineParts) -> TrajectoryPipeline:
        weights = entry_weights(settings)
        reranker = needed(parts.reranker)
        retriever = entry_retriever(name, parts)
        retriever.check(weights, captions="C" in settings.entry_modality)
        passage_by = reranker if settings.unit == "passage" else None
        entries = EntryDocuments(retriever, parts.knowledge, weights, passage_by, settings.lead)
        joint = JointSearch([entries])
        tools = Tools(
            reading_models(parts),
            KnowledgeBases(joint, retriever.embed, retriever.too_long).search,
            rerank=functools.partial(reranked, reranker=reranker),
            budget=parts.budget,
            retries=settings.retry_unread,
        )
        return TrajectoryPipeline(name, make(settings, parts), tools)

    recipe = Recipe(
        build,
        settings,
        "base_model",
        knowledge_based,
        requires=(ENTRY_INDEX, UNIT_RERANKER, REMOTE, BUDGET),
        title=title,
        form=name,
        trajectory=make,
    )
    return {name: recipe}


def _mrag(settings: MragSettings, parts: PipelineParts) -> Mrag:
    reranker = parts.reranker if settings.unit == "passage" else None

    def gold(question: Question) -> tuple[Passage, ...]:
        names = gold_entries(question)
        if not names or not has_gold(question, parts.knowledge):
            raise UnusableInput(
                f"question {question.id} has no entry of its own in the knowledge base, and `answer_from: gold` needs "
                "one; leave it out, or set `on_error: skip`",
                question.id,
            )
        entries = [parts.knowledge.get(name) for name in names]
        documents = [document_of(question.text, entry, reranker, settings.lead) for entry in entries]
        return tuple(document for document in documents if document is not None)

    return Mrag(settings, gold)


RECIPES = mrag_recipe("mrag", "mRAG", MragSettings, _mrag)
