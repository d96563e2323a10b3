"""Recognises a conversation as a branch of our form: the reverse of `rows.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reflectune.core.errors import UserError
from reflectune.core.types import Branch, Passage, PromptedBranch, PromptName
from reflectune.data_builders.exporting.conversations import Conversation
from reflectune.models.scheme import Scheme, Slot, prompt_parts


@dataclass(frozen=True)
class Piece:
    """What a conversation says of its question.

    Attributes:
        kind: `gate`: it is to be looked up; `look`: it is answered by looking; `read`: a passage; `task`: MMKB-RAG's.
        question: The question.
        answer: Of `look`.
        branch: Of `read` and `task`.
        multi_answer: Of `read`: whether several answers are asked for.
    """

    kind: Literal["gate", "look", "read", "task"]
    question: str
    answer: str = ""
    branch: Branch | PromptedBranch | None = None
    multi_answer: bool = False


def recognise(row: Conversation, scheme: Scheme, question: str = "") -> Piece:
    """What a conversation says.

    Args:
        row: The conversation.
        scheme: Whose form it should have.
        question: Its question, where it is known; else it is found.

    Raises:
        UserError: It is not of our form.
    """
    if not row.turns[0]:
        raise UserError("the question is empty")
    return _task(row.turns, scheme, question) if scheme.name == "mmkb_rag" else _reflection(row.turns, scheme)


def _reflection(turns: Sequence[str], scheme: Scheme) -> Piece:
    tokens, first = scheme.tokens, turns[1]
    if len(turns) == 2 and first == tokens["retrieve"]:
        return Piece("gate", turns[0])
    if len(turns) == 2 and (answer := _after(first, tokens["no_retrieve"])):
        return Piece("look", turns[0], answer)
    if len(turns) == 2 or first != tokens["retrieve"]:
        raise UserError(
            f"the assistant should say {tokens['retrieve']}, or {tokens['no_retrieve']} and an answer; found {first!r}"
        )
    if len(turns) > 4:
        raise UserError(f"a row is about one passage, this has {len(turns) // 2 - 1}; write a row for each of them")
    passage, multi_answer = _passage(turns[2], scheme)
    answer, verdict = _after(turns[3], tokens["relevant"]), turns[3]
    if not answer and verdict != tokens["irrelevant"]:
        raise UserError(
            f"the verdict should be {tokens['irrelevant']}, or {tokens['relevant']} and an answer; found {verdict!r}"
        )
    return Piece("read", turns[0], branch=Branch(passage, bool(answer), answer), multi_answer=multi_answer)


def _passage(text: str, scheme: Scheme) -> tuple[Passage, bool]:
    for name in ("read", "read_multi_answer"):
        if match := re.fullmatch(_pattern(scheme.prompts[name]), text, re.DOTALL):
            return as_passage(match["passage"]), name == "read_multi_answer"
    raise UserError(f"the second turn of the user should be a passage and {scheme.prompts['read']!r}; found {text!r}")


def _task(turns: Sequence[str], scheme: Scheme, question: str) -> Piece:
    if len(turns) != 2:
        raise UserError(f"a task is one turn of user and assistant, found {len(turns)} turns")
    asked, said = turns
    role = next((role for role, token in scheme.tokens.items() if token == said), "")
    if not said or (not role and any(token in said for token in scheme.tokens.values())):
        raise UserError(f"the reply should be one of {', '.join(scheme.tokens.values())}, or words; found {said!r}")
    names = (("ret",) if "retrieve" in role else ("srt",)) if role else ("mct", "vqa")
    for name in names:
        if found := _asked(asked, scheme, name, question):
            own, documents = found
            return Piece("task", own, branch=PromptedBranch(_NAMES[name], documents, role, "" if role else said))
    if role:
        raise UserError(f"{said} should answer {scheme.prompts[names[0]]!r}; found {asked!r}")
    return Piece("task", asked, branch=PromptedBranch("vqa", (), "", said))


_NAMES: dict[str, PromptName] = {"ret": "ret", "srt": "srt", "mct": "mct", "vqa": "vqa"}


def _asked(asked: str, scheme: Scheme, name: str, question: str) -> tuple[str, tuple[Passage, ...]] | None:
    """Question and documents of a user's turn that holds this prompt, or None."""
    match = re.fullmatch(_pattern(scheme.prompts[name], question), asked, re.DOTALL)
    if match is None or (name == "vqa" and asked == question):
        return None
    if name == "vqa" and not question:
        raise UserError("it can't be told where the question ends and the documents begin; add a column `question`")
    text = match.groupdict().get("passage") or ""
    if name == "mct":
        return match["question"], _numbered(text)
    return match["question"], (as_passage(text),) if text else ()


def _pattern(prompt: str, question: str | None = None) -> str:
    """A prompt as a regular expression: with a question before it, known or ("") to be found, or alone (None)."""
    parts = ["(?P<passage>.+)" if isinstance(part, Slot) else re.escape(part) for part in prompt_parts(prompt)]
    if question is None:
        return "".join(parts)
    return f"(?P<question>{re.escape(question) or '.+?'}) {''.join(parts)}"


def _numbered(text: str) -> tuple[Passage, ...]:
    """Cut "1. … 2. … 3. …" at its numbers."""
    pieces: list[str] = []
    rest = text
    if not rest.startswith("1. "):
        raise UserError(f"the documents should be numbered from 1; found {text!r}")
    rest = rest.removeprefix("1. ")
    while (mark := f" {len(pieces) + 2}. ") in rest:
        piece, rest = rest.split(mark, 1)
        pieces.append(piece)
    return tuple(map(as_passage, [*pieces, rest]))


def as_passage(text: str) -> Passage:
    """A passage of which only the text is known: title, lead and heading, if it has them, are in it."""
    return Passage("", 0, 0, "", "", "", text)


def _after(text: str, token: str) -> str:
    """The words after a token and a space, or ""."""
    return text.removeprefix(f"{token} ").strip() if text.startswith(f"{token} ") else ""
