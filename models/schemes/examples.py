"""Training examples of the two forms that schemes have: by passages, and by prompts. No model library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from reflectune.core.types import AnswerStyle, FollowUp, Passage, StoredExample


class TrainingExample(StoredExample, Protocol):
    """Interface of every scheme's training example: one question about one image."""

    @property
    def style(self) -> AnswerStyle:
        """Answer style, with documents and without."""
        ...

    @property
    def branches(self) -> Sequence[Any]:
        """Branches of image and question; each is read by itself."""
        ...

    @property
    def follow_ups(self) -> Sequence[FollowUp]:
        """Later rounds of a conversation."""
        ...


@dataclass(frozen=True)
class Branch:
    """Passage of a training question, with its relevance and its answer.

    `source` is its origin (`gold`, `same_article`, `look_alike`, `retrieved`, `random`).
    """

    passage: Passage
    relevant: bool
    answer: str = ""
    source: str = ""


@dataclass(frozen=True)
class ReflectionExample:
    """Training question with branches that share its image and question.

    A visual-dependent question has no branches and an `answer`; a knowledge-based one has branches, and each relevant
    branch has its own answer. `style` is the answer style, with a passage and without. A visual-dependent question with
    a free answer may continue as a conversation, `follow_ups`.
    """

    id: str
    image: str
    question: str
    retrieve: bool
    answer: str = ""
    branches: tuple[Branch, ...] = ()
    style: AnswerStyle = "short"
    source: str = ""
    follow_ups: tuple[FollowUp, ...] = ()


PromptName = Literal["ret", "srt", "mct", "vqa", "summary"]


@dataclass(frozen=True)
class PromptedBranch:
    """Prompt of a training question, and the reply to train on.

    Attributes:
        prompt: `ret`, `srt`, `mct` or `vqa`.
        documents: Its documents: none for `ret`, one for `srt`, several for `mct`, any number for `vqa`.
        role: Reflection token to reply with, for `ret` and `srt`; "" for the others.
        reply: Words to reply with, for `mct` and `vqa`; "" for the others.
        found: Place of the document of `srt` in the search results (`formats.hits.describe_ranks`); "" if unknown.
        weight: Weight of the reply's loss: the share of one of a document's two labels, if labels are soft.
    """

    prompt: PromptName
    documents: tuple[Passage, ...] = ()
    role: str = ""
    reply: str = ""
    found: str = ""
    weight: float = 1.0


@dataclass(frozen=True)
class PromptedExample:
    """Training question with prompts that share its image and question.

    `style` is the answer style, with documents and without. With a `template`, the user's turn is the template only, as
    a step of a pipeline asks it: `{question}` and `{documents}` in it are the texts of these names, and each branch
    only has its `reply`. `system` is the system turn before it. If the branches differ in `{documents}`,
    `branch_documents` has the text of each, and `documents` is empty. An agent's trajectory goes on after the reply of
    its only branch: `follow_ups` are tools' results and the next replies.
    """

    id: str
    image: str
    question: str
    branches: tuple[PromptedBranch, ...]
    style: AnswerStyle = "short"
    source: str = ""
    template: str = ""
    documents: str = ""
    system: str = ""
    branch_documents: tuple[str, ...] = ()
    follow_ups: tuple[FollowUp, ...] = ()

    @property
    def shown_documents(self) -> tuple[str, ...]:
        """With a `template`: the text of `{documents}` before each branch's reply."""
        return self.branch_documents or (self.documents,) * len(self.branches)
