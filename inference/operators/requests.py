"""What a step of a trajectory asks for, and what comes back: plain values, which a journal keeps and a trace shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from PIL import Image

from reflectune.core.types import Passage
from reflectune.formats.hits import PassageHit
from reflectune.inference.reading.reader import share

Picture: TypeAlias = Image.Image | None
"""A question's picture; None of a question without one."""
Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom of a part of a picture, as shares of its width and height."""
Writing = Literal["caption", "rewrite", "rerank", "reason", "summarize", "answer", "verify", "extract"]
"""The operators by which a model writes: describe the picture, make queries, order documents, sum up what was found,
or one page of it, answer, check an answer, shorten it."""
ModelName = Literal["reader", "answerer"]
"""The models of a pipeline: the one that reads, writes queries and reasons, and the one that answers from it."""


@dataclass(frozen=True)
class Prompt:
    """One user's turn about the question's picture.

    Attributes:
        template: The words, with `{slots}` for untrusted texts; `{documents}` stands for those below.
        texts: What stands in the other slots.
        documents: What stands in `{documents}`, most important first, joined by line breaks. As many leading ones are
            shown as the model's context holds whole.
        system: What a system's turn before it says; where a chat template has none, it begins the user's turn.
        picture: Whether the question's picture is shown.
    """

    template: str
    texts: Mapping[str, str]
    documents: tuple[str, ...] = ()
    system: str = ""
    picture: bool = True

    def text(self, shown: int) -> Mapping[str, str]:
        """What stands in all slots, with so many documents shown."""
        return {**self.texts, "documents": "\n".join(self.documents[:shown])}


@dataclass(frozen=True)
class WriteRequest:
    """Have a model write.

    Attributes:
        operator: What for.
        iteration: Of the trajectory, from 0.
        prompt: What it is asked.
        max_tokens: Its longest reply.
        model: Which model.
        keeps_thoughts: Whether what a reasoning model thinks first is part of its reply.
    """

    operator: Writing
    iteration: int
    prompt: Prompt
    max_tokens: int
    model: ModelName = "reader"
    keeps_thoughts: bool = False


@dataclass(frozen=True)
class WriteReply:
    """What a model wrote.

    Attributes:
        text: It, without reflection tokens; "" if a server refused. A pipeline gets it without thoughts, unless it
            asked for them.
        shown: How many of the prompt's documents it has seen.
        read: Tokens of the prompt.
        tokens: Tokens of the reply.
        finished: Whether it ended by itself.
        score: Geometric mean probability of the reply's tokens and the end token; None where it isn't known.
        shared: How many of the prompt's tokens, from its beginning, every step about the picture begins with, so that
            they are read once; None where that isn't known: behind a server.
    """

    text: str
    shown: int = 0
    read: int = 0
    tokens: int = 0
    finished: bool = True
    score: float | None = None
    shared: int | None = None


@dataclass(frozen=True)
class YesNoRequest:
    """A question of which only is read how likely a reply is that begins with one word or with another.

    Attributes:
        iteration: Of the trajectory, from 0.
        prompt: What is asked.
        yes: One word.
        no: The other.
        model: Which model.
    """

    iteration: int
    prompt: Prompt
    yes: str = "Yes"
    no: str = "No"
    model: ModelName = "reader"


class JudgeRequest(YesNoRequest):
    """Ask a prompt with its documents; nothing is decoded."""


class JudgeEachRequest(YesNoRequest):
    """Ask a prompt with each of its documents alone. What these begin with is read once; nothing is decoded."""


@dataclass(frozen=True)
class JudgeReply:
    """P(yes) and P(no), in the full softmax over the reply's first token; and what was read, as in `WriteReply`."""

    yes: float
    no: float
    shown: int = 0
    read: int = 0
    shared: int | None = None

    @property
    def share(self) -> float:
        """P(yes) as a share of both; 0 if neither is likely."""
        return share(self.yes, self.no)


@dataclass(frozen=True)
class JudgeEachReply:
    """What is said of each document; 0 and 0, with none shown, of one that the model's context doesn't hold whole.

    Attributes:
        each: In the documents' order; `read` counts the tokens that were read for one alone.
        read: Tokens that were read for all of them together.
        shared: As in `WriteReply`.
    """

    each: tuple[JudgeReply, ...] = ()
    read: int = 0
    shared: int | None = None

    @property
    def read_apart(self) -> int:
        """Tokens of as many prompts as documents were shown, each read from its beginning."""
        alone = sum(judged.read for judged in self.each)
        return (self.read - alone) * sum(judged.shown for judged in self.each) + alone


@dataclass(frozen=True)
class SearchRequest:
    """Look several texts up in the knowledge bases, each beside the question's picture where a base has pictures.

    An empty text stands for the picture alone, which only a base that has pictures can be searched with.

    Attributes:
        iteration: Of the trajectory, from 0.
        queries: The texts.
        tops: By the name of each knowledge base to search: for every query, how many passages.
        question: What passages inside the entries found are chosen by, where that is not the query; "" if it is.
        boxes: For every query the part of the picture that stands beside it, None for the whole; () for whole ones.
    """

    iteration: int
    queries: tuple[str, ...]
    tops: Mapping[str, tuple[int, ...]]
    question: str = ""
    boxes: tuple[Box | None, ...] = ()


@dataclass(frozen=True)
class SearchReply:
    """What was found.

    Attributes:
        hits: For each query, by the name of each knowledge base searched, its passages, best first.
        missing: By the name of each knowledge base that failed and may, why; it found nothing for some of the queries.
    """

    hits: tuple[Mapping[str, tuple[PassageHit, ...]], ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LikenRequest:
    """Compare texts with earlier ones.

    Attributes:
        iteration: Of the trajectory, from 0.
        texts: The new ones.
        others: The earlier ones, at least one.
    """

    iteration: int
    texts: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class LikenReply:
    """The highest cosine similarity of each text to an earlier one."""

    highest: tuple[float, ...] = field(default=())


@dataclass(frozen=True)
class RerankRequest:
    """Have the text reranker compare a text with passages.

    Attributes:
        iteration: Of the trajectory, from 0.
        query: The text.
        passages: The passages, at least one.
    """

    iteration: int
    query: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class RerankReply:
    """The reranker's score of each passage, in the order that they were given in."""

    scores: tuple[float, ...] = ()


StepRequest: TypeAlias = WriteRequest | JudgeRequest | JudgeEachRequest | SearchRequest | LikenRequest | RerankRequest
StepReply: TypeAlias = WriteReply | JudgeReply | JudgeEachReply | SearchReply | LikenReply | RerankReply
