"""Settings of `probe`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Seed, output_of
from reflectune.formats.dataset import SplitKey
from reflectune.formats.parts import PartName
from reflectune.formats.passages import Lead
from reflectune.formats.reflection_data import MANIFEST
from reflectune.metrics.config import MetricConfig
from reflectune.models.names import ModelName, PlacementKeys
from reflectune.models.rendering.image_config import ImageKeys
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.config import DOCUMENTS_BY, DocumentRanking, RerankerConfig

SCHEME = "mmkb_rag"


class GenerationSettings(Settings):
    """Answers and summaries to generate."""

    max_new_tokens: int = setting(32, "maximum number of tokens of an answer", ge=1)
    summary: Literal["words", "sentences", "none"] = setting(
        "words", "summary of several relevant documents: the model's own words, sentences that it chooses, or none"
    )
    seed: Seed = setting(0, "seed of the order of questions and of random documents")


class DocumentSettings(Settings):
    """Documents to probe a question with."""

    top_n: int = setting(5, "entries to retrieve for a question", ge=1)
    documents: int = setting(10, "passages per question: the best by documents_by", ge=1)
    documents_by: DocumentRanking = setting("words", DOCUMENTS_BY)
    documents_of: Literal["retrieved", "own"] = setting(
        "retrieved", "source of the passages: the retrieved entries, or the question's own entry"
    )
    documents_random: int = setting(0, "further passages per question, of random entries", ge=0)
    lead: Lead = setting("first_sentence", "text before each passage: nothing, or a sentence on its entry")


class WorkerSettings(Settings):
    """Batches of a process, and bad questions."""

    batch_questions: int = setting(8, "questions answered together", ge=1)
    token_budget: int | None = setting(
        None, "maximum tokens per forward pass, halved when memory runs out; unset: as many as fit", ge=1
    )
    on_error: Literal["stop", "skip"] = setting(
        "stop",
        "a question with a bad image, no text, no answer or no own entry: stop, or count and list it",
        hashed=False,
    )


class ProbeConfig(
    GenerationSettings,
    DocumentSettings,
    WorkerSettings,
    SplitKey,
    MetricConfig,
    PlacementKeys,
    ImageKeys,
    RetrieverConfig,
    RerankerConfig,
):
    """Ask a model a split's questions without and with each retrieved document, and record its answers."""

    part: PartName = setting(
        "", "only a part of the questions, e.g. 2/2, divided by entity: one that the model was not trained on"
    )
    trained_on: str = setting(
        "",
        "reflection data that the model was tuned on: its questions are left out",
        hashed=False,  # its content is
    )
    leave_out_facts: bool = setting(
        False, "leave out the facts of `trained_on` too: all questions on the same entity with an answer in common"
    )
    visual: bool = setting(True, "probe visual-dependent questions too; RET needs them")
    limit: int | None = setting(
        None,
        "maximum number of questions, drawn by seed; a higher limit adds more, a lower one removes none",
        ge=1,
        hashed=False,
    )
    model: ModelName = setting(
        "",
        "the target model: base, checkpoint or adapter of MMKB-RAG",
        needed="",
        hashed=False,  # its content is
    )
    output: Annotated[str, output_of("probes.json")] = setting("", "folder for the probes", needed="", hashed=False)
    window: int = setting(32, "questions that a process takes at a time and sorts by length", ge=1)
    dry_run: bool = setting(False, "describe the questions, show one prompt, and stop", hashed=False)

    @cross_check
    def trained_on_problems(self) -> Iterator[str]:
        """Yield the problems of the data whose questions are left out."""
        if self.leave_out_facts and not self.trained_on:
            yield "`leave_out_facts` needs `trained_on`: the data whose facts are left out"
        if self.trained_on and not Path(self.trained_on, MANIFEST).is_file():
            yield f"`trained_on`: {self.trained_on} has no {MANIFEST}; give a folder that a data builder wrote"

    @cross_check
    def ranking_problems(self) -> Iterator[str]:
        """Yield the problem of a reranker that needs the question's image, or that nothing asks for."""
        if self.documents_by == "reranker":
            yield from self.text_issues("probes")
        elif self.reranker != "words":
            yield "`reranker` ranks documents with `documents_by: reranker` only; set it, or leave `reranker` out"

    @cross_check
    def retrieval_problems(self) -> Iterator[str]:
        """Yield the problem of a missing index for retrieved documents."""
        if self.documents_of == "retrieved" and not self.finds_entries:
            yield "`index` is needed, or `ranked_entities`; or `documents_of: own`"
