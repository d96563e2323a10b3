"""Gated delta rule of Qwen3.5's linear attention, for trees and for rows that continue earlier rows.

It calls transformers' kernels (those of `flash-linear-attention` where it is installed) with initial states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5GatedDeltaNet,
    causal_conv1d_fn,
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from reflectune.models.attention.attention import highest_matmul_precision
from reflectune.models.attention.recurrence import (
    FULL,
    LINEAR,
    Generation,
    PackedRecurrence,
    Recurrence,
    States,
    concat_states,
    select_states,
)
from reflectune.models.attention.tree_mask import cached_layout


class ForkingDeltaNet(Qwen3_5GatedDeltaNet):
    """Layer of linear attention whose rows can start from given states; otherwise equal to transformers' layer.

    In transformers' layer, padding on the right decays and updates the states. Here it leaves them unchanged.
    """

    def forward(
        self, hidden_states: Tensor, cache_params: Any = None, attention_mask: Any = None, **kwargs: Any
    ) -> Tensor:
        """Compute the layer's output of `hidden_states`' shape (rows, tokens, hidden size).

        Args:
            hidden_states: Inputs.
            cache_params: transformers' cache; used only with a padding mask.
            attention_mask: A `Recurrence`, a `PackedRecurrence`, the segments of trees (see `tree_attention`), or a
                padding mask.
            **kwargs: Other arguments of transformers.
        """
        layer: Any = self.layer_idx
        if isinstance(attention_mask, Recurrence):
            output, attention_mask.after[layer] = self._delta_rule(
                *self._projected(hidden_states), attention_mask.real, attention_mask.initial_states(layer)
            )
        elif isinstance(attention_mask, PackedRecurrence):
            output, states = self._read(hidden_states, attention_mask.generations, attention_mask.before.get(layer))
            attention_mask.after[layer] = select_states(concat_states(states), attention_mask.order)
        elif is_tree(attention_mask):
            roots, branches, parents = cached_layout(attention_mask).forks
            generations = [(roots, None), (branches, parents)] if branches.numel() else [(roots, None)]
            output, _ = self._read(hidden_states, generations, None)
        else:
            return super().forward(hidden_states, cache_params, attention_mask, **kwargs)  # type: ignore[no-any-return]
        gate = self.in_proj_z(hidden_states).reshape(-1, self.head_v_dim)
        normed = self.norm(output.reshape(-1, self.head_v_dim), gate).view(*hidden_states.shape[:2], -1)
        projected: Tensor = self.out_proj(normed)
        return projected

    def _projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values before the convolution, and the logits of update and decay."""
        return self.in_proj_qkv(hidden), self.in_proj_b(hidden), self.in_proj_a(hidden)

    def _read(
        self, hidden: Tensor, generations: Sequence[Generation], before: States | None
    ) -> tuple[Tensor, list[States]]:
        """Read segments, each from the states at the end of the segment that it continues.

        Args:
            hidden: Inputs, (rows, tokens, hidden size).
            generations: Segments of all rows.
            before: States that the first generation starts from; None for zeros.

        Returns:
            Outputs, (rows, tokens, value heads, value size), 0 at padding; and the states after each generation.
        """
        padding_index = hidden.shape[0] * hidden.shape[1]
        mixed, update, decay = (F.pad(part.flatten(0, 1), (0, 0, 0, 1)) for part in self._projected(hidden))
        output = hidden.new_zeros(padding_index + 1, self.num_v_heads, self.head_v_dim)
        states_after: list[States] = []
        for index, parents in generations:
            before = before if parents is None else select_states(states_after[-1], parents)
            part, states = self._delta_rule(mixed[index], update[index], decay[index], index < padding_index, before)
            output = output.index_copy(0, index.flatten(), part.flatten(0, 1).to(output.dtype))
            states_after.append(states)
        return output[:-1].view(*hidden.shape[:2], self.num_v_heads, self.head_v_dim), states_after

    def _delta_rule(
        self, mixed: Tensor, update: Tensor, decay: Tensor, real: Tensor | None, before: States | None
    ) -> tuple[Tensor, States]:
        """Return outputs (rows, tokens, value heads, value size), and the states after each row's last real token.

        Args:
            mixed: Queries, keys and values before the convolution, (rows, tokens, channels).
            update: Logits of the update rate β, (rows, tokens, value heads).
            decay: Logits of the decay, of the same shape.
            real: False at padding on the right, (rows, tokens); None without padding.
            before: States that the rows start from; None for zeros.
        """
        rows, tokens, channels = mixed.shape
        earlier = self.conv_kernel_size - 1
        seen = mixed.new_zeros(rows, channels, earlier) if before is None else before[0].to(mixed.dtype)
        inputs = torch.cat([seen, mixed.transpose(1, 2)], -1)
        convolved = causal_conv1d_fn(
            inputs, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation=self.activation
        )[..., earlier:]
        sizes = [self.key_dim, self.key_dim, self.value_dim]
        query, key, value = (
            part.reshape(rows, tokens, -1, size)
            for part, size in zip(
                convolved.transpose(1, 2).split(sizes, -1),
                (self.head_k_dim, self.head_k_dim, self.head_v_dim),
                strict=True,
            )
        )
        beta = update.sigmoid()
        log_decay = -self.A_log.float().exp() * F.softplus(decay.float() + self.dt_bias)
        if real is None:
            inputs = inputs[..., tokens:].clone()
        else:
            real = real.to(mixed.device)
            beta, log_decay = beta * real[..., None], log_decay * real[..., None]
            last = real.sum(1)[:, None] + torch.arange(earlier, device=mixed.device)  # (rows, kernel size - 1)
            inputs = inputs.gather(2, last[:, None].expand(-1, channels, -1))
        rule = torch_recurrent_gated_delta_rule if tokens == 1 else torch_chunk_gated_delta_rule
        with highest_matmul_precision():
            output, state = rule(
                query,
                key,
                value,
                g=log_decay,
                beta=beta,
                initial_state=None if before is None else before[1],
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
                chunk_size=_even_chunks(tokens),  # used by transformers' PyTorch implementation
            )
        return output, (inputs, state)


def fork_linear_attention(language_model: nn.Module) -> str:
    """Let a language model's linear attention start from given states. Returns the reason if it can't, else ""."""
    layers = [layer.linear_attn for layer in language_model.layers if hasattr(layer, "linear_attn")]  # type: ignore[union-attr]
    if unknown := {type(layer).__name__ for layer in layers} - {"Qwen3_5GatedDeltaNet", ForkingDeltaNet.__name__}:
        return f"the states of {unknown.pop()} can't be copied to branches"
    if any(type(layer) is Qwen3_5GatedDeltaNet for layer in layers):
        for layer in layers:
            layer.__class__ = ForkingDeltaNet
        language_model.register_forward_pre_hook(_give_segments, with_kwargs=True)
    return ""


def _even_chunks(tokens: int) -> int:
    """Return the chunk size, at most 64, that gives the fewest chunks and the least padding."""
    return -(-tokens // -(-tokens // 64))


def is_tree(mask: Any) -> bool:
    """Return True for the segments of trees: integers of shape (B, 1, 1, L)."""
    return torch.is_tensor(mask) and mask.dtype == torch.long and mask.dim() == 4


def _give_segments(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Pass the segments of trees to layers of both types: transformers gives linear attention no 4-D mask."""
    if is_tree(mask := kwargs.get("attention_mask")):
        kwargs = {**kwargs, "attention_mask": {FULL: mask, LINEAR: mask}}
    return args, kwargs
