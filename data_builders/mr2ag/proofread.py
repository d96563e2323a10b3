"""mR²AG-IT examples as articles of the page for proof-reading."""

from __future__ import annotations

from reflectune.data_builders.proofreading.page import PageArticle, PageLabel
from reflectune.models.schemes.examples import ReflectionExample

NO_RETRIEVAL = "[No Retrieval]"


def page_article(example: ReflectionExample) -> PageArticle:
    """Return an example's article: its passages with evidence first, or its answers without retrieval."""
    if example.retrieve:
        answers = [branch.answer for branch in example.branches if branch.relevant]
        labels = [
            PageLabel("[Relevant]", "relevant", branch.answer, [branch.source], branch.passage)
            if branch.relevant
            else PageLabel("[Irrelevant]", "irrelevant", details=[branch.source], passage=branch.passage)
            for branch in sorted(example.branches, key=lambda branch: not branch.relevant)
        ]
    else:
        answers = [example.answer]
        labels = [PageLabel(NO_RETRIEVAL, answer=example.answer)]
        labels += [
            PageLabel(NO_RETRIEVAL, answer=later.answer, details=[later.question], subject=f"round {number}")
            for number, later in enumerate(example.follow_ups, start=2)
        ]
    style = "several answers, &&" if example.style == "list" else ""
    return PageArticle(
        example.id, example.image, example.question, [example.source, style], labels, answers or [example.answer]
    )
