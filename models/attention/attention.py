"""Attention that returns its softmax denominators, so that attention to parts of a context can be merged.

Attention to one part of a context gives an output and the log-sum-exp of its scores (the log of its softmax
denominator). Attention to the whole context is the sum of the parts' outputs, weighted by their denominators. A part's
backward pass, given the log-sum-exp of the whole context, computes that part's share of the gradients.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest, varlen_attn

_CPU_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

FEW_KEYS = 512
"""Maximum keys for which plain matrix products are faster than the CPU kernel's backward pass in half precision.

They are up to twice as fast for trees of 200 to 500 tokens.
"""


def attend(
    query: Tensor, keys: Tensor, values: Tensor, *, scale: float, bias: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend to one part of the context. Not differentiable by itself; see `attend_backward`.

    Args:
        query: Shape (rows, heads, T, size).
        keys: Shape (rows, key heads, S, size); key heads divide heads, as in grouped-query attention.
        values: Shape of `keys`.
        scale: Factor of the scores.
        bias: Padding mask, 0 or -inf, broadcastable to (rows, 1, T, S). Each query must see at least one key.
        causal: Let query i see keys 0 … i only; then T equals S and `bias` is None.

    Returns:
        Output of `query`'s shape, and log-sum-exp of the scores, float32 of shape (rows, heads, T).
    """
    kernel = kernel_for(query.device.type, query.dtype, query.shape[-1])
    with highest_matmul_precision():
        return kernel(query, keys, values, scale, bias, causal)


