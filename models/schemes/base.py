"""Base class of schemes: reflection tokens, prompts, training examples with labels, gates, and reading of replies.

Training, inference and probing ask the scheme; nothing else writes a prompt. A scheme is one module of this folder,
found by its name (`reflectune.models.schemes.registry`).
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from PIL import Image

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.types import AnswerStyle, Passage
from reflectune.models.attention.tree import Tree
from reflectune.models.rendering.renderer import Rendered, Renderer, Supervised
from reflectune.models.rendering.turns import Turns
from reflectune.models.schemes.gate_outcomes import AnchoredPassage, KLAnchor

SCHEME_FILE = "scheme.json"

AScheme = TypeVar("AScheme", bound="Scheme")


@dataclass(frozen=True)
class Gate:
    """A decision that a model makes by one of two tokens.

    Attributes:
        name: As metrics call it, e.g. `relevance` in `relevance_auroc`.
        positive: The role of the token that says yes.
        negative: The role of the token that says no.
    """

    name: str
    positive: str
    negative: str

    def labels(self, roles: Iterable[str]) -> set[bool]:
        """Return the answers of this gate among the roles of some tokens."""
        return {role == self.positive for role in roles if role in (self.positive, self.negative)}


@dataclass(frozen=True)
class AskedAnswer:
    """Training example's answer, asked for as in inference.

    Attributes:
        prefix: Image and question.
        branch: Prompt, with the passage if there is one.
        role: Role of the reflection token before the answer, or "".
        answer: The answer to train on.
    """

    prefix: Rendered
    branch: list[int]
    role: str
    answer: str


@dataclass(frozen=True)
class Scheme(ABC):
    """Tokens and prompts shared by training and inference. Saved with a checkpoint as `scheme.json`.

    Attributes:
        name: Name of the scheme and of its module.
        tokens: Special token of each role; none for a scheme without reflection.
        descriptions: Description of each role; a new token's row is initialized with the mean of its words' rows.
        prompts: Prompts of the user's turn by name, with `{passage}` and the like for untrusted text.
    """

    name: str
    tokens: Mapping[str, str]
    descriptions: Mapping[str, str]
    prompts: Mapping[str, str]

    form: ClassVar[str] = "a scheme"
    """Kind of scheme, in words."""
    title: ClassVar[str]
    """Title in model cards."""
    example_type: ClassVar[type]
    """The dataclass of a training example: a `TrainingExample` whose fields are the columns of its Parquet file."""
    gates: ClassVar[tuple[Gate, ...]] = ()
    """The gates, in order: whether to retrieve, and whether a passage is evidence."""
    is_released: ClassVar[bool] = False
    """True if third parties released checkpoints with these tokens, which lack `scheme.json` but are fine-tuned."""
    learns_from: ClassVar[tuple[str, ...]] = ()
    """Other schemes whose training data it can use: the example type and the meaning of the labels are the same."""
    variants: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Alternative prompts to train with, by variant; a checkpoint's `scheme.json` records the prompts used."""
    long_question: ClassVar[int]
    """Branches of a long question, for memory forecasts."""

    @property
    def replies(self) -> tuple[str, ...]:
        """The roles whose token the assistant says: those of the gates."""
        return tuple(role for gate in self.gates for role in (gate.positive, gate.negative))

    @property
    def fingerprint(self) -> str:
        """A hash of everything in the scheme."""
        return fingerprint(dataclasses.asdict(self))

    @classmethod
    def of(cls: type[AScheme], renderer: Renderer) -> AScheme:
        """Return the scheme that a renderer was made with.

        Raises:
            UserError: It is not one of this class.
        """
        if not isinstance(renderer.scheme, cls):
            name = renderer.scheme.name if renderer.scheme else "none"
            raise UserError(f"this needs a model of {cls.form}, but the model's scheme is {name}")
        return renderer.scheme

    def retrieves(self, probability: float, gamma: float) -> bool:
        """Return True if a gate's probability means to retrieve; the papers differ at γ itself."""
        return probability >= gamma

    def save(self, folder: str | Path, more: Mapping[str, Any] | None = None) -> None:
        """Write `scheme.json` into a checkpoint's folder, with the additional entries of `more`."""
        content = {**dataclasses.asdict(self), "fingerprint": self.fingerprint, **(more or {})}
        write_json(Path(folder) / SCHEME_FILE, content)

    def strip(self, text: str) -> str:
        """Return a decoded answer without reflection tokens and without runs of spaces."""
        for token in self.tokens.values():
            text = text.replace(token, " ")
        return " ".join(text.split())

    def kind(self, example: Any) -> str:
        """Return the kind of an example; every training batch has the same mixture of kinds."""
        labels = self.gates[0].labels(self.roles(example)) if self.gates else set()
        if not labels:
            return "without a gate"
        return "with retrieval" if True in labels else "without retrieval"

    # Training examples. Each takes the scheme's own `example_type`.

    @abstractmethod
    def problem(self, example: Any) -> str:
        """Return why an example can't be trained on; "" if it can. Image, question and style are checked before."""

    @abstractmethod
    def encode(self, renderer: Renderer, example: Any, image: Image.Image) -> Tree:
        """Return an example as a prefix and its branches, with labels.

        Raises:
            UserError: It can't be trained on.
        """

    def shortened(self, renderer: Renderer, example: Any, image: Image.Image, max_tokens: int) -> Any:
        """Return the example shortened to at most `max_tokens` from its image to a branch's end.

        By default the example is returned unchanged, for schemes whose inference doesn't shorten either.
        """
        return example

    @abstractmethod
    def roles(self, example: Any) -> list[str]:
        """Return the roles of the tokens that an example is supervised on."""

    @abstractmethod
    def texts(self, example: Any) -> Iterator[str]:
        """Return all texts of an example, to estimate its length without encoding it."""

    @abstractmethod
    def has_answer(self, example: Any) -> bool:
        """Return True if an example has a reference answer in words."""

    @abstractmethod
    def ask(self, renderer: Renderer, example: Any, image: Image.Image) -> AskedAnswer:
        """Return the prompt and the reference answer of an example that has one, as in inference."""

    # Single gates, for training by reward.

    @abstractmethod
    def open(self, renderer: Renderer, question: str, image: Image.Image) -> Rendered:
        """Return image and question: the common prefix of all gates' branches."""

    @abstractmethod
    def gate_turns(self, gate: Gate, style: AnswerStyle) -> Turns:
        """Return the turns of a gate's prompt, beginning with the question; the gate's token comes next."""

    @abstractmethod
    def retrieval_gate(self, renderer: Renderer) -> Supervised:
        """Return the retrieval gate's branch, up to its positive token, which is supervised."""

    @abstractmethod
    def relevance_gate(self, renderer: Renderer, passage: Passage, style: AnswerStyle) -> Supervised:
        """Return a passage's relevance-gate branch, up to its positive token, which is supervised."""

    @abstractmethod
    def anchored_passage(self, renderer: Renderer, anchored: AnchoredPassage, style: AnswerStyle) -> Supervised:
        """Return the branch of a passage whose gate, and answer if it has one, training preserves."""

    @abstractmethod
    def anchored_replies(self, renderer: Renderer, anchor: KLAnchor, style: AnswerStyle) -> list[Supervised]:
        """Return the branches of the replies in words that training preserves."""


def gate_branch(read: Sequence[int], token: int, ignore: int) -> Supervised:
    """Return a branch followed by a gate's token, which alone is supervised."""
    return [*read, token], [*[ignore] * len(read), token]
