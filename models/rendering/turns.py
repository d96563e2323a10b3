"""Turns of a conversation, and the instructions for answers, which all schemes and base models share."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

from reflectune.core.types import AnswerStyle, Passage

T = TypeVar("T")


@dataclass(frozen=True)
class Slot:
    """A place for untrusted text: a question, passages, an answer."""

    name: str


@dataclass(frozen=True)
class Gap:
    """Separator between a reflection token and the answer, chosen so that the answer is tokenized as directly after the
    assistant's cue: a space for LLaVA, nothing for Qwen.
    """


@dataclass(frozen=True)
class ImageSlot:
    """A place for an image between texts; a chat template may put all images of a turn before its texts."""


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation. Its parts are joined without separators; with `image` it begins with an image."""

    role: Literal["user", "assistant", "system"]
    parts: tuple[str | Slot | Gap | ImageSlot, ...]
    image: bool = False


Turns = tuple[Turn, ...]


class Vocabulary(Protocol):
    """Interface of a scheme, as a renderer uses it."""

    @property
    def name(self) -> str:
        """The scheme's name."""
        ...

    @property
    def tokens(self) -> Mapping[str, str]:
        """The special token of each role, as it is written."""
        ...

    @property
    def replies(self) -> Sequence[str]:
        """The roles whose token begins the assistant's turn; other tokens are used in prompts."""
        ...

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prompts of the user's turn, by name."""
        ...

    def strip(self, text: str) -> str:
        """Return a decoded reply without special tokens."""
        ...


GAP: Final = Gap()
IMAGE: Final = ImageSlot()
QUESTION: Final = Slot("question")
ANSWER: Final = Slot("answer")

ANSWER_PROMPTS: Final[Mapping[str, str]] = {
    "answer_short": "Answer the question with a single word or phrase.",
    "answer_list": "Answer the question as briefly as possible, using '&&' to connect multiple different answers.",
    "answer_free": "",
    "read_short": "{passage} Based on the retrieved document, answer the question with a single word or phrase.",
    "read_list": "{passage} Based on the retrieved documents, answer the question as briefly as possible, using '&&' "
    "to connect multiple different answers.",
    "read_free": "{passage} Based on the retrieved document, answer the question.",
}
"""Instructions by answer style, with and without documents: the same in every scheme, and for a base model.

`read_short` and `read_list` are those of mR²AG (arXiv 2411.15041), supplementary §7.2 and §7.3. `answer_…` are the
same requests without a document: otherwise a gate would learn whether an instruction was given.
"""


def answer_prompt(style: AnswerStyle, *, documents: bool, prompts: Mapping[str, str] = ANSWER_PROMPTS) -> str:
    """Return the instruction for an answer; "" if there is none."""
    return prompts[f"{'read' if documents else 'answer'}_{style}"]


def question_turns() -> Turns:
    """Return the turns that begin every conversation: user: <image> {question}."""
    return (Turn("user", (QUESTION,), image=True),)


def answer_turns(prompts: Mapping[str, str], style: AnswerStyle, *, documents: bool) -> Turns:
    """Return one user's turn that asks for an answer, without reflection.

    user: <image> {question} {instruction}, or with documents: <image> {question} {passages} {instruction}.
    """
    return asking_turns(answer_prompt(style, documents=documents, prompts=prompts))


def asking_turns(prompt: str) -> Turns:
    """Return the user's turn `<image> {question} {prompt}`; without a prompt only the question."""
    return (Turn("user", (QUESTION, " ", *prompt_parts(prompt)), image=True),) if prompt else question_turns()


def further_images(images: int) -> tuple[str | ImageSlot, ...]:
    """Return the places of a question's second to last image, each after its label, for the start of its turn.

    Args:
        images: Number of the question's images, the first one included.
    """
    return tuple(part for n in range(2, images + 1) for part in (f"Picture {n}: ", IMAGE, "\n"))


def round_turns(rounds: int) -> Turns:
    """Return the assistant's replies and the users' turns with their tools' results, as Qwen's templates write them."""
    return tuple(turn for n in range(rounds) for turn in (Turn("assistant", (Slot(f"reply_{n}"),)), result_turn(n)))


def earlier_turns(earlier: Sequence[tuple[str, str]], *, image: bool) -> Turns:
    """Return turns of a conversation's beginning: the user's templates and the assistant's replies, both trusted."""
    turns: list[Turn] = []
    for asked, reply in earlier:
        turns += [Turn("user", prompt_parts(asked), image=image and not turns), Turn("assistant", (reply,))]
    return tuple(turns)


def result_turn(number: int) -> Turn:
    """Return the user's turn with a tool's result."""
    return Turn("user", ("<tool_response>\n", Slot(f"result_{number}"), "\n</tool_response>"))


def prompt_parts(prompt: str) -> tuple[str | Slot, ...]:
    """Cut a prompt at its `{slots}`."""
    pieces = re.split(r"\{(\w+)\}", prompt)
    parts: list[Any] = [Slot(piece) if i % 2 else piece for i, piece in enumerate(pieces)]
    return tuple(part for part in parts if part)


def passage_text(passage: Passage) -> str:
    """Return a passage as a model reads it: "{title}: {lead} {heading}. {text}", empty parts left out."""
    parts = [
        f"{passage.title.strip()}:" if passage.title.strip() else "",
        passage.lead.strip(),
        f"{passage.heading.strip()}." if passage.heading.strip() else "",
        passage.text.strip(),
    ]
    return " ".join(part for part in parts if part)


def documents_text(passages: Sequence[Passage], *, numbered: bool = False) -> str:
    """Return several passages as one text; `numbered` from 1, so that they can be referred to."""
    return " ".join(f"{i}. {passage_text(p)}" if numbered else passage_text(p) for i, p in enumerate(passages, start=1))


def fit_leading(
    render: Callable[[int], T], passages: int, room: int, *, least: int = 0, length: Callable[[Any], int] = len
) -> tuple[int, T]:
    """Return how many leading passages fit into a prompt, and that prompt.

    Args:
        render: Renders the prompt with a number of leading passages; its length must not decrease with the number.
        passages: Number of passages.
        room: Maximum tokens of the prompt.
        least: Number of passages to keep even if they don't fit.
        length: Counts the tokens of a prompt.
    """
    whole = render(passages)
    if passages <= least or length(whole) <= room:
        return passages, whole
    fitting = bisect.bisect_right(range(least + 1, passages), room, key=lambda count: length(render(count)))
    return least + fitting, render(least + fitting)
