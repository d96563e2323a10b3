"""Differentiable attention over packed trees, in which a branch sees its prefix and itself.

With a dense (length × length) mask, the scores between branches are computed and then hidden. Here only visible pairs
are computed: attention inside prefixes, inside branches, and from branches to their prefix. The last two are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from reflectune.models.attention.attention import attend, attend_backward, has_backward, merge

STRIDE = 2**20
"""Segment ids: tree t has t · STRIDE for its prefix and t · STRIDE + k for branch k = 1, 2, …"""
KERNEL_CALL_COST = 2**15
"""Cost of a kernel call, forward and backward, in attention scores of one head: as many as 180 tokens have."""


@dataclass(frozen=True)
class TreeLayout:
    """Token indices of a batch's trees, into its flattened tokens.

    Attributes:
        plain: Trees without branches and two-way images, which are ordinary causal rows: (trees, max tokens).
        trees: The other trees, shape (trees, max tokens).
        prefixes: Prefixes of the N trees with branches, shape (N, P).
        tails: Their branches, shape (N, R).
        segments: Segment ids of `trees`, -1 for padding.
        images: Numbers of the two-way images in `trees`, whose tokens see their whole image; -1 for other tokens.
        rows: Causal rows: plain trees, prefixes and branches, shape (M, max tokens).
        row_segments: Segment id of each of `rows`, shape (M,), in ascending order.
        reversed_images: Tokens of the two-way images, last first, shape (images, max tokens).
        padding: Index after the last token, used as padding.
        masks: Results of `dense`, by dtype.
    """

    plain: Tensor
    trees: Tensor
    prefixes: Tensor
    tails: Tensor
    segments: Tensor
    images: Tensor
    rows: Tensor
    row_segments: Tensor
    reversed_images: Tensor
    padding: int
    masks: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, segments: Tensor) -> TreeLayout:
        """Build the layout from the segments of `tree_attention`."""
        flat, *numbers = segments[:, 0].transpose(0, 1).flatten(1)
        images = numbers[0] if numbers else torch.full_like(flat, -1)
        order = torch.arange(len(flat), device=flat.device)
        tree, in_prefix = flat // STRIDE, flat % STRIDE == 0
        tail = (flat >= 0) & ~in_prefix
        branching = torch.isin(tree, tree[tail])
        is_masked = branching | torch.isin(tree, tree[images >= 0])

        def by(values: Tensor, selected: Tensor, *, backwards: bool = False) -> Tensor:
            """Return the selected tokens' indices, one row for each distinct value of `values` among them."""
            _, number = values[selected].unique(return_inverse=True)
            indices = order[selected]
            if backwards:
                number, indices = number.flip(0), indices.flip(0)
            return _padded(indices, number, int(number.max()) + 1 if len(number) else 0, len(flat))

        def at(values: Tensor, index: Tensor) -> Tensor:
            return torch.cat([values, values.new_full((1,), -1)])[index]

        trees = by(tree, is_masked)
        return cls(
            plain=by(tree, (flat >= 0) & ~is_masked),
            trees=trees,
            prefixes=by(tree, branching & in_prefix),
            tails=by(tree, tail),
            segments=at(flat, trees),
            images=at(images, trees),
            rows=by(flat, flat >= 0),
            row_segments=flat[flat >= 0].unique(),
            reversed_images=by(images, images >= 0, backwards=True),
            padding=len(flat),
        )

    @cached_property
    def causal(self) -> tuple[Tensor, ...]:
        """`rows` in groups of similar length, each of shape (rows, maximum tokens of the group)."""
        lengths = (self.rows < self.padding).sum(1).tolist()
        return tuple(self.rows[group, : lengths[group[-1]]] for group in group_by_length(lengths))

    @cached_property
    def forks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Plain trees and prefixes, (R, max tokens); branches, (K, max tokens); the prefix of each branch, (K,)."""
        is_root = self.row_segments % STRIDE == 0
        groups = [self.rows[selected] for selected in (is_root, ~is_root)]
        roots, branches = (group[:, (group < self.padding).any(0)] for group in groups)
        trees = self.row_segments[~is_root] // STRIDE * STRIDE
        return roots, branches, torch.searchsorted(self.row_segments[is_root].contiguous(), trees)

    @property
    def later_in_images(self) -> tuple[Tensor, Tensor]:
        """Queries in two-way images, and their later keys: query i sees keys 0 … i. Each (images, max tokens - 1)."""
        return self.reversed_images[:, 1:], self.reversed_images[:, :-1]

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return masks of `trees`, 0 or -inf, to be added to scores: (N, 1, L, L).

        All layers share this tensor, also in their backward passes. From a bool mask each layer would make two copies:
        one in the dtype of the scores, and one whose rows are aligned to multiples of eight, as kernels need.
        """
        if dtype not in self.masks:
            seen = tree_mask(torch.where(self.segments >= 0, self.segments % STRIDE, -1), self.images)
            length = seen.shape[-1]
            bias = torch.zeros(*seen.shape[:-1], length + -length % 8, dtype=dtype, device=seen.device)
            self.masks[dtype] = bias[..., :length].masked_fill_(~seen, -torch.inf)
        return self.masks[dtype]


