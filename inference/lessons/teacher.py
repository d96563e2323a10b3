"""Replies to a pipeline's prompts by one who knows the question's evidence, and sees only what the prompt shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reflectune.core.types import Entry, Question
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import first_sentence, sentences, split_passages
from reflectune.inference.operators.requests import WriteRequest, Writing
from reflectune.inference.pipelines import mi_rag, pmsr
from reflectune.models.rendering.turns import prompt_parts

NOTHING = "Nothing about it is among this."
"""The record where no entity that the question is about is among what was found."""

FORMS = ("{title} {heading}", "{title}")
"""How queries ask for a section, if nothing else is said."""

REPLY_FORMS: Mapping[str, str] = {
    mi_rag.FOLLOW_UP: "## Analysis\n{missing}\n## Queries\nQuestion 1: {query}\nQuestion 2: {other}",
    pmsr.TRAJECTORY: "## Analysis\n{missing}\n## Output\nQuestion: {query}",
}
"""How a reply with queries is written, by the prompt that asks for it."""


@dataclass(frozen=True)
class Hop:
    """What a question needs to know of one entity.

    Attributes:
        title: The entity's name.
        heading: Of the section that has it.
        paragraphs: Those of its evidence, each with the sentence that states what is needed.
    """

    title: str
    heading: str
    paragraphs: tuple[tuple[str, str], ...]

    def statement(self, documents: Sequence[str]) -> str:
        """What documents say of it, with the entity's name; "" if none has a paragraph of its evidence."""
        for document in documents:
            for text, sentence in self.paragraphs:
                if self.title in document and text in document:
                    return f"{self.title}: {sentence}"
        return ""

    def is_in(self, records: Sequence[str]) -> bool:
        """Whether records state it."""
        return any(f"{self.title}: {sentence}" in record for record in records for _, sentence in self.paragraphs)


@dataclass(frozen=True)
class TrajectoryTeacher:
    """Replies to the prompts of one question's trajectory.

    It never tells what can't be seen: what the picture shows is described in the words of the entity's summary, a
    record states the evidence that is among the documents, a query names an entity that a record names, and an answer
    is given where the records state it.

    Attributes:
        question: The question.
        hops: What must be known, in the order of its evidence; the last one states the answer.
        description: What the picture shows.
        query_forms: How a query and a second one ask for a section, with the slots `{title}` and `{heading}`.
    """

    question: Question
    hops: tuple[Hop, ...]
    description: str
    query_forms: tuple[str, str]

    def reply(self, request: WriteRequest, shown: int) -> str:
        """The ideal reply; "" if what is shown doesn't allow any.

        Args:
            request: What the pipeline asks.
            shown: How many of the prompt's documents the model sees.
        """
        seen = request.prompt.documents[:shown]
        return _REPLIES[request.operator](self, request, seen)

    def caption(self, request: WriteRequest, seen: Sequence[str]) -> str:
        """What the picture shows."""
        return self.description

    def record(self, request: WriteRequest, seen: Sequence[str]) -> str:
        """The evidence that is among the documents, as far as one leads to the next, and what is missing behind it."""
        lines = []
        for hop in self.hops:
            statement = hop.statement(seen)
            if statement:
                lines.append(statement)
                continue
            if any(document.startswith(hop.title) for document in seen):
                lines.append(f"{hop.title}: {hop.heading or 'what is asked'} is not among this.")
            break
        return " ".join(lines) or NOTHING

    def queries(self, request: WriteRequest, seen: Sequence[str]) -> str:
        """Queries for the first of what is missing; the question and the description if no record names its entity."""
        missing = [hop for hop in self.hops if not hop.is_in(seen)]
        wanted = missing[0] if missing else self.hops[-1]
        form = REPLY_FORMS[request.prompt.template]
        if not any(wanted.title in record for record in seen):
            told = "What the picture shows is missing."
            return form.format(missing=told, query=self.question.text, other=self.description)
        told = f"{wanted.title}: {wanted.heading} is missing." if missing else "Nothing is missing."
        query, other = (" ".join(_filled(each, wanted).split()) for each in self.query_forms)
        return form.format(missing=told, query=query, other=other)

    def answer(self, request: WriteRequest, seen: Sequence[str]) -> str:
        """The accepted answer, if the records state the evidence for it."""
        return self.question.answers[0] if self.hops[-1].is_in(seen) else ""


_REPLIES: Mapping[Writing, Callable[[TrajectoryTeacher, WriteRequest, Sequence[str]], str]] = {
    "caption": TrajectoryTeacher.caption,
    "rewrite": TrajectoryTeacher.queries,
    "reason": TrajectoryTeacher.record,
    "answer": TrajectoryTeacher.answer,
}


def teacher_of(
    question: Question, knowledge: KnowledgeBase, query_forms: Sequence[str] = FORMS
) -> TrajectoryTeacher | None:
    """The teacher of a question; None of one without an answer, or whose evidence the knowledge base doesn't hold.

    Args:
        question: The question.
        knowledge: What its evidence is in.
        query_forms: See `TrajectoryTeacher`.
    """
    sections: dict[str, list[int]] = {}
    for evidence in question.evidence:
        sections.setdefault(evidence.entry_id, []).append(evidence.section)
    if not sections or not question.answers or any(entry_id not in knowledge for entry_id in sections):
        return None
    entries = [knowledge.get(entry_id) for entry_id in sections]
    followed = itertools.zip_longest(entries, [next_entry.title for next_entry in entries[1:]], fillvalue="")
    hops = tuple(
        _hop(entry, sections[entry.id], (title,) if title else _parts(question))
        for entry, title in followed
        if isinstance(entry, Entry)
    )
    if not all(hop.paragraphs for hop in hops):
        return None
    first, second = query_forms
    return TrajectoryTeacher(question, hops, first_sentence(entries[0].summary) or entries[0].title, (first, second))


def _filled(form: str, hop: Hop) -> str:
    slots = {"title": hop.title, "heading": hop.heading}
    return "".join(part if isinstance(part, str) else slots[part.name] for part in prompt_parts(form))


def _parts(question: Question) -> tuple[str, ...]:
    return tuple(part.strip() for part in question.answers[0].split("&&"))


def _hop(entry: Entry, sections: Sequence[int], wanted: Sequence[str]) -> Hop:
    """What is needed of an entry: its evidence's paragraphs, and of each the sentence with what is wanted."""
    passages = [passage for passage in split_passages(entry) if passage.section in sections]
    stated = {
        passage.text: sentence
        for passage in passages
        for sentence in sentences(passage.text)
        if all(part in sentence for part in wanted)
    }
    chosen = stated or {passage.text: passage.text for passage in passages}
    return Hop(entry.title, passages[0].heading if passages else "", tuple(chosen.items()))
