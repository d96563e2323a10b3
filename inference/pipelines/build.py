"""From a config to a pipeline: which model it runs on, which questions it takes, and how it is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reflectune.core.types import Question
from reflectune.inference.config import ModelRole, ReadingConfig
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.closed_book import ClosedBook
from reflectune.inference.pipelines.diagnostics import DiagnosticPassages
from reflectune.inference.pipelines.documents import DocumentFinder
from reflectune.inference.pipelines.mmkb_rag import MMKBRAG, Reflection
from reflectune.inference.pipelines.mr2ag import MR2AG
from reflectune.inference.pipelines.naive_rag import NaiveRAG
from reflectune.inference.pipelines.oracle import MR2AGOracle, Oracle, OracleAmongOthers
from reflectune.inference.pipelines.stages import ReflectionScores, Relevance, Retrieval
from reflectune.inference.reading.prompted_reader import PromptedReader
from reflectune.inference.reading.reader import Reader
from reflectune.retrieval.contexts import CONTEXT_FORMS, ContextBuilder, ContextForm
from reflectune.retrieval.knowledge_base import KnowledgeBase
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.retriever import Retriever

Part = TypeVar("Part")

RECALL_DEPTH = 5
"""Entries that the retrieval stage records at least, so that recall@5 can be told."""


@dataclass(frozen=True)
class Parts:
    """What pipelines are put together from; the pipelines at hand need not use all.

    Attributes:
        config: The settings.
        knowledge: The entries.
        probes: Where a diagnosis takes passages from; None where nothing is diagnosed.
        reader: The model that a pipeline's recipe names; for a checkpoint of scheme `mmkb_rag` it is `prompted`.
        retriever: Finds entries.
        prompted: See `reader`.
        base: The base model, where it answers what the tuned model has reflected on.
        reranker: Picks the passages of `naive_rag_passages`.
    """

    config: ReadingConfig
    knowledge: KnowledgeBase
    probes: DiagnosticPassages | None = None
    reader: Reader | None = None
    retriever: Retriever | None = None
    prompted: PromptedReader | None = None
    base: Reader | None = None
    reranker: Reranker | None = None


@dataclass(frozen=True)
class Recipe:
    """How one pipeline is made.

    Attributes:
        model: The config's field that names the model it reads with: `model` (tuned to reflect), `plain_model` (tuned
            without reflection), `base_model`, or None.
        retrieves: Whether it needs the retriever.
        takes: Which questions it answers.
        settings: The config's fields that its answers depend on, beyond those that all depend on.
    """

    model: ModelRole | None
    retrieves: bool
    takes: Callable[[Question], bool]
    settings: tuple[str, ...]


def _every(question: Question) -> bool:
    return True


def _knowledge_based(question: Question) -> bool:
    return question.is_knowledge_based is not False


def _with_entry(question: Question) -> bool:
    return _knowledge_based(question) and bool(question.evidence or question.entity_ids)


def _with_evidence(question: Question) -> bool:
    return _knowledge_based(question) and bool(question.evidence)


DOCUMENTS = ("top_n", "documents")
REFLECTION = ("ret", "gamma", "srt", "k", "threshold", "mct", "max_reply_tokens", "answer_model")

RERANKING = (
    "passages",
    "reranker",
    "reranker_model",
    "reranker_pooling",
    "reranker_similarity",
    "reranker_query_prefix",
    "reranker_passage_prefix",
    "reranker_max_length",
    "reranker_dtype",
)

_BASELINES: Mapping[str, tuple[bool, Callable[[Question], bool], tuple[str, ...]]] = {
    "closed_book": (False, _every, ()),
    "naive_rag_article": (True, _knowledge_based, ("top_n",)),
    "naive_rag_articles": (True, _knowledge_based, ("top_n",)),
    "naive_rag_passages": (True, _knowledge_based, ("top_n", *RERANKING)),
    "oracle_article": (False, _with_entry, ()),
    "oracle_articles": (True, _with_entry, ("top_n",)),
    "oracle_passage": (False, _with_evidence, ()),
}

RECIPES: Mapping[str, Recipe] = {
    "retrieval": Recipe(None, True, _with_entry, ()),
    **{name: Recipe("base_model", *recipe) for name, recipe in _BASELINES.items()},
    **{f"{name}_tuned": Recipe("plain_model", *recipe) for name, recipe in _BASELINES.items()},
    "mr2ag": Recipe("model", True, _every, ("top_n", "gamma", "fallback")),
    "mr2ag_oracle": Recipe("model", False, _with_entry, ("gamma", "fallback")),
    "relevance": Recipe("model", False, _with_evidence, ()),
    "mmkb_rag": Recipe("model", True, _every, (*DOCUMENTS, *REFLECTION)),
    "reflection": Recipe("model", True, _every, DOCUMENTS),
}
"""Every pipeline and stage, in the order of running: without a model, with the base model, with tuned ones."""


def stages_for(pipelines: Sequence[str]) -> list[str]:
    """The pipelines and the stages that measure their parts, in the order of running."""
    wanted = set(pipelines)
    if any(RECIPES[name].retrieves for name in pipelines):
        wanted.add("retrieval")
    if "mr2ag" in wanted:
        wanted.add("relevance")
    if "mmkb_rag" in wanted:
        wanted.add("reflection")
    return [name for name in RECIPES if name in wanted]


def reranks(name: str) -> bool:
    """Whether a pipeline has passages picked by the reranker."""
    return "reranker" in RECIPES[name].settings


def answered_by_base(name: str, config: ReadingConfig) -> bool:
    """Whether a pipeline of the tuned model has the base model answer, so that both are needed at once."""
    return name == "mmkb_rag" and config.answer_model == "base"


def build_pipeline(name: str, parts: Parts) -> Pipeline:
    """Put a pipeline or stage together from its parts."""
    config, knowledge = parts.config, parts.knowledge
    if name == "retrieval":
        return Retrieval(_needed(parts.retriever), max(RECALL_DEPTH, config.top_n))
    if name in ("mmkb_rag", "reflection"):
        return _prompted(name, parts)
    reader = _needed(parts.reader)
    kind = name.removesuffix("_tuned")
    if kind == "closed_book":
        return ClosedBook(name, reader)
    if name == "relevance":
        return Relevance(reader, _needed(parts.probes))
    if kind in ("oracle_article", "oracle_passage"):
        return Oracle(name, reader, knowledge, "article" if kind == "oracle_article" else "passage", lead=config.lead)
    if name == "mr2ag_oracle":
        return MR2AGOracle(lambda gold: _mr2ag(parts, gold))
    retriever = _needed(parts.retriever)
    if kind == "oracle_articles":
        return OracleAmongOthers(name, reader, retriever, knowledge, top_n=config.top_n, lead=config.lead)
    if name == "mr2ag":
        return _mr2ag(parts, retriever)
    contexts = ContextBuilder(knowledge, parts.reranker, config.top_n, config.passages, config.lead)
    return NaiveRAG(name, reader, retriever, contexts, NAIVE_FORMS[kind])


NAIVE_FORMS: Mapping[str, ContextForm] = {f"naive_rag_{form}": form for form in CONTEXT_FORMS}


def _mr2ag(parts: Parts, retriever: Retriever) -> MR2AG:
    config = parts.config
    return MR2AG(
        _needed(parts.reader),
        retriever,
        parts.knowledge,
        top_n=config.top_n,
        gamma=config.gamma,
        fallback=config.fallback,
        lead=config.lead,
    )


def build_finder(parts: Parts) -> DocumentFinder:
    """What finds MMKB-RAG's documents."""
    config = parts.config
    return DocumentFinder(
        _needed(parts.retriever),
        parts.knowledge,
        top_n=config.top_n,
        documents=config.documents,
        lead=config.lead,
    )


def _prompted(name: str, parts: Parts) -> Pipeline:
    """MMKB-RAG, or the stage that measures its decisions."""
    config, reader, finder = parts.config, _needed(parts.prompted), build_finder(parts)
    if name == "reflection":
        return ReflectionScores(reader, finder)
    reflection = Reflection(config.ret, config.gamma, config.srt, int(config.k), config.threshold, config.mct)
    base = _needed(parts.base) if answered_by_base(name, config) else None
    return MMKBRAG(reader, finder, reflection, base)


def _needed(part: Part | None) -> Part:
    if part is None:
        raise ValueError("a pipeline was asked for without a model or retriever that its recipe says it needs")
    return part
