"""Forward passes on top of cached tokens, and the token budget of a pass."""

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
from reflectune.core.errors import UserError
from reflectune.models.attention.collation import join_vision
from reflectune.models.attention.positions import Positions
from reflectune.models.attention.recurrence import FULL, LINEAR, Recurrence, layers_per_cache, state_tokens
from reflectune.models.attention.shared import KeysValues, Shared, SharedContext, share_prefixes
from reflectune.models.attention.windows import read_windows_at_once
from reflectune.models.prefix.rows import Level, Rows, from_dynamic_cache, level_bytes, to_dynamic_cache
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.weights.output_head import exact_logits
from reflectune.models.weights.spreading import gpus_of, input_device

Result = TypeVar("Result")
UNUSED_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
"""Prevents transformers from building a mask; attention over shared tokens doesn't read it."""
CPU_BUDGET = 2_048
"""Token budget on a CPU: such passes fit into its cache, and larger ones are no faster."""
MAX_BUDGET = 65_536
"""Maximum token budget on an accelerator; larger passes are no faster."""
KEPT_BUDGETS = 4
"""Keys and values of branches are kept for this many token budgets; see `Forward.kept_budgets`."""
_TRIAL = 1_024
"""Tokens of the forward pass that measures memory."""
_SHARE = 0.7
"""Share of the free memory to use; the rest is for images and fragmentation."""
_OF_IMAGES = 0.15
"""Share of the free memory that cached image prefixes may take."""


