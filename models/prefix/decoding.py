"""Greedy decoding over a static cache: keys and values of the chosen rows side by side, one CUDA graph a bucket."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reflectune.models.attention.packed import padded
from reflectune.models.attention.recurrence import FULL, LINEAR, Recurrence, StatesByLayer
from reflectune.models.prefix.forward import UNUSED_MASK, Forward, say, within_memory
from reflectune.models.prefix.packed_rows import Spot, continued_states

CHECKED = 4
"""Steps between two looks at the rows that have ended: each look waits for the device."""
GRAPHS = 64
"""Buckets that are kept, those used last."""
Decoded = tuple[list[int], list[float], bool]
"""Token ids with the end token if it was reached, the log-probability of each, and True if it was reached."""


class StaticDecoder:
    """Decode from packed rows, in buckets of rows and of keys that use the same memory, one at a time.

    Args:
        forward: The model.
        end_ids: Ids of the end tokens.

    Attributes:
        memory: Keys and values of the largest bucket so far.
        linear: States of linear attention of the most rows so far, by layer.
        steps: Steps by shape of their keys and values.
    """

    def __init__(self, forward: Forward, end_ids: Tensor) -> None:
        self._forward, self._end_ids = forward, end_ids
        self.memory = torch.empty(0)
        self.linear: StatesByLayer = {}
        self._pool: Any = None
        self.steps: OrderedDict[tuple[int, ...], DecodeStep] = OrderedDict()

    @torch.no_grad()
    def decode(self, spots: Sequence[Spot], forced: Sequence[int], most: int) -> list[Decoded]:
        """Answer from spots after `forced` tokens, with at most `most` tokens; half at a time if memory runs out."""
        decoded = within_memory(
            lambda: self._decoded(spots, forced, most),
            "decoding is out of memory: half of the rows are decoded at a time",
            is_divisible=len(spots) > 1,
            free=self.forget,
        )
        if decoded is not None:
            return decoded
        half = len(spots) // 2
        return [*self.decode(spots[:half], forced, most), *self.decode(spots[half:], forced, most)]

    def _decoded(self, spots: Sequence[Spot], forced: Sequence[int], most: int) -> list[Decoded]:
        context = max(spot.length for spot in spots)
        step = self._step(spots[0], rows_of_bucket(len(spots)), padded(context + len(forced) + most))
        step.load(spots, context)
        if not forced:
            step.choose(torch.stack([spot.states[-1] for spot in spots]))
        for token in forced:
            step.tokens.fill_(token)
            step.ended.zero_()
            step()
        ids, values = torch.zeros(len(spots), 0), torch.zeros(len(spots), 0)
        columns: list[tuple[Tensor, Tensor]] = []
        for number in range(most):
            columns.append((step.chosen.clone(), step.values.clone()))
            is_checked = number % CHECKED == CHECKED - 1
            if number == most - 1 or (is_checked and bool(step.ended[: len(spots)].all())):
                ids, values = (torch.stack(side, 1) for side in zip(*columns, strict=True))
                break
            step()
        is_end = torch.isin(ids.cpu(), self._end_ids.cpu()).tolist()
        decoded = []
        for row_ids, row_values, row_ends, _ in zip(ids.tolist(), values.tolist(), is_end, spots, strict=False):
            count = row_ends.index(True) + 1 if True in row_ends else len(row_ids)
            decoded.append((row_ids[:count], row_values[:count], True in row_ends))
        self._forward.tokens_read += len(forced) * len(spots)
        return decoded

    def forget(self) -> None:
        """Free the memory of all steps, and the steps."""
        self.steps.clear()
        self.memory, self.linear, self._pool = torch.empty(0), {}, None

    def _step(self, spot: Spot, rows: int, keys: int) -> DecodeStep:
        """Return the step of a bucket. All steps are made again where the memory has to grow."""
        layers = [layer for layer in range(len(spot.row.cache)) if layer not in spot.row.linear]
        like, _ = spot.row.cache[layers[0]]
        shape = (len(layers), 2, rows, like.shape[1], keys, like.shape[3])
        held = min((len(state) for _, state in self.linear.values()), default=0)
        is_small = self.memory.numel() < math.prod(shape) or (bool(spot.row.linear) and held < rows)
        if is_small or self.memory.dtype != like.dtype:
            size = max(math.prod(shape), self.memory.numel())
            self.steps.clear()
            self._pool = torch.cuda.graph_pool_handle() if like.is_cuda else None  # the last graph took its own along
            self.memory, self.linear = torch.empty(0), {}
            self.memory = like.new_zeros(size)
            for layer, (inputs, state) in spot.row.linear.items():
                most = max(rows, held)
                self.linear[layer] = (
                    inputs.new_zeros(most, *inputs.shape[1:]),
                    state.new_zeros(most, *state.shape[1:]),
                )
        if shape not in self.steps:
            cache = dict(zip(layers, self.memory[: math.prod(shape)].view(shape), strict=True))
            linear = {layer: (inputs[:rows], state[:rows]) for layer, (inputs, state) in self.linear.items()}
            self.steps[shape] = DecodeStep(self._forward, self._end_ids, cache, linear, self._pool)
        self.steps.move_to_end(shape)
        if len(self.steps) > GRAPHS:
            self.steps.popitem(last=False)
        return self.steps[shape]


class DecodeStep:
    """Step of one bucket; passed to the model as `shared_context`.

    All rows' prompts end at the same key, so that each next token is written at the same place.

    Attributes:
        tokens: The rows' last tokens, (rows, 1).
        chosen: The likeliest next token of each row, (rows,).
        values: Its log-probability, (rows,).
        ended: True for rows that have chosen an end token, (rows,).
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
        self._graph = self._captured(pool) if can_capture(end_ids.device) else None

    def __call__(self) -> None:
        """Append `tokens` to the rows, and choose the next ones."""
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def load(self, spots: Sequence[Spot], context: int) -> None:
        """Copy the keys and values of spots into the first `context` keys, each row's at the end of them."""
        device = self.tokens.device
        places, hidden = torch.zeros(len(spots), context, dtype=torch.long), torch.ones(self._mask.shape)
        for row, spot in enumerate(spots):
            places[row, context - spot.length :] = torch.cat([torch.arange(*span) for span in spot.seen])
            hidden[row, ..., context - spot.length : context] = 0
        self._mask.zero_().masked_fill_((hidden > 0).to(device), -torch.inf)
        self._positions.zero_()  # a padding row's would grow, and dynamic RoPE reads the highest position of all rows
        self._positions[: len(spots)] = torch.tensor([spot.next_position for spot in spots], device=device)
        self._cursor.fill_(context)
        self.ended.zero_()
        for both in self._cache.values():
            both.zero_()  # what was there may be NaN, and hidden values count as 0 · NaN
        for packed in {id(spot.row): spot.row for spot in spots}.values():
            rows = torch.tensor([row for row, spot in enumerate(spots) if spot.row is packed])
            index, rows = places[rows].to(device), rows.to(device)
            for layer, both in self._cache.items():
                for static, source in zip(both, packed.cache[layer], strict=True):
                    static[:, :, :context].index_copy_(0, rows, source[0][:, index].transpose(0, 1))
        for layer, (inputs, state) in continued_states(spots).items():
            for static, source in zip(self._linear[layer], (inputs, state), strict=True):
                static[: len(spots)].copy_(source)
                static[len(spots) :].zero_()

    def choose(self, hidden: Tensor) -> None:
        """Choose the next token of each row from hidden states, (up to all rows, hidden size)."""
        every = self._forward.log_probabilities(F.pad(hidden, (0, 0, 0, len(self.tokens) - len(hidden))))
        self.chosen.copy_(every.argmax(-1))
        self.values.copy_(every.gather(1, self.chosen[:, None])[:, 0])
        self.ended.logical_or_((self.chosen[:, None] == self._end_ids).any(1))
        self.tokens.copy_(self.chosen[:, None])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: int, scale: float) -> Tensor:
        """Write a layer's new keys and values, and attend to all: (rows, heads, 1, size). No head is repeated."""
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

    def _captured(self, pool: Any) -> torch.cuda.CUDAGraph | None:
        """Return the step as a CUDA graph, or None if it can't be captured; it runs kernel by kernel then.

        Args:
            pool: Memory of all graphs: they run one at a time, and nothing in it is read after a step.
        """
        before = torch.cuda.current_stream(self.tokens.device)
        try:
            with torch.cuda.device(self.tokens.device):  # streams and graphs belong to the current one
                stream = torch.cuda.Stream()
                stream.wait_stream(before)
                with torch.cuda.stream(stream):
                    for _ in range(2):  # libraries allocate their workspaces
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
                self.values.fill_(torch.nan)  # an empty graph would leave the first step's
                step()
                values.append(self.values.clone())
            if torch.allclose(values[0], values[1], rtol=0.01, atol=0.1):
                return graph
            problem = "they give other numbers"
        except RuntimeError as error:
            problem = str(error).splitlines()[0][:300]
            with torch.cuda.device(self.tokens.device):
                torch.cuda.set_stream(before)  # a failed capture leaves its own
        say(f"decoding goes without CUDA graphs, and is slower: {problem}")
        return None


def can_capture(device: torch.device) -> bool:
    """Return True on a GPU without autocast, which caches cast weights outside a graph."""
    return device.type == "cuda" and not torch.is_autocast_enabled("cuda")


def rows_of_bucket(count: int) -> int:
    """Round a number of rows up: 1, 2, 4, 8, then multiples of 8."""
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8
