"""A tree's attention is that under its dense mask, whatever the shapes, forward and backward."""

import gc
import random
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reflectune.models.attention.tree_mask import (
    KERNEL_CALL_COST,
    STRIDE,
    cached_layout,
    group_by_length,
    tree_attention,
)

SCALE = 0.4
TREES = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(1, 4), max_size=4), st.integers(0, 3)), min_size=1, max_size=3
)
"""Rows of (tokens of the prefix, tokens of each branch, padding)."""


def segments_of(trees: list[tuple[int, list[int], int]]) -> torch.Tensor:
    """A tree a row, of shape (rows, length)."""
    rows = [
        [0] * prefix + [k for k, n in enumerate(branch_lengths, 1) for _ in range(n)]
        for prefix, branch_lengths, _ in trees
    ]
    length = max(len(row) + tree[2] for row, tree in zip(rows, trees, strict=True))
    return torch.tensor(
        [[t * STRIDE + code for code in row] + [-1] * (length - len(row)) for t, row in enumerate(rows)]
    )


def packed(segments: torch.Tensor) -> torch.Tensor:
    """The same trees in one row."""
    return segments[segments >= 0][None]


def images_in(segments: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Numbers of random runs of tokens, each in one segment, and -1 elsewhere; shape of `segments`."""
    images = torch.full_like(segments, -1)
    for row, codes in enumerate(segments.tolist()):
        for place, code in enumerate(codes):
            goes_on = place > 0 and codes[place - 1] == code and rng.random() < 0.7
            if goes_on:
                images[row, place] = images[row, place - 1]
            elif code >= 0 and rng.random() < 0.5:
                images[row, place] = row * len(codes) + place
    return images


def attention_and_gradients(how, segments: torch.Tensor, key_heads: int):
    generator = torch.Generator().manual_seed(0)
    rows, length = segments.shape
    shapes = [(rows, heads, length, 8) for heads in (4, key_heads, key_heads)]
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    real = (segments >= 0)[:, :, None, None]
    output = how(*inputs) * real
    grad = torch.randn(output.shape, generator=generator)
    return [output, *torch.autograd.grad(output, inputs, grad)]


def dense(segments: torch.Tensor, images: torch.Tensor | None = None):
    """The equation: a key is seen if it is of the same tree, not later, and in the prefix or the same branch.

    An image's tokens see all of it.
    """
    order = torch.arange(segments.shape[1])
    query, key = segments[:, :, None], segments[:, None, :]
    sees = (query // STRIDE == key // STRIDE) & ((key % STRIDE == 0) | (query == key)) & (order[:, None] >= order)
    sees &= key >= 0
    if images is not None:
        sees |= (images[:, :, None] == images[:, None, :]) & (images >= 0)[:, None, :]
    sees |= torch.eye(len(order), dtype=torch.bool)  # padding sees itself, so that it is a number

    def attention(query, keys, values):
        wide = [tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1) for tensor in (keys, values)]
        return F.scaled_dot_product_attention(query, *wide, attn_mask=sees[:, None], scale=SCALE).transpose(1, 2)

    return attention


@pytest.fixture(params=["by parts", "dense"])
def way(request, monkeypatch):
    monkeypatch.setattr(
        sys.modules[tree_attention.__module__], "has_backward", lambda *kind: request.param == "by parts"
    )


@given(TREES, st.sampled_from([4, 2, 1]), st.booleans(), st.randoms(use_true_random=False) | st.none())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("way")
def test_tree_attention_and_its_gradients_are_those_of_the_dense_mask(trees, key_heads, in_one_row, rng):
    segments = packed(segments_of(trees)) if in_one_row else segments_of(trees)
    images = images_in(segments, rng) if rng else None
    marks = torch.stack([segments, *([images] if rng else [])], 1)[:, None]
    whole = attention_and_gradients(lambda q, k, v: tree_attention(q, k, v, marks, SCALE), segments, key_heads)
    wanted = attention_and_gradients(dense(segments, images), segments, key_heads)
    torch.testing.assert_close(whole, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("way")
def test_the_output_of_padding_is_zero():
    segments = segments_of([(2, [1], 2), (4, [1, 1], 0)])
    inputs = torch.randn(3, 2, 4, 6, 8)
    output = tree_attention(*inputs, segments[:, None, None], SCALE)
    assert output.shape == (2, 6, 4, 8)
    assert (output[0, 3:] == 0).all()
    assert (output[0, :3] != 0).any(-1).all()


def test_a_layout_is_kept_as_long_as_its_segments():
    segments = segments_of([(2, [2, 1], 1), (1, [1], 0)])[:, None, None]
    layout = cached_layout(segments)
    assert cached_layout(segments) is layout
    kept = weakref.ref(layout)
    del layout, segments
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_layers_keep_one_dense_mask_for_the_backward_pass(monkeypatch, dtype):
    monkeypatch.setattr(sys.modules[tree_attention.__module__], "has_backward", lambda *kind: False)
    segments = packed(segments_of([(3, [2, 2], 0)]))[:, None, None]  # a row of 7, which no kernel takes as it is
    kept = []

    def keep(tensor):
        if tensor.shape[-2:] == (7, 7):
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        inputs = [torch.randn(1, 4, 7, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
        for _ in range(3):
            inputs[0] = tree_attention(*inputs, segments, SCALE).transpose(1, 2)
    assert len(kept) == 3
    assert {tensor.untyped_storage().data_ptr() for tensor in kept} == {
        cached_layout(segments).dense(dtype).untyped_storage().data_ptr()
    }
    assert {stride % 8 for stride in kept[0].stride()[:-1]} == {0}


@given(st.lists(st.integers(1, 2000), max_size=7))
def test_rows_of_like_length_go_together(lengths):
    def cost(groups):
        return sum(len(group) * max(lengths[row] for row in group) ** 2 + KERNEL_CALL_COST for group in groups)

    def splits(rows):
        if not rows:
            yield []
        for end in range(1, len(rows) + 1):
            for rest in splits(rows[end:]):
                yield [rows[:end], *rest]

    groups = group_by_length(lengths)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    assert cost(groups) == min(map(cost, splits(sorted(range(len(lengths)), key=lengths.__getitem__))))


def test_attention_in_bfloat16_is_near_float32():
    segments = segments_of([(5, [3, 2], 1), (4, [1], 0)])
    inputs = torch.randn(3, 2, 4, len(segments[0]), 8)
    expected = dense(segments)(*inputs)
    attended = tree_attention(*inputs.bfloat16(), segments[:, None, None], SCALE)
    real = (segments >= 0)[:, :, None, None]
    torch.testing.assert_close(attended.float() * real, expected * real, rtol=0.03, atol=0.03)
