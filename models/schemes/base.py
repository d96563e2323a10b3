"""Schemes: reflection tokens, prompts, and the layout of a conversation. The only place where a prompt is written."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.types import AnswerStyle, FollowUp, Passage

Role = Literal["retrieve", "no_retrieve", "relevant", "irrelevant"]
ROLES: tuple[Role, ...] = ("retrieve", "no_retrieve", "relevant", "irrelevant")
SCHEME_FILE = "scheme.json"


@dataclass(frozen=True)
class Scheme:
    """What training and inference agree on.

    Attributes:
        name: `mr2ag`, `mmkb_rag`, or `plain`.
        tokens: The reflection token of each role, as it is written; `plain` has none.
        descriptions: Plain words for each role; a new row of a matrix starts as the mean of their rows.
        prompts: What the user's turn says, by name; `{passage}` and the like mark where untrusted text goes.
    """

    name: str
    tokens: Mapping[str, str]
    descriptions: Mapping[str, str]
    prompts: Mapping[str, str]

    @property
    def is_prompted(self) -> bool:
        """Whether a training example is prompts that hang from a question (`PromptedExample`); mR²AG's is passages."""
        return self.name != MR2AG.name

    @property
    def fingerprint(self) -> str:
        """A hash of everything in the scheme."""
        return fingerprint(dataclasses.asdict(self))

    def save(self, folder: str | Path) -> None:
        """Write `scheme.json` into a checkpoint's folder."""
        write_json(Path(folder) / SCHEME_FILE, {**dataclasses.asdict(self), "fingerprint": self.fingerprint})

    def strip(self, text: str) -> str:
        """A decoded answer without reflection tokens and without runs of spaces."""
        for token in self.tokens.values():
            text = text.replace(token, " ")
        return " ".join(text.split())


def load_scheme(folder: str | Path) -> Scheme:
    """Read a checkpoint's scheme.

    Raises:
        UserError: There is none, it lacks a field, a role or a prompt, or it was changed by hand since it was written.
    """
    path = Path(folder) / SCHEME_FILE
    found = read_json(path, "the checkpoint's scheme")
    names = [field.name for field in dataclasses.fields(Scheme)]
    missing = [name for name in names if name not in found] if isinstance(found, dict) else names
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; take the file that was saved with the checkpoint")
    scheme = Scheme(**{name: found[name] for name in names})
    absent = [role for role in find_scheme(scheme.name).tokens if role not in scheme.tokens]
    if absent:
        raise UserError(
            f"{path} has no token for {', '.join(absent)}; take the file that was saved with the checkpoint"
        )
    if found.get("fingerprint") != scheme.fingerprint:
        raise UserError(
            f"{path} was changed after it was saved (its fingerprint is {found.get('fingerprint')}, its content's "
            f"{scheme.fingerprint}); the weights were trained with the saved one: restore it"
        )
    missing_prompts = [prompt for prompt in find_scheme(scheme.name).prompts if prompt not in scheme.prompts]
    if missing_prompts:
        raise UserError(
            f"{path} has no prompt {', '.join(missing_prompts)}: the checkpoint was trained by an earlier version, "
            "which asked otherwise; train it again"
        )
    return scheme


def find_scheme(name: str) -> Scheme:
    """A scheme by its name.

    Raises:
        UserError: No scheme has this name.
    """
    if name not in SCHEMES:
        raise UserError(f"unknown scheme `{name}`; choose one of {', '.join(SCHEMES)}")
    return SCHEMES[name]


def passage_text(passage: Passage) -> str:
    """A passage as a model reads it: "{title}: {lead} {heading}. {text}", empty parts left out."""
    parts = [
        f"{passage.title.strip()}:" if passage.title.strip() else "",
        passage.lead.strip(),
        f"{passage.heading.strip()}." if passage.heading.strip() else "",
        passage.text.strip(),
    ]
    return " ".join(part for part in parts if part)


