"""A packed row's mask is that of its segments, whatever their lengths, and so is FlexAttention under it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForImageTextToText

from reflectune.models.attention.packed import (
    BLOCK,
    block_mask,
    bucket,
    dense_mask,
    flex_problem,
    key_bounds,
    model_flex_problem,
    packed_attention,
    round_up_to_blocks,
    tree_segments,
)
from reflectune.models.attention.tree_mask import STRIDE

LENGTHS = st.integers(1, 160) | st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
TREES = st.lists(st.tuples(LENGTHS, st.lists(LENGTHS, max_size=4)), min_size=1, max_size=3)
"""Tokens of each prefix and of its branches."""


def packed_trees(trees, past=0):
    """Segments of trees, each behind `past` keys of its own that all of its tokens see."""
    segments, first = [], past * len(trees)
    for number, (prefix, branches) in enumerate(trees):
        above = [(number * past, (number + 1) * past)] if past else []
        segments += [(prefix, above), *((branch, [*above, (first, first + prefix)]) for branch in branches)]
        first += prefix + sum(branches)
    return segments


def visible(segments, past, width, images):
    """The equation, token by token: earlier ranges, and the segment up to the query; padding sees itself.

    An image's tokens see all of it.
    """
    seen = torch.eye(past + width, dtype=torch.bool)[past:]
    first = 0
    for count, spans in segments:
        for query in range(first, first + count):
            seen[query, past + first : past + query + 1] = True
            for start, end in spans:
                seen[query, start:end] = True
        first += count
    for start, end in images:
        seen[start:end, past + start : past + end] = True
    return seen


def blocks(numbers, indices, columns):
    found = torch.zeros(len(numbers), columns, dtype=torch.bool)
    for row, (count, listed) in enumerate(zip(numbers.tolist(), indices, strict=True)):
        found[row, listed[:count].long()] = True
    return found


@given(
    TREES,
    st.sampled_from([0, BLOCK, 2 * BLOCK]),
    st.sampled_from([round_up_to_blocks, bucket]),
    st.randoms() | st.none(),
)
@settings(max_examples=25, deadline=None)
def test_the_mask_is_that_of_its_segments(trees, past, filled, rng):
    segments, before = packed_trees(trees, past), past * len(trees)
    images, first = [], 0
    for count, _ in segments if rng else ():  # one in each
        start, end = sorted((rng.randrange(count + 1), rng.randrange(count + 1)))
        images += [(first + start, first + end)] if start < end else []
        first += count
    width = filled(sum(count for count, _ in segments))
    expected = visible(segments, before, width, images)
    queries, keys = expected.shape
    assert torch.equal(dense_mask(key_bounds(segments, before, width, images), keys), expected)
    mask = block_mask(segments, before, width=width, images=images)
    index = torch.arange(queries)[:, None], torch.arange(keys)[None]
    assert torch.equal(mask.mask_mod(0, 0, *index), expected)
    tiles = expected.view(queries // BLOCK, BLOCK, keys // BLOCK, BLOCK)
    some, whole = tiles.any(3).any(1), tiles.all(3).all(1)
    assert torch.equal(blocks(mask.kv_num_blocks[0, 0], mask.kv_indices[0, 0], keys // BLOCK), some & ~whole)
    assert torch.equal(blocks(mask.full_kv_num_blocks[0, 0], mask.full_kv_indices[0, 0], keys // BLOCK), whole)
    backward = block_mask(segments, before, width=width, images=images, backward=True)
    assert torch.equal(
        blocks(backward.full_q_num_blocks[0, 0], backward.full_q_indices[0, 0], queries // BLOCK), whole.T
    )


def test_few_lengths_are_compiled_and_few_tokens_added():
    assert len({bucket(tokens) for tokens in range(1025, 8193)}) == 24, "eight an octave"
    assert all(tokens <= bucket(tokens) <= max(2 * BLOCK, 1.125 * tokens + BLOCK) for tokens in range(1, 20_000))
    assert all(bucket(bucket(tokens)) == bucket(tokens) for tokens in range(1, 20_000))
    assert not any(bucket(tokens) % BLOCK for tokens in range(1, 20_000))


@given(TREES, st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_segments_are_read_from_the_codes_of_a_row(trees, padding):
    codes = [
        number * STRIDE + part
        for number, (prefix, branches) in enumerate(trees)
        for part, count in enumerate([prefix, *branches])
        for _ in range(count)
    ]
    expected = [(count, tuple(spans)) for count, spans in packed_trees(trees)]
    assert [(count, tuple(spans)) for count, spans in tree_segments(np.array([*codes, *[-1] * padding]))] == expected


@pytest.mark.parametrize(("compiled", "key_heads"), [(False, 4), (False, 2), (True, 2)])
def test_flex_attention_is_attention_under_the_dense_mask(compiled, key_heads):
    generator = torch.Generator().manual_seed(0)
    layouts = [([(130, [40, 90]), (60, [])], 0), ([(5, [3, 200]), (300, [7])], BLOCK)]
    for trees, past in layouts:
        segments, before = packed_trees(trees, past), past * len(trees)
        bounds = key_bounds(segments, before)
        # traced as a GPU's compiler does, without generating code for a CPU
        attend = torch.compile(packed_attention, backend="aot_eager") if compiled else packed_attention
        new = bounds.shape[1]
        query, key, value = (torch.randn(1, heads, new, 16, generator=generator) for heads in (4, key_heads, key_heads))
        earlier = [torch.randn(1, key_heads, before, 16, generator=generator) for _ in range(2)] if before else []
        memory = list(earlier)
        attended = attend(query, key, value, block_mask(segments, before), 0.3, memory)
        keys, values = (torch.cat([*earlier[side : side + 1], own], 2) for side, own in enumerate((key, value)))
        torch.testing.assert_close(memory, [keys, values], rtol=0, atol=0)
        mask = dense_mask(bounds, before + new)
        expected = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(attended, expected.transpose(1, 2), rtol=1e-5, atol=2e-6)


def test_a_trial_finds_numbers_that_differ_and_errors(monkeypatch):
    assert flex_problem("cpu", torch.float32, 4, 2, 8) == ""
    assert flex_problem("cpu", torch.float32, 4, 2, 8, backward=True).startswith("NotImplementedError")
    monkeypatch.setattr("reflectune.models.attention.packed.flex_attention", lambda query, *_, **__: query * 0)
    assert flex_problem("cpu", torch.float32, 4, 2, 16) == "its results differ from sdpa's"
    monkeypatch.setattr("reflectune.models.attention.packed.flex_attention", None)
    assert flex_problem("cpu", torch.float32, 4, 2, 32).startswith("TypeError")


def test_a_model_whose_language_layers_are_elsewhere_is_not_packed():
    """Idefics3's are in `text_model`."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**sizes, "model_type": "llama", "vocab_size": 90, "bos_token_id": 1, "eos_token_id": 2}
    vision = {**sizes, "image_size": 16, "patch_size": 8}
    config = AutoConfig.for_model("idefics3", text_config=text, vision_config=vision, pad_token_id=0)
    model = AutoModelForImageTextToText.from_config(config)
    assert model_flex_problem(model, torch.float32) == "Idefics3ForConditionalGeneration has no `language_model`"
