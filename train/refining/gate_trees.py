"""Questions as the trainer of gates reads them: one branch a gate, and behind them what is to stay as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from reflectune.core.gate_outcomes import NO_ANCHOR, AnchoredPassage, KLAnchor
from reflectune.core.paths import Roots
from reflectune.core.types import AnswerStyle, Branch, Passage, PromptedBranch, Question
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.rendering import Renderer
from reflectune.models.schemes.base import MMKB_RAG
from reflectune.train.data.examples import EncodedExamples


@dataclass(frozen=True)
class GateExample:
    """A question, and the passages whose relevance gates are trained with its retrieval gate.

    Attributes:
        question: The question.
        passages: These passages.
        held: What else the checkpoint said behind this question.
        hold: Weight of its staying so; 0 leaves it out.
    """

    question: Question
    passages: tuple[Passage, ...] = ()
    held: KLAnchor = NO_ANCHOR
    hold: float = 0.0

    @property
    def id(self) -> str:
        """The question's id."""
        return self.question.id

    @property
    def image(self) -> str:
        """The question's image."""
        return self.question.image

    @property
    def kind(self) -> str:
        """What it asks for, in words: every batch has the same mixture of kinds."""
        names = {True: "knowledge-based", False: "visual", None: "of either kind"}
        return names[self.question.is_knowledge_based]

    @property
    def length(self) -> int:
        """Characters to read, about."""
        held = [own.passage for own in self.held.passages] if self.hold else []
        texts = [text for p in (*self.passages, *held) for text in (p.title, p.lead, p.heading, p.text)]
        return len(self.question.text) + sum(map(len, texts))


def gate_tree(example: GateExample, renderer: Renderer, image: Image.Image) -> Tree:
    """Image and question as the prefix, and a branch a gate, read as in inference up to its positive token.

    That token is supervised: where it is predicted, the gate is read. The retrieval gate comes first and weighs one;
    the passages' relevance gates follow and weigh one together. Behind them stands what is held: further relevance
    gates, which weigh `hold` together, and the words of replies, whose tokens weigh `hold` together.
    """
    held = example.held if example.hold else NO_ANCHOR
    prompted = renderer.scheme is not None and renderer.scheme.name == MMKB_RAG.name
    layout = (_PromptedLayout if prompted else _Layout)(renderer, example.question.answer_style)
    prefix = (renderer.question_prefix if prompted else renderer.prefix)(example.question.text, image)
    branches = [(layout.retrieval(), 1.0)]
    branches += [(layout.relevance(passage), 1.0 / len(example.passages)) for passage in example.passages]
    branches += [(layout.held_relevance(own), example.hold / len(held.passages)) for own in held.passages]
    branches += [(reply, 0.0) for reply in layout.replies(held)]
    gates = {renderer.token_id("retrieve"), renderer.token_id("relevant")}
    words = sum(label not in (IGNORE, *gates) for (_, labels), _ in branches for label in labels)

    def weight(label: int, gate: float) -> float:
        if label == IGNORE:
            return 0.0
        return gate if label in gates else example.hold / words

    segments = [
        Segment(tuple(ids), tuple(labels), tuple(weight(label, gate) for label in labels))
        for (ids, labels), gate in branches
    ]
    return Tree(Segment.of(prefix.ids, prefix.labels), tuple(segments), prefix.vision)


Supervised = tuple[list[int], list[int]]
"""The ids and labels of a branch."""


@dataclass(frozen=True)
class _Layout:
    """How mR²AG's branches are read. A passage's gate and what is answered from it stand in one branch."""

    renderer: Renderer
    style: AnswerStyle

    def retrieval(self) -> Supervised:
        return self._gate([], "retrieve")

    def relevance(self, passage: Passage) -> Supervised:
        return self._gate(self.renderer.passage_branch(passage, self.style), "relevant")

    def held_relevance(self, own: AnchoredPassage) -> Supervised:
        if not own.answer:
            return self.relevance(own.passage)
        ids, labels = self.renderer.passage_reply(Branch(own.passage, True, own.answer), self.style)
        silent = labels.index(self.renderer.token_id("relevant")) + (own.log_odds is None)
        return ids, [*[IGNORE] * silent, *labels[silent:]]

    def replies(self, held: KLAnchor) -> list[Supervised]:
        if not held.direct:
            return []
        ids, labels = self.renderer.direct_reply(held.direct, self.style)
        return [(ids, [IGNORE, *labels[1:]])]  # but [No Retrieval]: the gate is refined

    def _gate(self, read: Sequence[int], role: str) -> Supervised:
        token = self.renderer.token_id(role)
        return [*read, token], [*[IGNORE] * len(read), token]


@dataclass(frozen=True)
class _PromptedLayout(_Layout):
    """How MMKB-RAG's are: every prompt is a branch of its own."""

    def retrieval(self) -> Supervised:
        return self._gate(self.renderer.prompt_branch("ret"), "retrieve")

    def relevance(self, passage: Passage) -> Supervised:
        return self._gate(self.renderer.prompt_branch("srt", [passage]), "relevant")

    def held_relevance(self, own: AnchoredPassage) -> Supervised:
        return self.relevance(own.passage)

    def replies(self, held: KLAnchor) -> list[Supervised]:
        direct = (PromptedBranch("vqa", reply=held.direct),) if held.direct else ()
        return [self.renderer.prompted_reply(own, self.style) for own in (*direct, *held.replies)]


class GateExamples(EncodedExamples):
    """Questions with their gates, encoded the first time they are asked for."""

    def __init__(
        self,
        examples: Sequence[GateExample],
        renderer: Renderer,
        roots: Roots,
        *,
        max_tokens: int,
        cache_bytes: int = 0,
    ) -> None:
        own: Any = examples  # not of a training set, but with an id and an image as those have
        super().__init__(own, renderer, roots, max_tokens=max_tokens, cache_bytes=cache_bytes)

    def _encode(self, example: Any, image: Image.Image) -> Tree:
        return gate_tree(example, self._renderer, image)
