"""The settings of `estimate.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reflectune.core import checks
from reflectune.core.config import DTYPES, bound_problems, setting
from reflectune.models.names import model_name

STAGES: Final = ("annotate", "probe", "closed_book", "naive_rag", "oracle", "mr2ag", "mmkb_rag")
"""What can be estimated: two ways of building data, then pipelines."""


@dataclass
class InferenceEstimateConfig:
    """What is asked of a model, on average a question, and the machine that it is estimated for."""

    model: str = setting("miniature/llava", "whose shapes: a miniature, a hub id or a folder", check=model_name)
    architecture: str = setting(
        "", "a recipe's architecture.json, in place of `model`: nothing is downloaded", check=checks.file
    )
    stages: list[str] = setting(
        ["probe", "closed_book", "naive_rag", "oracle", "mr2ag", "mmkb_rag"], "what to estimate", choices=STAGES
    )
    questions: int = setting(1000, "questions of each stage", low=1)
    image_tokens: int | None = setting(
        None, "tokens of a picture; if unset LLaVA's own number, or of Qwen those of a megapixel", low=1
    )
    question_tokens: float = setting(60, "tokens of the text around a picture, and of a question", above=0)
    prompt_tokens: float = setting(25, "tokens of what is asked behind a passage, or without one", above=0)
    passages: float = setting(100, "mR²AG: passages of the entries of a question", low=0)
    passage_tokens: float = setting(130, "tokens of a passage, with what stands before it", above=0)
    retrieved: float = setting(1.0, "mR²AG: share of the questions whose gate says to retrieve", low=0, high=1)
    relevant: float = setting(3, "mR²AG: passages of a question that are answered from", low=0)
    documents: float = setting(10, "probe, MMKB-RAG: passages that are read, those that share most words", low=0)
    context_tokens: float = setting(
        3000, "naive_rag, oracle: tokens of the entries or passages that one prompt holds", low=0
    )
    kept: float = setting(2, "MMKB-RAG: documents that are kept to answer from", low=0)
    annotated: float = setting(10, "annotate: passages of a question that a model of this machine judges", low=0)
    instruction_tokens: float = setting(300, "annotate: tokens of the instruction, the same for all", low=0)
    answer_tokens: float = setting(6, "tokens of an answer, its end token counted", above=0)
    longest_answer: float = setting(12, "tokens of the longest of the answers that are written together", above=0)
    reply_tokens: float = setting(60, "annotate, MMKB-RAG: tokens of a verdict or of MCT's reply", above=0)
    preparing_ms: float = setting(
        0, "milliseconds of tokenising a question's texts and fitting its picture, beside the model", low=0
    )
    samples: float = setting(0, "probe: answers drawn beside the greedy one", low=0)
    batch_questions: int = setting(8, "questions answered together", low=1)
    processes: int = setting(1, "devices that share the questions", low=1)
    dtype: str = setting("float32", "float32, bfloat16 or float16", choices=DTYPES)
    device: str = setting("cpu", "where the rate is measured: cpu, cuda, or auto", check=checks.device)
    tflops: float | None = setting(
        None, "10¹² operations a second that a device's products reach, in place of measuring", above=0
    )
    bandwidth: float = setting(2000, "10⁹ bytes a second that its memory is read with, beside `tflops`", above=0)

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = bound_problems(self, InferenceEstimateConfig)
        if not self.stages:
            issues.append(f"`stages` is empty; name at least one of {', '.join(STAGES)}")
        return issues
