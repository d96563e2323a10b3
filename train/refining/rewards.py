"""Questions as the trainer of gates reads them: one branch a gate, and both outcomes' rewards for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from reflectune.core.gate_outcomes import GateOutcome
from reflectune.core.types import Passage, Question
from reflectune.models.rendering import Renderer
from reflectune.models.scheme import MMKB_RAG
from reflectune.models.tree import IGNORE, Segment, Tree
from reflectune.train.data import EncodedExamples


@dataclass(frozen=True)
class Costs:
    """What is taken off a reward.

    Attributes:
        retrieval: λ: for each passage that the loop read.
        keeping: For a passage that the relevance gate keeps.
    """

    retrieval: float
    keeping: float


@dataclass(frozen=True)
class Rewards:
    """The gates of one question, the retrieval gate first: see `gate_tree`.

    Attributes:
        rewards: Of the positive and of the negative outcome of each gate.
        log_odds: Of each gate, as it was measured.
    """

    rewards: tuple[tuple[float, float], ...]
    log_odds: tuple[float, ...]


def rewards_of(outcome: GateOutcome, costs: Costs) -> Rewards:
    """The rewards of a question's gates.

    Retrieving: the match of the loop's answer, less λ for each passage read; not retrieving: the match of the direct
    answer. Keeping a passage: the match of its own answer, less the cost of keeping; not keeping it: 0.
    """
    looked_up = outcome.retrieved - costs.retrieval * outcome.passages_read
    gates = [((looked_up, outcome.direct), outcome.log_odds)]
    gates += [((own.right - costs.keeping, 0.0), own.log_odds) for own in outcome.passages]
    return Rewards(tuple(rewards for rewards, _ in gates), tuple(log_odds for _, log_odds in gates))


@dataclass(frozen=True)
class GateExample:
    """A question, and the passages whose relevance gates are trained with its retrieval gate."""

    question: Question
    passages: tuple[Passage, ...] = ()

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
        return names[self.question.requires_retrieval]

    @property
    def length(self) -> int:
        """Characters to read, about."""
        texts = [text for p in self.passages for text in (p.title, p.lead, p.heading, p.text)]
        return len(self.question.text) + sum(map(len, texts))


def gate_tree(example: GateExample, renderer: Renderer, image: Image.Image) -> Tree:
    """Image and question as the prefix, and a branch a gate, read as in inference and ended by its positive token.

    That token is the one supervised place of its branch: where it is predicted, the gate is read. The retrieval gate
    comes first and weighs one; the passages' relevance gates follow and weigh one together.
    """
    question, passages = example.question, example.passages
    if renderer.scheme is not None and renderer.scheme.name == MMKB_RAG.name:
        prefix = renderer.question_prefix(question.text, image)
        retrieval = renderer.prompt_branch("ret")
        relevance = [renderer.prompt_branch("srt", [passage]) for passage in passages]
    else:
        prefix, retrieval = renderer.prefix(question.text, image), []
        multi_answer = question.answer_type == "multi_answer"
        relevance = [renderer.passage_branch(passage, multi_answer) for passage in passages]
    gates = [_gate(retrieval, renderer.token_id("retrieve"), 1.0)]
    gates += [_gate(read, renderer.token_id("relevant"), 1.0 / len(relevance)) for read in relevance]
    return Tree(Segment.of(prefix.ids, prefix.labels), tuple(gates), prefix.vision)


class GateExamples(EncodedExamples):
    """Questions with their gates, encoded the first time they are asked for."""

    def __init__(
        self,
        examples: Sequence[GateExample],
        renderer: Renderer,
        image_root: Path,
        *,
        max_tokens: int,
        cache_bytes: int = 0,
    ) -> None:
        own: Any = examples  # not of a training set, but with an id and an image as those have
        super().__init__(own, renderer, image_root, max_tokens=max_tokens, cache_bytes=cache_bytes)

    def _encode(self, example: Any, image: Image.Image) -> Tree:
        return gate_tree(example, self._renderer, image)


def _gate(read: Sequence[int], token_id: int, weight: float) -> Segment:
    silent = len(read)
    return Segment((*read, token_id), (*[IGNORE] * silent, token_id), (*[0.0] * silent, weight))
