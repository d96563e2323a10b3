"""Examples of the trainer of gates: a branch for each gate, its rewards, and preserved outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Passage, Question
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.gate_outcomes import NO_ANCHOR, GateOutcome, KLAnchor
from reflectune.train.data.examples import EncodedExamples


@dataclass(frozen=True)
class GateExample:
    """A question, and the passages whose relevance gates are trained with its retrieval gate.

    Attributes:
        question: The question.
        passages: These passages.
        anchor: The checkpoint's other outputs for this question.
        hold: Weight of preserving these outputs; 0 leaves them out.
    """

    question: Question
    passages: tuple[Passage, ...] = ()
    anchor: KLAnchor = NO_ANCHOR
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
        """Its kind; every batch has the same mixture of kinds."""
        names = {True: "knowledge-based", False: "visual", None: "of either kind"}
        return names[self.question.is_knowledge_based]

    @property
    def length(self) -> int:
        """Estimate of the characters to read."""
        held = [held_passage.passage for held_passage in self.anchor.passages] if self.hold else []
        texts = [text for p in (*self.passages, *held) for text in (p.title, p.lead, p.heading, p.text)]
        return len(self.question.text) + sum(map(len, texts))


def gate_tree(example: GateExample, renderer: Renderer, image: Image.Image) -> Tree:
    """Return image and question as the prefix, and a branch for each gate up to its positive token.

    That token is supervised: the gate is read where it is predicted. First comes the retrieval gate, of weight 1, then
    the passages' relevance gates, of total weight 1. Last come the preserved outputs: further relevance gates, of total
    weight `hold`, and the tokens of replies, of total weight `hold`.
    """
    anchor = example.anchor if example.hold else NO_ANCHOR
    scheme, style = Scheme.of(renderer), example.question.answer_style
    prefix = scheme.open(renderer, example.question.text, image)
    branches = [(scheme.retrieval_gate(renderer), 1.0)]
    branches += [
        (scheme.relevance_gate(renderer, passage, style), 1.0 / len(example.passages)) for passage in example.passages
    ]
    branches += [
        (scheme.anchored_passage(renderer, anchored, style), example.hold / len(anchor.passages))
        for anchored in anchor.passages
    ]
    branches += [(reply, 0.0) for reply in scheme.anchored_replies(renderer, anchor, style)]
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


class GateExamples(EncodedExamples):
    """Questions with their gates, encoded at their first use."""

    def fit(self, example: Any, image: Image.Image) -> tuple[Tree, int]:
        """Encode a question with all of its gates.

        Raises:
            UserError: The question is too long. A gate that was measured can't be left out.
        """
        tree = gate_tree(example, self._renderer, image)
        if tree.depth > self.max_tokens:
            raise UserError(
                f"question {example.id} has {tree.depth} tokens from its image to the end of its longest passage, more "
                f"than {self.max_tokens}; raise `max_tokens`, or leave it out to measure with the same limit"
            )
        return tree, 0


@dataclass(frozen=True)
class Costs:
    """Costs that reduce rewards.

    Attributes:
        retrieval: λ, for each passage that the loop read.
        keeping: For a passage that the relevance gate keeps.
    """

    retrieval: float
    keeping: float


@dataclass(frozen=True)
class Rewards:
    """Rewards of a question's gates, in the order of `gate_tree`.

    Attributes:
        rewards: Rewards of the positive and of the negative outcome of each gate.
        log_odds: Measured log-odds of each gate.
    """

    rewards: tuple[tuple[float, float], ...]
    log_odds: tuple[float, ...]


def rewards_of(outcome: GateOutcome, costs: Costs) -> Rewards:
    """Compute the rewards of a question's gates.

    Retrieving: the score of the pipeline's answer minus λ for each passage read; not retrieving: the score of the
    direct answer. Keeping a passage: the score of the answer from it alone minus the cost of keeping; not keeping: 0.
    """
    looked_up = outcome.retrieved - costs.retrieval * outcome.passages_read
    gates = [((looked_up, outcome.direct), outcome.log_odds)]
    gates += [
        ((passage_outcome.right - costs.keeping, 0.0), passage_outcome.log_odds) for passage_outcome in outcome.passages
    ]
    return Rewards(tuple(rewards for rewards, _ in gates), tuple(log_odds for _, log_odds in gates))
