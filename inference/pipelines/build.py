"""From a config to a pipeline: which model it runs on, which questions it takes, and how it is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from reflectune.core.types import Question
from reflectune.inference.config import ReadingConfig
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.closed_book import ClosedBook
from reflectune.inference.pipelines.documents import DocumentFinder
from reflectune.inference.pipelines.mmkb_rag import MMKBRAG, Reflection
from reflectune.inference.pipelines.mr2ag import MR2AG
from reflectune.inference.pipelines.naive_rag import Form, NaiveRAG
from reflectune.inference.pipelines.oracle import Oracle
from reflectune.inference.pipelines.stages import ReflectionScores, Relevance, Retrieval
from reflectune.inference.probes import ProbeBuilder
from reflectune.inference.prompted_reader import PromptedReader
from reflectune.inference.reader import Reader
from reflectune.retrieval.knowledge_base import KnowledgeBase
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
    """

    config: ReadingConfig
    knowledge: KnowledgeBase
    probes: ProbeBuilder | None = None
    reader: Reader | None = None
    retriever: Retriever | None = None
    prompted: PromptedReader | None = None
    base: Reader | None = None


@dataclass(frozen=True)
class Recipe:
    """How one pipeline is made.

    Attributes:
        model: The config's field that names the model it reads with: `model` (fine-tuned), `base_model`, or None.
        retrieves: Whether it needs the retriever.
        takes: Which questions it answers.
        settings: The config's fields that its answers depend on, beyond those that all depend on.
    """

    model: Literal["model", "base_model"] | None
    retrieves: bool
    takes: Callable[[Question], bool]
    settings: tuple[str, ...]


def _every(question: Question) -> bool:
    return True


def _knowledge_based(question: Question) -> bool:
    return question.requires_retrieval is not False


def _with_entry(question: Question) -> bool:
    return _knowledge_based(question) and bool(question.evidence or question.entity_ids)


def _with_evidence(question: Question) -> bool:
    return _knowledge_based(question) and bool(question.evidence)


DOCUMENTS = ("top_n", "documents")
REFLECTION = ("ret", "gamma", "srt", "k", "threshold", "mct", "max_reply_tokens", "answer_model")

RECIPES: Mapping[str, Recipe] = {
    "retrieval": Recipe(None, True, _with_entry, ()),
    "closed_book": Recipe("base_model", False, _every, ()),
    "naive_rag_article": Recipe("base_model", True, _knowledge_based, ("top_n",)),
    "naive_rag_passages": Recipe("base_model", True, _knowledge_based, ("top_n",)),
    "oracle_article": Recipe("base_model", False, _with_entry, ()),
    "oracle_passage": Recipe("base_model", False, _with_evidence, ()),
    "mr2ag": Recipe("model", True, _every, ("top_n", "gamma", "fallback")),
    "relevance": Recipe("model", False, _with_evidence, ()),
    "mmkb_rag": Recipe("model", True, _every, (*DOCUMENTS, *REFLECTION)),
    "reflection": Recipe("model", True, _every, DOCUMENTS),
}
"""Every pipeline and stage, in the order of running: without a model, with the base model, with the tuned one."""


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
    if name == "closed_book":
        return ClosedBook(reader)
    if name == "relevance":
        return Relevance(reader, _needed(parts.probes))
    if name in ("oracle_article", "oracle_passage"):
        return Oracle(reader, knowledge, "article" if name == "oracle_article" else "passage", lead=config.lead)
    retriever = _needed(parts.retriever)
    if name in ("naive_rag_article", "naive_rag_passages"):
        form: Form = "article" if name == "naive_rag_article" else "passages"
        return NaiveRAG(reader, retriever, knowledge, form, top_n=config.top_n, lead=config.lead)
    return MR2AG(
        reader,
        retriever,
        knowledge,
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
