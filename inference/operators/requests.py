"""Requests of a trajectory's steps, and their replies: plain values that a trace shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from reflectune.core.types import Passage
from reflectune.formats.hits import PassageHit
from reflectune.inference.reading.reader import share

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom of a part of an image, as shares of its width and height."""
Writing = Literal["caption", "rewrite", "rerank", "reason", "summarize", "answer", "verify", "extract"]
"""Operators with a generated reply: describe the image, write queries, order documents, summarise the results or
one page, answer, verify an answer, shorten it."""
ANSWERING: Final = ("answer", "extract")
"""Operators of an answer: a detailed one, and its short form."""
Form = Literal[
    "free", "text", "queries", "order", "preferred", "letters", "shares", "state", "documents", "short", "action"
]
"""Expected form of a reply, a key of `parsing.FORMS`: any, not empty, queries, an order of documents, the better of
two, letters of options, a number for each, a state, documents, a short answer, a tool call or an answer."""
ModelName = Literal["reader", "answerer", "gate"]
"""Models of a pipeline: the reader, which also writes queries and reasons, the answerer, and the relevance gate, which
is a checkpoint that was tuned to reflect and judges passages and records."""


LEFT_OUT: Final = "(left out)"
"""Text of a tool result that doesn't fit the context."""


def run_slot(number: int) -> str:
    """Return the name of the slot of the documents from a prompt's nth image of a document to the next one."""
    return f"documents_{number}"


@dataclass(frozen=True)
class Prompt:
    """A user turn about the question's image, or its images.

    Attributes:
        template: Text with `{slots}` for untrusted texts; `{documents}` is the slot of the documents.
        texts: Contents of the other slots.
        documents: Contents of `{documents}`, most important first, joined by line breaks. Those that fit the model's
            context whole are shown.
        system: System prompt. Prepended to the user turn if the chat template has no system role.
        image: True to show the question's images.
        form: Form of the reply; one that can't be read in it is counted.
        images: Paths of documents' images, by the document's place in `documents`. Each stands before its document,
            after a label `Picture n:`; n counts the images of the prompt, the question's first.
        more_images: Number of the question's images after its first one. They are labelled, and come before the
            text.
        sizes: Numbers of consecutive documents, each group with its most important one first, e.g. of a knowledge base.
            Of groups of 20 and 10, twice as many of the first are shown: what doesn't fit is the last of each.
        most: Maximum documents, or tool results, that are shown; None: all that fit.
        rounds: Earlier replies, each with the result of its tool call, which is the user's next turn. Without
            `documents`, the latest results that fit the context are shown, and earlier ones are left out.
        earlier: Turns before the user's turn: the user's, a template as `template`, and the assistant's, a text whose
            special tokens are special. The question's image is shown in the first.
    """

    template: str
    texts: Mapping[str, str]
    documents: tuple[str, ...] = ()
    system: str = ""
    image: bool = True
    form: Form = "free"
    images: Mapping[int, str] = field(default_factory=dict)
    rounds: tuple[tuple[str, str], ...] = ()
    sizes: tuple[int, ...] = ()
    most: int | None = None
    more_images: int = 0
    earlier: tuple[tuple[str, str], ...] = ()

    @property
    def parts(self) -> int:
        """Number of documents, or of tool results, that may be left out."""
        parts = len(self.documents) or len(self.rounds)
        return parts if self.most is None else min(parts, self.most)

    @property
    def documents_shown(self) -> int:
        """Number of documents that are shown if all of `most` fit."""
        return self.parts if self.documents else 0

    def apart(self) -> list[Prompt]:
        """Return the prompt with each of its documents alone."""
        return [replace(self, documents=(document,)) for document in self.documents]

    def places(self, shown: int) -> list[int]:
        """Return the places of `shown` documents: the first ones of each group, by their share of it."""
        shares = [place / size for size in self.sizes or (len(self.documents),) for place in range(size)]
        return sorted(sorted(range(len(shares)), key=lambda place: shares[place])[:shown])

    def shown_images(self, shown: int) -> list[str]:
        """Return the paths of the images of `shown` documents."""
        return [self.images[place] for place in self.places(shown) if place in self.images]

    def text(self, shown: int) -> Mapping[str, str]:
        """Return the contents of all slots, with `shown` documents.

        The documents from the first image to the second are the slot `documents_1`, and so on.
        """
        runs: list[list[str]] = [[]]
        for place in self.places(shown):
            if place in self.images:
                runs[-1].append(f"Picture {len(runs) + self.image + self.more_images}:")
                runs.append([])
            runs[-1].append(self.documents[place])
        first, *others = ["\n".join(run) for run in runs]
        texts = {**self.texts, "documents": first, **{run_slot(n): run for n, run in enumerate(others, start=1)}}
        for n, (reply, result) in enumerate(self.rounds):
            is_shown = bool(self.documents) or n >= len(self.rounds) - shown
            texts |= {f"reply_{n}": reply, f"result_{n}": result if is_shown else LEFT_OUT}
        return texts


@dataclass(frozen=True)
class WriteRequest:
    """Generate a reply.

    Attributes:
        operator: The operator.
        iteration: Iteration of the trajectory, from 0.
        prompt: The prompt.
        max_tokens: Maximum length of the reply.
        model: The model.
        keeps_thoughts: True to keep a reasoning model's thoughts in the reply.
    """

    operator: Writing
    iteration: int
    prompt: Prompt
    max_tokens: int
    model: ModelName = "reader"
    keeps_thoughts: bool = False


