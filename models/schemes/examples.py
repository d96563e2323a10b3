"""Training examples of the two forms that schemes have: by passages, and by prompts. No model library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from reflectune.core.types import AnswerStyle, FollowUp, Passage


class TrainingExample(Protocol):
    """What every scheme's training example has: one question about one image."""

    @property
    def id(self) -> str:
        """Unique within its data set."""
        ...

    @property
    def image(self) -> str:
        """Path of the image, relative to the folder that the data's manifest names."""
        ...

    @property
    def question(self) -> str:
        """The question."""
        ...

    @property
    def style(self) -> AnswerStyle:
        """How answers are asked for, with documents and without."""
        ...

    @property
    def branches(self) -> Sequence[Any]:
        """What hangs from image and question; each is read by itself."""
        ...


@dataclass(frozen=True)
class Branch:
    """One passage hung from a training question: is it evidence, and what does it answer?

    `source` says where the passage came from (`gold`, `same_article`, `look_alike`, `retrieved`, `random`).
    """

    passage: Passage
    relevant: bool
    answer: str = ""
    source: str = ""


@dataclass(frozen=True)
class ReflectionExample:
    """One training question with the branches that hang from its image and question.

    A visual-dependent question has no branches and an `answer`; a knowledge-based one has branches, and each relevant
    branch has its own answer. `style` is how answers are asked for, with a passage and without. A visual-dependent
    question that is answered freely may go on as a conversation, `follow_ups`.
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
    """One prompt hung from a training question, and what the model should reply.

    Attributes:
        prompt: Which prompt: `ret`, `srt`, `mct` or `vqa`.
        documents: What it is about: none for `ret`, one for `srt`, several for `mct`, any number for `vqa`.
        role: The reflection token to reply with, for `ret` and `srt`; "" for the others.
        reply: The words to reply with, for `mct` and `vqa`; "" for the others.
    """

    prompt: PromptName
    documents: tuple[Passage, ...] = ()
    role: str = ""
    reply: str = ""


@dataclass(frozen=True)
class PromptedExample:
    """One training question: prompts hang from the same image and question.

    `style` is how its answers are asked for, with documents and without. With a `template`, the user's turn is that
    alone, as a step of a pipeline asks it: `{question}` and `{documents}` in it are the texts of these names, and each
    branch only has its `reply`. `system` is what the system's turn before it says. Where the branches differ in what
    stands in `{documents}`, `branch_documents` has the text of each, and `documents` is empty.
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

    @property
    def shown_documents(self) -> tuple[str, ...]:
        """With a `template`: what stands in `{documents}` before each branch's reply."""
        return self.branch_documents or (self.documents,) * len(self.branches)