class Forward:
    """Read tokens with one model.

    Args:
        model: The model. Its attention is replaced by an equivalent one that can share prefixes.

    Attributes:
        device: Device of the token ids and hidden states; layers may be on other devices.
        tokens_read: Prompt tokens read so far, without padding and decoded tokens.
        token_bytes: Bytes of a token in a forward pass, measured on a GPU; 0 if not measured.
        state_tokens: Tokens whose keys and values take as many bytes as the states of a row; see `recurrence`.
        kept_budgets: `KEPT_BUDGETS`, or more if only some layers have keys and values: the bytes are the same.

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
        self.state_tokens = state_tokens(text, model.dtype)
        self.kept_budgets = int(KEPT_BUDGETS * layers_per_cache(text))

    def prefill(self, prefixes: Sequence[Rendered]) -> Rows:
        """Read the images and the prefixes of one batch."""
        ids, real = self._padded([prefix.ids for prefix in prefixes])
        row_positions = np.zeros((3 if self.positions.is_3d else 1, *ids.shape), dtype=np.int64)
        for row, prefix in enumerate(prefixes):
            row_positions[:, row, : len(prefix.ids)] = self.positions.of_prefix(np.array(prefix.ids), prefix.vision)
        positions = torch.from_numpy(row_positions).to(self.device)
        recurrence = Recurrence(real, {})
        states, cache = self._states(ids, positions, [], recurrence, self.vision_inputs(prefixes, ids))
        self.tokens_read += sum(len(prefix.ids) for prefix in prefixes)
        level = Level(cache, real, recurrence.after)
        return Rows((), (), positions[0, :, 0], states[:, 0]).extended(level, *_last(states, real, positions))

    def vision_inputs(self, prefixes: Sequence[Rendered], ids: Tensor) -> dict[str, Tensor]:
        """Return the model's image inputs for prefixes that are read together as token ids `ids`."""
        device, dtype = self.device, self.model.dtype
        vision = {
            name: value.to(device).to(dtype) if value.is_floating_point() else value.to(device)
            for name, value in join_vision([prefix.vision for prefix in prefixes]).items()
        }
        return vision | self.positions.types(ids)

    def language_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the model passes to its language model: embeddings with the images inserted."""
        inner = self.model.model

        def stop(_: Any, __: Any, arguments: dict[str, Any]) -> None:
            raise _Reached(arguments)

        hook = inner.language_model.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            inner(**inputs, attention_mask=UNUSED_MASK, use_cache=False)
        except _Reached as reached:
            return reached.arguments
        finally:
            hook.remove()
        raise AssertionError("the model doesn't call its language model")

    def batches(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        """Return `within_budget`; on an accelerator a row's linear-attention states count as tokens."""
        state_tokens = 0 if self.device.type == "cpu" else self.state_tokens
        return within_budget([length + state_tokens for length in lengths], budget)

    def fitting_tokens(self, budget: int) -> int:
        """Return `budget`, or fewer tokens if the GPU's free memory has shrunk."""
        if not self.token_bytes:
            return budget
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        free = torch.cuda.mem_get_info(self.device)[0] + unused
        return max(1, min(budget, int(_SHARE * free / self.token_bytes)))

    def append(self, rows: Rows, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Rows]:
        """Append tokens to each row in one forward pass; rows may get different numbers of tokens.

        Returns:
            Hidden states of shape (rows, max tokens, hidden size), and the extended rows.
        """
        padded, real = self._padded(ids)
        positions = self._next_positions(rows.next_position, padded.shape[1])
        recurrence = Recurrence(real, rows.last_level.states, rows.where[-1])
        states, cache = self._continue(rows.shared(), padded, positions, [], recurrence)
        self.tokens_read += sum(map(len, ids))
        return states, rows.extended(Level(cache, real, recurrence.after), *_last(states, real, positions))

    def decode_step(
        self, tokens: Tensor, start: Tensor, shared: Sequence[Shared], written: Level
    ) -> tuple[Tensor, Level]:
        """Append one token to each row, after the tokens decoded so far.

        Args:
            tokens: Shape (rows,).
            start: Their positions, shape (rows,).
            shared: Shared tokens before the rows, from `Rows.shared`.
            written: Level of the tokens decoded so far.

        Returns:
            Hidden states of shape (rows, hidden size), and the extended level.
        """
        recurrence, positions = Recurrence(None, written.states), self._next_positions(start, 1)
        states, cache = self._continue(shared, tokens[:, None], positions, written.cache, recurrence)
        return states[:, 0], Level(cache, F.pad(written.real, (0, 1), value=True), recurrence.after)

    def log_probabilities(self, hidden: Tensor, exact_ids: Sequence[int] = ()) -> Tensor:
        """Return log-probabilities (rows, vocabulary); the logits of `exact_ids` are computed in float32."""
        head = self.model.get_output_embeddings()
        return exact_logits(head, hidden, head(hidden), exact_ids).log_softmax(-1).to(hidden.device)

    def _continue(
        self, shared: Sequence[Shared], ids: Tensor, positions: Tensor, past: KeysValues, recurrence: Recurrence
    ) -> tuple[Tensor, KeysValues]:
        """Return `_states` of text after cached rows."""
        inputs = {"attention_mask": UNUSED_MASK, "shared_context": SharedContext(shared)}
        return self._states(ids, positions, past, recurrence, inputs)

    def _states(
        self, ids: Tensor, positions: Tensor, past: KeysValues, recurrence: Recurrence, inputs: Mapping[str, Any]
    ) -> tuple[Tensor, KeysValues]:
        """Return hidden states of tokens (rows, new) at positions (1 or 3, rows, new), and all keys and values.

        The states of linear attention are written to `recurrence`.
        """
        cache = to_dynamic_cache(past)
        if self.state_tokens:
            inputs = {**inputs, "attention_mask": {FULL: inputs.get("attention_mask"), LINEAR: recurrence}}
        states = self.model.model(
            input_ids=ids,
            position_ids=positions if self.positions.is_3d else positions[0],
            past_key_values=cache,
            use_cache=True,
            **inputs,
        ).last_hidden_state
        return states.to(ids.device), from_dynamic_cache(cache)

    def _padded(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return token ids padded on the right, and a mask of the real ones, both of shape (rows, longest)."""
        counts = np.array([len(row_ids) for row_ids in ids])
        real = np.arange(counts.max()) < counts[:, None]
        padded = np.zeros(real.shape, dtype=np.int64)
        padded[real] = np.concatenate([np.asarray(row_ids, dtype=np.int64) for row_ids in ids])
        return torch.from_numpy(padded).to(self.device), torch.from_numpy(real).to(self.device)

    def _next_positions(self, start: Tensor, count: int) -> Tensor:
        """Return positions (1 or 3, rows, count) of text that starts at position `start`."""
        positions = (start[:, None] + torch.arange(count, device=start.device))[None]
        return positions.expand(3, -1, -1) if self.positions.is_3d else positions


@functools.cache
def say(text: str) -> None:
    """Print a line to stderr; a repeated line is printed only once."""
    print(text, file=sys.stderr, flush=True)


def within_memory(
    work: Callable[[], Result], line: str, *, is_divisible: bool, free: Callable[[], None] = lambda: None
) -> Result | None:
    """Call `work` and return its result; None if it runs out of memory and can be divided into smaller parts.

    Args:
        work: Forward passes.
        line: Printed once if memory runs out.
        is_divisible: If False, running out of memory raises.
        free: Called to free more memory.
    """
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_divisible or not is_out_of_memory(error):
            raise
    free()
    gc.collect()  # after the except block, since its traceback holds memory
    torch.cuda.empty_cache()
    say(line)
    return None


class _Reached(Exception):
    """Raised when a forward pass reaches the language model."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


def _last(states: Tensor, real: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position after each row's last token, and the hidden state at that token."""
    row, last = torch.arange(len(real), device=real.device), real.sum(1) - 1
    return positions[0, row, last] + 1, states[row, last]


def find_budget(forward: Forward) -> int:
    """Measure a forward pass on an accelerator, and return the largest token budget that fits into its memory.

    The budget is a power of two. With several accelerators the smallest budget is returned.
    """
    gpus = gpus_of(forward.model)
    if not gpus:
        return CPU_BUDGET
    before = [torch.cuda.memory_allocated(gpu) for gpu in gpus]
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    with torch.no_grad():
        read = forward.prefill([Rendered([0] * _TRIAL, [], {})])
    peaks = [torch.cuda.max_memory_allocated(gpu) - start for gpu, start in zip(gpus, before, strict=True)]
    cached = [level_bytes(read.levels, gpu) for gpu in gpus]
    forward.token_bytes = max(peaks) / _TRIAL
    forward.tokens_read -= _TRIAL  # the trial is not a prompt
    del read
    torch.cuda.empty_cache()
    return min(
        fitting_budget(torch.cuda.mem_get_info(gpu)[0], (peak - cache) / _TRIAL, cache / _TRIAL, forward.kept_budgets)
        for gpu, peak, cache in zip(gpus, peaks, cached, strict=True)
    )


@torch.no_grad()
def check_logits(model: PreTrainedModel) -> None:
    """Compare the output head's logits with the model's; `log_probabilities` reads the head's.

    Raises:
        UserError: The model scales or caps them, as Granite-Docling does.
    """
    of_head: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda *call: of_head.append(call[-1]))
    ids = torch.arange(8, device=input_device(model))[None]  # several, since padding's may have logits of zero
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    if not of_head or not torch.allclose(of_head[0].to(logits), logits, rtol=0, atol=0, equal_nan=True):
        raise UserError(
            f"{type(model).__name__} changes the logits of its output head, and probabilities are computed from the "
            "head's own here; use another model"
        )


def image_bytes(model: PreTrainedModel) -> int:
    """Return the maximum bytes of cached image prefixes: a share of the memory that is free now."""
    gpus = gpus_of(model)
    if gpus:
        torch.cuda.empty_cache()  # frees memory of an earlier model
    free = sum(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus) if gpus else psutil.virtual_memory().available
    return int(_OF_IMAGES * free)


def within_budget(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group rows of similar length into batches of at most `budget` padded tokens; a longer row is a batch alone."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * lengths[index] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def fitting_budget(free: float, passing: float, kept: float, budgets: int = KEPT_BUDGETS) -> int:
    """Return the largest power of two up to `MAX_BUDGET` that fits.

    Args:
        free: Bytes of memory.
        passing: Bytes of one token during a forward pass.
        kept: Bytes of one token's keys and values.
        budgets: Token budgets of branches whose keys and values are kept; as many are reserved for prefixes.
    """
    tokens = _SHARE * free / max(passing + 2 * budgets * kept, 1)
    return max(1, min(MAX_BUDGET, 2 ** int(max(tokens, 1)).bit_length() // 2))
