"""Flatten training examples into conversations, one per branch, for tools without shared prefixes.

Other tools would read untrusted text that spells a special token as that token: `<image>` in a passage as an image,
`[Relevant]` as a verdict. A space after its first character makes it plain text: `< image>`, `[ Relevant]`. Our own
trainer needs no such change (`models/rendering/untrusted.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from reflectune.core.errors import UserError
from reflectune.models.rendering.turns import ANSWER, Gap, ImageSlot, Slot, Turn, Turns, passage_text, question_turns
from reflectune.models.rendering.untrusted import SafeTokenizer
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import PromptedExample, ReflectionExample, TrainingExample
from reflectune.models.schemes.passages import PassageScheme, conversation_texts
from reflectune.models.schemes.prompts import PromptScheme, prompt_documents
from reflectune.models.schemes.registry import all_schemes

Masking = Literal["last_turn", "per_turn", "none"]
"""Assistant turns that a layout can mask in the loss: all but a row's last one, any single turn, or none.

`[Retrieval]` counts once per question (equations 8 and 9 of mR²AG), so its supervision depends on the masking.
`per_turn`: in the question's first row. `last_turn`: in a row of its own. `none`: in every row of the question. The
same holds for `[No Retrieval]`, unless its turn contains the answer. With `last_turn`, a conversation of several rounds
becomes one row per round, each with all earlier rounds.
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
"""Texts that a model's tokenizer, or one of the tools, reads as a special token."""


@dataclass(frozen=True)
class Message:
    """A turn of a conversation. `supervised` matters for the assistant's turns only."""

    role: Literal["user", "assistant"]
    text: str
    supervised: bool = False


@dataclass(frozen=True)
class ImageConversation:
    """A conversation about one image, which precedes the text of the first turn.

    Attributes:
        id: The example's id.
        image: Path of the image, as in the example.
        question: The question, as in the first turn.
        messages: Turns of user and assistant, alternating.
    """

    id: str
    image: str
    question: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class ConversationForm:
    """Form of conversations.

    Attributes:
        masking: Assistant turns that the layout can leave out of the loss.
        clean: Makes untrusted text safe.
        gap: Separator between a reflection token and an answer, where the scheme leaves it to the chat template.
    """

    masking: Masking
    clean: Callable[[str], str]
    gap: str = " "

    def part(self, part: str | Slot | Gap | ImageSlot, texts: Mapping[str, str]) -> str:
        """Return the text of a part of a turn."""
        if isinstance(part, ImageSlot):
            raise ValueError("a turn shows a further image, which no scheme trains on")
        if isinstance(part, Gap):
            return self.gap
        return texts[part.name] if isinstance(part, Slot) else part


def conversations(example: Any, scheme: Scheme, form: ConversationForm) -> Iterator[ImageConversation]:
    """Yield the conversations of a training example.

    Args:
        example: The example, of the scheme's type and accepted by `Scheme.problem`.
        scheme: Its scheme.
        form: Form of the conversations.

    Raises:
        UserError: The example can't be written as conversations.
    """
    if isinstance(scheme, PromptScheme):
        per_turn = replace(form, masking="per_turn")
        yield from (_conversation(example, turns, texts, per_turn) for turns, texts in _prompted(example, scheme))
    elif not isinstance(scheme, PassageScheme):
        raise UserError(f"data of the scheme {scheme.name} can't be written as conversations")
    else:
        yield from (_with_retrieval if example.retrieve else _without_retrieval)(example, scheme, form)


def _without_retrieval(
    example: ReflectionExample, scheme: PassageScheme, form: ConversationForm
) -> Iterator[ImageConversation]:
    """Yield a question's gate, if it needs a row of its own, and its answer.

    Follow-up questions are in the same row, or in one row per round (see `Masking`).
    """
    direct_turns, last = scheme.direct_turns(example.style), len(example.follow_ups)
    if direct_turns is None:
        for count in range(last + 1) if form.masking == "last_turn" else [last]:
            texts = conversation_texts(example.answer, example.follow_ups[:count])
            yield _conversation(example, scheme.conversation_turns(count), texts, form)
        return
    if form.masking == "last_turn":
        yield _conversation(example, (*question_turns(), scheme.reply("no_retrieve")), {}, form)
    yield _conversation(example, (*direct_turns, Turn("assistant", (ANSWER,))), {"answer": example.answer}, form)


def _with_retrieval(
    example: ReflectionExample, scheme: PassageScheme, form: ConversationForm
) -> Iterator[ImageConversation]:
    """Yield a question's gate, if it needs a row of its own, and one row per passage."""
    if form.masking == "last_turn":
        yield _conversation(example, (*question_turns(), scheme.reply("retrieve")), {}, form)
    for number, branch in enumerate(example.branches):
        if not form.clean(passage_text(branch.passage)):
            raise UserError(f"branch {number}: the passage is empty")
        turns = scheme.verdict_turns(example.style, relevant=branch.relevant)
        texts = {"passage": passage_text(branch.passage), "answer": branch.answer}
        gate_counted = form.masking == "per_turn" and number > 0
        yield _conversation(example, turns, texts, replace(form, masking="last_turn") if gate_counted else form)


def _prompted(example: PromptedExample, scheme: PromptScheme) -> Iterator[tuple[Turns, dict[str, str]]]:
    """Yield the turns of each branch, and the texts of their slots."""
    if example.system:
        raise UserError("it has a system prompt, which these layouts lack; train on it with train/sft.py")
    if example.follow_ups:
        raise UserError("it is a trajectory of several rounds, which these layouts lack; train on it with train/sft.py")
    for number, branch in enumerate(example.branches):
        if branch.weight != 1:
            raise UserError("it has weighted labels, which these layouts lack; derive labels with `soft: false`")
        if branch.role and branch.role not in scheme.tokens:
            raise UserError(f"branch {number}, `{branch.prompt}`: unknown role `{branch.role}`")
        if example.template:
            turns = (scheme.template_turn(example), Turn("assistant", (ANSWER,)))
            yield turns, {"documents": example.shown_documents[number], "answer": branch.reply}
            continue
        documents = prompt_documents(branch.prompt, branch.documents)
        yield scheme.replied_turns(branch, example.style), {"passage": documents, "answer": branch.reply}


def _conversation(
    example: TrainingExample, turns: Turns, texts: Mapping[str, str], form: ConversationForm
) -> ImageConversation:
    question = form.clean(example.question)
    texts = {"question": question, **{name: form.clean(text) for name, text in texts.items()}}
    messages = []
    for position, turn in enumerate(turns):
        if turn.role == "system":
            raise ValueError(f"example {example.id} has a system turn, which no scheme trains on")
        text = "".join(form.part(part, texts) for part in turn.parts)
        supervised = turn.role == "assistant" and (form.masking != "last_turn" or position == len(turns) - 1)
        messages.append(Message(turn.role, text, supervised))
    return ImageConversation(example.id, example.image, question, tuple(messages))


class Neutraliser:
    """A function that breaks special tokens in untrusted text, and counts the texts that it changed.

    Args:
        separators: Further texts at which a tool cuts a conversation. None may begin with a space.
    """

    def __init__(self, separators: Sequence[str] = ()) -> None:
        self._pattern = re.compile("|".join([_SPECIAL.pattern, *map(re.escape, separators)]))
        self.changed = 0

    def __call__(self, text: str) -> str:
        """Return the text, stripped and without special tokens."""
        before = text = SafeTokenizer.clean(text)
        while self._pattern.search(text):
            text = self._pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        self.changed += text != before
        return text