def documents_text(passages: Sequence[Passage], *, numbered: bool = False) -> str:
    """Several passages as one text; `numbered` from 1, so that they can be referred to."""
    return " ".join(f"{i}. {passage_text(p)}" if numbered else passage_text(p) for i, p in enumerate(passages, start=1))


ANSWER_PROMPTS: Final[Mapping[str, str]] = {
    "answer_short": "Answer the question with a single word or phrase.",
    "answer_list": "Answer the question as briefly as possible, using '&&' to connect multiple different answers.",
    "answer_free": "",
    "read_short": "{passage} Based on the retrieved document, answer the question with a single word or phrase.",
    "read_list": "{passage} Based on the retrieved documents, answer the question as briefly as possible, using '&&' "
    "to connect multiple different answers.",
    "read_free": "{passage} Based on the retrieved document, answer the question.",
}
"""How an answer is asked for, without documents and with them, by style: the same in every scheme, and of a base model.

`read_short` and `read_list` are those of mR²AG (arXiv 2411.15041), supplementary §7.2 and §7.3. `answer_…` ask for the
same without a document: else what is measured beside it, or learned by a gate, is whether an instruction was there.
"""


def answer_prompt(style: AnswerStyle, *, documents: bool, prompts: Mapping[str, str] = ANSWER_PROMPTS) -> str:
    """The user's words that ask for an answer; "" where nothing stands beside the question."""
    return prompts[f"{'read' if documents else 'answer'}_{style}"]


# How conversations are laid out. A turn's parts are text of ours, the image, or a slot: a place for untrusted text.


