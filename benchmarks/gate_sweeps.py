"""A checkpoint's validation questions answered both ways: what each gate over these answers costs and earns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reflectune.core.types import Question
from reflectune.models.schemes.gate_outcomes import GateOutcome


@dataclass(frozen=True)
class Answered:
    """A checkpoint's validation questions, answered both ways; arrays of shape (questions,)."""

    direct: np.ndarray
    retrieved: np.ndarray
    read: np.ndarray
    log_odds: np.ndarray
    known: np.ndarray
    knowledge: np.ndarray
    split: np.ndarray

    @classmethod
    def of(cls, questions: Sequence[Question], outcomes: Sequence[GateOutcome]) -> Answered:
        """Arrays of what was measured; `known` are questions about entities that the base model knows by heart."""
        return cls(
            direct=np.array([outcome.direct for outcome in outcomes]),
            retrieved=np.array([outcome.retrieved for outcome in outcomes]),
            read=np.array([float(outcome.passages_read) for outcome in outcomes]),
            log_odds=np.array([outcome.log_odds for outcome in outcomes]),
            known=np.array([q.meta.get("famous") == "yes" and q.requires_retrieval is True for q in questions]),
            knowledge=np.array([q.requires_retrieval is True for q in questions]),
            split=np.array([question.split for question in questions]),
        )

    def of_splits(self, splits: Sequence[str]) -> Answered:
        """The questions of some splits."""
        chosen = np.isin(self.split, splits)
        return Answered(*(getattr(self, item.name)[chosen] for item in dataclasses.fields(self)))

    def at(self, looked_up: np.ndarray) -> tuple[float, float]:
        """Mean passages read, and accuracy, if these questions are looked up."""
        return float((self.read * looked_up).mean()), float(np.where(looked_up, self.retrieved, self.direct).mean())

    def default(self) -> np.ndarray:
        """Who is looked up at γ = 0.5."""
        return self.log_odds >= 0

    def sweep(self) -> list[tuple[float, float]]:
        """The γ sweep, from never to always: one point for each distinct gate."""
        values = np.unique(self.log_odds)[::-1]
        return [self.at(np.zeros_like(self.known)), *(self.at(self.log_odds >= value) for value in values)]

    def oracle(self) -> list[tuple[float, float]]:
        """The best that any gate could do with these answers: questions in the order of what a passage gains."""
        order = np.argsort(-(self.retrieved - self.direct) / np.maximum(self.read, 1.0), kind="stable")
        looked_up, points = np.zeros_like(self.known), [self.at(np.zeros_like(self.known))]
        for place in order:
            looked_up[place] = True
            points.append(self.at(looked_up))
        return points

    def reward(self, cost: float, looked_up: np.ndarray) -> float:
        """Mean reward at a cost per passage."""
        read, accuracy = self.at(looked_up)
        return accuracy - cost * read


def between(points: Sequence[tuple[float, float]], cost: float) -> float:
    """The most accuracy of a sweep at a cost or below it; between two thresholds, that of drawing one of them."""
    costs, values = zip(*sorted(points), strict=True)
    return float(np.interp(cost, costs, np.maximum.accumulate(values)))


def above(points: Sequence[tuple[float, float]], sft: Answered) -> float:
    """How far a sweep lies above SFT's, on the mean over costs from 0 to SFT's at γ = 0.5."""
    costs = np.linspace(0.0, sft.at(sft.default())[0], 101)
    sft_sweep = sft.sweep()
    return float(np.mean([between(points, cost) - between(sft_sweep, cost) for cost in costs]))


def best_threshold(checkpoint: Answered, cost: float) -> np.ndarray:
    """Which questions are looked up at the γ that earns most on these very questions, which no user can know."""
    values = [*np.unique(checkpoint.log_odds), np.inf]
    return max(
        (checkpoint.log_odds >= value for value in values), key=lambda looked_up: checkpoint.reward(cost, looked_up)
    )
