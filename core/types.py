"""Questions, knowledge-base entries, passages, and the fields of training examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

AnswerType = Literal["string", "time", "numerical", "multi_answer", "free_form"]
Metric = Literal[
    "infoseek", "evqa", "evqa_exact", "vqa", "exact_match", "hotpotqa_f1", "cover_match", "choice", "rouge_l"
]
METRICS: tuple[Metric, ...] = get_args(Metric)
"""Names of the metrics that score an answer; `metrics.scoring.registry` computes them."""
AnswerStyle = Literal["short", "list", "free"]
"""Form of an answer: a word or phrase, several of them joined by `&&`, or free text."""


@dataclass(frozen=True)
class Evidence:
    """The place of a question's answer: an entry, and the index of its section."""

    entry_id: str
    section: int


@dataclass(frozen=True)
class FollowUp:
    """A later round of a conversation about an image, which may refer to earlier rounds and is read after them."""

    question: str
    answer: str


@dataclass(frozen=True)
class Question:
    """A visual question, knowledge-based or answerable by looking.

    Attributes:
        id: Unique within its data set, e.g. `infoseek_val_00000012`.
        image: Path relative to the data set's folder, or absolute. It must lead into that folder or into the
            `image_root` of the data set's manifest.
        text: The question.
        answers: Accepted answers; for `multi_answer` each is a list joined by `&&`.
        range: Lowest and highest accepted value, for `numerical`. InfoSeek's files swap them for numbers below zero; no
            number lies in such a range, as in the official score.
        answer_type: Decides the official metric and the `answer_style`. `free_form` is an answer in sentences, as in
            LLaVA-Instruct; only the metric `rouge_l` compares it.
        split: E.g. `train`, `val_unseen_question`, `val_unseen_entity`.
        requires_retrieval: The data set's label: True for a knowledge-based question, False for a visual-dependent one,
            None without a label. See `is_knowledge_based`.
        entity_ids: The entries that the image shows (two for a two-hop question, in order).
        evidence: The sections that support the answer, if the data set names them.
        meta: Other fields of the data set (relation, attribute, …), for reports and break-downs.
        follow_ups: Later rounds of the same conversation, in order (LLaVA-Instruct). mR²AG's training reads them;
            probing, baselines and metrics use the first question.
        more_images: Paths of further images, as of `image`. Prompts show them after it, in order; searches use
            `image` alone.
    """

    id: str
    image: str
    text: str
    answers: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    answer_type: AnswerType = "string"
    split: str = ""
    requires_retrieval: bool | None = None
    entity_ids: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)
    follow_ups: tuple[FollowUp, ...] = ()
    more_images: tuple[str, ...] = ()

    @property
    def images(self) -> tuple[str, ...]:
        """Paths of all images, in order."""
        return (*([self.image] if self.image else ()), *self.more_images)

    @property
    def is_knowledge_based(self) -> bool | None:
        """True if the question needs retrieval, False if it is answered by looking, None if unknown.

        The data set's label (`requires_retrieval`) counts. Without one, a question that names an entity or evidence is
        knowledge-based. Training data and the gate's metrics use this rule.
        """
        if self.requires_retrieval is None and (self.entity_ids or self.evidence):
            return True
        return self.requires_retrieval

    @property
    def answer_style(self) -> AnswerStyle:
        """Form of the answer that prompts ask for."""
        styles: dict[str, AnswerStyle] = {"multi_answer": "list", "free_form": "free"}
        return styles.get(self.answer_type, "short")


@dataclass(frozen=True)
class Section:
    """A section of an article: a heading and its text, with paragraphs separated by a blank line or a line break."""

    title: str
    text: str


@dataclass(frozen=True)
class Entry:
    """An article of a knowledge base. `images` are paths; the first is the infobox image."""

    id: str
    title: str
    url: str = ""
    summary: str = ""
    images: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True)
class Passage:
    """A natural paragraph of an entry, as the model reads it.

    Attributes:
        entry_id: Id of its entry.
        section: Index of its section in the entry.
        index: Index of the paragraph in the section.
        title: The entry's title.
        lead: A sentence that describes the entry, or "" (see `reflectune.formats.passages`).
        heading: The section's title.
        text: The paragraph.
    """

    entry_id: str
    section: int
    index: int
    title: str
    lead: str
    heading: str
    text: str

    @property
    def id(self) -> str:
        """`entry_id#section.index`, unique within a knowledge base."""
        return f"{self.entry_id}#{self.section}.{self.index}"


class StoredExample(Protocol):
    """The fields that a training example of any scheme has, as a dataclass."""

    @property
    def id(self) -> str:
        """An id that is unique within the data."""
        ...

    @property
    def image(self) -> str:
        """Path of the image, relative to the manifest's `image_root`."""
        ...

    @property
    def question(self) -> str:
        """The question."""
        ...
