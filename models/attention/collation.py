"""Batches of packed trees: a prefix is read once, and every branch attends to it and to itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reflectune.core.devices import on_device
from reflectune.models.attention.images import read_images_once
from reflectune.models.attention.positions import Positions, image_numbers
from reflectune.models.attention.shared import share_prefixes
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.attention.tree_mask import STRIDE
from reflectune.models.attention.windows import read_windows_at_once


class TreeCollator:
    """Pack trees into a batch for one model.

    A tree is laid out as `prefix[:-1]`, then `prefix[-1:] + branch` for each branch. Repeating the prefix's last token
    gives every branch's first token a position that predicts it, so the usual shift of labels applies (position i
    predicts label i + 1). The position ids of a branch continue those of the prefix, also under M-RoPE.

    Visible tokens for a prefix of 3 tokens and branches of 2 and 1 (`o` is visible, rows are queries):

        p0        o
        p1        o o
        p2 a0 a1  o o | o
                  o o | o o
                  o o | o o o
        p2 b0     o o | . . . | o
                  o o | . . . | o o

    Args:
        model: The model, possibly wrapped. Its attention is replaced by an equivalent one that can read trees, and its
            vision tower by one that reads an image shared by several trees once.

    Raises:
        UserError: The model's attention can't read a tree.
    """

    def __init__(self, model: nn.Module) -> None:
        share_prefixes(model)
        read_images_once(model)
        read_windows_at_once(model)
        self._positions = Positions(model)

    def __call__(self, trees: Sequence[Tree]) -> dict[str, Tensor]:
        """Return a batch of one row of L tokens: all trees packed, without padding.

        Returns:
            `input_ids`, `labels`, `weights` of shape (1, L); `predicts`, see `predicting`; `attention_mask`
            (1, 1, 1 or 2, L), the segments of `tree_attention`; `position_ids` (1, L), or (3, 1, L) under M-RoPE and
            then `mm_token_type_ids` (1, L); and the trees' vision tensors, concatenated.
        """
        rows = [self._row(tree) for tree in trees]
        for number, row in enumerate(rows):
            row[1, 0] = IGNORE  # otherwise the last token of the previous tree would predict it
            row[2] += number * STRIDE
        ids, labels, segments, *positions = torch.from_numpy(np.concatenate(rows, axis=1)[:, None])
        masks = [segments]
        if self._positions.is_two_way:
            masks.append(image_numbers(ids == self._positions.image_token_id))
        batch = {
            "input_ids": ids,
            "labels": labels,
            "predicts": predicting(labels),
            "weights": torch.from_numpy(np.concatenate([_weights(tree) for tree in trees])[None]),
            "attention_mask": torch.stack(masks, 1)[:, None],
            "position_ids": torch.stack(positions) if self._positions.is_3d else positions[0],
        }
        if self._positions.is_3d:
            batch |= self._positions.types(ids)
        return batch | join_vision([tree.vision for tree in trees])

    def _row(self, tree: Tree) -> np.ndarray:
        """Return ids, labels, segments and positions (one row, or three) of a tree's row: (4 or 6, length)."""
        prefix = np.array([tree.prefix.ids, tree.prefix.labels])  # (2, P)
        positions = self._positions.of_prefix(prefix[0], tree.vision)  # (1 or 3, P)
        if not tree.branches:
            return np.concatenate([prefix, np.zeros_like(prefix[:1]), positions])
        lengths = np.array([len(branch.ids) + 1 for branch in tree.branches])
        branches = np.concatenate([_forked(prefix[:, -1:], b, first=i == 0) for i, b in enumerate(tree.branches)], 1)
        segments = np.repeat(np.arange(len(lengths) + 1), [prefix.shape[1] - 1, *lengths])
        steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # 0, 1, … in each branch
        return np.concatenate(
            [
                np.concatenate([prefix[:, :-1], branches], 1),
                segments[None],
                np.concatenate([positions[:, :-1], positions[:, -1:] + steps], 1),
            ]
        )


