"""Attention by parts is attention to the whole, forward and backward."""

import warnings
from itertools import pairwise

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from reflectune.models.attention import attention
from reflectune.models.attention.attention import (
    attend,
    attend_backward,
    attend_reference,
    has_backward,
    kernel_for,
)

SCALE = 0.3


def made(rows: int = 2, heads: int = 4, key_heads: int = 2, new: int = 5, seen: int = 7, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, heads, new, 8, generator=generator)
    keys, values = (torch.randn(rows, key_heads, seen, 8, generator=generator) for _ in range(2))
    return query, keys, values


def by_hand(query, keys, values, bias=None):
    groups = query.shape[1] // keys.shape[1]
    scores = query @ keys.repeat_interleave(groups, 1).transpose(-1, -2) * SCALE
    scores = scores if bias is None else scores + bias
    return scores.softmax(-1) @ values.repeat_interleave(groups, 1), scores.logsumexp(-1)


@pytest.mark.parametrize("how", [attend, lambda *a, **k: attend_reference(*a, k["scale"], k.get("bias"), False)])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_attention_and_its_denominator_are_the_equation(how, key_heads):
    query, keys, values = made(key_heads=key_heads)
    bias = torch.zeros(2, 1, 1, 7)
    bias[1, :, :, 4:] = -torch.inf
    attended = how(query, keys, values, scale=SCALE, bias=bias)
    torch.testing.assert_close(attended, by_hand(query, keys, values, bias), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("key_heads", "causal"), [(4, False), (2, False), (2, True)])
def test_flash_attention_is_given_what_it_takes(monkeypatch, key_heads, causal):
    """PyTorch's varlen attention runs on GPUs alone; here a loop stands for it that reads its arguments as it does."""

    def by_row(query, keys, values, starts, key_starts, new, seen, *, return_aux, scale, window_size, **how):
        assert how["enable_gqa"] == (keys.shape[1] < query.shape[1])
        assert (starts.dtype, key_starts.dtype, return_aux.lse) == (torch.int32, torch.int32, True)
        used = how["seqused_k"]
        parts = []
        for row, ((a, b), (c, d)) in enumerate(
            zip(pairwise(starts.tolist()), pairwise(key_starts.tolist()), strict=True)
        ):
            assert (b - a, d - c) == (new, seen)
            d = d if used is None else c + int(used[row])
            row_inputs = [tensor.transpose(0, 1)[None] for tensor in (query[a:b], keys[c:d], values[c:d])]
            parts.append(attend_reference(*row_inputs, scale, None, window_size == (-1, 0)))
        return torch.cat([out[0].transpose(0, 1) for out, _ in parts]), torch.cat([lse[0] for _, lse in parts], 1)

    monkeypatch.setattr(attention, "varlen_attn", by_row)
    query, keys, values = made(key_heads=key_heads, seen=5 if causal else 7)
    bias = None
    if not causal:
        bias = torch.zeros(2, 1, 1, 7)
        bias[1, :, :, 4:] = -torch.inf
    outputs = attention.attend_with_flash(query, keys, values, SCALE, bias, causal)
    expected = attend_reference(query, keys, values, SCALE, bias, causal)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)


def test_only_half_precision_on_a_gpu_is_offered_flash_attention():
    def offered(*kind):
        return [name.split(",")[0] for name, _ in attention.kernels_of(*kind)]

    assert offered("cuda", torch.bfloat16) == ["FlashAttention", "memory-efficient attention"]
    assert offered("cuda", torch.float32) == ["memory-efficient attention"]
    assert offered("mps", torch.float32) == []


@pytest.mark.parametrize("few", [0, 512], ids=["by the kernel", "by whole products"])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_in_half_precision(monkeypatch, few, causal):
    """Padded keys, heads that share keys, and a query that does not count."""
    monkeypatch.setattr(attention, "FEW_KEYS", few)
    query, keys, values = inputs = [tensor.bfloat16() for tensor in made(heads=6, seen=5)]
    bias = torch.zeros(2, 1, 1, 5)
    bias[1, :, :, 4:] = 0 if causal else -torch.inf
    exact = [tensor.float().requires_grad_() for tensor in inputs]
    hidden = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf) if causal else bias
    whole, whole_lse = by_hand(*exact, hidden)
    grad = torch.randn(whole.shape, generator=torch.Generator().manual_seed(1))
    grad[0, :, 2] = 0
    expected = torch.autograd.grad(whole, exact, grad)
    lse = whole_lse.detach().clone()
    lse[0, :, 2] = torch.inf
    grad[0, :, 2] = 7.0
    padding = None if causal else bias.bfloat16()
    actual = attend_backward(
        grad.bfloat16(), query, keys, values, whole.detach().bfloat16(), lse, scale=SCALE, bias=padding, causal=causal
    )
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.float(), b, rtol=0.05, atol=0.05)


def test_short_products_are_not_for_attention():
    """`matmul_precision: medium` lets layers round to bfloat16, and the setting is as it was afterwards."""
    query, keys, values = made()
    expected = by_hand(query, keys, values)
    torch.set_float32_matmul_precision("medium")
    try:
        outputs = attend(query, keys, values, scale=SCALE)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)


def test_a_kernel_is_tried_alike_wherever_it_is_needed_first():
    kernel_for.cache_clear()
    has_backward.cache_clear()
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error")
        assert has_backward("cpu", torch.bfloat16, 8)


def test_a_kernel_that_is_tried_in_a_recomputed_layer_is_not_counted_there():
    def layer(values):
        assert has_backward("cpu", torch.float32, 8)  # tried in the first pass, known in the second
        return values.sin()

    values = torch.randn(4, requires_grad=True)
    has_backward.cache_clear()
    checkpoint(layer, values, use_reentrant=False).sum().backward()
    torch.testing.assert_close(values.grad, values.detach().cos())


def test_a_kernel_that_gives_other_numbers_or_fails_is_not_used(monkeypatch):
    def wrong(*given):
        output, lse = attend_reference(*given)
        return output, lse + 0.5

    def failing(*given):
        raise RuntimeError("no such kernel")

    for kernel, reason in ((wrong, "results differ"), (failing, "no such kernel")):
        monkeypatch.setattr(attention, "attend_on_cpu", kernel)
        kernel_for.cache_clear()
        with pytest.warns(UserWarning, match=reason):
            assert kernel_for("cpu", torch.float32, 8) is attend_reference
        has_backward.cache_clear()
        assert not has_backward("cpu", torch.float32, 8)
    kernel_for.cache_clear()
    has_backward.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_by_parts_are_there_on_a_cpu(dtype):
    assert has_backward("cpu", dtype, 16)
    assert not has_backward("cuda", dtype, 16)
