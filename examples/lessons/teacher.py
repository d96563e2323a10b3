"""Teacher that knows a question's evidence, but sees only the prompt, and replies to a pipeline's prompts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reflectune.core.types import Entry, Question
from reflectune.data_builders.annotators.string import canonical_answer
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import first_sentence, sentences, split_passages
from reflectune.inference.operators.requests import WriteOperator, WriteRequest
from reflectune.inference.pipelines import mi_rag, pmsr
from reflectune.models.rendering.turns import prompt_parts

NOTHING = "Nothing about it is among this."
"""Record if none of the question's entities was found."""

UNKNOWN = "The picture shows something unknown."
"""Thought of an agent that hasn't found the entity in the image."""

FORMS = ("{title} {heading}", "{title}")
"""Default forms of a query and a second one."""

REPLY_FORMS: Mapping[str, str] = {
    mi_rag.FOLLOW_UP: "## Analysis\n{missing}\n## Queries\nQuestion 1: {query}\nQuestion 2: {other}",
    pmsr.TRAJECTORY: "## Analysis\n{missing}\n## Output\nQuestion: {query}",
}
"""Forms of replies with queries, by the prompt that asks for them."""


@dataclass(frozen=True)
class Hop:
    """The knowledge about one entity that a question needs.

    Attributes:
        title: The entity's name.
        heading: Heading of the section with the evidence.
        paragraphs: The evidence's paragraphs, each with the sentence that states the fact.
    """

    title: str
    heading: str
    paragraphs: tuple[tuple[str, str], ...]

    def statement(self, documents: Sequence[str]) -> str:
        """Return the documents' statements of the fact, with the entity's name; "" if there are none."""
        for document in documents:
            for text, sentence in self.paragraphs:
                if self.title in document and text in document:
                    return f"{self.title}: {sentence}"
        return ""

    def is_in(self, records: Sequence[str]) -> bool:
        """Return True if the records state the fact."""
        return any(f"{self.title}: {sentence}" in record for record in records for _, sentence in self.paragraphs)


@dataclass(frozen=True)
class TrajectoryTeacher:
    """A teacher that replies to the prompts of one question's trajectory.

    It never uses hidden knowledge: the image is described in the words of the entity's summary, a record states
    evidence from the documents, a query names an entity that a record names, and the answer is one that records state.

    Attributes:
        question: The question.
        hops: Facts to find, in the order of the evidence; the last one states the answer.
        description: Description of the image.
        query_forms: Forms of a query and a second one, with the slots `{title}` and `{heading}`.
    """

    question: Question
    hops: tuple[Hop, ...]
    description: str
    query_forms: tuple[str, str]

    def reply(self, request: WriteRequest, shown: int) -> str:
        """Return the ideal reply; "" if the shown documents don't allow any.

        Args:
            request: The pipeline's request.
            shown: Number of the prompt's documents that the model sees.
        """
        if request.prompt.form == "action":
            return self.action(request.prompt.rounds)
        return _REPLIES[request.operator](self, request, request.prompt.documents[:shown])

    def action(self, rounds: Sequence[tuple[str, str]]) -> str:
        """Return ProMSA's next thought and action: a search for the first missing fact, or the answer if none is."""
        documents = [document for _, result in rounds for document in result.removeprefix("- ").split("\n\n- ")]
        stated: list[str] = []
        for hop in self.hops:
            statement = hop.statement(documents)
            if not statement:
                break
            stated.append(statement)
        else:
            return _said(stated[-1], f"<answer> {canonical_answer(self.question)} </answer>")
        if not any(document.startswith(f"{hop.title}: ") for document in documents) and not stated:
            return _said(UNKNOWN, _called("image_search"))
        missing = f"{hop.title}: {hop.heading} is missing."
        earlier = sum(missing in reply for reply, _ in rounds)
        query = " ".join(_filled(self.query_forms[earlier % len(self.query_forms)], hop).split())
        return _said(" ".join([*stated[-1:], missing]), _called("text_search", query=query))

    def caption(self, request: WriteRequest, shown: Sequence[str]) -> str:
        """Return the description of the image."""
        return self.description

    def record(self, request: WriteRequest, shown: Sequence[str]) -> str:
        """Return the evidence in the documents, up to the first missing fact, which is named."""
        lines = []
        for hop in self.hops:
            statement = hop.statement(shown)
            if statement:
                lines.append(statement)
                continue
            if any(document.startswith(hop.title) for document in shown):
                lines.append(f"{hop.title}: {hop.heading or 'what is asked'} is not among this.")
            break
        return " ".join(lines) or NOTHING

    def queries(self, request: WriteRequest, shown: Sequence[str]) -> str:
        """Return queries for the first missing fact; the question and the description if no record names its entity."""
        missing = [fact for fact in self.hops if not fact.is_in(shown)]
        hop = missing[0] if missing else self.hops[-1]
        form = REPLY_FORMS[request.prompt.template]
        if not any(hop.title in record for record in shown):
            text = "What the picture shows is missing."
            return form.format(missing=text, query=self.question.text, other=self.description)
        text = f"{hop.title}: {hop.heading} is missing." if missing else "Nothing is missing."
        query, other = (" ".join(_filled(query_form, hop).split()) for query_form in self.query_forms)
        return form.format(missing=text, query=query, other=other)

    def answer(self, request: WriteRequest, shown: Sequence[str]) -> str:
        """Return the accepted answer, if the records state its evidence."""
        return canonical_answer(self.question) if self.hops[-1].is_in(shown) else ""


