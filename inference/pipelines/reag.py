"""ReAG (arXiv 2511.22715, CVPR 2026): a critic judges every passage of the entries found, and selects those to read.

Entries are searched with the whole image (coarse) and optionally with a part of it (fine); an entry has its higher
similarity, and the best `top_n` are opened. The critic reads each of their passages with image and question, and
keeps those with P(Yes) above a threshold in the full softmax. If it keeps none, the question is answered without.

Published: these prompts, the threshold 0.1, `top_n: 20`, and the answer if nothing is kept. The prompts are word for
word only where the released weights, the critic's and the reader's, were trained with them. Ours: the part of the
image is its centre or a box from the data set, since the authors' detector isn't available; passages are split as
everywhere here; without `think`, a short answer is requested in the words of all pipelines; and `<think>` isn't
prefilled. The critic's prompts share their image and question, which are read once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from reflectune.core.config import setting
from reflectune.core.types import Question
from reflectune.inference.operators import parsing
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, best_entries, judge_each, search, texts_of, write
from reflectune.inference.pipelines.iterative import (
    CandidateSettings,
    TrajectorySettings,
    answer_instruction,
    crop_boxes,
    iterative_recipe,
)
from reflectune.inference.pipelines.settings import DepthSettings
from reflectune.models.rendering.turns import answer_prompt

CRITIC_SYSTEM = """\
You are a multimodal reasoning assistant specialized in Knowledge-Based Visual Question Answering (KB-VQA).
Your task is to evaluate whether a given text passage provides useful and relevant information for answering a \
question about an image.

You will be given:
- Image: a visual scene containing entities, actions, and context.
- Question: a natural-language question that refers to the image.
- Text Passage: an external knowledge snippet retrieved from a database or the web.

You must analyze the semantic alignment between the text, the image, and the question.
Follow these steps carefully before giving your final decision:
1. Understand the visual scene: Identify the key objects, people, actions, and context visible in the image.
2. Interpret the question: Determine what information the question seeks (e.g., factual, reasoning, counting, \
attribute-based).
3. Analyze the text passage: Extract the main claims, facts, and entities mentioned in the text.

Compare for relevance: Assess whether the information in the text:
- Contains at least one sentence that supports answering the question about the image, OR
- Provides background knowledge needed to interpret or reason about the image-question pair.

Important:
- If even a single sentence in the passage is relevant or useful, consider the entire passage as **relevant** and \
answer “Yes”.
- If no part of the passage contributes meaningfully to answering the question, answer “No”.

Output only one word:
"Yes" -> if the text provides relevant or useful information for answering the question.
"No" -> if the text is irrelevant or unhelpful."""
CRITIC = """\
Here is the question on the image above: 
{question}

Here is the text passage to analyze:
{documents}

Does the text passage contain at least one sentence that may have some information usefule to answer the user question? 
"Yes"/"No" answer: """
"""The critic's two turns, typos and spaces included: the released weights were trained with these very words."""

ANSWER = """\
{question}

The following paragraphs may contain useful information to help answer the question correctly:
{documents}.
"""
THINK_SYSTEM = """\
A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant first \
thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning process and \
answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think>reasoning process \
here</think><answer>short answer here</answer>"""
"""The released reader was trained with this system prompt and `ANSWER`, so both are verbatim."""


class ReagSettings(CandidateSettings, DepthSettings, TrajectorySettings):
    """Settings of ReAG; `top_n: 20` in the paper."""

    critic_threshold: float = setting(
        0.1, "ReAG: keep a passage if P(Yes) in the full softmax is above this; 0.1 in the paper", ge=0, le=1
    )
    crop: float = setting(
        0.0, "ReAG: also search with the image's centre, this share of its width and height; 0: don't", ge=0, le=1
    )
    box_field: str = setting(
        "", "ReAG: field of a question's `meta` with a box to search with: left, top, right, bottom as shares of 1"
    )
    think: bool = setting(
        False, "ReAG: have the model think before it answers, as its released one does; else a short answer"
    )


@dataclass(frozen=True)
class ReAG:
    """ReAG's steps for one question."""

    settings: ReagSettings

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        settings, asked = self.settings, {"question": question.text}
        boxes = (None, *crop_boxes(question, settings.crop, settings.box_field))
        tops = {"pairs": [settings.candidates] * len(boxes)}
        found = yield from search(0, [""] * len(boxes), tops, boxes=boxes)
        passages, kept = best_entries(found, settings.top_n), []
        with contextlib.suppress(BudgetSpent):
            judged = yield from judge_each(0, CRITIC, asked, texts_of(passages), system=CRITIC_SYSTEM)
            kept = [
                passage
                for passage, judgement in zip(passages, judged.each, strict=True)
                if judgement.yes > settings.critic_threshold
            ]
        template = ANSWER if kept else "{question}"
        if not settings.think:
            unaided = answer_prompt(question.answer_style, documents=False)
            template += answer_instruction(question, detailed=False) if kept else f" {unaided}"
        answer = yield from write(
            "answer",
            0,
            template,
            asked,
            documents=[f"<paragraph>{text}</paragraph>\n\n" for text in texts_of(kept)],
            max_tokens=settings.max_new_tokens + (settings.max_record_tokens if settings.think else 0),
            model="answerer",
            system=THINK_SYSTEM if settings.think else "",
            keeps_thoughts=settings.think,
        )
        text = parsing.answer(answer.text) if settings.think else answer.text
        return TrajectoryResult(
            text, f"{len(kept)} of {len(passages)} passages kept", answer.score, tuple(kept[: answer.shown])
        )


RECIPES = iterative_recipe("reag", "ReAG", ReagSettings, lambda settings, parts: ReAG(settings))
