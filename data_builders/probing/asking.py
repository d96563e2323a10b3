"""How a model is asked: what it may answer, what is drawn and scored, and how documents are summed up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asking:
    """How a model is asked.

    Attributes:
        max_new_tokens: The longest answer.
        samples: Answers drawn beside the greedy one, for the rule `rate`.
        temperature: That they are drawn with.
        seed: Of the draws, together with the question's and the passage's id.
        gold: Whether to score the accepted answer too, for the rule `margin`.
        summary: How several relevant documents are summed up: by the model's own `words`, by the `sentences` that it
            finds most telling, or not at all.
        max_summary_tokens: The longest summary in words.
    """

    max_new_tokens: int = 32
    samples: int = 0
    temperature: float = 1.0
    seed: int = 0
    gold: bool = True
    summary: str = "none"
    max_summary_tokens: int = 96