def group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Group rows into kernel calls of least total cost: padded scores, plus `KERNEL_CALL_COST` for each call.

    Args:
        lengths: Tokens of each row.

    Returns:
        Row indices of each group, shortest rows first.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    least, starts = [0], [0]  # for the first n rows: the least cost, and the start of their last group
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        costs = [least[start] + (end - start) * longest**2 + KERNEL_CALL_COST for start in range(end)]
        least.append(min(costs))
        starts.append(costs.index(least[end]))
    groups, end = [], len(order)
    while end:
        groups.append(order[starts[end] : end])
        end = starts[end]
    return groups[::-1]


_LAYOUTS: WeakIdKeyDictionary = WeakIdKeyDictionary()


def cached_layout(segments: Tensor) -> TreeLayout:
    """Return the layout of the segments of `tree_attention`, computed once for all layers of a forward pass."""
    if segments not in _LAYOUTS:
        _LAYOUTS[segments] = TreeLayout.of(segments.clone())  # not a view, which would keep its own key alive
    return _LAYOUTS[segments]


def tree_attention(
    query: Tensor, keys: Tensor, values: Tensor, segments: Tensor, scale: float, dropout: float = 0.0
) -> Tensor:
    """Compute attention over a batch of trees.

    On a CPU, kernels take and return the log-sum-exp, so prefixes and branches are computed separately and merged.
    Elsewhere each tree gets a dense mask; `packed_attention` is faster there.

    Args:
        query: Shape (B, heads, L, size).
        keys: Shape (B, key heads, L, size).
        values: Shape of `keys`.
        segments: Segment ids of shape (B, 1, 1, L): t · STRIDE for the prefix of tree t, t · STRIDE + k for its branch
            k, -1 for padding. Tokens of a tree are contiguous, and so are those of a branch. Shape (B, 1, 2, L) with
            two-way images: the second row holds the image's number, -1 for other tokens.
        scale: Factor of the scores.
        dropout: Dropout of the attention weights. Above 0 the dense mask is used on every device.

    Returns:
        Shape (B, L, heads, size); zero at padding.
    """
    layout = cached_layout(segments)
    if not dropout and has_backward(query.device.type, query.dtype, query.shape[-1]):
        return _TreeAttention.apply(query, keys, values, layout, scale)  # type: ignore[no-untyped-call]
    rows, heads, length, size = query.shape
    wide = [tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in (query, keys, values)]
    tokens = [_flat(tensor) for tensor in wide]
    output = query.new_zeros(rows * length + 1, heads, size)
    for index, is_causal in ((layout.plain, True), (layout.trees, False)):
        if index.numel():
            q, k, v = (_take(tensor, index) for tensor in tokens)
            mask = None if is_causal else layout.dense(query.dtype)
            attended = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=is_causal, scale=scale)
            output = output.index_copy(0, index.flatten(), attended.transpose(1, 2).flatten(0, 1))
    return output[:-1].view(rows, length, heads, size)


