"""Greedy decoding over a static key-value cache, with one CUDA graph per bucket of batch size and length."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reflectune.models.attention.packed import round_up_to_blocks
from reflectune.models.attention.recurrence import FULL, LINEAR, Recurrence, StatesByLayer
from reflectune.models.prefix.forward import UNUSED_MASK, Forward, say, within_memory
from reflectune.models.prefix.packed_rows import CachedSequence, continued_states

CHECK_EVERY = 4
"""Steps between checks whether all rows have ended: each check synchronizes the device."""
MAX_GRAPHS = 64
"""Maximum CUDA graphs to keep; the least recently used one is dropped."""
Decoded = tuple[list[int], list[float], bool]
"""Token ids (with the end token, if it was reached), their log-probabilities, and True if the end was reached."""


class StaticDecoder:
    """Decode from packed rows. Batch sizes and lengths are rounded up to buckets, which share one static cache.

    Args:
        forward: The model.
        end_ids: Ids of the end tokens.

    Attributes:
        memory: Keys and values of the largest bucket so far.
        linear: States of linear attention of the largest batch so far, by layer.
        steps: Decoding steps by the shape of their keys and values.
    """

    def __init__(self, forward: Forward, end_ids: Tensor) -> None:
        self._forward, self._end_ids = forward, end_ids
        self.memory = torch.empty(0)
        self.linear: StatesByLayer = {}
        self._pool: Any = None
        self.steps: OrderedDict[tuple[int, ...], DecodeStep] = OrderedDict()

    @torch.no_grad()
    def decode(self, sequences: Sequence[CachedSequence], forced: Sequence[int], max_new_tokens: int) -> list[Decoded]:
        """Decode after sequences and `forced` tokens; if memory runs out, decode half of the sequences at a time."""
        decoded = within_memory(
            lambda: self._decode(sequences, forced, max_new_tokens),
            "decoding ran out of memory: half of the rows are decoded at a time",
            is_divisible=len(sequences) > 1,
            free=self.forget,
        )
        if decoded is not None:
            return decoded
        half = len(sequences) // 2
        halves = (sequences[:half], sequences[half:])
        return [answer for part in halves for answer in self.decode(part, forced, max_new_tokens)]

    def _decode(self, sequences: Sequence[CachedSequence], forced: Sequence[int], max_new_tokens: int) -> list[Decoded]:
        context = max(sequence.length for sequence in sequences)
        keys = round_up_to_blocks(context + len(forced) + max_new_tokens)
        step = self._step(sequences[0], rows_of_bucket(len(sequences)), keys)
        step.load(sequences, context)
        if not forced:
            step.choose(torch.stack([sequence.states[-1] for sequence in sequences]))
        for token in forced:
            step.tokens.fill_(token)
            step.ended.zero_()
            step()
        ids, values = torch.zeros(len(sequences), 0), torch.zeros(len(sequences), 0)
        columns: list[tuple[Tensor, Tensor]] = []
        for number in range(max_new_tokens):
            columns.append((step.chosen.clone(), step.values.clone()))
            is_checked = number % CHECK_EVERY == CHECK_EVERY - 1
            if number == max_new_tokens - 1 or (is_checked and bool(step.ended[: len(sequences)].all())):
                ids, values = (torch.stack(side, 1) for side in zip(*columns, strict=True))
                break
            step()
        is_end = torch.isin(ids.cpu(), self._end_ids.cpu()).tolist()
        decoded = []
        for row_ids, row_values, row_ends, _ in zip(ids.tolist(), values.tolist(), is_end, sequences, strict=False):
            count = row_ends.index(True) + 1 if True in row_ends else len(row_ids)
            decoded.append((row_ids[:count], row_values[:count], True in row_ends))
        self._forward.tokens_read += len(forced) * len(sequences)
        return decoded

    def forget(self) -> None:
        """Drop all steps, and free their memory."""
        self.steps.clear()
        self.memory, self.linear, self._pool = torch.empty(0), {}, None

    def _step(self, sequence: CachedSequence, rows: int, keys: int) -> DecodeStep:
        """Return the step of a bucket. If the static cache has to grow, all steps are rebuilt."""
        layers = [layer for layer in range(len(sequence.row.cache)) if layer not in sequence.row.linear]
        like, _ = sequence.row.cache[layers[0]]
        shape = (len(layers), 2, rows, like.shape[1], keys, like.shape[3])
        linear_rows = min((len(state) for _, state in self.linear.values()), default=0)
        is_small = self.memory.numel() < math.prod(shape) or (bool(sequence.row.linear) and linear_rows < rows)
        if is_small or self.memory.dtype != like.dtype:
            size = max(math.prod(shape), self.memory.numel())
            self.steps.clear()
            self._pool = torch.cuda.graph_pool_handle() if like.is_cuda else None  # the old pool went with its graphs
            self.memory, self.linear = torch.empty(0), {}
            self.memory = like.new_zeros(size)
            for layer, (inputs, state) in sequence.row.linear.items():
                count = max(rows, linear_rows)
                self.linear[layer] = (
                    inputs.new_zeros(count, *inputs.shape[1:]),
                    state.new_zeros(count, *state.shape[1:]),
                )
        if shape not in self.steps:
            cache = dict(zip(layers, self.memory[: math.prod(shape)].view(shape), strict=True))
            linear = {layer: (inputs[:rows], state[:rows]) for layer, (inputs, state) in self.linear.items()}
            self.steps[shape] = DecodeStep(self._forward, self._end_ids, cache, linear, self._pool)
        self.steps.move_to_end(shape)
        if len(self.steps) > MAX_GRAPHS:
            self.steps.popitem(last=False)
        return self.steps[shape]


class DecodeStep:
    """Decoding step of one bucket; passed to the model as `shared_context`.

    The rows' prompts are aligned to end at the same key, so each step writes to the same key index in all rows.

    Attributes:
        tokens: The rows' last tokens, (rows, 1).
        chosen: The most likely next token of each row, (rows,).
        values: Its log-probability, (rows,).
        ended: True for rows that have reached an end token, (rows,).
    """

    def __init__(
        self,
        forward: Forward,
        end_ids: Tensor,
        cache: Mapping[int, Tensor],
        linear: StatesByLayer,
        pool: Any,
    ) -> None:
        self._forward, self._end_ids = forward, end_ids
        self._cache, self._linear = cache, linear
        like = next(iter(cache.values()))
        _, rows, _, keys, _ = like.shape
        self.chosen, self._positions = end_ids.new_zeros(2, rows)
        self.tokens, self._cursor = end_ids.new_zeros(rows, 1), end_ids.new_zeros(1)
        self.values = torch.zeros(rows, device=end_ids.device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=end_ids.device)
        self._mask = like.new_zeros(rows, 1, 1, keys)
        self._graph = self._capture(pool) if can_capture(end_ids.device) else None

    def __call__(self) -> None:
        """Append `tokens` to the rows, and choose the next ones."""
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def load(self, sequences: Sequence[CachedSequence], context: int) -> None:
        """Copy the sequences' keys and values into the first `context` keys of the static cache, right-aligned."""
        device = self.tokens.device
        sources = torch.zeros(len(sequences), context, dtype=torch.long)
        hidden = torch.ones(self._mask.shape)
        for row, sequence in enumerate(sequences):
            sources[row, context - sequence.length :] = torch.cat([torch.arange(*span) for span in sequence.seen])
            hidden[row, ..., context - sequence.length : context] = 0
        self._mask.zero_().masked_fill_((hidden > 0).to(device), -torch.inf)
        self._positions.zero_()  # also of padding rows: dynamic RoPE reads the highest position of all rows
        self._positions[: len(sequences)] = torch.tensor(
            [sequence.next_position for sequence in sequences], device=device
        )
        self._cursor.fill_(context)
        self.ended.zero_()
        for keys_values in self._cache.values():
            keys_values.zero_()  # stale values may be NaN, and a hidden value contributes 0 · NaN
        for packed in {id(sequence.row): sequence.row for sequence in sequences}.values():
            rows = torch.tensor([row for row, sequence in enumerate(sequences) if sequence.row is packed])
            index, rows = sources[rows].to(device), rows.to(device)
            for layer, keys_values in self._cache.items():
                for static, source in zip(keys_values, packed.cache[layer], strict=True):
                    static[:, :, :context].index_copy_(0, rows, source[0][:, index].transpose(0, 1))
        for layer, (inputs, state) in continued_states(sequences).items():
            for static, source in zip(self._linear[layer], (inputs, state), strict=True):
                static[: len(sequences)].copy_(source)
                static[len(sequences) :].zero_()

    def choose(self, hidden: Tensor) -> None:
        """Choose the next token of each row from hidden states, (rows or fewer, hidden size)."""
        log_probs = self._forward.log_probabilities(F.pad(hidden, (0, 0, 0, len(self.tokens) - len(hidden))))
        self.chosen.copy_(log_probs.argmax(-1))
        self.values.copy_(log_probs.gather(1, self.chosen[:, None])[:, 0])
        self.ended.logical_or_((self.chosen[:, None] == self._end_ids).any(1))
        self.tokens.copy_(self.chosen[:, None])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: int, scale: float) -> Tensor:
        """Write a layer's new keys and values, and attend to all: (rows, heads, 1, size)."""
        keys, values = self._cache[layer]
        keys.index_copy_(2, self._cursor, key)
        values.index_copy_(2, self._cursor, value)
        folded = query.reshape(len(query), keys.shape[1], -1, query.shape[3])  # (rows, key heads, group, size)
        return F.scaled_dot_product_attention(folded, keys, values, self._mask, scale=scale).reshape(query.shape)

    def _run(self) -> None:
        self._mask.index_fill_(3, self._cursor, 0)
        positions, recurrence = self._positions[:, None], Recurrence(None, self._linear)
        output = self._forward.model.model.language_model(
            input_ids=self.tokens,
            position_ids=positions.expand(3, -1, -1) if self._forward.positions.is_3d else positions,
            attention_mask={FULL: UNUSED_MASK, LINEAR: recurrence} if self._linear else UNUSED_MASK,
            shared_context=self,
            use_cache=False,
        )
        for layer, states in recurrence.after.items():
            for static, after in zip(self._linear[layer], states, strict=True):
                static.copy_(after)
        self.choose(output.last_hidden_state[:, 0])
        self._positions.add_(1)
        self._cursor.add_(1)

    def _capture(self, pool: Any) -> torch.cuda.CUDAGraph | None:
        """Capture the step as a CUDA graph and compare it with eager execution. Returns None if either fails.

        Args:
            pool: Memory pool of all graphs: they run one at a time, and nothing in it is read after a step.
        """
        before = torch.cuda.current_stream(self.tokens.device)
        try:
            with torch.cuda.device(self.tokens.device):  # streams and graphs belong to the current device
                stream = torch.cuda.Stream()
                stream.wait_stream(before)
                with torch.cuda.stream(stream):
                    for _ in range(2):  # warm-up: libraries allocate their workspaces
                        self._run()
                before.wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):  # other threads may allocate
                    self._run()
            values = []
            for step in (self._run, graph.replay):
                linear = (side for states in self._linear.values() for side in states)
                for state in (self._cursor, self._positions, self._mask, self.tokens, *linear):
                    state.zero_()
                self.values.fill_(torch.nan)  # an empty graph would leave the eager step's
                step()
                values.append(self.values.clone())
            if torch.allclose(values[0], values[1], rtol=0.01, atol=0.1):
                return graph
            problem = "its results differ from eager execution"
        except RuntimeError as error:
            problem = str(error).splitlines()[0][:300]
            with torch.cuda.device(self.tokens.device):
                torch.cuda.set_stream(before)  # a failed capture leaves its own stream current
        say(f"decoding without CUDA graphs, which is slower: {problem}")
        return None


def can_capture(device: torch.device) -> bool:
    """Return True on a GPU without autocast, whose cache of cast weights lies outside a graph."""
    return device.type == "cuda" and not torch.is_autocast_enabled("cuda")


def rows_of_bucket(count: int) -> int:
    """Round a number of rows up: 1, 2, 4, 8, then multiples of 8."""
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8
