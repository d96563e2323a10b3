"""Recognises a conversation as a branch of our form: the reverse of `rows.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from reflectune.core.errors import UserError
from reflectune.core.types import AnswerStyle, FollowUp, Passage
from reflectune.data_builders.exporting.conversations import Conversation
from reflectune.models.rendering.turns import Slot, answer_prompt, prompt_parts
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import Branch, PromptedBranch
from reflectune.models.schemes.passages import PassageScheme
from reflectune.models.schemes.prompts import PromptScheme

_STYLES: tuple[AnswerStyle, ...] = get_args(AnswerStyle)
_ASKING: tuple[AnswerStyle, ...] = ("short", "list")
"""Those whose answer is asked for without documents too."""


@dataclass(frozen=True)
class Piece:
    """What a conversation says of its question.

    Attributes:
        kind: `gate`: whether it is to be looked up, and no more; `look`: it is answered by looking; `read`: a passage;
            `task`: a prompt of MMKB-RAG or of plain fine-tuning.
        question: The question.
        retrieve: Of `gate`: what it says.
        answer: Of `look`.
        follow_ups: Of `look`: the later rounds of its conversation.
        branch: Of `read` and `task`.
        style: How an answer is asked for; None where none is.
    """

    kind: Literal["gate", "look", "read", "task"]
    question: str
    retrieve: bool = True
    answer: str = ""
    follow_ups: tuple[FollowUp, ...] = ()
    branch: Branch | PromptedBranch | None = None
    style: AnswerStyle | None = None


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
    if isinstance(scheme, PromptScheme):
        return _task(row.turns, scheme, question)
    if isinstance(scheme, PassageScheme):
        return _reflection(row.turns, scheme)
    raise UserError(f"data of the scheme {scheme.name} has no layout of conversations to be read from")


def _reflection(turns: Sequence[str], scheme: PassageScheme) -> Piece:
    tokens, first = scheme.tokens, turns[1]
    if len(turns) == 2 and first == tokens["retrieve"]:
        return Piece("gate", turns[0])
    if answer := _after(first, tokens["no_retrieve"]):
        return Piece("look", turns[0], answer=answer, follow_ups=_follow_ups(turns[2:], scheme), style="free")
    if len(turns) == 2 and first == tokens["no_retrieve"]:
        return Piece("gate", turns[0], retrieve=False)
    if len(turns) == 4 and first == tokens["no_retrieve"]:
        if not turns[3]:
            raise UserError(f"the assistant's answer after {tokens['no_retrieve']} is empty")
        return Piece("look", turns[0], answer=turns[3], style=_direct_style(turns[2], scheme))
    if len(turns) == 2 or first != tokens["retrieve"]:
        raise UserError(
            f"the assistant should say {tokens['retrieve']}, or {tokens['no_retrieve']} and an answer; found {first!r}"
        )
    if len(turns) > 4:
        raise UserError(f"a row is about one passage, this has {len(turns) // 2 - 1}; write a row for each of them")
    passage, style = _passage(turns[2], scheme)
    answer, verdict = _after(turns[3], tokens["relevant"]), turns[3]
    if not answer and verdict != tokens["irrelevant"]:
        raise UserError(
            f"the verdict should be {tokens['irrelevant']}, or {tokens['relevant']} and an answer; found {verdict!r}"
        )
    return Piece("read", turns[0], branch=Branch(passage, bool(answer), answer), style=style)


def _follow_ups(turns: Sequence[str], scheme: PassageScheme) -> tuple[FollowUp, ...]:
    """The later rounds of a conversation, whose replies each begin with [No Retrieval]."""
    token = scheme.tokens["no_retrieve"]
    later = []
    for question, said in zip(turns[::2], turns[1::2], strict=True):
        answer = _after(said, token)
        if not question or not answer:
            raise UserError(
                f"a conversation that begins with {token} and an answer should go on so in each round; found "
                f"{question!r} of the user and {said!r} of the assistant"
            )
        later.append(FollowUp(question, answer))
    return tuple(later)


def _direct_style(text: str, scheme: Scheme) -> AnswerStyle:
    """How a user's turn after [No Retrieval] asks for the answer; a free one has no such turn."""
    for style in _ASKING:
        if text == answer_prompt(style, documents=False, prompts=scheme.prompts):
            return style
    wanted = scheme.prompts["answer_short"]
    raise UserError(f"the user's turn after {scheme.tokens['no_retrieve']} should be {wanted!r}; found {text!r}")


def _passage(text: str, scheme: Scheme) -> tuple[Passage, AnswerStyle]:
    for style in _STYLES:
        prompt = answer_prompt(style, documents=True, prompts=scheme.prompts)
        if match := re.fullmatch(_pattern(prompt), text, re.DOTALL):
            return as_passage(match["passage"]), style
    wanted = scheme.prompts["read_short"]
    raise UserError(f"the second turn of the user should be a passage and {wanted!r}; found {text!r}")


def _task(turns: Sequence[str], scheme: Scheme, question: str) -> Piece:
    if len(turns) != 2:
        raise UserError(f"a task is one turn of user and assistant, found {len(turns)} turns")
    text, reply = turns
    role = next((role for role, token in scheme.tokens.items() if token == reply), "")
    if not reply or (not role and any(token in reply for token in scheme.tokens.values())):
        expected = ", or ".join(filter(None, (", ".join(scheme.tokens.values()), "words")))
        raise UserError(f"the reply should be {expected}; found {reply!r}")
    if role:
        name: Literal["ret", "srt"] = "ret" if "retrieve" in role else "srt"
        if match := _asked(text, scheme.prompts[name], question):
            return Piece("task", match[0], branch=PromptedBranch(name, _documents(match[1]), role))
        raise UserError(f"{reply} should answer {scheme.prompts[name]!r}; found {text!r}")
    if "mct" in scheme.prompts and (match := _asked(text, scheme.prompts["mct"], question)):
        return Piece("task", match[0], branch=PromptedBranch("mct", _numbered(match[1]), "", reply))
    return _answer_task(text, reply, scheme, question)


def _answer_task(text: str, reply: str, scheme: Scheme, question: str) -> Piece:
    """What asks for an answer: with documents, without, or freely, where the question is all that stands there."""
    for style in _STYLES:
        match = _asked(text, answer_prompt(style, documents=True, prompts=scheme.prompts), question)
        if match and not question:
            raise UserError("it can't be told where the question ends and documents begin; add a column `question`")
        if match:
            return Piece("task", match[0], branch=PromptedBranch("vqa", _documents(match[1]), "", reply), style=style)
    for style in _ASKING:
        if match := _asked(text, answer_prompt(style, documents=False, prompts=scheme.prompts), question):
            return Piece("task", match[0], branch=PromptedBranch("vqa", (), "", reply), style=style)
    return Piece("task", text, branch=PromptedBranch("vqa", (), "", reply), style="free")


def _asked(text: str, prompt: str, question: str) -> tuple[str, str] | None:
    """Question and documents of a user's turn that holds this prompt, or None."""
    match = re.fullmatch(_pattern(prompt, question), text, re.DOTALL)
    return (match["question"], match.groupdict().get("passage") or "") if match else None


def _documents(text: str) -> tuple[Passage, ...]:
    return (as_passage(text),) if text else ()


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
    """The words after a token, or ""."""
    return text.removeprefix(token).strip() if text.startswith(token) else ""
