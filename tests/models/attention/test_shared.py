"""Shared tokens are attended to as if every row had a copy of them."""

import pytest
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForImageTextToText

from reflectune.core.errors import UserError
from reflectune.models.attention.attention import attend, merge
from reflectune.models.attention.shared import IMPLEMENTATION, Shared, SharedContext, share_prefixes, shared_attention


def cache(rows: int, tokens: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(rows, 2, tokens, 8, generator=generator) for _ in range(2)) for _ in range(2)]


@pytest.mark.parametrize("row", [[0, 1, 2], [2, 0, 2, 2, 0], [1], [1, 1]])
@pytest.mark.parametrize("new", [1, 3])
def test_grouped_queries_see_what_copies_would(row, new):
    level, real = cache(3, 6, 0), torch.ones(3, 6, dtype=torch.bool)
    real[1, 4:] = False
    row = torch.tensor(row)
    query = torch.randn(len(row), 4, new, 8)
    shared = Shared.of(level, real, row)
    keys, values = (tensor[row] for tensor in level[1])
    bias = torch.zeros(len(row), 1, 1, 6).masked_fill(~real[row][:, None, None], -torch.inf)
    expected = attend(query, keys, values, scale=0.5, bias=bias)
    torch.testing.assert_close(shared.attend(query, 1, 0.5), expected, rtol=1e-5, atol=1e-6)


def test_levels_and_own_tokens_together_are_one_context():
    class Layer(torch.nn.Module):
        layer_idx = 0

    first, second = cache(1, 4, 1), cache(2, 3, 2)
    row = torch.tensor([1, 0, 1])
    query, key, value = torch.randn(3, 4, 2, 8), torch.randn(3, 2, 2, 8), torch.randn(3, 2, 2, 8)
    levels = [
        Shared.of(first, torch.ones(1, 4, dtype=torch.bool), torch.zeros(3, dtype=torch.long)),
        Shared.of(second, torch.ones(2, 3, dtype=torch.bool), row),
    ]
    output, _ = shared_attention(Layer(), query, key, value, None, scaling=0.5, shared_context=SharedContext(levels))
    keys, values = (
        torch.cat([a.expand(3, -1, -1, -1), b[row], c], 2)
        for a, b, c in zip(first[0], second[0], (key, value), strict=True)
    )
    bias = torch.zeros(2, 9).masked_fill(torch.tensor([[False] * 8 + [True], [False] * 9]), -torch.inf)
    expected, _ = merge([attend(query, keys, values, scale=0.5, bias=bias[None, None])])
    torch.testing.assert_close(output.transpose(1, 2), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_model_without_shared_tokens_computes_what_it_did(make, family):
    model = make.model(family)
    ids = torch.randint(5, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).logits
        share_prefixes(model)
        assert IMPLEMENTATION in AttentionInterface()
        assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before)


def test_layers_that_cannot_share_are_refused(make):
    model = make.model("qwen2_vl")
    model.config.get_text_config().layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(UserError, match="no chunked_attention shares a prefix exactly"):
        share_prefixes(model)


@pytest.mark.parametrize("family", ["gemma3", "paligemma"])
def test_prompts_whose_tokens_see_those_behind_them_are_refused(family):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 90, "num_key_value_heads": 1, "head_dim": 8}
    text["use_bidirectional_attention"] = family == "gemma3"
    vision = {**sizes, "image_size": 16, "patch_size": 8, "projection_dim": 16}
    config = AutoConfig.for_model(family, text_config=text, vision_config=vision)
    with pytest.raises(UserError, match=r"Gemma.*: tokens see those after them, and not only an image's; use"):
        share_prefixes(AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa"))
