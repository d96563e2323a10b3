"""WikiSeeker (arXiv 2604.05818, ACL 2026 findings): a refiner writes the query, an inspector routes the answer.

The refiner writes a query from image and question. It is searched together with the image, in one vector of both:
concat((1 - λ) · image, λ · text), which ranks as equation 7 of PMSR does. The inspector reads the results. If it
passes, a second model answers from text alone; if it fails, the vision-language model answers from its own knowledge.

Published: the roles, the concatenation (1 - λ is 0.59 in the script for Encyclopedic-VQA, so `text_weight: 0.41`; 0.5
by default), and the two routes. Ours, since neither the prompts nor the refiner's training have been released: the
three prompts; that the inspector compares yes and no, and passes if yes is likelier; that an entry's text is its title,
as in all indexes here (theirs is of Wikipedia's text); that the question is the query if the refiner writes none.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.searching import SearchSettings
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, judge, merge, search, texts_of, write
from reflectune.inference.pipelines.iterative import (
    PairSettings,
    TrajectorySettings,
    answer_instruction,
    iterative_recipe,
)
from reflectune.inference.pipelines.settings import DepthSettings
from reflectune.models.rendering.turns import answer_prompt

REFINE = """\
Question: {question}

The question is about the image, and an encyclopedia has to be searched to answer it. Say what the image shows as \
precisely as you can, then write one search query that names it and what is asked about it.
Your output should be in the following format:

Query: the query.
"""
INSPECT = """\
Question: {question}
Retrieved text: {documents}

Is the retrieved text about what the image shows, and does it hold what is needed to answer the question? Answer Yes \
or No."""
ANSWER = "{question} {documents} "

PASSED, FAILED = "inspector passed", "inspector failed"


class WikiSeekerSettings(PairSettings, SearchSettings, DepthSettings, TrajectorySettings):
    """Settings of WikiSeeker."""


@dataclass(frozen=True)
class WikiSeeker:
    """WikiSeeker's steps for one question."""

    settings: WikiSeekerSettings

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        asked = {"question": question.text}
        longest = self.settings.max_record_tokens
        passages, passed = list[Passage](), False
        with contextlib.suppress(BudgetSpent):
            refined = yield from write("rewrite", 0, REFINE, asked, max_tokens=longest, form="queries")
            query = next(iter(read_queries(refined.text, 1)), question.text)
            passages = merge((yield from search(0, [query], {"pairs": [self.settings.pair_passages]})))
            if passages:
                passed = True  # if the budget ends before the inspection
                passed = (yield from judge(0, INSPECT, asked, documents=texts_of(passages))).share > 0.5
        if passed:
            template = ANSWER + answer_instruction(question, detailed=False)
            answer = yield from write(
                "answer",
                0,
                template,
                asked,
                documents=texts_of(passages),
                max_tokens=self.settings.max_new_tokens,
                model="answerer",
                image=False,
            )
            return TrajectoryResult(answer.text, PASSED, answer.score, tuple(passages[: answer.shown]))
        template = f"{{question}} {answer_prompt(question.answer_style, documents=False)}"
        answer = yield from write("answer", 0, template, asked, max_tokens=self.settings.max_new_tokens)
        return TrajectoryResult(answer.text, FAILED, answer.score)


RECIPES = iterative_recipe(
    "wikiseeker", "WikiSeeker", WikiSeekerSettings, lambda settings, parts: WikiSeeker(settings), has_own_depth=True
)
