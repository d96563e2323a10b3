"""What is asked of a model for one question, and the floating-point operations that it takes: closed formulas.

A product of a token with n weights takes 2 n operations; attention of a token to others 4 times their number times the
width of all heads (scores, and the sum of values). A question's picture and prefix are read once for all branches.
"""

from __future__ import annotations

from dataclasses import dataclass

from reflectune.train.estimates.architecture import Architecture

_VISION_PRODUCTS = 4
"""Square matrices of a layer of a vision tower: q, k, v, o; its feed-forward layer has two more."""


@dataclass(frozen=True)
class Work:
    """What one question takes: averages, which may be broken numbers.

    Attributes:
        patches: That the vision tower reads.
        tile: Patches that attend to one another: those of a picture, or of one of its tiles.
        prefix: Tokens of picture and question, read once.
        branches: That hang from the prefix.
        branch_tokens: Of one of them.
        rows: Answers that are written.
        row_tokens: Of one of them.
        longest: Tokens of the longest answer of those that are written together; if 0, all are of `row_tokens`.
        seen: Tokens that were read before, for other questions or by another step, and are attended to.
    """

    patches: float = 0
    tile: float = 0
    prefix: float = 0
    branches: float = 0
    branch_tokens: float = 0
    rows: float = 0
    row_tokens: float = 0
    longest: float = 0
    seen: float = 0

    @property
    def read(self) -> float:
        """Tokens that are read."""
        return self.prefix + self.branches * self.branch_tokens

    @property
    def written(self) -> float:
        """Tokens that are written."""
        return self.rows * self.row_tokens


@dataclass(frozen=True)
class Flop:
    """Floating-point operations by the kind of pass that makes them.

    Attributes:
        vision: Of the vision tower.
        prefix: Of reading prefixes.
        branches: Of reading branches.
        writing: Of writing answers, token by token.
    """

    vision: float
    prefix: float
    branches: float
    writing: float

    @property
    def total(self) -> float:
        """Of all passes."""
        return self.vision + self.prefix + self.branches + self.writing


def flop(model: Architecture, work: Work) -> Flop:
    """What one question takes."""
    tower = _VISION_PRODUCTS * model.vision_width**2 + 2 * model.vision_width * model.vision_hidden
    vision = model.vision_layers * work.patches * (2 * tower + 4 * model.vision_width * work.tile)
    prefix = work.prefix * _token(model, work.seen + work.prefix / 2)
    branch = work.branch_tokens * _token(model, work.seen + work.prefix + work.branch_tokens / 2)
    before = work.seen + work.prefix + (work.branch_tokens if work.branches else 0)
    word = _token(model, before + work.row_tokens / 2) + 2 * model.vocabulary * model.width
    return Flop(vision, prefix, work.branches * branch, work.written * word)


def decoder_weights(model: Architecture) -> int:
    """Weights of the decoder's layers."""
    attention = 2 * model.width * (model.query_width + model.key_width)
    return model.layers * (attention + 3 * model.width * model.hidden)


def _token(model: Architecture, seen: float) -> float:
    """Operations of one token that attends to others."""
    return 2 * decoder_weights(model) + 4 * model.layers * model.query_width * seen