@dataclass(frozen=True)
class Slot:
    """A place for untrusted text: a question, passages, an answer."""

    name: str


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation. Its text parts are joined as they are."""

    role: Literal["user", "assistant"]
    parts: tuple[str | Slot, ...]
    image: bool = False


QUESTION: Final = Slot("question")
ANSWER: Final = Slot("answer")
PASSAGE: Final = Slot("passage")


def question_turns() -> tuple[Turn, ...]:
    """user: <image> {question}. How every conversation begins."""
    return (Turn("user", (QUESTION,), image=True),)


def answer_turns(prompts: Mapping[str, str], style: AnswerStyle, *, documents: bool) -> tuple[Turn, ...]:
    """One user's turn that asks for an answer, without reflection.

    user: <image> {question} {instruction}, or with documents: <image> {question} {passages} {instruction}.
    """
    prompt = answer_prompt(style, documents=documents, prompts=prompts)
    return (Turn("user", (QUESTION, " ", *prompt_parts(prompt)), image=True),) if prompt else question_turns()


def passage_turns(scheme: Scheme, style: AnswerStyle) -> tuple[Turn, ...]:
    """mR²AG: user: <image> {question}; assistant: [Retrieval]; user: {passage} {instruction}."""
    prompt = answer_prompt(style, documents=True, prompts=scheme.prompts)
    return (*question_turns(), Turn("assistant", (scheme.tokens["retrieve"],)), Turn("user", prompt_parts(prompt)))


def direct_turns(scheme: Scheme, style: AnswerStyle) -> tuple[Turn, ...]:
    """mR²AG without retrieval, up to the answer, where it is asked for in a turn of its own.

    user: <image> {question}; assistant: [No Retrieval]; user: {instruction}. The instruction follows the gate, as it
    does with a passage: before it, the gate would learn which questions carry one. A free answer has none: it stands
    in the assistant's first turn, behind the token (`reply`).
    """
    prompt = answer_prompt(style, documents=False, prompts=scheme.prompts)
    return (*question_turns(), Turn("assistant", (scheme.tokens["no_retrieve"],)), Turn("user", (prompt,)))


def conversation_turns(scheme: Scheme, follow_ups: int) -> tuple[Turn, ...]:
    """mR²AG, an answered question and what is asked after it about the same picture, answers included.

    user: <image> {question}; assistant: [No Retrieval] {answer}; then, for n = 2, 3, … up to `follow_ups` + 1, user:
    {question_n}; assistant: [No Retrieval] {answer_n}. Each reply begins with the token, since the gate is asked of
    every query of a user (§3.1 of mR²AG). With a token in the first reply alone, later queries would teach that
    nothing is to be decided there, and that a second reply begins with words, where after a passage it begins with
    [Relevant] or [Irrelevant].
    """
    turns = [*question_turns(), reply(scheme, "no_retrieve", answer=True)]
    for number in range(2, follow_ups + 2):
        answered = (scheme.tokens["no_retrieve"], " ", Slot(f"answer_{number}"))
        turns += [Turn("user", (Slot(f"question_{number}"),)), Turn("assistant", answered)]
    return tuple(turns)


def conversation_texts(answer: str, follow_ups: Sequence[FollowUp]) -> dict[str, str]:
    """What stands in the slots of `conversation_turns`, but for the question."""
    later = {
        f"{name}_{number}": text
        for number, each in enumerate(follow_ups, start=2)
        for name, text in (("question", each.question), ("answer", each.answer))
    }
    return {"answer": answer, **later}


def reply(scheme: Scheme, role: Role, *, answer: bool) -> Turn:
    """assistant: a reflection token, and after it an answer if there is one."""
    return Turn("assistant", (scheme.tokens[role], *((" ", ANSWER) if answer else ())))


def prompt_turns(scheme: Scheme, name: str) -> tuple[Turn, ...]:
    """MMKB-RAG: user: <image> {question} {prompt}: every prompt goes on from the same image and question."""
    return (Turn("user", (QUESTION, " ", *prompt_parts(scheme.prompts[name])), image=True),)


def prompt_parts(prompt: str) -> tuple[str | Slot, ...]:
    """Cut a prompt at its `{slots}`."""
    pieces = re.split(r"\{(\w+)\}", prompt)
    parts: list[Any] = [Slot(piece) if i % 2 else piece for i, piece in enumerate(pieces)]
    return tuple(part for part in parts if part)


MR2AG: Final = Scheme(
    name="mr2ag",
    tokens={
        "retrieve": "[Retrieval]",
        "no_retrieve": "[No Retrieval]",
        "relevant": "[Relevant]",
        "irrelevant": "[Irrelevant]",
    },
    descriptions={
        "retrieve": "search for a document about this",
        "no_retrieve": "look at the picture and answer",
        "relevant": "yes, this document is evidence",
        "irrelevant": "no, another document",
    },
    prompts=ANSWER_PROMPTS,
)
"""mR²AG, arXiv 2411.15041, §3.1."""

MMKB_RAG: Final = Scheme(
    name="mmkb_rag",
    tokens={"retrieve": "[Ret]", "no_retrieve": "[NoRet]", "relevant": "[Rel]", "irrelevant": "[NoRel]"},
    descriptions={
        "retrieve": "search for a document about this",
        "no_retrieve": "the answer is known",
        "relevant": "yes, this document helps",
        "irrelevant": "no, another document",
    },
    prompts={
        "ret": "Are documents needed to answer the question?",
        "srt": "Document: {passage} Does this document help to answer the question?",
        "mct": "Documents: {passage} Which documents agree with each other and support the answer? "
        "Give their numbers, then a summary of what they say.",
        "summary": "{passage} Summarize in one or two short sentences what these documents say about the question.",
        **ANSWER_PROMPTS,
    },
)
"""MMKB-RAG, arXiv 2504.10074, §3.1: P_RET, P_SRT, P_MCT, P_vqa. The paper doesn't print its prompts: these are ours.

P_vqa is what a plain model reads (`answer_turns`), so that it asks a base model as naive RAG and closed book do.
`summary` is what Algorithm 3 asks a model that hasn't learned P_MCT yet.
"""

PLAIN: Final = Scheme(name="plain", tokens={}, descriptions={}, prompts=ANSWER_PROMPTS)
"""Supervised fine-tuning without reflection: the papers' baselines, e.g. LLaVA-FT of mR²AG's Table 9."""

SCHEMES: Final[Mapping[str, Scheme]] = {scheme.name: scheme for scheme in (MR2AG, MMKB_RAG, PLAIN)}
