"""The weight of an answer against the thoughts before it: α of ReAG's supervised fine-tuning (arXiv 2511.22715)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from reflectune.models.attention.tree import Segment, Tree
from reflectune.models.rendering.renderer import Renderer, common_prefix

ANSWER_MARK: Final = "<answer>"
"""Where a reply's thoughts end and its answer begins; ReAG's prompt asks for it."""


def weigh_answers(tree: Tree, replies: Sequence[str], renderer: Renderer, answer_weight: float) -> Tree:
    """A tree in which each reply's loss is α · (mean of its answer's tokens) + (1 - α) · (mean of its thoughts').

    Its weights still add up to the number of its tokens, so that a reply counts as much as before beside others. The
    answer is everything from `<answer>` on, the turn's end included. A reply without it, or without thoughts before it,
    stays as it is.

    Args:
        tree: An encoded example, each branch of which ends with its reply.
        replies: The words of each branch's reply; "" where it is a reflection token.
        renderer: That it was encoded with.
        answer_weight: α, in [0, 1].
    """
    branches = [
        _weighed(segment, reply, renderer, answer_weight) if ANSWER_MARK in reply else segment
        for segment, reply in zip(tree.branches, replies, strict=True)
    ]
    return replace(tree, branches=tuple(branches))


def _weighed(segment: Segment, reply: str, renderer: Renderer, answer_weight: float) -> Segment:
    thoughts = reply[: reply.index(ANSWER_MARK)]
    if not thoughts.strip():
        return segment
    ids = renderer.reply_ids(reply)
    border = len(common_prefix([ids, renderer.reply_ids(thoughts)]))  # a token across it is the answer's
    count, answer = len(ids), len(ids) - border
    each = [(1 - answer_weight) * count / border] * border + [answer_weight * count / answer] * answer
    return replace(segment, weights=(*segment.weights[:-count], *each))
