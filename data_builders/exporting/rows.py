"""Flattens training examples into conversations, one per branch, as tools without shared prefixes read them.

Untrusted text that spells a special token is broken up: other tools would read it as one. Our own trainer tokenises
such text as plain text (`models/rendering/untrusted.py`). A file for another tool can't ask for that: `<image>` in a
passage would count as a picture, and `[Relevant]` as a verdict. A space behind its first character makes it plain text
again: `< image>`, `[ Relevant]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from reflectune.core.errors import UserError
from reflectune.core.types import AnswerStyle
from reflectune.models.rendering.turns import ANSWER, Gap, Slot, Turn, Turns, passage_text, question_turns
from reflectune.models.rendering.untrusted import SafeTokenizer
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import PromptedExample, ReflectionExample, TrainingExample
from reflectune.models.schemes.passages import PassageScheme, conversation_texts
from reflectune.models.schemes.prompts import PromptScheme, prompt_documents
from reflectune.models.schemes.registry import all_schemes

Masking = Literal["last_turn", "per_turn", "none"]
"""How a layout says which of the assistant's turns are supervised: the last one of a row alone, each by itself, or all.

A conversation with later rounds is one row; where only a row's last turn is supervised it is one row a round, each with
all rounds before it.

`[Retrieval]` counts once per question (equations 8 and 9 of mR²AG). By turns, it is supervised in the question's first
row; where only a row's last turn is, in a row of its own that ends with it; where all are, in each of its rows. So does
`[No Retrieval]`, unless the answer stands in its turn.
"""
_TAGS = (
    "s unk pad mask bos eos image video audio img im_start im_end im_patch vid_start vid_end vid_patch IMG_CONTEXT "
    "bbox ref-object quad point box ref cot-process start-image end-image image_soft_token start_of_turn end_of_turn "
    "start_of_image end_of_image start_header_id end_header_id eot_id think answer tool_call tool_response"
).split()
_REFLECTION = sorted({token for scheme in all_schemes().values() for token in scheme.tokens.values()})
_SPECIAL = re.compile(
    "|".join(
        [
            r"<\|[^<>|\s]{1,60}\|>",  # <|im_end|>, <|image_pad|>
            r"<\uff5c[^<>\s]{1,60}\uff5c>",  # DeepSeek's
            f"</?(?:{'|'.join(map(re.escape, _TAGS))})>",
            r"\[/?(?:INST|IMG|IMG_BREAK|IMG_END|PAD|UNK|CLS|SEP|MASK)\]",
            r"<</?SYS>>",
            *map(re.escape, _REFLECTION),
        ]
    )
)
"""What some model's tokenizer, or one of the tools, reads as a special token."""


@dataclass(frozen=True)
class Message:
    """One turn. `supervised` is about the assistant's."""

    role: Literal["user", "assistant"]
    text: str
    supervised: bool = False


@dataclass(frozen=True)
class Row:
    """One conversation about one image, which stands before the first turn's text.

    Attributes:
        id: Of the example.
        image: As the example has it.
        question: As it stands in the first turn.
        messages: User and assistant in turn.
    """

    id: str
    image: str
    question: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class RowForm:
    """How conversations are written.

    Attributes:
        masking: What the layout can say about the loss.
        clean: Makes untrusted text safe.
        gap: What stands between a token and an answer, where the scheme leaves that to the chat template.
    """

    masking: Masking
    clean: Callable[[str], str]
    gap: str = " "

    def part(self, part: str | Slot | Gap, texts: Mapping[str, str]) -> str:
        """The text of a turn's part."""
        if isinstance(part, Gap):
            return self.gap
        return texts[part.name] if isinstance(part, Slot) else part


def rows_of(example: Any, scheme: Scheme, form: RowForm) -> Iterator[Row]:
    """The conversations of one training example.

    Args:
        example: The example, of the scheme's type.
        scheme: Its scheme.
        form: How they are written.

    Raises:
        UserError: The example could not be trained on.
    """
    if not form.clean(example.question):
        raise UserError("the question is empty")
    if not example.image.strip():
        raise UserError("the question has no image")
    if example.style not in get_args(AnswerStyle):
        raise UserError(f"`style` should be one of {', '.join(get_args(AnswerStyle))}; found `{example.style}`")
    if isinstance(scheme, PromptScheme):
        yield from (
            _row(example, turns, fill, replace(form, masking="per_turn")) for turns, fill in _prompted(example, scheme)
        )
    elif not isinstance(scheme, PassageScheme):
        raise UserError(f"data of the scheme {scheme.name} has no layout of conversations to be written in")
    elif not example.retrieve:
        yield from _looked(example, scheme, form)
    else:
        yield from _reflected(example, scheme, form)


