"""Attention over packed rows: one row of tokens holds many segments, e.g. prefixes and branches.

Each segment sees itself and up to two earlier ranges of tokens. Masks are built from the segments' lengths, without
comparing pairs of tokens.
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
"""Size of a block of queries or keys (FlexAttention's default). Packed rows are padded to a multiple of it."""
WHOLE_BLOCKS: Any = {"IS_DIVISIBLE": True}
"""Tells the kernel that lengths are multiples of a block, which it can't prove for dynamic lengths."""
MAX_EARLIER_RANGES = 2
"""Maximum earlier ranges that a segment sees."""
Span = tuple[int, int]
"""Range of keys: first index, and the index after the last."""
PackedSegment = tuple[int, Sequence[Span]]
"""Number of tokens, and the earlier key ranges that all of them see."""


def round_up_to_blocks(tokens: int) -> int:
    """Round a number of tokens up to whole blocks, at least two: a single block would be compiled separately."""
    return max(2, -(-tokens // BLOCK)) * BLOCK


def bucket(tokens: int) -> int:
    """Round a number of tokens up to one of eight lengths per power of two; training compiles layers for each."""
    step = max(BLOCK, 1 << (tokens - 1).bit_length() >> 4)
    return round_up_to_blocks(-(-tokens // step) * step)


def key_bounds(
    segments: Sequence[PackedSegment], past: int = 0, width: int = 0, images: Sequence[Span] = ()
) -> np.ndarray:
    """Return the key ranges that each query of a packed row sees: int32, (2 · (`MAX_EARLIER_RANGES` + 1), queries).

    Rows 2d and 2d + 1 hold the first key and the end of range d. The last range is the query's own segment, up to the
    query itself or to the end of its image. A padding token sees itself.

    Args:
        segments: Segments in the order of the row.
        past: Number of keys before the row's first token.
        width: Tokens of the padded row; 0 for as few as possible.
        images: Token ranges of images whose tokens see their whole image.
    """
    counts = [count for count, _ in segments]
    total = sum(counts)
    keys = past + np.arange(width or round_up_to_blocks(total), dtype=np.int32)
    spans = np.zeros((len(segments), 2 * MAX_EARLIER_RANGES), dtype=np.int32)
    for number, (_, seen) in enumerate(segments):
        spans[number, : 2 * len(seen)] = np.ravel(seen)
    bounds = np.zeros((2 * MAX_EARLIER_RANGES + 2, len(keys)), dtype=np.int32)
    bounds[: 2 * MAX_EARLIER_RANGES, :total] = spans.repeat(counts, 0).T
    bounds[-2:] = keys, keys + 1
    bounds[-2, :total] = np.repeat(past + np.cumsum(counts) - counts, counts)
    for first, end in images:
        bounds[-1, first:end] = past + end
    return bounds


def true_ranges(mask: np.ndarray) -> list[Span]:
    """Return the ranges in which a bool array of shape (tokens,) is True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]))).tolist()
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
"""Padding values of the tensors of `TreeCollator`'s batches."""


def pad_to_bucket(batch: Mapping[str, Any], device: torch.device | str, *, backward: bool = True) -> dict[str, Any]:
    """Return a batch of `TreeCollator` padded to a `bucket`, with the `packed_mask` of its trees.

    Args:
        batch: On the CPU; one row.
        device: Device of the mask.
        backward: Add the indices that a backward pass needs.
    """
    codes, *numbers = batch["attention_mask"][0, 0].numpy()
    width = bucket(len(codes))
    padding = (0, width - len(codes))
    padded = {name: F.pad(batch[name], padding, value=value) for name, value in PADDING.items() if name in batch}
    images = true_ranges(numbers[0] >= 0) if numbers else ()
    mask = block_mask(tree_segments(codes), device=device, width=width, images=images, backward=backward)
    return {**batch, **padded, "packed_mask": mask}


def dense_mask(bounds: np.ndarray, keys: int) -> Tensor:
    """Return the dense mask of `key_bounds`: bool of shape (queries, keys)."""
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
        images: Token ranges of images whose tokens see their whole image.
        backward: Add the indices that a backward pass needs.
    """
    bounds = key_bounds(segments, past, width, images)
    visible, full = _visible_blocks(segments, bounds, past, images)
    limits = to_device(torch.from_numpy(bounds), device)
    partial_counts, partial_indices = (to_device(tensor, device) for tensor in _block_indices(visible & ~full))
    full_counts, full_indices = (to_device(tensor, device) for tensor in _block_indices(full))

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (limits[0, query] <= key) & (key < limits[1, query])
        for row in range(2, 2 * MAX_EARLIER_RANGES + 2, 2):
            seen = seen | ((limits[row, query] <= key) & (key < limits[row + 1, query]))
        return seen

    return BlockMask.from_kv_blocks(
        partial_counts,
        partial_indices,
        full_counts,
        full_indices,
        BLOCK,
        sees,
        seq_lengths=(len(bounds.T), past + len(bounds.T)),
        compute_q_blocks=backward,
    )


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device. For a GPU it is pinned: otherwise the copy would wait for all queued kernels."""
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _visible_blocks(
    segments: Sequence[PackedSegment], bounds: np.ndarray, past: int, images: Sequence[Span]
) -> tuple[np.ndarray, np.ndarray]:
    """Return which block pairs have any visible pair of tokens, and which have only visible ones: (queries, keys).

    Segments are cut into pieces at block and image boundaries. The first query of a piece sees the fewest keys, the
    last query the most.
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
    most[-2, is_padding] = past + first[is_padding]  # a padding token sees only itself, so never a whole block
    fewest = np.where(is_padding[:, None], 0, keys_seen(bounds[:, first]))
    starts = np.searchsorted(first, np.arange(0, len(bounds.T), BLOCK))
    return np.logical_or.reduceat(keys_seen(most) > 0, starts), np.logical_and.reduceat(fewest == BLOCK, starts)


def _block_indices(blocks: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return `kv_num_blocks` and `kv_indices` of a `BlockMask`: per query block, the visible key blocks come first."""
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
        memory: Keys and values before the row, or an empty list. It is replaced by all keys and values. None: there
            are no earlier ones, and none are stored.
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
    """Return compiled FlexAttention; uncompiled it computes every score."""
    return torch.compile(flex_attention, dynamic=True)


@functools.cache
def flex_problem(
    device: str, dtype: torch.dtype, heads: int, key_heads: int, size: int, *, backward: bool = False
) -> str:
    """Return why FlexAttention can't be used, "" if a small trial agrees with sdpa.

    Args:
        backward: Compare gradients too. For the other arguments see `packed_attention`.
    """
    segments: list[PackedSegment] = [(70, ()), (50, [(0, 70)]), (40, [(0, 70)])]
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, count, round_up_to_blocks(160), size) for count in (heads, key_heads, key_heads)]
    tensors = [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_(backward) for shape in shapes]
    dense = dense_mask(key_bounds(segments), round_up_to_blocks(160)).to(device)
    mask = block_mask(segments, 0, device, backward=backward)
    query, key, value = tensors
    with torch.set_grad_enabled(backward):
        sdpa = F.scaled_dot_product_attention(query, key, value, attn_mask=dense, scale=size**-0.5, enable_gqa=True)
        expected = [sdpa, *_gradients(sdpa, tensors)]
        try:
            attended = packed_attention(query, key, value, mask, size**-0.5).transpose(1, 2)
            actual = [attended, *_gradients(attended, tensors)]
        except Exception as error:  # compilers raise many types of errors
            return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    tolerance = 1e-3 if dtype == torch.float32 else 0.03
    pairs = zip(actual, expected, strict=True)
    is_correct = all(bool((one - other).norm() <= tolerance * other.norm()) for one, other in pairs)
    return "" if is_correct else "its results differ from sdpa's"


def model_flex_problem(model: PreTrainedModel, dtype: torch.dtype, *, backward: bool = False) -> str:
    """Return why a GPU can't use FlexAttention for a model's language layers; see `flex_problem`."""
    if not hasattr(model.model, "language_model"):
        return f"{type(model).__name__} has no `language_model`"  # as Idefics3
    config: Any = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return flex_problem("cuda", dtype, heads, config.num_key_value_heads, size, backward=backward)


def _gradients(output: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of the sum of squares; none where no gradient is needed."""
    return torch.autograd.grad(output.float().square().sum(), tensors) if output.requires_grad else ()