def attend_backward(
    grad: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    lse: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients of query, keys and values through one part of the context, on a CPU.

    Args:
        grad: Gradient of the attention to the *whole* context.
        query: As in `attend`; keys, values, scale, bias and causal too.
        output: Attention to the whole context.
        lse: Log-sum-exp of the scores of the whole context; +inf for queries to ignore.
    """
    few = query.dtype != torch.float32 and keys.shape[2] <= FEW_KEYS
    backward = _attend_backward_with_matmuls if few else _attend_backward_on_cpu
    with highest_matmul_precision():
        return backward(grad, query, keys, values, output, lse, scale, bias, causal)


def _attend_backward_on_cpu(
    grad: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    lse: Tensor,
    scale: float,
    bias: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    mask = None if bias is None else bias.expand(query.shape[0], 1, query.shape[2], keys.shape[2])
    heads, key_heads = query.shape[1], keys.shape[1]
    groups = heads // key_heads
    wide_keys, wide_values = (
        (tensor.repeat_interleave(groups, 1) if groups > 1 else tensor) for tensor in (keys, values)
    )
    d_query, d_keys, d_values = _CPU_BACKWARD(
        grad, query, wide_keys, wide_values, output, lse, 0.0, causal, attn_mask=mask, scale=scale
    )
    if groups > 1:
        d_keys, d_values = (tensor.unflatten(1, (key_heads, groups)).sum(2) for tensor in (d_keys, d_values))
    return d_query, d_keys, d_values


def _attend_backward_with_matmuls(
    grad: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    lse: Tensor,
    scale: float,
    bias: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients with plain matrix products; query heads that share a key head are rows of one matrix."""
    (rows, heads, new, _), (key_heads, seen) = query.shape, keys.shape[1:3]
    groups = heads // key_heads

    def grouped(tensor: Tensor) -> Tensor:
        return tensor.reshape(rows, key_heads, groups * new, -1)

    queries, grads = grouped(query), grouped(grad)
    scores = (queries @ keys.transpose(-1, -2)).float().mul_(scale).unflatten(2, (groups, new))
    if bias is not None:
        scores += bias[:, :, None].float()
    if causal:
        scores.masked_fill_(torch.ones(new, seen, dtype=torch.bool, device=query.device).triu_(1), float("-inf"))
    weights = scores.flatten(2, 3).sub_(grouped(lse[..., None])).exp_()  # (rows, key heads, groups · T, S)
    row_sums = (grad.float() * output.float()).sum(-1, keepdim=True)
    d_scores = (
        (grads @ values.transpose(-1, -2)).float().sub_(grouped(row_sums)).mul_(weights).mul_(scale).to(query.dtype)
    )
    d_values = weights.to(grad.dtype).transpose(-1, -2) @ grads
    return (d_scores @ keys).reshape(query.shape), d_scores.transpose(-1, -2) @ queries, d_values


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge attention to parts of a context. Returns the attention to the whole, and its log-sum-exp.

    Args:
        parts: Pairs returned by `attend`, for the same queries and disjoint keys.
    """
    if len(parts) == 1:
        return parts[0]
    whole = torch.logsumexp(torch.stack([lse for _, lse in parts]), 0)
    output = sum(part * (lse - whole).exp()[..., None].to(part.dtype) for part, lse in parts)
    assert isinstance(output, Tensor)
    return output, whole


@contextmanager
def highest_matmul_precision() -> Iterator[None]:
    """Disable the reduced precision of `torch.set_float32_matmul_precision("medium")` inside this block.

    Reduced precision speeds up a layer's large products. It makes the many small products of an attention kernel up to
    four times slower, since each operand is rounded and repacked.
    """
    precision = torch.get_float32_matmul_precision()
    if precision == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


@contextmanager
def _isolated_trial(device: str) -> Iterator[None]:
    """Run a kernel's trial unaffected by the caller's autocast, matmul precision and activation checkpointing.

    Checkpointing counts the tensors that a layer saves for the backward pass; it must not count the trial's.
    """
    no_checkpointing = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    with highest_matmul_precision(), torch.autocast(device, enabled=False), no_checkpointing:
        yield


Kernel = Callable[..., tuple[Tensor, Tensor]]


@functools.cache
def kernel_for(device: str, dtype: torch.dtype, size: int) -> Kernel:
    """Return the fastest kernel of a device type that passes a small trial, `attend_reference` if none does.

    On an accelerator the choice is printed. Most of PyTorch's kernels that return the log-sum-exp are private: a kernel
    that has changed or doesn't run on this device is skipped with a warning.
    """
    for name, kernel in kernels_of(device, dtype):
        try:
            with _isolated_trial(device):
                is_correct = _is_correct(kernel, device, dtype, size)
            if is_correct:
                if device != "cpu":  # a CPU has one kernel
                    print(f"attention to shared prefixes: {name}, {dtype}", file=sys.stderr, flush=True)
                return kernel
            reason = "its results differ from the reference's"
        except (RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0]
        warnings.warn(
            f"{name} can't be used for {dtype} and heads of size {size} on {device} ({reason}); "
            "reading shared prefixes will be slower",
            stacklevel=2,
        )
    return attend_reference


def kernels_of(device: str, dtype: torch.dtype) -> list[tuple[str, Kernel]]:
    """Return the kernels to try on a device type, fastest first."""
    if device == "cpu":
        return [("the CPU's flash attention", attend_on_cpu)]
    if device != "cuda":
        return []
    flash = [("FlashAttention, varlen", attend_with_flash)] if dtype in (torch.float16, torch.bfloat16) else []
    return [*flash, ("memory-efficient attention", _attend_memory_efficient)]


@functools.cache
def has_backward(device: str, dtype: torch.dtype, size: int) -> bool:
    """Return True if `attend_backward` runs on a device type and gives the right gradients on small random inputs."""
    if device != "cpu" or kernel_for(device, dtype, size) is attend_reference:
        return False
    generator = torch.Generator().manual_seed(0)
    query, keys, values, grad = (torch.randn(2, 4, 9, size, generator=generator).to(dtype) for _ in range(4))
    exact = [tensor.float().requires_grad_() for tensor in (query, keys, values)]
    with _isolated_trial(device):
        with torch.enable_grad():
            whole, _ = attend_reference(exact[0], exact[1], exact[2], size**-0.5, None, True)
            expected = torch.autograd.grad(whole, exact, grad.float())
        output, lse = attend(query, keys, values, scale=size**-0.5, causal=True)
        try:
            grads = _attend_backward_on_cpu(grad, query, keys, values, output, lse, size**-0.5, None, True)
        except (RuntimeError, TypeError):
            return False
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    return all(
        torch.allclose(a.float(), b, rtol=tolerance, atol=tolerance) for a, b in zip(grads, expected, strict=True)
    )


def _is_correct(kernel: Kernel, device: str, dtype: torch.dtype, size: int) -> bool:
    """Return True if a kernel agrees with `attend_reference`: grouped heads or not, padded or not, causal or not."""
    generator = torch.Generator().manual_seed(0)
    tolerance = 1e-4 if dtype == torch.float32 else 0.03
    for key_heads, new, seen, causal in ((2, 5, 5, True), (4, 33, 33, True), (4, 33, 41, False), (4, 1, 7, False)):
        query, keys, values = (
            torch.randn(shape, generator=generator).to(device, dtype)
            for shape in ((3, 4, new, size), (3, key_heads, seen, size), (3, key_heads, seen, size))
        )
        bias = torch.zeros(3, 1, 1, seen, device=device, dtype=dtype)
        bias[1, :, :, seen // 2 :] = -torch.inf
        args = (query, keys, values, size**-0.5, None if causal else bias, causal)
        for actual, expected in zip(kernel(*args), attend_reference(*args), strict=True):
            if actual.shape != expected.shape or not torch.allclose(actual, expected, rtol=tolerance, atol=tolerance):
                return False
    return True


def attend_on_cpu(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Call PyTorch's FlashAttention for CPUs."""
    mask = None if bias is None else bias.expand(query.shape[0], 1, query.shape[2], keys.shape[2])
    output, lse = _CPU_KERNEL(query, keys, values, 0.0, causal, attn_mask=mask, scale=scale)
    return output, lse.float()


def attend_with_flash(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Call PyTorch's variable-length FlashAttention: packed rows, each with its own number of keys."""
    (rows, heads, new, _), (key_heads, seen) = query.shape, keys.shape[1:3]
    row_index = torch.arange(rows + 1, dtype=torch.int32, device=query.device)
    packed = [tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, keys, values)]
    output, lse = varlen_attn(
        packed[0],
        packed[1],
        packed[2],
        row_index * new,
        row_index * seen,
        new,
        seen,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=(-1, 0) if causal else (-1, -1),
        enable_gqa=heads != key_heads,
        seqused_k=None if bias is None else (bias[:, 0, 0] == 0).sum(-1, dtype=torch.int32),
    )
    lse = lse.unflatten(1, (rows, new)).transpose(0, 1)  # from (heads, rows * T)
    return output.unflatten(0, (rows, new)).transpose(1, 2), lse.float()


def _attend_memory_efficient(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Call the memory-efficient kernel, which needs bias rows aligned to multiples of eight, and repeated key heads."""
    (rows, heads, new, _), seen = query.shape, keys.shape[2]
    keys, values = (tensor.repeat_interleave(heads // keys.shape[1], 1) for tensor in (keys, values))
    if bias is not None:
        bias = F.pad(bias, (0, -seen % 8))[..., :seen].expand(rows, heads, new, seen)
    output, lse, _, _ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, keys, values, bias, True, 0.0, causal, scale=scale
    )
    return output, lse[:, :, :new].float()  # its rows are padded to multiples of 32


def attend_reference(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Compute attention by its definition, with scores in float32."""
    rows, heads, new, size = query.shape
    grouped = query.reshape(rows, keys.shape[1], -1, new, size)  # (rows, key heads, group, T, size)
    scores = (grouped.float() @ keys[:, :, None].float().transpose(-1, -2)) * scale
    if bias is not None:
        scores = scores + bias[:, :, None].float()
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0, 0], dtype=torch.bool).triu(1), float("-inf"))
    lse = scores.logsumexp(-1)
    output = (scores - lse[..., None]).exp().to(values.dtype) @ values[:, :, None]
    return output.reshape(rows, heads, new, size), lse.reshape(rows, heads, new)