def tree_mask(segments: Tensor, images: Tensor) -> Tensor:
    """Return the attention mask of trees.

    Args:
        segments: Shape (B, L): 0 for the prefix, 1 … K for its branches, -1 for padding.
        images: Numbers of the two-way images, -1 for other tokens; shape of `segments`.

    Returns:
        Bool of shape (B, 1, L, L): a query sees earlier tokens of its prefix and branch; padding sees itself.
    """
    order = torch.arange(segments.shape[1], device=segments.device)
    same = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
    real = segments[:, None, :] >= 0
    seen = (same & real & (order[:, None] >= order)) | torch.eye(len(order), dtype=torch.bool, device=order.device)
    in_one_image = (images[:, None, :] >= 0) & (images[:, None, :] == images[:, :, None])
    return (seen | in_one_image)[:, None]


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, values: Tensor, layout: TreeLayout, scale: float) -> Tensor:
        q, k, v = (_flat(tensor) for tensor in (query, keys, values))
        rows, heads, length, size = query.shape
        bias = _bias(layout.prefixes, layout.padding, query.dtype)
        output, lse = q.new_zeros(q.shape), torch.full(q.shape[:2], torch.inf)
        for index in layout.causal:
            attended = attend(*(_take(tensor, index) for tensor in (q, k, v)), scale=scale, causal=True)
            _put(output, lse, index, *attended)
        queries, later = layout.later_in_images
        if queries.numel():
            to_later = attend(_take(q, queries), _take(k, later), _take(v, later), scale=scale, causal=True)
            _put(output, lse, queries, *merge([to_later, (_take(output, queries), _take(lse, queries))]))
        if layout.tails.numel():
            prefix_keys, prefix_values = (_take(tensor, layout.prefixes) for tensor in (k, v))
            to_prefix = attend(_take(q, layout.tails), prefix_keys, prefix_values, scale=scale, bias=bias)
            to_branch = _take(output, layout.tails), _take(lse, layout.tails)
            _put(output, lse, layout.tails, *merge([to_prefix, to_branch]))
        output[-1], lse[-1] = 0, torch.inf
        ctx.save_for_backward(query, keys, values, output, lse)
        ctx.layout, ctx.scale, ctx.bias = layout, scale, bias
        return output[:-1].view(rows, length, heads, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, keys, values, output, lse = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        q, k, v = (_flat(tensor) for tensor in (query, keys, values))
        d_output = torch.cat([grad.reshape(-1, *grad.shape[2:]), grad.new_zeros(1, *grad.shape[2:])])
        d_q, d_k, d_v = (torch.zeros_like(tensor) for tensor in (q, k, v))

        def add(at_queries: Tensor, at_keys: Tensor, **kwargs: Any) -> None:
            """Add the gradients of attention from the queries at some indices to the keys at others."""
            gradients = attend_backward(
                *(_take(tensor, at_queries) for tensor in (d_output, q)),
                *(_take(tensor, at_keys) for tensor in (k, v)),
                *(_take(tensor, at_queries) for tensor in (output, lse)),
                scale=scale,
                **kwargs,
            )
            for total, part, index in zip((d_q, d_k, d_v), gradients, (at_queries, at_keys, at_keys), strict=True):
                total.index_add_(0, index.flatten(), part.transpose(1, 2).flatten(0, 1))

        for index in layout.causal:
            add(index, index, causal=True)
        queries, later = layout.later_in_images
        if queries.numel():
            add(queries, later, causal=True)
        if layout.tails.numel():
            add(layout.tails, layout.prefixes, bias=ctx.bias)
        return _unflat(d_q, query), _unflat(d_k, keys), _unflat(d_v, values), None, None


def _flat(tensor: Tensor) -> Tensor:
    """Reshape (B, heads, L, size) to (B · L + 1, heads, size); the last row is zero and serves as padding."""
    tokens = tensor.transpose(1, 2).flatten(0, 1)
    return torch.cat([tokens, tokens.new_zeros(1, *tokens.shape[1:])])


def _unflat(tokens: Tensor, like: Tensor) -> Tensor:
    rows, heads, length, size = like.shape
    return tokens[:-1].view(rows, length, heads, size).transpose(1, 2)


def _take(tokens: Tensor, index: Tensor) -> Tensor:
    """Gather (N, n) indices from (tokens, heads, …) as (N, heads, n, …)."""
    return tokens[index].transpose(1, 2)


def _put(output: Tensor, lse: Tensor, index: Tensor, new_output: Tensor, new_lse: Tensor) -> None:
    """Write attention of shape (N, heads, n, …) to (N, n) indices; the inverse of `_take`."""
    output[index.flatten()] = new_output.transpose(1, 2).flatten(0, 1)
    lse[index.flatten()] = new_lse.transpose(1, 2).flatten(0, 1)


def _bias(index: Tensor, padding: int, dtype: torch.dtype) -> Tensor | None:
    """Return a mask (N, 1, 1, n) that hides the padding of an index (N, n), or None without padding."""
    padded = index == padding
    if not bool(padded.any()):
        return None
    return torch.zeros(index.shape, dtype=dtype).masked_fill_(padded, -torch.inf)[:, None, None]


def _padded(flat: Tensor, row: Tensor, rows: int, padding: int) -> Tensor:
    """Return values grouped by row, in order, as a matrix (rows, longest row) padded with `padding`."""
    sizes = torch.bincount(row, minlength=rows)
    padded = flat.new_full((rows, int(sizes.max()) if rows else 0), padding)
    order = row.argsort(stable=True)
    rank = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row[order]]
    padded[row[order], rank] = flat[order]
    return padded