def _looked(example: ReflectionExample, scheme: PassageScheme, form: RowForm) -> Iterator[Row]:
    """A question answered by looking: its gate, where that needs a row of its own, and its answer."""
    if not form.clean(example.answer):
        raise UserError("a question without retrieval needs an answer")
    direct_turns = scheme.direct_turns(example.style)
    if direct_turns is None:
        yield from _conversation(example, scheme, form)
        return
    if example.follow_ups:
        raise UserError(f"a conversation goes on behind a free answer alone; this one is `{example.style}`")
    if form.masking == "last_turn":
        yield _row(example, (*question_turns(), scheme.reply("no_retrieve")), {}, form)
    yield _row(example, (*direct_turns, Turn("assistant", (ANSWER,))), {"answer": example.answer}, form)


def _conversation(example: ReflectionExample, scheme: PassageScheme, form: RowForm) -> Iterator[Row]:
    """A free answer and what is asked after it: one row, or one for each round that ends with it."""
    if any(not (form.clean(later.question) and form.clean(later.answer)) for later in example.follow_ups):
        raise UserError("a later round of the conversation lacks its question or its answer")
    every = len(example.follow_ups)
    for count in range(every + 1) if form.masking == "last_turn" else [every]:
        fill = conversation_texts(example.answer, example.follow_ups[:count])
        yield _row(example, scheme.conversation_turns(count), fill, form)


def _reflected(example: ReflectionExample, scheme: PassageScheme, form: RowForm) -> Iterator[Row]:
    """A question with retrieval: its gate, where that needs a row of its own, and one row per passage."""
    if not example.branches:
        raise UserError("a question with retrieval needs a passage")
    if form.masking == "last_turn":
        yield _row(example, (*question_turns(), scheme.reply("retrieve")), {}, form)
    for number, branch in enumerate(example.branches):
        if branch.relevant and not form.clean(branch.answer):
            raise UserError(f"branch {number}: a relevant passage needs an answer")
        if not form.clean(passage_text(branch.passage)):
            raise UserError(f"branch {number}: the passage is empty")
        turns = scheme.verdict_turns(example.style, relevant=branch.relevant)
        fill = {"passage": passage_text(branch.passage), "answer": branch.answer}
        later = form.masking == "per_turn" and number > 0
        yield _row(example, turns, fill, replace(form, masking="last_turn") if later else form)


def _prompted(example: PromptedExample, scheme: PromptScheme) -> Iterator[tuple[Turns, dict[str, str]]]:
    if not example.branches:
        raise UserError("nothing is asked: there is no branch")
    if example.system:
        raise UserError("it has a system's turn, which these layouts don't; train on it with train/sft.py")
    for number, branch in enumerate(example.branches):
        if bool(branch.role) == bool(branch.reply.strip()):
            raise UserError(f"branch {number}, `{branch.prompt}`: it needs either a token (`role`) or words (`reply`)")
        if branch.role and branch.role not in scheme.tokens:
            raise UserError(f"branch {number}, `{branch.prompt}`: unknown role `{branch.role}`")
        if example.template:
            turns = (scheme.template_turn(example), Turn("assistant", (ANSWER,)))
            yield turns, {"documents": example.shown_documents[number], "answer": branch.reply}
            continue
        documents = prompt_documents(branch.prompt, branch.documents)
        yield scheme.replied_turns(branch, example.style), {"passage": documents, "answer": branch.reply}


def _row(
    example: TrainingExample,
    turns: Turns,
    fill: Mapping[str, str],
    form: RowForm,
) -> Row:
    question = form.clean(example.question)
    texts = {"question": question, **{name: form.clean(text) for name, text in fill.items()}}
    messages = []
    for place, turn in enumerate(turns):
        text = "".join(form.part(part, texts) for part in turn.parts)
        if turn.role == "system":
            raise ValueError(f"example {example.id} has a system's turn, which no scheme trains on")
        counts = turn.role == "assistant" and (form.masking != "last_turn" or place == len(turns) - 1)
        messages.append(Message(turn.role, text, counts))
    return Row(example.id, example.image, question, tuple(messages))


class Neutraliser:
    """Breaks special tokens in untrusted text, and counts the texts that it changed.

    Args:
        separators: Further texts that a tool cuts a conversation at; none begins with a space.
    """

    def __init__(self, separators: Sequence[str] = ()) -> None:
        self._pattern = re.compile("|".join([_SPECIAL.pattern, *map(re.escape, separators)]))
        self.changed = 0

    def __call__(self, text: str) -> str:
        """The text, stripped and without special tokens; unchanged if there is none."""
        before = text = SafeTokenizer.clean(text)
        while self._pattern.search(text):
            text = self._pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        self.changed += text != before
        return text
