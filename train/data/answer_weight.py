"""Weigh an answer against the thoughts before it: α of ReAG's supervised fine-tuning (arXiv 2511.22715)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from reflectune.models.attention.tree import Segment, Tree
from reflectune.models.rendering.renderer import Renderer, common_prefix

ANSWER_MARK: Final = "<answer>"
"""The tag that begins a reply's answer, after its thoughts. ReAG's prompt asks for it."""


def weigh_answers(tree: Tree, replies: Sequence[str], renderer: Renderer, answer_weight: float) -> Tree:
    """Return a tree in which a reply's loss is α · (mean over its answer) + (1 - α) · (mean over its thoughts).

    A reply's weights still add up to the number of its tokens. The answer is everything from `<answer>` on, with the
    end of the turn. A reply without answer or without thoughts keeps its weights.

    Args:
        tree: An encoded example, whose branches end with their replies.
        replies: The text of each branch's reply; "" for a reflection token.
        renderer: The renderer that encoded it.
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
    weights = [(1 - answer_weight) * count / border] * border + [answer_weight * count / answer] * answer
    return replace(segment, weights=(*segment.weights[:-count], *weights))
