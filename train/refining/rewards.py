"""What either outcome of a question's gates is worth."""

from __future__ import annotations

from dataclasses import dataclass

from reflectune.models.schemes.gate_outcomes import GateOutcome


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
    """The gates of one question, the retrieval gate first: see `reflectune.train.refining.gate_trees`.

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
    gates += [
        ((passage_outcome.right - costs.keeping, 0.0), passage_outcome.log_odds) for passage_outcome in outcome.passages
    ]
    return Rewards(tuple(rewards for rewards, _ in gates), tuple(log_odds for _, log_odds in gates))
