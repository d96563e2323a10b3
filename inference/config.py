"""The settings that every pipeline reads: the models, the knowledge base, and how to answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import PlainValidator

from reflectune.core.config import cross_check, setting
from reflectune.core.launching import spreading_problem
from reflectune.core.values import Device, DeviceMap, Dtype, SplitName, checked_by
from reflectune.formats.passages import Lead
from reflectune.inference.reading.document_choice import Mct
from reflectune.models.names import model_name
from reflectune.models.processing.image_config import ImageKeys
from reflectune.models.schemes.registry import reflecting_schemes
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.retrievers.joint import OnFailure
from reflectune.retrieval.retrievers.queries import Fusion, Target
from reflectune.retrieval.web.config import WebConfig

Fallback = Literal["best_product", "random", "closed_book", "abstain"]
Scope = Literal["both", "record", "trajectory"]
ModelPlace = Literal["base_model", "server"]
"""Where the reading model of an iterative pipeline is: `base_model` on this machine, or behind `llm_url`."""
SERVER: Final = "server"
"""The value of `reader` and `answerer` that means the model behind `llm_url`."""
QueryModality = Literal["I", "IQ", "IC", "C"]
"""What mRAG searches with: the image (I), with the question (IQ) or a caption (IC), or the caption alone (C)."""
Unit = Literal["article", "passage"]
Reranking = Literal["none", "pointwise", "pairwise", "listwise"]
Pairs = Literal["all", "both_orders", "adjacent"]
AgentFallback = Literal["abstain", "first"]
ModelRole = Literal["model", "plain_model", "base_model"]
"""The keys that name a model: tuned to reflect, tuned without reflection, not tuned."""


class Count(int):
    """How many documents to keep; `auto` is 0. `Count(value)` reads a number or the word, as a command line has them.

    Example:
        >>> Count("auto"), Count("5")
        (auto, 5)
    """

    def __new__(cls, value: int | str) -> Count:
        """Read a number, or the word."""
        return super().__new__(cls, 0 if value == "auto" else value)

    def __str__(self) -> str:
        return str(int(self)) if self else "auto"

    __repr__ = __str__


AUTO = Count("auto")


def read_count(value: Any) -> Count:
    """Read a count of a config: a number or `auto`."""
    if isinstance(value, bool) or not re.fullmatch(r"auto|\d{1,9}", str(value)):
        raise ValueError(f"must be auto or a number of documents, at least 1, found {value!r}")
    return Count(value)


class PipelineConfig(RerankerConfig, RetrieverConfig, ImageKeys):
    """Keys that every pipeline reads, without those of the retrieval gate: models, knowledge base, how to read."""

    dataset: str = setting("", "data set folder (questions, images, knowledge base)", hashed=False)
    model: str = setting("", "checkpoint that was fine-tuned to reflect")
    base_model: str = setting("", "plain model, used by closed_book, naive_rag, oracle, and MMKB-RAG to answer")
    plain_model: str = setting("", "tuned_baselines: the base, fine-tuned without reflection (scheme plain)")
    scheme: str = setting("", "the scheme that the checkpoint must have been tuned with")
    top_n: int = setting(5, "entries to retrieve for a question", ge=1)
    passages: int = setting(5, "naive_rag, IBA, MM-R2: how many the reranker picks", ge=1)
    fallback: Fallback = setting("best_product", "what if no passage is judged relevant")
    s_ret_temperature: float = setting(
        0.0,
        "mR²AG: S_ret is the entry's share of a softmax over the retrieved ones, their similarities divided by this; "
        "MMKB-RAG: SRT orders by its score times that share; 0: as published",
        ge=0,
    )
    documents: int = setting(10, "MMKB-RAG: passages of the entries to take, the best by words", ge=1)
    srt: bool = setting(True, "MMKB-RAG: let SRT order the documents; else as retrieved")
    k: Annotated[Count, PlainValidator(read_count)] = setting(
        AUTO, "MMKB-RAG: documents to keep; auto: those that reach threshold, and at least 1 (5 without SRT)"
    )
    threshold: float = setting(
        0.5,
        "MMKB-RAG: what `k: auto` keeps has at least this [Rel] score",
        ge=0,
        le=1,
    )
    mct: Mct = setting("filter", "MMKB-RAG: what MCT does with two documents or more")
    answer_model: Literal["base", "tuned"] = setting(
        "base", "MMKB-RAG: who answers: base_model, or the checkpoint itself"
    )
    max_reply_tokens: int = setting(128, "MMKB-RAG: longest reply of MCT, in tokens", ge=1)
    lead: Lead = setting("first_sentence", "what stands before each passage: nothing, or what the entry is")
    max_new_tokens: int = setting(32, "longest answer, in tokens", ge=1)
    token_budget: int | None = setting(
        None, "most tokens in one forward pass; splits work, not text; what the memory has room for if unset", ge=1
    )
    keep_images: int = setting(
        0, "pictures whose reading is kept for later questions about them, those used last", ge=0
    )
    dtype: Dtype = setting("float32", "float32, bfloat16 or float16")
    device: Device = setting("auto", "cpu, cuda, cuda:1, or auto: this process's own")
    dry_run: bool = setting(False, "say what would be done, and stop")

    @cross_check
    def role_problems(self) -> Iterator[str]:
        """Yield the problems of the models' names."""
        yield from (f"`{role}` {problem}" for role in self.roles() if (problem := model_name(getattr(self, role))))

    @cross_check
    def k_problems(self) -> Iterator[str]:
        """Yield a problem if more documents are to be kept than are taken."""
        if self.k > self.documents:
            yield f"`k` can be at most `documents`, {self.documents}, found {self.k}"

    @cross_check
    def unknown_scheme_problems(self) -> Iterator[str]:
        """Yield a problem if there is no such scheme."""
        if self.scheme and self.scheme not in reflecting_schemes():
            yield f"`scheme` is one of {', '.join(reflecting_schemes())}; found `{self.scheme}`"

    @cross_check
    def dataset_problems(self) -> list[str]:
        """Return the problems of the data set's folder."""
        if not self.dataset:
            return ["`dataset` is needed: a data set folder, e.g. the output of build_world"]
        if not Path(self.dataset, "dataset.json").is_file():
            return [f"`dataset`: {self.dataset} has no dataset.json; give a folder that build_world or convert wrote"]
        return []

    def roles(self) -> list[ModelRole]:
        """The keys whose models are loaded; another one may name a checkpoint that isn't made yet."""
        return ["model", "base_model", "plain_model"]


