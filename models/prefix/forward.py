"""Forward passes of a model over tokens that follow cached ones, and the number of tokens that fit into a pass."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from reflectune.core.devices import is_out_of_memory
from reflectune.models.attention.collation import join_vision
from reflectune.models.attention.positions import Positions
from reflectune.models.attention.recurrence import FULL, LINEAR, Recurrence, layers_per_cache, state_tokens
from reflectune.models.attention.shared import KeysValues, Shared, SharedContext, share_prefixes
from reflectune.models.attention.windows import read_windows_at_once
from reflectune.models.prefix.rows import Level, Rows, as_cache, cached, kept_bytes
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.weights.output_head import exact_logits
from reflectune.models.weights.spreading import gpus_of, input_device

Result = TypeVar("Result")
UNUSED_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
"""Keeps transformers from building a mask; attention over shared tokens doesn't read it."""
CPU_BUDGET = 2_048
"""Small passes stay in a CPU's cache; larger ones gain nothing."""
LARGEST = 65_536
"""More tokens gain nothing on an accelerator."""
KEPT = 4
"""Budgets of tokens whose keys and values may be kept; more where few layers have any, see `Forward.kept_budgets`."""
_TRIAL = 1_024
_SHARE = 0.7
"""Share of the free memory to use; the rest is for images and fragmentation."""
_OF_IMAGES = 0.15
"""Share of the free memory that cached image prefixes may take."""