@dataclass(frozen=True)
class GateBrier:
    """Brier term of the loss (Brier 1950): (p - y)² of each supervised gate token, times a weight.

    Attributes:
        weight: Weight of the term against the token's -log p.
        gates: Ids of each gate's positive and negative token.
    """

    weight: float
    gates: Sequence[tuple[int, int]]

    def terms(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted term of each token, shape (tokens,), 0 for tokens other than a gate's.

        Args:
            logits: Shape (tokens, vocabulary). p is the softmax of the gate's two logits at its positive token.
            labels: Shape (tokens,). y is 1 at a gate's positive token.
        """
        ids = on_device(tuple(itertools.chain(*self.gates)), labels.device).view(-1, 2)  # (gates, 2)
        is_token = labels[:, None, None] == ids  # (tokens, gates, 2)
        positive = logits[:, ids].float().softmax(-1)[..., 0]  # (tokens, gates)
        return self.weight * ((positive - is_token[..., 0].float()).square() * is_token.any(-1)).sum(-1)


def predicting(labels: Tensor) -> Tensor:
    """Return the positions whose next label is supervised, shape (supervised tokens,), for `logits_to_keep`.

    On a GPU they would have to be counted, for which the CPU would wait.

    Args:
        labels: Shape (1, L), on the CPU.
    """
    return (labels[0, 1:] != IGNORE).nonzero()[:, 0]


def loss_terms(model: nn.Module, batch: Mapping[str, Tensor], brier: GateBrier | None = None) -> tuple[Tensor, Tensor]:
    """Return the weighted negative log-likelihood of the supervised tokens, summed, and the sum of their weights.

    Their quotient, each summed over the global batch, is the loss of equations 8 and 9 of mR²AG. Only the hidden states
    that predict a supervised token are projected onto the vocabulary.

    Args:
        model: The model, possibly wrapped.
        batch: From `TreeCollator`.
        brier: Term to add at gates, multiplied by the token's weight.
    """
    logits, labels, weights = supervised(model, batch)
    losses = F.cross_entropy(logits.float(), labels, reduction="none")
    if brier is not None:
        losses = losses + brier.terms(logits, labels)
    return (losses * weights).sum(), weights.sum()


def supervised(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits that predict the supervised tokens, these tokens, and their weights.

    Args:
        model: The model, possibly wrapped.
        batch: From `TreeCollator`.

    Returns:
        Shapes (supervised tokens, vocabulary) and twice (supervised tokens,).
    """
    predicts = batch["predicts"]
    logits = model(**model_inputs(batch), logits_to_keep=predicts, use_cache=False).logits[0]
    return logits, batch["labels"][0, predicts + 1], batch["weights"][0, predicts + 1]


def model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch of `TreeCollator` without what only the loss reads."""
    return {name: value for name, value in batch.items() if name not in ("labels", "weights", "predicts")}


def join_vision(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate the vision tensors of several questions along their first dimension.

    Images of different numbers of tiles (LLaVA-NeXT) or of different sizes (Pixtral) are padded with zeros, as their
    processors do.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _concatenated([part[name] for part in parts if name in part]) for name in names}


def _concatenated(tensors: Sequence[Tensor]) -> Tensor:
    longest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    padded = []
    for tensor in tensors:
        missing = [most - size for most, size in zip(longest, tensor.shape[1:], strict=True)]
        sides = [side for count in reversed(missing) for side in (0, count)]
        padded.append(F.pad(tensor, sides) if any(missing) else tensor)
    return torch.cat(padded)


def _forked(last: np.ndarray, branch: Segment, *, first: bool) -> np.ndarray:
    """Return the prefix's last token and a branch, of shape (2, n + 1); only the first branch keeps its label."""
    head = last if first else np.array([last[0], [IGNORE]])
    return np.concatenate([head, np.array([branch.ids, branch.labels])], 1)


def _weights(tree: Tree) -> np.ndarray:
    """Return the loss weights of a tree's row, laid out as its ids."""
    row_weights: list[float] = list(tree.prefix.weights)
    for number, branch in enumerate(tree.branches):
        row_weights += branch.weights if number == 0 else (0.0, *branch.weights)
    return np.array(row_weights, dtype=np.float32)
