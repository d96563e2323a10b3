"""mRAG (arXiv 2505.24073): retrieve by a choice of modalities, rerank with the model itself, answer from the first
ones.

`top_n` documents are retrieved (§3) and ordered (§4), and the first `answer_documents` of them are answered from (§5):
one in the paper's recipe. Its unified agent (§6) is `mrag_agent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reflectune.core.types import Passage, Question
from reflectune.inference.config import Pairs, QueryModality, ReadingConfig, Reranking
from reflectune.inference.operators.budget import Budget, BudgetSpent
from reflectune.inference.operators.requests import WriteReply
from reflectune.inference.operators.reranking import UNREAD, Ranked, paragraphs, rerank
from reflectune.inference.operators.searching import ENTRIES, EntryDocuments
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, merge, search, write
from reflectune.inference.pipelines.iterative import Trajectory, answer_instruction, entry_retriever, reading_models
from reflectune.inference.pipelines.naive_rag import RERANKING
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, knowledge_based, needed
from reflectune.retrieval.retrievers.queries import modality_weights

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
"""Figure 8, without its "in a few words": the instruction of all pipelines here follows."""


@dataclass(frozen=True)
class DocumentStages:
    """The stages before an answer: search, rerank.

    Attributes:
        modality: Modalities of the query.
        top_n: Number of documents to retrieve.
        how: Method of reranking.
        pairs: Pairs that are compared.
        max_caption: Maximum length of the caption in tokens.
        max_rank: Maximum length of a reranking reply in tokens.
    """

    modality: QueryModality
    top_n: int
    how: Reranking
    pairs: Pairs = "all"
    max_caption: int = 256
    max_rank: int = 64

    def of(self, question: Question) -> Steps[Ranked]:
        """Retrieve and rerank the documents of a question, best first."""
        text = question.text if "Q" in self.modality else ""
        if "C" in self.modality:
            caption = yield from write("caption", 0, CAPTION, {"question": question.text}, max_tokens=self.max_caption)
            text = caption.text.strip() or question.text  # a text must be searched with where there is no image
        found = merge((yield from search(0, [text], {ENTRIES: [self.top_n]}, question=question.text)))
        try:
            return (yield from rerank(self.how, question.text, found, pairs=self.pairs, max_tokens=self.max_rank))
        except BudgetSpent:
            return Ranked(tuple(found))


def generate(iteration: int, question: Question, documents: Sequence[Passage], max_tokens: int) -> Steps[WriteReply]:
    """Answer in at most `max_tokens` tokens from the documents' leading paragraphs that fit the context."""
    template, asked = GENERATE + answer_instruction(question, detailed=False), {"question": question.text}
    texts = paragraphs(documents)
    return (
        yield from write("answer", iteration, template, asked, documents=texts, max_tokens=max_tokens, model="answerer")
    )


@dataclass(frozen=True)
class Mrag:
    """mRAG's pipeline for one question.

    Attributes:
        documents: The stages before.
        answer_documents: From how many documents it answers.
        max_answer: The longest answer in tokens.
    """

    documents: DocumentStages
    answer_documents: int
    max_answer: int

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        ranked = yield from self.documents.of(question)
        given = ranked.passages[: self.answer_documents]
        answer = yield from generate(0, question, given, self.max_answer)
        ended = f"answered from {len(given)} of {len(ranked.passages)} documents"
        return TrajectoryResult(
            answer.text,
            ended,
            answer.score,
            ranked.passages,
            chosen=0 if len(given) == 1 else None,
            used=tuple(range(len(given))),
            counts={UNREAD: ranked.unread},
        )


def stages(config: ReadingConfig, how: Reranking) -> DocumentStages:
    """The stages before an answer, as a config has them."""
    return DocumentStages(
        config.query_modality, config.top_n, how, config.pairs, config.max_record_tokens, config.max_rank_tokens
    )


def mrag_recipe(
    name: str, make: Callable[[ReadingConfig], Trajectory], settings: Sequence[str]
) -> Mapping[str, Recipe]:
    """The recipe of a pipeline over such documents: it reads with the base model, without training.

    Args:
        name: The pipeline's.
        make: Its trajectory, from the settings.
        settings: Config fields that it depends on, beyond those of its documents.
    """

    def build(name: str, parts: PipelineParts) -> TrajectoryPipeline:
        config = parts.config
        weights = modality_weights(config.query_modality, config.entry_modality)
        weights = weights.with_summaries(config.summary_share).fused(config.fusion)
        reranker = needed(parts.reranker) if config.unit == "passage" else None
        retriever = entry_retriever(name, parts)
        retriever.check(weights)
        entries = EntryDocuments(retriever, parts.knowledge, weights, reranker, config.lead, config.base_failure)
        tools = Tools(reading_models(parts), entries.search, budget=Budget.of(config, parts.remote))
        return TrajectoryPipeline(name, make(config), tools, parts.journal)

    shared = ("top_n", "query_modality", "entry_modality", "unit", "pairs")
    settings = (*shared, "max_record_tokens", "max_rank_tokens", *RERANKING, *settings)
    recipe = Recipe(build, "base_model", True, knowledge_based, settings, form=name, reranks=True, is_iterative=True)
    return {name: recipe}


RECIPES = mrag_recipe(
    "mrag",
    lambda config: Mrag(stages(config, config.rerank), config.answer_documents, config.max_new_tokens),
    ("rerank", "answer_documents"),
)
