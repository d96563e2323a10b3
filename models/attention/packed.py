"""Attention over packed rows: many segments in one row of tokens; each sees itself and up to two earlier ranges.

A tree's branch sees its prefix and itself. Masks are built from lengths, without comparing pairs of tokens.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import PreTrainedModel

from reflectune.models.attention.tree import IGNORE
from reflectune.models.attention.tree_mask import STRIDE

BLOCK = 128
"""Tokens of a block of queries or keys, FlexAttention's default; packed rows are padded to a multiple of it."""
WHOLE_BLOCKS: Any = {"IS_DIVISIBLE": True}
"""Spares the kernel's checks of lengths, which it can't prove to be multiples of a block where they are dynamic."""
SEEN = 2
"""Maximum earlier ranges that a segment sees."""
Span = tuple[int, int]
"""Range of keys: the first, and the end."""
PackedSegment = tuple[int, Sequence[Span]]
"""Number of tokens, and the earlier ranges of keys that all of them see."""


def padded(tokens: int) -> int:
    """Round a number of tokens up to whole blocks, at least two: a single one would be compiled by itself."""
    return max(2, -(-tokens // BLOCK)) * BLOCK


def bucket(tokens: int) -> int:
    """Round a number of tokens up to one of eight lengths an octave; training compiles its layers for each."""
    step = max(BLOCK, 1 << (tokens - 1).bit_length() >> 4)
    return padded(-(-tokens // step) * step)


def bounds_of(
    segments: Sequence[PackedSegment], past: int = 0, width: int = 0, images: Sequence[Span] = ()
) -> np.ndarray:
    """Return the key ranges that each query of a packed row sees, int32 of shape (2 · (`SEEN` + 1), queries).

    Rows 2d and 2d + 1 hold the first key and the end of range d; the last range is the query's own segment up to
    itself, or up to the end of its image. Padding, up to whole blocks, sees itself.

    Args:
        segments: Segments in the order of the row.
        past: Number of keys before the row's first token.
        width: Tokens of the padded row; 0 for as few as possible.
        images: Ranges of the row's tokens that see all of their range.
    """
    counts = [count for count, _ in segments]
    total = sum(counts)
    keys = past + np.arange(width or padded(total), dtype=np.int32)
    spans = np.zeros((len(segments), 2 * SEEN), dtype=np.int32)
    for number, (_, seen) in enumerate(segments):
        spans[number, : 2 * len(seen)] = np.ravel(seen)
    bounds = np.zeros((2 * SEEN + 2, len(keys)), dtype=np.int32)
    bounds[: 2 * SEEN, :total] = spans.repeat(counts, 0).T
    bounds[-2:] = keys, keys + 1
    bounds[-2, :total] = np.repeat(past + np.cumsum(counts) - counts, counts)
    for first, end in images:
        bounds[-1, first:end] = past + end
    return bounds


def runs_of(chosen: np.ndarray) -> list[Span]:
    """Return the ranges in which an array of bools is True, shape (tokens,)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]))).tolist()
    return list(zip(edges[0::2], edges[1::2], strict=True))


def tree_segments(codes: np.ndarray) -> list[PackedSegment]:
    """Return the segments of a row of trees, without its padding.

    Args:
        codes: The segment ids of `tree_attention`, shape (L,).
    """
    segments: list[PackedSegment] = []
    prefix, first = (0, 0), 0
    for code, run in itertools.groupby(codes.tolist()):
        count = len(list(run))
        if code >= 0:
            is_prefix = code % STRIDE == 0
            prefix = (first, first + count) if is_prefix else prefix
            segments.append((count, () if is_prefix else (prefix,)))
        first += count
    return segments


PADDING = {
    "input_ids": 0,
    "labels": IGNORE,
    "weights": 0,
    "attention_mask": -1,
    "position_ids": 0,
    "mm_token_type_ids": 0,
}
"""Values of `TreeCollator`'s batches at tokens that pad a row."""


def in_blocks(batch: Mapping[str, Any], device: torch.device | str, *, backward: bool = True) -> dict[str, Any]:
    """Return a batch of `TreeCollator` padded to a `bucket`, with the `packed_mask` of its trees.

    Args:
        batch: On the CPU; one row.
        device: Device of the mask.
        backward: Add the indices that a backward pass needs.
    """
    codes, *numbers = batch["attention_mask"][0, 0].numpy()
    width = bucket(len(codes))
    padding = (0, width - len(codes))
    filled = {name: F.pad(batch[name], padding, value=value) for name, value in PADDING.items() if name in batch}
    images = runs_of(numbers[0] >= 0) if numbers else ()
    mask = block_mask(tree_segments(codes), device=device, width=width, images=images, backward=backward)
    return {**batch, **filled, "packed_mask": mask}


def dense_mask(bounds: np.ndarray, keys: int) -> Tensor:
    """Return the dense mask of key bounds: bool of shape (queries, keys)."""
    key = np.arange(keys)[:, None]
    return torch.from_numpy(((bounds[0::2].T[:, None] <= key) & (key < bounds[1::2].T[:, None])).any(-1))


def block_mask(
    segments: Sequence[PackedSegment],
    past: int = 0,
    device: torch.device | str = "cpu",
    *,
    width: int = 0,
    images: Sequence[Span] = (),
    backward: bool = False,
) -> BlockMask:
    """Return the mask of a packed row for FlexAttention.

    Args:
        segments: Segments in the order of the row.
        past: Number of keys before the row's first token, a multiple of `BLOCK`.
        device: Device of the mask.
        width: Tokens of the padded row, a multiple of `BLOCK`; 0 for as few as possible.
        images: Ranges of the row's tokens that see all of their range.
        backward: Add the indices that a backward pass needs.
    """
    bounds = bounds_of(segments, past, width, images)
    some, whole = _visible_blocks(segments, bounds, past, images)
    limits = moved(torch.from_numpy(bounds), device)
    partial, full = ([moved(tensor, device) for tensor in _listed(blocks)] for blocks in (some & ~whole, whole))

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (limits[0, query] <= key) & (key < limits[1, query])
        for row in range(2, 2 * SEEN + 2, 2):
            seen = seen | ((limits[row, query] <= key) & (key < limits[row + 1, query]))
        return seen

    return BlockMask.from_kv_blocks(
        *(partial[0], partial[1], full[0], full[1], BLOCK, sees),
        seq_lengths=(len(bounds.T), past + len(bounds.T)),
        compute_q_blocks=backward,
    )


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Move a tensor to a device, to a GPU from pinned memory: a plain copy would wait for all kernels in its queue."""
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _visible_blocks(
    segments: Sequence[PackedSegment], bounds: np.ndarray, past: int, images: Sequence[Span]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of blocks with a visible pair of tokens, and those of visible pairs only: (queries, keys).

    A piece is the part of a segment in one block of queries, in an image or between images. Its first query sees the
    fewest keys, its last the most.
    """
    ends = np.cumsum([count for count, _ in segments])
    cuts = np.unique([*ends, *np.ravel(images).astype(int), *range(0, len(bounds.T) + 1, BLOCK)])
    first, last, is_padding = cuts[:-1], cuts[1:] - 1, cuts[:-1] >= ends[-1]
    edges = np.arange(0, past + len(bounds.T) + 1, BLOCK)

    def keys_seen(limits: np.ndarray) -> np.ndarray:
        """Count the keys of each block within limits of shape (2 · ranges, pieces): (pieces, blocks)."""
        before = np.clip(edges, limits[0::2, :, None], limits[1::2, :, None]).sum(0)
        return np.diff(before, axis=1)

    most = bounds[:, last]
    most[-2, is_padding] = past + first[is_padding]  # padding sees itself token by token, and never a whole block
    fewest = np.where(is_padding[:, None], 0, keys_seen(bounds[:, first]))
    starts = np.searchsorted(first, np.arange(0, len(bounds.T), BLOCK))
    return np.logical_or.reduceat(keys_seen(most) > 0, starts), np.logical_and.reduceat(fewest == BLOCK, starts)


def _listed(blocks: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the number of blocks of keys of each block of queries, and their indices followed by the others'."""
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(blocks.sum(1, dtype=np.int32))[None, None], torch.from_numpy(order)[None, None]


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float, memory: list[Tensor] | None = None
) -> Tensor:
    """Compute the attention of a packed row: (1, T, heads, size).

    Args:
        query: Shape (1, heads, T, size).
        key: Shape (1, key heads, T, size).
        value: Shape of `key`.
        mask: From `block_mask`.
        scale: Factor of the scores.
        memory: Keys and values before the row, or an empty list; replaced by all keys and values. None: there are
            none, and none are kept.
    """
    if memory:
        key, value = torch.cat([memory[0], key], 2), torch.cat([memory[1], value], 2)
    if memory is not None:
        memory[:] = [key, value]
    attend = flex_attention if torch.compiler.is_compiling() or query.device.type == "cpu" else _compiled()
    attended: Tensor = attend(
        query,
        key,
        value,
        block_mask=mask,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
        kernel_options=WHOLE_BLOCKS if query.is_cuda else None,
    )
    return attended.transpose(1, 2).contiguous()


@functools.cache
def _compiled() -> Any:
    """Return FlexAttention as a kernel; without a compiler it computes every score."""
    return torch.compile(flex_attention, dynamic=True)


@functools.cache
def flex_problem(
    device: str, dtype: torch.dtype, heads: int, key_heads: int, size: int, *, backward: bool = False
) -> str:
    """Return why FlexAttention can't be used, "" if a small trial gives the equation's numbers.

    Args:
        backward: Compare gradients too. For others see `packed_attention`.
    """
    segments: list[PackedSegment] = [(70, ()), (50, [(0, 70)]), (40, [(0, 70)])]
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, count, padded(160), size) for count in (heads, key_heads, key_heads)]
    tensors = [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_(backward) for shape in shapes]
    seen, mask = (
        dense_mask(bounds_of(segments), padded(160)).to(device),
        block_mask(segments, 0, device, backward=backward),
    )
    query, key, value = tensors
    with torch.set_grad_enabled(backward):
        sdpa = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=size**-0.5, enable_gqa=True)
        expected = [sdpa, *_gradients(sdpa, tensors)]
        try:
            attended = packed_attention(query, key, value, mask, size**-0.5).transpose(1, 2)
            found = [attended, *_gradients(attended, tensors)]
        except Exception as error:  # a missing compiler has many types of errors
            return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    tolerance = 1e-3 if dtype == torch.float32 else 0.03
    pairs = zip(found, expected, strict=True)
    is_right = all(bool((one - other).norm() <= tolerance * other.norm()) for one, other in pairs)
    return "" if is_right else "it gives other numbers"


def model_flex_problem(model: PreTrainedModel, dtype: torch.dtype, *, backward: bool = False) -> str:
    """Return why a GPU can't use FlexAttention for a model's language layers; see `flex_problem`."""
    config: Any = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return flex_problem("cuda", dtype, heads, config.num_key_value_heads, size, backward=backward)


def _gradients(output: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of the sum of squares; none where no gradient is needed."""
    return torch.autograd.grad(output.float().square().sum(), tensors) if output.requires_grad else ()