_REPLIES: Mapping[WriteOperator, Callable[[TrajectoryTeacher, WriteRequest, Sequence[str]], str]] = {
    "caption": TrajectoryTeacher.caption,
    "rewrite": TrajectoryTeacher.queries,
    "reason": TrajectoryTeacher.record,
    "answer": TrajectoryTeacher.answer,
}


def teacher_of(
    question: Question, knowledge: KnowledgeBase, query_forms: Sequence[str] = FORMS
) -> TrajectoryTeacher | None:
    """Return the teacher of a question; None without an answer, or if the knowledge base lacks its evidence.

    Args:
        knowledge: The knowledge base of its evidence.
        query_forms: See `TrajectoryTeacher`.
    """
    sections: dict[str, list[int]] = {}
    for evidence in question.evidence:
        sections.setdefault(evidence.entry_id, []).append(evidence.section)
    if not sections or not question.answers or any(entry_id not in knowledge for entry_id in sections):
        return None
    entries = [knowledge.get(entry_id) for entry_id in sections]
    followed = itertools.zip_longest(entries, [next_entry.title for next_entry in entries[1:]], fillvalue="")
    parts = tuple(part.strip() for part in question.answers[0].split("&&"))
    hops = tuple(
        _hop(entry, sections[entry.id], (title,) if title else parts)
        for entry, title in followed
        if isinstance(entry, Entry)
    )
    if not all(hop.paragraphs for hop in hops):
        return None
    first, second = query_forms
    return TrajectoryTeacher(question, hops, first_sentence(entries[0].summary) or entries[0].title, (first, second))


def _said(thought: str, action: str) -> str:
    return f"<thinking> {thought} </thinking>\n{action}"


def _called(tool: str, **arguments: str) -> str:
    call = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{call}</tool_call>"


def _filled(form: str, hop: Hop) -> str:
    slots = {"title": hop.title, "heading": hop.heading}
    return "".join(part if isinstance(part, str) else slots[part.name] for part in prompt_parts(form))


def _hop(entry: Entry, sections: Sequence[int], answers: Sequence[str]) -> Hop:
    """Return the evidence's paragraphs of an entry, each with the sentence that states the fact."""
    passages = [passage for passage in split_passages(entry) if passage.section in sections]
    stated = {
        passage.text: sentence
        for passage in passages
        for sentence in sentences(passage.text)
        if all(part in sentence for part in answers)
    }
    chosen = stated or {passage.text: passage.text for passage in passages}
    return Hop(entry.title, passages[0].heading if passages else "", tuple(chosen.items()))