@dataclass(frozen=True)
class WriteReply:
    """A generated reply.

    Attributes:
        text: The reply without reflection tokens; "" if a server refused. Thoughts are removed unless requested.
        shown: Number of the prompt's documents in the context.
        read: Tokens of the prompt.
        tokens: Tokens of the reply.
        finished: True if it ended with the end token.
        score: Geometric mean probability of the reply's tokens and the end token; None if unknown.
        shared: Length of the prompt's prefix that all steps about the image share, so that it is computed once; None
            if unknown: behind a server.
        refused: Reason of a server's refusal.
    """

    text: str
    shown: int = 0
    read: int = 0
    tokens: int = 0
    finished: bool = True
    score: float | None = None
    shared: int | None = None
    refused: str = ""


@dataclass(frozen=True)
class YesNoRequest:
    """Compare the probabilities of two first words of a reply. Nothing is decoded.

    Attributes:
        iteration: Iteration of the trajectory, from 0.
        prompt: The prompt.
        yes: The first word.
        no: The second word.
        model: The model.
    """

    iteration: int
    prompt: Prompt
    yes: str = "Yes"
    no: str = "No"
    model: ModelName = "reader"


class JudgeRequest(YesNoRequest):
    """Judge all documents of a prompt together."""


class JudgeEachRequest(YesNoRequest):
    """Judge each document of a prompt alone. The shared prefix is read once."""


@dataclass(frozen=True)
class JudgeReply:
    """P(yes) and P(no) in the full softmax over the reply's first token; the rest is that of `WriteReply`.

    From a server without log-probabilities they are 1 and 0 by the word that the model writes, `written`; 0 and 0 if
    it writes neither.
    """

    yes: float
    no: float
    shown: int = 0
    read: int = 0
    shared: int | None = None
    refused: str = ""
    written: bool = False
    tokens: int = 0

    @property
    def share(self) -> float:
        """P(yes) / (P(yes) + P(no)); 0 if both are 0."""
        return share(self.yes, self.no)


@dataclass(frozen=True)
class JudgeEachReply:
    """A judgement of each document; 0 and 0, with none shown, for one that doesn't fit the context or is refused.

    Attributes:
        each: In the documents' order; `read` counts the tokens after the shared prefix.
        read: Tokens read for all documents together.
        shared: As in `WriteReply`.
    """

    each: tuple[JudgeReply, ...] = ()
    read: int = 0
    shared: int | None = None

    @property
    def read_apart(self) -> int:
        """Tokens of separate prompts, one for each document shown."""
        alone = sum(judged.read for judged in self.each)
        return (self.read - alone) * sum(judged.shown for judged in self.each) + alone


@dataclass(frozen=True)
class SearchRequest:
    """Search the knowledge bases with several texts, each with the question's image if the base has images.

    An empty text stands for the image alone, which only a base with images supports.

    Attributes:
        iteration: Iteration of the trajectory, from 0.
        queries: The texts.
        tops: By knowledge base to search: the number of passages for each query.
        question: Text that selects passages inside the entries found; "" to use the query.
        boxes: For each query the part of the image to search with, None for the whole; () for whole ones.
    """

    iteration: int
    queries: tuple[str, ...]
    tops: Mapping[str, tuple[int, ...]]
    question: str = ""
    boxes: tuple[Box | None, ...] = ()


@dataclass(frozen=True)
class SearchReply:
    """Search results.

    Attributes:
        hits: For each query, by knowledge base, its passages, best first.
        cut: Number of queries that are longer than an encoder reads.
    """

    hits: tuple[Mapping[str, tuple[PassageHit, ...]], ...] = ()
    cut: int = 0

    @property
    def all_hits(self) -> list[PassageHit]:
        """The hits of all queries and knowledge bases, query after query."""
        return [hit for by_base in self.hits for hits in by_base.values() for hit in hits]


@dataclass(frozen=True)
class LikenRequest:
    """Compare texts with earlier ones.

    Attributes:
        iteration: Iteration of the trajectory, from 0.
        texts: The new texts.
        others: The earlier texts, at least one.
    """

    iteration: int
    texts: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class LikenReply:
    """The highest cosine similarity of each text to an earlier one.

    Attributes:
        highest: Of each text.
        cut: Number of new texts that are longer than the encoder reads: what comes later isn't compared.
    """

    highest: tuple[float, ...] = field(default=())
    cut: int = 0


@dataclass(frozen=True)
class RerankRequest:
    """Score passages by the reranker, which may read the question's image.

    Attributes:
        iteration: Iteration of the trajectory, from 0.
        query: The text.
        passages: The passages, at least one.
    """

    iteration: int
    query: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class RerankReply:
    """The reranker's score of each passage, in the order of the request."""

    scores: tuple[float, ...] = ()


StepRequest: TypeAlias = WriteRequest | JudgeRequest | JudgeEachRequest | SearchRequest | LikenRequest | RerankRequest
StepReply: TypeAlias = WriteReply | JudgeReply | JudgeEachReply | SearchReply | LikenReply | RerankReply
