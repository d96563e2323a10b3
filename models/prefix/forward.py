"""One forward pass of a model over tokens that hang from what it has read before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from reflectune.models.attention.positions import Positions
from reflectune.models.attention.shared import KeysValues, Shared, seeing, share_prefixes
from reflectune.models.attention.tree import join_vision
from reflectune.models.prefix.rows import Level, Rows, as_cache, cached
from reflectune.models.rendering.renderer import Rendered

_UNUSED_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
"""Keeps transformers from making a mask: under shared tokens none is looked at."""


class Forward:
    """Reads tokens with one model.

    Args:
        model: The model. Its attention is replaced by one that computes the same and can share prefixes.

    Raises:
        UserError: The model's attention is not one that can.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        share_prefixes(model)
        self.model = model.eval()
        self.positions = Positions(model)

    def prefill(self, prefixes: Sequence[Rendered]) -> Rows:
        """Read the images and the prefixes of one batch, into key-value caches of their own."""
        ids, real = self._padded([prefix.ids for prefix in prefixes])
        positions = np.zeros((3 if self.positions.is_3d else 1, *ids.shape), dtype=np.int64)
        for row, prefix in enumerate(prefixes):
            positions[:, row, : len(prefix.ids)] = self.positions.of_prefix(np.array(prefix.ids), prefix.vision)
        device, dtype = self.model.device, self.model.dtype
        vision = {
            name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
            for name, value in join_vision([prefix.vision for prefix in prefixes]).items()
        }
        if self.positions.is_3d:
            vision["mm_token_type_ids"] = (ids == self.positions.image_token_id).int()
        places = torch.from_numpy(positions).to(device)
        states, cache = self._states(ids, places, [], vision)
        return Rows((), (), places[0, :, 0], states[:, 0]).under(Level(cache, real), *_last(states, real, places))

    def append(self, rows: Rows, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Rows]:
        """Append tokens to each row, of any number each: one forward pass over the cached ones.

        Returns:
            The hidden states of them all, of shape (rows, most tokens, hidden size), and the rows with them.
        """
        padded, real = self._padded(ids)
        places = self._next_positions(rows.next_position, padded.shape[1])
        with seeing(rows.shared()):
            states, cache = self._states(padded, places, [], {}, _UNUSED_MASK)
        return states, rows.under(Level(cache, real), *_last(states, real, places))

    def decode_step(
        self, tokens: Tensor, start: Tensor, shared: Sequence[Shared], written: KeysValues
    ) -> tuple[Tensor, KeysValues]:
        """Append one token to each row, after those that were decoded before.

        Args:
            tokens: Of shape (rows,).
            start: Their positions, of shape (rows,).
            shared: What the rows see, from `Rows.shared`.
            written: Keys and values of the tokens written before.

        Returns:
            The hidden states, of shape (rows, hidden size), and the keys and values with the new ones.
        """
        with seeing(shared):
            states, cache = self._states(tokens[:, None], self._next_positions(start, 1), written, {}, _UNUSED_MASK)
        return states[:, 0], cache

    def _states(
        self, ids: Tensor, positions: Tensor, past: KeysValues, vision: dict[str, Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """Hidden states of tokens of shape (rows, new) at positions (1 or 3, rows, new), and all keys and values."""
        cache = as_cache(past)
        states = self.model.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions if self.positions.is_3d else positions[0],
            past_key_values=cache,
            use_cache=True,
            **vision,
        ).last_hidden_state
        return states, cached(cache)

    def _padded(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids padded on the right, and which are real, both of shape (rows, longest)."""
        counts = np.array([len(own) for own in ids])
        real = np.arange(counts.max()) < counts[:, None]
        padded = np.zeros(real.shape, dtype=np.int64)
        padded[real] = np.concatenate([np.asarray(own, dtype=np.int64) for own in ids])
        return torch.from_numpy(padded).to(self.model.device), torch.from_numpy(real).to(self.model.device)

    def _next_positions(self, start: Tensor, count: int) -> Tensor:
        """Positions (1 or 3, rows, count) of text that goes on from `start`."""
        positions = (start[:, None] + torch.arange(count, device=start.device))[None]
        return positions.expand(3, -1, -1) if self.positions.is_3d else positions


def _last(states: Tensor, real: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The position after each row's last token, and the hidden state there."""
    row, last = torch.arange(len(real), device=real.device), real.sum(1) - 1
    return positions[0, row, last] + 1, states[row, last]