def answerer_problem(value: str) -> str:
    """Return a problem if this is neither `server` nor a model's name."""
    return "" if value == SERVER else model_name(value)


AnswererName = Annotated[str, checked_by(answerer_problem)]


class TrajectoryConfig(WebConfig):
    """How far an iterative pipeline goes, and how much it reads on the way; a command's config inherits these keys."""

    iterations: int = setting(4, "MI-RAG, PMSR: searches after the first one, at most", ge=0)
    text_passages: int = setting(20, "MI-RAG, PMSR: passages of an iteration from the text index", ge=0)
    pair_passages: int = setting(
        10,
        "MI-RAG, PMSR: image-text pairs of an iteration, one an entry; WikiSeeker: passages of the `top_n` entries",
        ge=0,
    )
    text_weight: float = setting(
        0.5,
        "MI-RAG, PMSR, WikiSeeker, MM-R2: λ, a pair's score: so much of the query's text, the rest the picture's",
        ge=0,
        le=1,
    )
    fusion: Fusion = setting(
        "scores", "query of image and text: add up scores, or one vector: their sum, or the encoder's own (features)"
    )
    saturation: float = setting(0.9, "PMSR: stop when a query is so similar to an earlier one (τ)", ge=-1, le=2)
    scopes: Scope = setting("both", "PMSR: queries of the last record, of the whole trajectory, or both")
    strip_question: bool = setting(False, "PMSR: compare queries without the question, as its released code does")
    reader: ModelPlace = setting(
        "base_model", "iterative: who describes, asks and reasons: base_model, or a server's model"
    )
    answerer: AnswererName = setting(
        "",
        "iterative: who answers from what was reasoned: a second model, or server, a server's; default: the reader",
    )
    detailed_answer: bool = setting(
        False, "MI-RAG, PMSR: ask for a detailed answer, as in the papers; else for a short one, as all pipelines do"
    )
    extract_answer: bool = setting(
        False, "MI-RAG, PMSR: after a detailed answer ask for a short one, by MI-RAG's few-shot prompt; it is scored"
    )
    extract_split: SplitName = setting(
        "train",
        "extract_answer: split whose questions are the prompt's examples; empty: no examples",
    )
    max_record_tokens: int = setting(
        256, "iterative: longest description, query, reasoning record or caption, in tokens", ge=1
    )
    query_modality: QueryModality = setting(
        "I", "mRAG: search with the image, and with the question or a caption that the model writes"
    )
    entry_modality: Target = setting("IT", "mRAG: search the entries' images, images and titles, or titles")
    unit: Unit = setting("article", "mRAG: an entry's document: the whole article, or its passage by the reranker")
    rerank: Reranking = setting("listwise", "mrag: order the `top_n` documents by the model, or leave them as found")
    pairs: Pairs = setting("all", "mRAG: what pairwise reranking compares: pairs, both ways round, or neighbours")
    answer_documents: int = setting(1, "mrag: documents to answer from, the first ones", ge=1)
    agent_rerank: Reranking = setting("none", "mrag_agent: order the documents before the first one is judged")
    agent_fallback: AgentFallback = setting(
        "abstain", "mrag_agent: no document has a valid answer: none, as in mRAG, or the first document's"
    )
    max_rank_tokens: int = setting(64, "mRAG: longest reply of pairwise and listwise reranking, in tokens", ge=1)
    candidates: int = setting(1000, "ReAG, IBA, MM-R2: passages of the entries found to look at, at most", ge=1)
    critic_threshold: float = setting(
        0.1, "ReAG: a passage is kept if P(Yes) in the full softmax is above this", ge=0, le=1
    )
    crop: float = setting(
        0.0, "ReAG: search with the picture's centre, too: so much of its width and height; 0: don't", ge=0, le=1
    )
    box_field: str = setting(
        "", "ReAG: field of a question's `meta` with a box to search with: left, top, right, bottom as shares of 1"
    )
    think: bool = setting(
        False, "ReAG: have the model think before it answers, as its released one does; else a short answer"
    )
    condense_above: int = setting(
        400, "pmsr_web: a record's query of more characters is written anew for the search tool", ge=0
    )
    noise: int = setting(0, "MI-RAG, PMSR: irrelevant passages among the records, drawn by `noise_seed`", ge=0)
    noise_seed: int = setting(0, "MI-RAG, PMSR: seed of the irrelevant passages and of their places", ge=0)
    base_failure: OnFailure = setting(
        "stop", "iterative: a knowledge base that can't be searched: stop, or degrade: go on without it, and say so"
    )
    question_tokens: int = setting(
        0,
        "iterative: tokens, read and written, after which a question is answered from what there is; 0: any",
        ge=0,
    )
    run_tokens: int = setting(
        0, "iterative: the same of all replies of the server's model; a higher limit goes on where it ended", ge=0
    )
    run_cost: float = setting(
        0.0, "iterative: the same in money, by llm_input_price and llm_output_price; 0: no limit", ge=0
    )
    identification_weight: float = setting(0.5, "IBA: α, of how likely the entity is in the picture", ge=0)
    similarity_weight: float = setting(0.5, "IBA: β, of the picture's similarity to the entry", ge=0)
    rerank_weight: float = setting(1.0, "IBA: γ, of the reranker's score, scaled to [0, 1]", ge=0)


class ReadingConfig(TrajectoryConfig, PipelineConfig):
    """Keys that every pipeline reads, with those of the retrieval gate."""

    gamma: float = setting(
        0.5,
        "retrieve if the gate's probability is at least this (MMKB-RAG: above it)",
        ge=0,
        le=1,
    )
    ret: bool = setting(True, "MMKB-RAG: let RET decide whether to retrieve; else always")
    device_map: DeviceMap | None = setting(
        None, "spread a model's layers over all GPUs: auto, balanced_low_0, sequential"
    )

    @cross_check
    def reading_problems(self) -> Iterator[str]:
        """Yield the problems of keys that must fit each other."""
        if self.extract_answer and not self.detailed_answer:
            yield "`extract_answer` shortens a detailed answer: set `detailed_answer: true`, or leave it out"
        if problem := spreading_problem(self.device_map):
            yield problem
