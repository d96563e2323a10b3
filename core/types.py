"""The types that travel between floors: questions, knowledge-base entries and passages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

AnswerType = Literal["string", "time", "numerical", "multi_answer", "free_form"]
Metric = Literal["infoseek", "evqa", "evqa_exact", "vqa", "exact_match", "hotpotqa_f1", "cover_match", "rouge_l"]
METRICS: tuple[Metric, ...] = get_args(Metric)
"""Names of the metrics that score an answer; `metrics.scoring.registry` computes them."""
AnswerStyle = Literal["short", "list", "free"]
"""How an answer is to be written: a word or phrase, several of them joined by `&&`, or as the model likes."""


@dataclass(frozen=True)
class Evidence:
    """Where a question's answer stands: an entry, and the index of its section."""

    entry_id: str
    section: int


@dataclass(frozen=True)
class FollowUp:
    """A later round of a conversation about an image: what is asked next, and what is answered.

    It may refer to what was said before, so that it is read behind all earlier rounds, and never alone.
    """

    question: str
    answer: str


@dataclass(frozen=True)
class Question:
    """One visual question, knowledge-based or answerable by looking.

    Attributes:
        id: Unique within its data set, e.g. `infoseek_val_00000012`.
        image: Path relative to the data set's folder, or absolute; it leads into that folder or into the `image_root`
            that the data set's manifest names, else it is refused when it is opened.
        text: The question as asked.
        answers: Every accepted answer; for `multi_answer` each is a list joined by `&&`.
        range: For `numerical`: lowest and highest accepted value. InfoSeek's files have them the other way round for
            numbers below zero; no number lies in such a range, as the official score has it.
        answer_type: Decides the official metric, and how the answer is asked for (`answer_style`). `free_form` is an
            answer in sentences, as LLaVA-Instruct has them: of the metrics only `rouge_l` compares it.
        split: E.g. `train`, `val_unseen_question`, `val_unseen_entity`.
        requires_retrieval: What the data set says: True for a knowledge-based question, False for a visual-dependent
            one, None if it says nothing. What a question counts as is `is_knowledge_based`.
        entity_ids: The entries that the image shows (two for a two-hop question, in order).
        evidence: The sections that support the answer, where the data set says so.
        meta: What else the data set says of it (relation, attribute, …), for reports and break-downs.
        follow_ups: What is asked next in the same conversation, in order (LLaVA-Instruct). mR²AG's training reads it;
            probing, baselines and metrics go by the first question.
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

    @property
    def is_knowledge_based(self) -> bool | None:
        """Whether the question is to be looked up: True, False (it is answered by looking), or None if unknown.

        As the data set says (`requires_retrieval`). Where it says nothing, a question that names an entity or its
        evidence is knowledge-based. Training data and the gate's metrics go by this rule alone.
        """
        if self.requires_retrieval is None and (self.entity_ids or self.evidence):
            return True
        return self.requires_retrieval

    @property
    def answer_style(self) -> AnswerStyle:
        """How the answer is to be written: every prompt about the question asks for it so."""
        styles: dict[str, AnswerStyle] = {"multi_answer": "list", "free_form": "free"}
        return styles.get(self.answer_type, "short")


@dataclass(frozen=True)
class Section:
    """One section of an article: a heading and its text, its paragraphs parted by a blank line or a line break."""

    title: str
    text: str


@dataclass(frozen=True)
class Entry:
    """One article of a knowledge base. `images` are paths, the first one being the infobox image."""

    id: str
    title: str
    url: str = ""
    summary: str = ""
    images: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True)
class Passage:
    """One natural paragraph of an entry, as the model reads it.

    Attributes:
        entry_id: The entry that it comes from.
        section: Index of its section in the entry.
        index: Index of the paragraph in the section.
        title: The entry's title.
        lead: One sentence that says what the entry is, or "" (see `reflectune.formats.passages`).
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
