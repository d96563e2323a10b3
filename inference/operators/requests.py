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
WriteOperator = Literal["caption", "rewrite", "rerank", "reason", "summarize", "answer", "verify", "extract"]
"""Operators with a generated reply: describe the image, write queries, order documents, summarise results (`reason`) or
one page (`summarize`), answer, verify an answer, shorten it."""
ANSWERING: Final = ("answer", "extract")
"""Operators of an answer: a detailed one, and its short form."""
Form = Literal[
    "free", "text", "queries", "order", "preferred", "letters", "shares", "state", "documents", "short", "action"
]
"""Expected form of a reply, a key of `parsing.FORMS`: any, not empty, queries, an order of documents, the better of
two, letters of options, a number for each, a state, documents, a short answer, a tool call or an answer."""
ModelName = Literal["reader", "answerer", "gate"]
"""Models of a pipeline: the reader writes queries and records, the answerer answers, and the relevance gate, a
checkpoint that was tuned to reflect, judges passages and records."""


LEFT_OUT: Final = "(left out)"
"""Text of a tool result that doesn't fit the context."""


def run_slot(number: int) -> str:
    """Return the name of the slot for the documents between the nth image of a document and the next image."""
    return f"documents_{number}"


@dataclass(frozen=True)
class Prompt:
    """A user turn about the question's image or images.

    Attributes:
        template: Text with `{slots}` for untrusted texts; `{documents}` is the slot of the documents.
        texts: Contents of the other slots.
        documents: Contents of `{documents}`, most important first, joined by line breaks. A document that doesn't fit
            the model's context whole is left out.
        system: System prompt. Prepended to the user turn if the chat template has no system role.
        image: True to show the question's images.
        form: Expected form of the reply. Replies that can't be parsed in it are counted.
        images: Paths of documents' images, by position in `documents`. An image comes before its document, after a
            label `Picture n:`; n counts all images of the prompt, the question's first.
        more_images: Number of the question's images after its first one. They are labelled, and come before the
            text.
        sizes: Lengths of consecutive groups of documents, e.g. one for each knowledge base, each with its most
            important document first. If not all documents fit, each group keeps the same share of its first ones.
        max_documents: Maximum documents, or tool results, that are shown; None: all that fit.
        rounds: Earlier replies, each with the result of its tool call, which is the user's next turn. Without
            `documents`, the latest results that fit the context are shown, and earlier ones are left out.
        earlier: Pairs of turns before the user's turn: a user's template, written as `template`, and the assistant's
            reply, whose special tokens are encoded as such. The first one shows the question's image.
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
    max_documents: int | None = None
    more_images: int = 0
    earlier: tuple[tuple[str, str], ...] = ()

    @property
    def droppable(self) -> int:
        """Number of documents, or of tool results, that are dropped as needed to fit the context."""
        count = len(self.documents) or len(self.rounds)
        return count if self.max_documents is None else min(count, self.max_documents)

    @property
    def documents_shown(self) -> int:
        """Number of documents that are shown if the context has room for `max_documents`."""
        return self.droppable if self.documents else 0

    def split_documents(self) -> list[Prompt]:
        """Return a copy of the prompt for each document, with that document alone."""
        return [replace(self, documents=(document,)) for document in self.documents]

    def shown_documents(self, shown: int) -> list[int]:
        """Return the positions of `shown` documents, with the same share of each group's first ones."""
        shares = [rank / size for size in self.sizes or (len(self.documents),) for rank in range(size)]
        return sorted(sorted(range(len(shares)), key=lambda position: shares[position])[:shown])

    def shown_images(self, shown: int) -> list[str]:
        """Return the paths of the images of `shown` documents."""
        return [self.images[position] for position in self.shown_documents(shown) if position in self.images]

    def text(self, shown: int) -> Mapping[str, str]:
        """Return the contents of all slots, with `shown` documents.

        The slot `documents_1` has the documents between the first image and the second, and so on.
        """
        runs: list[list[str]] = [[]]
        for position in self.shown_documents(shown):
            if position in self.images:
                runs[-1].append(f"Picture {len(runs) + self.image + self.more_images}:")
                runs.append([])
            runs[-1].append(self.documents[position])
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

    operator: WriteOperator
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
        shared: Length of the prompt's prefix that is computed once for all steps about the image; None if unknown, as
            behind a server.
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
    """P(yes) and P(no) in the full softmax over the reply's first token. For the other fields see `WriteReply`.

    If a server has no log-probabilities, the written word decides: the values are 1 and 0, or 0 and 0 if it is neither
    word, and `written` is True.
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
    """A judgement of each document.

    Attributes:
        each: Judgements in the documents' order; `read` counts the tokens after the shared prefix. A document that
            doesn't fit the context or is refused has probabilities 0 and 0, and `shown` 0.
        read: Tokens read for all documents together.
        shared: As in `WriteReply`.
    """

    each: tuple[JudgeReply, ...] = ()
    read: int = 0
    shared: int | None = None

    @property
    def read_separately(self) -> int:
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
        tops: Number of passages for each query, by the name of the knowledge base to search.
        question: Text that selects passages inside the entries found; "" to use the query.
        boxes: Part of the image to search with, for each query; None for the whole image. () for all queries.
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
        hits: Passages of each query by knowledge base, best first.
        cut: Number of queries that an encoder truncated.
    """

    hits: tuple[Mapping[str, tuple[PassageHit, ...]], ...] = ()
    cut: int = 0

    @property
    def all_hits(self) -> list[PassageHit]:
        """The hits of all queries and knowledge bases, query after query."""
        return [hit for by_base in self.hits for hits in by_base.values() for hit in hits]


@dataclass(frozen=True)
class SimilarityRequest:
    """Compute the similarity of texts to earlier ones.

    Attributes:
        iteration: Iteration of the trajectory, from 0.
        texts: The new texts.
        others: The earlier texts, at least one.
    """

    iteration: int
    texts: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class SimilarityReply:
    """The highest cosine similarity of each text to an earlier one.

    Attributes:
        highest: Highest similarity of each text.
        cut: Number of new texts that the encoder truncated.
    """

    highest: tuple[float, ...] = field(default=())
    cut: int = 0


@dataclass(frozen=True)
class RerankRequest:
    """Score passages by the reranker, which may use the question's image.

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


StepRequest: TypeAlias = (
    WriteRequest | JudgeRequest | JudgeEachRequest | SearchRequest | SimilarityRequest | RerankRequest
)
StepReply: TypeAlias = WriteReply | JudgeReply | JudgeEachReply | SearchReply | SimilarityReply | RerankReply