class Forward:
    """Read tokens with one model.

    Args:
        model: The model. Its attention is replaced by one that computes the same and can share prefixes.

    Attributes:
        device: Device of the token ids and hidden states; layers may lie on others.
        tokens_read: Prompt tokens read so far, without padding and decoded tokens.
        token_bytes: Bytes of a token in a forward pass, from a trial on a GPU; 0 without one.
        state_tokens: Tokens whose keys and values take as many bytes as the states of a row; see `recurrence`.
        kept_budgets: `KEPT`, for as many bytes as in a model whose layers all have keys and values.

    Raises:
        UserError: The model's attention can't share a prefix.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        share_prefixes(model)
        read_windows_at_once(model)
        self.model = model.eval()
        self.device = input_device(model)
        self.positions = Positions(model)
        self.tokens_read = 0
        self.token_bytes = 0.0
        text = model.config.get_text_config()
        self.state_tokens, self.kept_budgets = state_tokens(text, model.dtype), int(KEPT * layers_per_cache(text))

    def prefill(self, prefixes: Sequence[Rendered]) -> Rows:
        """Read the images and the prefixes of one batch, into key-value caches of their own."""
        ids, real = self._padded([prefix.ids for prefix in prefixes])
        positions = np.zeros((3 if self.positions.is_3d else 1, *ids.shape), dtype=np.int64)
        for row, prefix in enumerate(prefixes):
            positions[:, row, : len(prefix.ids)] = self.positions.of_prefix(np.array(prefix.ids), prefix.vision)
        places = torch.from_numpy(positions).to(self.device)
        recurrence = Recurrence(real, {})
        states, cache = self._states(ids, places, [], recurrence, self.vision_inputs(prefixes, ids))
        self.tokens_read += sum(len(prefix.ids) for prefix in prefixes)
        level = Level(cache, real, recurrence.after)
        return Rows((), (), places[0, :, 0], states[:, 0]).extended(level, *_last(states, real, places))

    def vision_inputs(self, prefixes: Sequence[Rendered], ids: Tensor) -> dict[str, Tensor]:
        """Return the model's inputs for the images of prefixes that are read together, as tokens `ids`."""
        device, dtype = self.device, self.model.dtype
        vision = {
            name: value.to(device).to(dtype) if value.is_floating_point() else value.to(device)
            for name, value in join_vision([prefix.vision for prefix in prefixes]).items()
        }
        return vision | self.positions.types(ids)

    def language_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the model gives to its language model, with images among the embeddings."""
        inner = self.model.model

        def stop(_: Any, __: Any, given: dict[str, Any]) -> None:
            raise _Reached(given)

        hook = inner.language_model.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            inner(**inputs, attention_mask=UNUSED_MASK, use_cache=False)
        except _Reached as reached:
            return reached.given
        finally:
            hook.remove()
        raise AssertionError("the model doesn't call its language model")

    def batches(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        """Return `within_budget`; on an accelerator the states of a row count as tokens."""
        of_row = 0 if self.device.type == "cpu" else self.state_tokens
        return within_budget([length + of_row for length in lengths], budget)

    def fitting_tokens(self, budget: int) -> int:
        """Return `budget`, or the tokens that the GPU's free memory has room for now if that is less."""
        if not self.token_bytes:
            return budget
        held = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        free = torch.cuda.mem_get_info(self.device)[0] + held
        return max(1, min(budget, int(_SHARE * free / self.token_bytes)))

    def append(self, rows: Rows, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Rows]:
        """Append any number of tokens to each row, in one forward pass over the cached ones.

        Returns:
            Hidden states of shape (rows, most tokens, hidden size), and the extended rows.
        """
        padded, real = self._padded(ids)
        places = self._next_positions(rows.next_position, padded.shape[1])
        recurrence = Recurrence(real, rows.last_level.states, rows.where[-1])
        states, cache = self._under(rows.shared(), padded, places, [], recurrence)
        self.tokens_read += sum(map(len, ids))
        return states, rows.extended(Level(cache, real, recurrence.after), *_last(states, real, places))

    def decode_step(
        self, tokens: Tensor, start: Tensor, shared: Sequence[Shared], written: Level
    ) -> tuple[Tensor, Level]:
        """Append one token to each row, after the tokens decoded so far.

        Args:
            tokens: Shape (rows,).
            start: Their positions, shape (rows,).
            shared: Shared tokens that the rows see, from `Rows.shared`.
            written: The tokens decoded so far.

        Returns:
            Hidden states of shape (rows, hidden size), and the extended level.
        """
        recurrence, positions = Recurrence(None, written.states), self._next_positions(start, 1)
        states, cache = self._under(shared, tokens[:, None], positions, written.cache, recurrence)
        return states[:, 0], Level(cache, F.pad(written.real, (0, 1), value=True), recurrence.after)

    def log_probabilities(self, hidden: Tensor, asked: Sequence[int] = ()) -> Tensor:
        """Return log-probabilities (rows, vocabulary), from float32 logits of the tokens that are asked for."""
        head = self.model.get_output_embeddings()
        return exact_logits(head, hidden, head(hidden), asked).log_softmax(-1).to(hidden.device)

    def _under(
        self, shared: Sequence[Shared], ids: Tensor, positions: Tensor, past: KeysValues, recurrence: Recurrence
    ) -> tuple[Tensor, KeysValues]:
        """Return `_states` of text that follows cached rows."""
        more = {"attention_mask": UNUSED_MASK, "shared_context": SharedContext(shared)}
        return self._states(ids, positions, past, recurrence, more)

    def _states(
        self, ids: Tensor, positions: Tensor, past: KeysValues, recurrence: Recurrence, more: Mapping[str, Any]
    ) -> tuple[Tensor, KeysValues]:
        """Return hidden states of tokens (rows, new) at positions (1 or 3, rows, new), and all keys and values.

        The states of linear attention are written to `recurrence`.
        """
        cache = as_cache(past)
        if self.state_tokens:
            more = {**more, "attention_mask": {FULL: more.get("attention_mask"), LINEAR: recurrence}}
        states = self.model.model(
            input_ids=ids,
            position_ids=positions if self.positions.is_3d else positions[0],
            past_key_values=cache,
            use_cache=True,
            **more,
        ).last_hidden_state
        return states.to(ids.device), cached(cache)

    def _padded(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return token ids padded on the right, and a mask of the real ones, both of shape (rows, longest)."""
        counts = np.array([len(row_ids) for row_ids in ids])
        real = np.arange(counts.max()) < counts[:, None]
        padded = np.zeros(real.shape, dtype=np.int64)
        padded[real] = np.concatenate([np.asarray(row_ids, dtype=np.int64) for row_ids in ids])
        return torch.from_numpy(padded).to(self.device), torch.from_numpy(real).to(self.device)

    def _next_positions(self, start: Tensor, count: int) -> Tensor:
        """Return positions (1 or 3, rows, count) of text that continues at `start`."""
        positions = (start[:, None] + torch.arange(count, device=start.device))[None]
        return positions.expand(3, -1, -1) if self.positions.is_3d else positions


@functools.cache
def say(text: str) -> None:
    """Print a line to stderr, once."""
    print(text, file=sys.stderr, flush=True)


def within_memory(
    work: Callable[[], Result], line: str, *, is_divisible: bool, free: Callable[[], None] = lambda: None
) -> Result | None:
    """Return the result of work, or None if memory runs out and the work can be divided.

    Args:
        work: Forward passes.
        line: Printed once if memory runs out.
        is_divisible: False makes running out of memory an error.
        free: Frees further memory.
    """
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_divisible or not is_out_of_memory(error):
            raise
    free()
    gc.collect()  # only here, outside the except block, the memory held by the traceback is free
    torch.cuda.empty_cache()
    say(line)
    return None


class _Reached(Exception):
    """The language model was reached, with these arguments."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given = given


def _last(states: Tensor, real: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position after each row's last token, and the hidden state at that token."""
    row, last = torch.arange(len(real), device=real.device), real.sum(1) - 1
    return positions[0, row, last] + 1, states[row, last]


def find_budget(forward: Forward) -> int:
    """Return the tokens of a forward pass that the memory has room for, a power of two, by a trial on an accelerator.

    With several accelerators the one with the least room counts.
    """
    gpus = gpus_of(forward.model)
    if not gpus:
        return CPU_BUDGET
    before = [torch.cuda.memory_allocated(gpu) for gpu in gpus]
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    with torch.no_grad():
        read = forward.prefill([Rendered([0] * _TRIAL, [], {})])
    peaks = [torch.cuda.max_memory_allocated(gpu) - held for gpu, held in zip(gpus, before, strict=True)]
    kept = [kept_bytes(read.levels, gpu) for gpu in gpus]
    forward.token_bytes = max(peaks) / _TRIAL
    forward.tokens_read -= _TRIAL  # the trial's are nobody's prompt
    del read
    torch.cuda.empty_cache()
    return min(
        fitting_budget(torch.cuda.mem_get_info(gpu)[0], (peak - own) / _TRIAL, own / _TRIAL, forward.kept_budgets)
        for gpu, peak, own in zip(gpus, peaks, kept, strict=True)
    )


def image_bytes(model: PreTrainedModel) -> int:
    """Return the bytes that cached image prefixes may take: a share of the memory that is free now."""
    gpus = gpus_of(model)
    if gpus:
        torch.cuda.empty_cache()  # an earlier model's
    free = sum(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus) if gpus else psutil.virtual_memory().available
    return int(_OF_IMAGES * free)


def within_budget(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group rows of similar length into batches of indices, of at most `budget` tokens or a single longer row."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * lengths[index] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def fitting_budget(free: float, passing: float, kept: float, budgets: int = KEPT) -> int:
    """Return the largest power of two up to `LARGEST` that fits.

    Args:
        free: Bytes of memory.
        passing: Bytes of one token during a pass.
        kept: Bytes of one token's keys and values.
        budgets: Budgets of branches that are kept, and as many of prefixes.
    """
    tokens = _SHARE * free / max(passing + 2 * budgets * kept, 1)
    return max(1, min(LARGEST, 2 ** int(max(tokens, 1)).bit_length() // 2))
