"""Trees of many questions, read in one packed row by FlexAttention on accelerators.

A question's prefix is read together with its branches, or alone if its probabilities are requested first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reflectune.core.devices import is_out_of_memory
from reflectune.models.attention.packed import Span, block_mask, model_flex_problem, round_up_to_blocks, true_ranges
from reflectune.models.attention.recurrence import FULL, LINEAR
from reflectune.models.attention.shared import KeysValues
from reflectune.models.prefix.decoding import StaticDecoder
from reflectune.models.prefix.forward import Forward, say, within_budget, within_memory
from reflectune.models.prefix.image_prefix import ImagePrefixCache, shared_image_prefixes
from reflectune.models.prefix.packed_rows import (
    CachedSequence,
    Ends,
    OpenedTrees,
    PackedRow,
    RowPlan,
    TreePart,
    consecutive_ranges,
    continued_states,
    plan_recurrence,
)
from reflectune.models.prefix.state import Branches, Prefixes, Result, RowIndex, Work
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.weights.spreading import gpus_of

PASS = 1e14
"""Operations of a pass that keep a GPU busy while the next pass is prepared.

Larger passes only delay the first result.
"""
COMPILE_AFTER = 1_000_000
"""Tokens read before layers are compiled: for fewer tokens, compiling takes longer than it saves."""
_LOGIT_ROWS = 512
"""Rows whose logits are computed at once."""


def packed_for(
    forward: Forward, budget: int, images: ImagePrefixCache[Any], end_ids: Tensor, *, compiling: bool
) -> PackedReader | None:
    """Return a reader of packed rows, or None if packing isn't possible; on a GPU the reason is printed.

    Args:
        compiling: Allow `torch.compile`, without which FlexAttention is slow. For the others see `PackedReader`.
    """
    if forward.device.type != "cuda" or not compiling:
        return None
    devices = {*getattr(forward.model, "hf_device_map", {}).values()}
    if len(devices) > 1 or len(gpus_of(forward.model)) > 1:
        problem = "the model is on several devices"
    elif any(hasattr(p, "ds_id") or hasattr(p, "device_mesh") for p in forward.model.parameters()):
        problem = "the weights are sharded (ZeRO-3 or FSDP)"
    else:
        problem = model_flex_problem(forward.model, forward.model.dtype)
    if not problem:
        return PackedReader(forward, budget, images, end_ids)
    say(f"questions are padded instead of packed, which is slower: {problem}")
    return None


class PackedReader:
    """Read trees in packed rows.

    Args:
        forward: The model.
        budget: Maximum tokens in one pass. Passes are smaller if the free memory has shrunk, or once they have `PASS`
            operations. A larger tree is split by its branches.
        images: Cached image prefixes.
        end_ids: Ids of the end tokens.
        compile_after: Tokens read before the layers are compiled; None to never compile them.
    """

    def __init__(
        self,
        forward: Forward,
        budget: int,
        images: ImagePrefixCache[Any],
        end_ids: Tensor,
        compile_after: int | None = COMPILE_AFTER,
    ) -> None:
        self.forward, self._images, self.compile_after = forward, images, compile_after
        self.decoder = StaticDecoder(forward, end_ids)
        self.decode = self.decoder.decode
        self._max_kept = forward.kept_budgets * budget
        self._budget = budget
        self._busy_tokens = math.ceil(PASS / (2 * forward.model.num_parameters()))
        self._layers: list[Any] = list(forward.model.model.language_model.layers)
        self._plain: list[Any] = [layer._call_impl for layer in self._layers]
        self._compiled: list[Any] = []
        self._is_compared = False  # compiled layers are compared with the plain ones once
        self._full = next(n for n, layer in enumerate(self._layers) if not hasattr(layer, "linear_attn"))
        self._planned: dict[int, RowPlan] = {}

    def open(self, prefixes: Sequence[Rendered]) -> OpenedTrees:
        """Return prefixes; nothing is read yet."""
        image_token_id = self.forward.positions.image_token_id
        share_all = self._images.max_entries > 0
        return OpenedTrees(prefixes, shared_image_prefixes(prefixes, image_token_id, share_all))

    def branch(self, trees: OpenedTrees, branches: Sequence[Sequence[Sequence[int]]]) -> dict[RowIndex, CachedSequence]:
        """Read branches; keys and values beyond a number of tokens are dropped."""
        nonempty = {q: question_branches for q, question_branches in enumerate(branches) if question_branches}
        return self._read_trees(trees, nonempty, self._max_kept)

    def hidden(self, state: Prefixes | Branches) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """Return the last hidden states of all prefixes or branches in parts, and the (part, row) of each."""
        if isinstance(state, Prefixes):
            sequences = self._prefixes(state.cache, range(len(state)), continued=False)
        else:
            sequences = [state.cache[row] for row in state.rows]
        parts = [
            torch.stack([sequence.states[-1] for sequence in sequences[i : i + _LOGIT_ROWS]])
            for i in range(0, len(sequences), _LOGIT_ROWS)
        ]
        return parts, [divmod(i, _LOGIT_ROWS) for i in range(len(sequences))]

    def continue_rows(
        self,
        state: Prefixes | Branches,
        rows: Sequence[RowIndex],
        new: Sequence[int],
        work: Work[list[CachedSequence], Result],
    ) -> Iterator[dict[int, Result]]:
        """Call `work` on batches of rows that get `new` tokens each; yield the results by index in `rows`."""
        trees: OpenedTrees = state.prefixes.cache
        branch_ids = [state.branch_ids(row) for row in rows]
        lengths = [
            len(trees.prefixes[q].ids) + len(ids) + count
            for (q, _), ids, count in zip(rows, branch_ids, new, strict=True)
        ]
        for part in within_budget(lengths, self._max_kept):
            if isinstance(state, Prefixes):
                ready = self._prefixes(trees, [rows[i][0] for i in part], continued=True)
            else:
                sequences = {i: state.cache[rows[i]] for i in part}
                dropped: dict[int, list[int]] = {}  # indices of branches to read again, by question
                for i in part:
                    if not sequences[i].row.cache:
                        dropped.setdefault(rows[i][0], []).append(i)
                read = self._read_trees(trees, {q: [branch_ids[i] for i in indices] for q, indices in dropped.items()})
                sequences |= {dropped[q][k]: sequence for (q, k), sequence in read.items()}
                ready = [sequences[i] for i in part]
            yield dict(zip(part, work(ready, part), strict=True))

    def states_before(self, ready: Sequence[CachedSequence], answers: Sequence[Sequence[int]]) -> list[Tensor]:
        """Read an answer after each row; return the hidden states before its tokens."""
        parts = [TreePart(sequence, None, [ids[:-1] or ids]) for sequence, ids in zip(ready, answers, strict=True)]
        ends = self.read(parts)
        return [torch.cat([sequence.states[-1:], end.states]) for sequence, (_, [end]) in zip(ready, ends, strict=True)]

    def free(self) -> None:
        """Free the memory that decoding keeps from call to call."""
        self.decoder.forget()

    def _prefixes(self, trees: OpenedTrees, questions: Sequence[int], *, continued: bool) -> list[CachedSequence]:
        """Return some prefixes, read if necessary; with `continued` their keys and values are present."""
        missing = [q for q in questions if q not in trees.sequences or (continued and not trees.sequences[q].row.cache)]
        self._read_trees(trees, dict.fromkeys(missing, ()))
        return [trees.sequences[q] for q in questions]

    def _read_trees(
        self, trees: OpenedTrees, branches: Mapping[int, Sequence[Sequence[int]]], max_kept: int | None = None
    ) -> dict[RowIndex, CachedSequence]:
        """Read questions' branches, and the prefixes whose keys and values are not present.

        Args:
            trees: The questions.
            branches: Token ids of the branches, by question.
            max_kept: Maximum tokens whose keys and values are kept.
        """
        known = {q: trees.sequences[q] for q in branches if q in trees.sequences and trees.sequences[q].row.cache}
        image_prefixes = self._image_prefixes(
            dict(trees.shared[q][:2] for q in branches if q in trees.shared and q not in known)
        )
        parts = []
        for q, question_branches in branches.items():
            if q in known:
                parts.append(TreePart(known[q], None, question_branches))
            elif q in trees.shared:
                key, _, suffix = trees.shared[q]
                parts.append(TreePart(image_prefixes[key], Rendered(suffix, [], {}), question_branches))
            else:
                parts.append(TreePart(None, trees.prefixes[q], question_branches))
        sequences: dict[RowIndex, CachedSequence] = {}
        for q, (prefix, ends) in zip(branches, self.read(parts, max_kept), strict=True):
            if prefix is not None:
                trees.sequences[q] = prefix
            sequences.update({(q, k): end for k, end in enumerate(ends)})
        return sequences

    def _image_prefixes(self, images: Mapping[str, Rendered]) -> dict[str, CachedSequence]:
        """Return image prefixes by their keys, from the cache or newly read."""
        cached = {key: self._images.get(key) for key in images}
        found = {key: sequence for key, sequence in cached.items() if sequence is not None}
        new = [key for key in images if key not in found]
        for key, (sequence, _) in zip(new, self.read([TreePart(None, images[key]) for key in new]), strict=True):
            assert sequence is not None
            # a copy, since a cached image prefix must own its memory
            row = PackedRow(self._concatenated([sequence]), 0, linear=continued_states([sequence]))
            found[key] = CachedSequence(row, ((0, sequence.length),), sequence.next_position)
        for key, sequence in found.items():
            self._images.put(key, sequence, sequence.row.nbytes)
        return found

    def read(self, parts: Sequence[TreePart], max_kept: int | None = None) -> list[Ends]:
        """Read parts of trees; keys and values of rows beyond `max_kept` tokens are dropped."""
        limit = self.forward.fitting_tokens(self._budget)
        self._planned.clear()
        if self._stream is not None:
            current = torch.cuda.current_stream(self.forward.device)
            self._stream.wait_stream(current)  # which may still be writing weights
        groups: list[list[TreePart]] = []
        for part in parts:
            if groups and self._fits([*groups[-1], part], limit):
                groups[-1].append(part)
            else:
                groups.append([part])
        all_ends: list[Ends] = []
        kept = 0
        for number, group in enumerate(groups):
            ends = self._read(group, limit)
            if number + 1 < len(groups) and self._fits(groups[number + 1], limit):
                self._plan_ahead(groups[number + 1])
            sequences = [sequence for prefix, branches in ends for sequence in (prefix, *branches) if sequence]
            for row in {id(sequence.row): sequence.row for sequence in sequences}.values():
                kept += row.past + len(row.ids) + len(row.segments) * self.forward.state_tokens
                if max_kept is not None and kept > max_kept:
                    row.drop()  # read again if it is continued
            all_ends += ends
        return all_ends

    def _fits(self, parts: Sequence[TreePart], limit: int) -> bool:
        """Return True if one pass can read all parts. Linear-attention states count as memory, not as work."""
        tokens = sum(part.tokens for part in parts)
        states = sum(part.segments for part in parts) * self.forward.state_tokens
        return tokens <= self._busy_tokens and tokens + states <= limit

    def _read(self, group: list[TreePart], limit: int) -> list[Ends]:
        """Read parts in one pass, or in several if a part is too long or memory runs out."""
        if len(group) == 1 and not self._fits(group, limit) and group[0].is_divisible:
            return [self._read_in_halves(group[0], limit)]
        ends = within_memory(
            lambda: self._pass(group),
            "a packed row ran out of memory: it is split by questions, or by branches",
            is_divisible=len(group) > 1 or group[0].is_divisible,
        )
        if ends is not None:
            return ends
        if len(group) == 1:
            return [self._read_in_halves(group[0], limit)]
        half = len(group) // 2
        return self._read(group[:half], limit) + self._read(group[half:], limit)

    def _read_in_halves(self, part: TreePart, limit: int) -> Ends:
        """Read the prefix with half of the branches, then the other branches."""
        half = len(part.branches) // 2
        [(prefix, ends)] = self._read([TreePart(part.parent, part.prefix, part.branches[:half])], limit)
        [(_, others)] = self._read([TreePart(prefix or part.parent, None, part.branches[half:])], limit)
        return prefix, [*ends, *others]

    def _pass(self, parts: list[TreePart]) -> list[Ends]:
        """Read parts in one packed row, which begins with copies of their parents' keys and values."""
        plan = self._planned.pop(id(parts), None) or self._plan(parts)
        self._run(plan, self._concatenated(plan.parents))
        return plan.ends

    def _plan_ahead(self, parts: list[TreePart]) -> None:
        """Plan the next pass while the device computes this one; skipped if memory runs out."""
        try:
            self._planned = {id(parts): self._plan(parts)}
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise

    def _plan(self, parts: Sequence[TreePart]) -> RowPlan:
        """Arrange parts in one row, and read its images."""
        parents = {id(part.parent): part.parent for part in parts if part.parent is not None}
        spans, past = consecutive_ranges([sequence.length for sequence in parents.values()])
        seen_by, row = dict(zip(parents, spans, strict=True)), PackedRow([], past)
        ends: list[Ends] = []
        continued: list[CachedSequence | None] = []
        for part in parts:
            prefix, end = None, part.parent
            seen: tuple[Span, ...] = () if end is None else (seen_by[id(end)],)
            if part.prefix is not None:
                ids = part.prefix.ids
                positions = self._positions(end, len(ids))
                if end is None:
                    positions = self.forward.positions.of_prefix(np.array(ids), part.prefix.vision)
                continued.append(end)
                prefix = end = row.add(ids, seen, positions)
                seen = prefix.seen
            continued += [end] * len(part.branches)
            ends.append((prefix, [row.add(ids, seen, self._positions(end, len(ids))) for ids in part.branches]))
        images = [part.prefix for part in parts if part.prefix is not None and part.prefix.vision]
        plan = RowPlan(
            ends,
            row,
            list(parents.values()),
            block_mask(row.segments, row.past, self.forward.device, images=self._two_way(row)),
            self._inputs(row, images),
        )
        if not self.forward.state_tokens:
            return plan
        firsts = [end for end in continued if end is None or end.row is not row]
        return replace(plan, recurrence=plan_recurrence(row, continued, self.forward.device), firsts=firsts)

    def _two_way(self, row: PackedRow) -> list[Span]:
        """Return the ranges of two-way images in a row."""
        positions = self.forward.positions
        return true_ranges(np.array(row.ids) == positions.image_token_id) if positions.is_two_way else []

    def _positions(self, end: CachedSequence | None, count: int) -> np.ndarray:
        """Return positions (1 or 3, count) of tokens after a sequence."""
        positions = np.arange(count) + (end.next_position if end else 0)
        return positions[None].repeat(3 if self.forward.positions.is_3d else 1, 0)

    def _inputs(self, row: PackedRow, images: Sequence[Rendered]) -> dict[str, Any]:
        """Return the language model's arguments for a row.

        On a GPU they are computed in a stream of higher priority, so that copies and synchronizations don't wait for
        the row that is computed meanwhile.
        """
        forward, padding = self.forward, round_up_to_blocks(len(row.ids)) - len(row.ids)
        row_positions = F.pad(torch.from_numpy(np.concatenate(row.positions, 1)), (0, padding))[:, None]
        with self._side_stream() as main_stream:
            ids = F.pad(torch.tensor(row.ids), (0, padding))[None].to(forward.device)
            vision = forward.vision_inputs(images, ids) if images else {}
            positions = (row_positions if forward.positions.is_3d else row_positions[0]).to(forward.device)
            inputs = forward.language_inputs({"input_ids": ids, "position_ids": positions, **vision})
            for tensor in (*inputs.values(), *(inputs.get("deepstack_visual_embeds") or ())):
                if main_stream is not None and isinstance(tensor, Tensor) and tensor.is_cuda:
                    tensor.record_stream(main_stream)
        return inputs

    @functools.cached_property
    def _stream(self) -> torch.cuda.Stream | None:
        return torch.cuda.Stream(self.forward.device, priority=-1) if self.forward.device.type == "cuda" else None

    @contextmanager
    def _side_stream(self) -> Iterator[torch.cuda.Stream | None]:
        """Run this block in a side stream; yield the current stream (None on a CPU), which waits afterwards."""
        if self._stream is None:
            yield None
            return
        current = torch.cuda.current_stream(self.forward.device)
        with torch.cuda.stream(self._stream):
            yield current
        current.wait_stream(self._stream)

    def _run(self, plan: RowPlan, past: KeysValues) -> None:
        """Compute a row's states, keys and values, given the keys and values before it."""
        if self.compile_after is None or self.forward.tokens_read < self.compile_after:
            self.compute(self._plain, plan, past)
        elif not self._compute_compiled(plan, past):
            self.compile_after = None
            self.compute(self._plain, plan, past)
        self.forward.tokens_read += len(plan.row.ids)

    def _compute_compiled(self, plan: RowPlan, past: KeysValues) -> bool:
        """Compute a row with compiled layers. Returns False, after printing the reason, if they fail or are wrong."""
        row = plan.row
        if not self._compiled:
            say("compiling the layers, which takes up to a minute")
            # linear attention runs in Python loops or in its own kernels
            self._compiled = [
                call if hasattr(layer, "linear_attn") else torch.compile(call, dynamic=True)
                for layer, call in zip(self._layers, self._plain, strict=True)
            ]
        try:
            self.compute(self._compiled, plan, past)
        except Exception as error:  # compilers raise many types of errors
            if is_out_of_memory(error):
                raise
            problem = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        else:
            actual = row.states[: len(row.ids)].float()
            if self._is_compared:
                return True
            self.compute(self._plain, plan, past)
            expected = row.states[: len(row.ids)].float()
            self._is_compared = not bool((actual - expected).norm() > 0.1 * expected.norm())  # NaN is refused elsewhere
            if self._is_compared:
                return True
            problem = "their results differ from plain layers"
        say(f"layers are not compiled: {problem}")
        return False

    def compute(self, calls: Sequence[Any], plan: RowPlan, past: KeysValues) -> None:
        """Run the language model over a row, with each layer replaced by a call; store states, keys and values."""
        memories = [list(pair) for pair in past] or [[] for _ in self._layers]
        inputs, recurrence, row = plan.inputs, plan.recurrence, plan.row
        if recurrence is not None:
            recurrence.before = continued_states(plan.firsts)
            inputs = {**inputs, "attention_mask": {FULL: inputs["attention_mask"], LINEAR: recurrence}}
        # each layer gets its own memory: with one list and the layer's index, every layer would be compiled separately
        layer_calls = [
            functools.partial(call, packed_mask=plan.mask, memory=memory)
            for call, memory in zip(calls, memories, strict=True)
        ]
        with replaced_layer_calls(self._layers, layer_calls):
            output = self.forward.model.model.language_model(**inputs)
        if recurrence is not None:
            row.linear = recurrence.after
            empty = memories[self._full][0][..., :0]
            memories = [[empty, empty] if n in row.linear else memory for n, memory in enumerate(memories)]
        row.states, row.cache = output.last_hidden_state[0], [(keys, values) for keys, values in memories]

    def _concatenated(self, sequences: Sequence[CachedSequence]) -> KeysValues:
        """Concatenate copies of sequences' keys and values, padded to whole blocks; see `consecutive_ranges`."""
        if not sequences:
            return []

        def concatenate(layer: int, side: int) -> Tensor:
            parts = [
                sequence.row.cache[layer][side][:, :, first:end]
                for sequence in sequences
                for first, end in sequence.seen
            ]
            joined = torch.cat(parts, 2)
            return F.pad(joined, (0, 0, 0, round_up_to_blocks(joined.shape[2]) - joined.shape[2]))

        return [(concatenate(layer, 0), concatenate(layer, 1)) for layer in range(len(self._layers))]


@contextmanager
def replaced_layer_calls(layers: Sequence[Any], calls: Sequence[Any]) -> Iterator[None]:
    """Replace the compiled calls of layers inside this block; None runs a layer uncompiled."""
    before = [layer._compiled_call_impl for layer in layers]
    for layer, call in zip(layers, calls, strict=True):
        layer._compiled_call_impl = call
    try:
        yield
    finally:
        for layer, call in zip(layers, before, strict=True):
            layer._compiled_call_impl = call
