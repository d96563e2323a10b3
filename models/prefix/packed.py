"""Trees of many questions read in one packed row by FlexAttention, on accelerators.

A question's prefix is read together with its branches, or by itself if it is asked before them.
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
from reflectune.models.attention.packed import Span, block_mask, model_flex_problem, padded, runs_of
from reflectune.models.attention.recurrence import FULL, LINEAR
from reflectune.models.attention.shared import KeysValues
from reflectune.models.prefix.decoding import StaticDecoder
from reflectune.models.prefix.forward import Forward, say, within_budget, within_memory
from reflectune.models.prefix.image_prefix import ImagePrefixCache, shared_image_prefixes
from reflectune.models.prefix.packed_rows import (
    Ends,
    LaidOut,
    OpenedTrees,
    PackedRow,
    Spot,
    TreePart,
    continued_states,
    ranges_of,
    recurrence_of,
)
from reflectune.models.prefix.state import Branches, Prefixes, Result, RowIndex, Work
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.weights.spreading import gpus_of

PASS = 1e14
"""Operations of a pass that keep a GPU busy while the next is prepared; a longer first pass is waited for longer."""
COMPILE_AFTER = 1_000_000
"""Tokens after which layers are compiled: before that, compiling takes longer than it saves."""
_HEADS = 512
"""Rows whose logits are computed at once."""


def packed_for(
    forward: Forward, budget: int, images: ImagePrefixCache[Any], end_ids: Tensor, *, compiling: bool
) -> PackedReader | None:
    """Return a reader of packed rows on a GPU, and None on a CPU or with a printed reason.

    Args:
        compiling: Allow a compiler, without which FlexAttention is slow. For others see `PackedReader`.
    """
    if forward.device.type != "cuda" or not compiling:
        return None
    if max(len(gpus_of(forward.model)), len({*getattr(forward.model, "hf_device_map", {}).values()})) > 1:
        problem = "the model lies on several devices"
    elif any(hasattr(p, "ds_id") or hasattr(p, "device_mesh") for p in forward.model.parameters()):
        problem = "the weights are sharded (ZeRO-3 or FSDP)"
    else:
        problem = model_flex_problem(forward.model, forward.model.dtype)
    if not problem:
        return PackedReader(forward, budget, images, end_ids)
    say(f"questions are not packed into one row, and are read more slowly: {problem}")
    return None


class PackedReader:
    """Read trees in packed rows of at most `budget` tokens, fewer if the free memory has shrunk or `PASS` is reached.

    Args:
        forward: The model.
        budget: Maximum tokens in one pass. A larger tree is split by its branches.
        images: Cached image prefixes.
        end_ids: Ids of the end tokens.
        compile_after: Tokens after which the layers are compiled; None to leave them as they are.
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
        self._budget, self._enough = budget, math.ceil(PASS / (2 * forward.model.num_parameters()))
        self._layers: list[Any] = list(forward.model.model.language_model.layers)
        self._plain: list[Any] = [layer._call_impl for layer in self._layers]
        self._compiled: list[Any] = []
        self._is_compared = False  # a first pass may run out of memory
        self._full = next(n for n, layer in enumerate(self._layers) if not hasattr(layer, "linear_attn"))
        self._ahead: dict[int, LaidOut] = {}

    def open(self, prefixes: Sequence[Rendered]) -> OpenedTrees:
        """Return prefixes; nothing is read yet."""
        image, keep = self.forward.positions.image_token_id, self._images.most > 0
        return OpenedTrees(prefixes, shared_image_prefixes(prefixes, image, keep))

    def branch(self, trees: OpenedTrees, branches: Sequence[Sequence[Sequence[int]]]) -> dict[RowIndex, Spot]:
        """Read branches; keys and values beyond a number of tokens are dropped."""
        return self._grow(trees, {q: own for q, own in enumerate(branches) if own}, self._max_kept)

    def hidden(self, state: Prefixes | Branches) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """Return the last hidden states of all prefixes or branches in parts, and part and row of each."""
        if isinstance(state, Prefixes):
            spots = self._prefixes(state.cache, range(len(state)), continued=False)
        else:
            spots = [state.cache[row] for row in state.rows]
        parts = [torch.stack([spot.states[-1] for spot in spots[i : i + _HEADS]]) for i in range(0, len(spots), _HEADS)]
        return parts, [divmod(i, _HEADS) for i in range(len(spots))]

    def continue_rows(
        self, state: Prefixes | Branches, rows: Sequence[RowIndex], new: Sequence[int], work: Work[list[Spot], Result]
    ) -> Iterator[dict[int, Result]]:
        """Do work on some rows at a time, for `new` tokens after each; yield its results by index in `rows`."""
        trees: OpenedTrees = state.prefixes.cache
        ids = [state.branch_ids(row) for row in rows]
        lengths = [len(trees.prefixes[q].ids) + len(own) + n for (q, _), own, n in zip(rows, ids, new, strict=True)]
        for part in within_budget(lengths, self._max_kept):
            if isinstance(state, Prefixes):
                ready = self._prefixes(trees, [rows[i][0] for i in part], continued=True)
            else:
                spots = {i: state.cache[rows[i]] for i in part}
                again: dict[int, list[int]] = {}  # dropped branches
                for i in (i for i in part if not spots[i].row.cache):
                    again.setdefault(rows[i][0], []).append(i)
                read = self._grow(trees, {q: [ids[i] for i in own] for q, own in again.items()})
                spots |= {again[q][k]: spot for (q, k), spot in read.items()}
                ready = [spots[i] for i in part]
            yield dict(zip(part, work(ready, part), strict=True))

    def states_before(self, ready: Sequence[Spot], answers: Sequence[Sequence[int]]) -> list[Tensor]:
        """Read an answer after each row; return the hidden states before its tokens."""
        parts = [TreePart(spot, None, [ids[:-1] or ids]) for spot, ids in zip(ready, answers, strict=True)]
        ends = self.read(parts)
        return [torch.cat([spot.states[-1:], end.states]) for spot, (_, [end]) in zip(ready, ends, strict=True)]

    def free(self) -> None:
        """Free the memory that decoding keeps from call to call."""
        self.decoder.forget()

    def _prefixes(self, trees: OpenedTrees, questions: Sequence[int], *, continued: bool) -> list[Spot]:
        """Return the ends of some prefixes, with keys and values if they are to be continued."""
        missing = [q for q in questions if q not in trees.spots or (continued and not trees.spots[q].row.cache)]
        self._grow(trees, dict.fromkeys(missing, ()))
        return [trees.spots[q] for q in questions]

    def _grow(
        self, trees: OpenedTrees, branches: Mapping[int, Sequence[Sequence[int]]], max_kept: int | None = None
    ) -> dict[RowIndex, Spot]:
        """Read questions' branches, and their prefixes unless their keys and values are there.

        Args:
            trees: The questions.
            branches: Token ids of the branches, by question.
            max_kept: Maximum tokens whose keys and values are kept.
        """
        known = {q: spot for q in branches if (spot := trees.spots.get(q)) is not None and spot.row.cache}
        bases = self._image_prefixes(
            dict(trees.shared[q][:2] for q in branches if q in trees.shared and q not in known)
        )
        parts = []
        for q, own in branches.items():
            if q in known:
                parts.append(TreePart(known[q], None, own))
            elif q in trees.shared:
                key, _, suffix = trees.shared[q]
                parts.append(TreePart(bases[key], Rendered(suffix, [], {}), own))
            else:
                parts.append(TreePart(None, trees.prefixes[q], own))
        spots: dict[RowIndex, Spot] = {}
        for q, (prefix, ends) in zip(branches, self.read(parts, max_kept), strict=True):
            if prefix is not None:
                trees.spots[q] = prefix
            spots.update({(q, k): end for k, end in enumerate(ends)})
        return spots

    def _image_prefixes(self, images: Mapping[str, Rendered]) -> dict[str, Spot]:
        """Return the ends of image prefixes by their keys, those of the cache among them."""
        bases = {key: spot for key in images if (spot := self._images.get(key)) is not None}
        new = [key for key in images if key not in bases]
        for key, (spot, _) in zip(new, self.read([TreePart(None, images[key]) for key in new]), strict=True):
            assert spot is not None
            own = PackedRow(self._joined([spot]), 0, linear=continued_states([spot]))  # it owns its memory
            bases[key] = Spot(own, ((0, spot.length),), spot.next_position)
        for key, spot in bases.items():
            self._images.put(key, spot, spot.row.nbytes)
        return bases

    def read(self, parts: Sequence[TreePart], max_kept: int | None = None) -> list[Ends]:
        """Read parts of trees; keys and values of rows beyond `max_kept` tokens are dropped."""
        limit = self.forward.fitting_tokens(self._budget)
        self._ahead.clear()
        if self._stream is not None:
            current = torch.cuda.current_stream(self.forward.device)
            self._stream.wait_stream(current)  # weights may have been written just now
        groups: list[list[TreePart]] = []
        for part in parts:
            if groups and self._fits([*groups[-1], part], limit):
                groups[-1].append(part)
            else:
                groups.append([part])
        found: list[Ends] = []
        kept = 0
        for number, group in enumerate(groups):
            ends = self._read(group, limit)
            following = groups[number + 1] if number + 1 < len(groups) else []
            if following and self._fits(following, limit):
                self._lay_out_ahead(following)
            for row in {id(spot.row): spot.row for prefix, own in ends for spot in (prefix, *own) if spot}.values():
                kept += row.past + len(row.ids) + len(row.segments) * self.forward.state_tokens
                if max_kept is not None and kept > max_kept:
                    row.drop()  # they are read again to be continued
            found += ends
        return found

    def _fits(self, parts: Sequence[TreePart], limit: int) -> bool:
        """Return True if a pass can read all parts: states take memory as tokens do, but no time."""
        tokens = sum(part.tokens for part in parts)
        states = sum(part.segments for part in parts) * self.forward.state_tokens
        return tokens <= self._enough and tokens + states <= limit

    def _read(self, group: list[TreePart], limit: int) -> list[Ends]:
        """Read parts in one pass; in several a part that is too long, or what doesn't fit into the memory."""
        if len(group) == 1 and not self._fits(group, limit) and group[0].is_divisible:
            return [self._divided(group[0], limit)]
        ends = within_memory(
            lambda: self._pass(group),
            "a packed row is out of memory: it is split by questions, or by branches",
            is_divisible=len(group) > 1 or group[0].is_divisible,
        )
        if ends is not None:
            return ends
        if len(group) == 1:
            return [self._divided(group[0], limit)]
        half = len(group) // 2
        return self._read(group[:half], limit) + self._read(group[half:], limit)

    def _divided(self, part: TreePart, limit: int) -> Ends:
        """Read the prefix and half of the branches first, and then the others."""
        half = len(part.branches) // 2
        [(prefix, ends)] = self._read([TreePart(part.parent, part.prefix, part.branches[:half])], limit)
        [(_, others)] = self._read([TreePart(prefix or part.parent, None, part.branches[half:])], limit)
        return prefix, [*ends, *others]

    def _pass(self, parts: list[TreePart]) -> list[Ends]:
        """Read parts in one packed row, after copies of their parents' keys and values."""
        laid_out = self._ahead.pop(id(parts), None) or self._laid_out(parts)
        self._run(laid_out, self._joined(laid_out.parents))
        return laid_out.ends

    def _lay_out_ahead(self, parts: list[TreePart]) -> None:
        """Prepare the next pass while the device computes this one; left to the pass itself where memory is short."""
        try:
            self._ahead = {id(parts): self._laid_out(parts)}
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise

    def _laid_out(self, parts: Sequence[TreePart]) -> LaidOut:
        """Put parts into one row, and read its images."""
        parents = {id(part.parent): part.parent for part in parts if part.parent is not None}
        spans, past = ranges_of([spot.length for spot in parents.values()])
        seen_by, row = dict(zip(parents, spans, strict=True)), PackedRow([], past)
        found: list[Ends] = []
        continued: list[Spot | None] = []
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
            found.append((prefix, [row.add(own, seen, self._positions(end, len(own))) for own in part.branches]))
        images = [part.prefix for part in parts if part.prefix is not None and part.prefix.vision]
        laid_out = LaidOut(
            found,
            row,
            list(parents.values()),
            block_mask(row.segments, row.past, self.forward.device, images=self._two_way(row)),
            self._inputs(row, images),
        )
        if not self.forward.state_tokens:
            return laid_out
        firsts = [end for end in continued if end is None or end.row is not row]
        return replace(laid_out, recurrence=recurrence_of(row, continued, self.forward.device), firsts=firsts)

    def _two_way(self, row: PackedRow) -> list[Span]:
        """Return the ranges of images in a row whose tokens see all of their image."""
        positions = self.forward.positions
        return runs_of(np.array(row.ids) == positions.image_token_id) if positions.is_two_way else []

    def _positions(self, end: Spot | None, count: int) -> np.ndarray:
        """Return positions (1 or 3, count) of tokens after a spot."""
        positions = (end.next_position if end else 0) + np.arange(count)
        return positions[None].repeat(3 if self.forward.positions.is_3d else 1, 0)

    def _inputs(self, row: PackedRow, images: Sequence[Rendered]) -> dict[str, Any]:
        """Return the language model's arguments for a row.

        On a GPU they are computed in a stream of higher priority: copies and synchronizations don't wait for the row
        that is computed meanwhile.
        """
        forward, missing = self.forward, padded(len(row.ids)) - len(row.ids)
        positions = F.pad(torch.from_numpy(np.concatenate(row.positions, 1)), (0, missing))[:, None]
        with self._ahead_of_time() as used_by:
            ids = F.pad(torch.tensor(row.ids), (0, missing))[None].to(forward.device)
            given = forward.vision_inputs(images, ids) if images else {}
            places = (positions if forward.positions.is_3d else positions[0]).to(forward.device)
            inputs = forward.language_inputs({"input_ids": ids, "position_ids": places, **given})
            for tensor in (*inputs.values(), *(inputs.get("deepstack_visual_embeds") or ())):
                if used_by is not None and isinstance(tensor, Tensor) and tensor.is_cuda:
                    tensor.record_stream(used_by)
        return inputs

    @functools.cached_property
    def _stream(self) -> torch.cuda.Stream | None:
        return torch.cuda.Stream(self.forward.device, priority=-1) if self.forward.device.type == "cuda" else None

    @contextmanager
    def _ahead_of_time(self) -> Iterator[torch.cuda.Stream | None]:
        """Compute inside this block in another stream; the current one, which is yielded, waits. None on a CPU."""
        if self._stream is None:
            yield None
            return
        current = torch.cuda.current_stream(self.forward.device)
        with torch.cuda.stream(self._stream):
            yield current
        current.wait_stream(self._stream)

    def _run(self, laid_out: LaidOut, past: KeysValues) -> None:
        """Compute a row's states, keys and values; `past` are the keys and values before it."""
        if self.compile_after is None or self.forward.tokens_read < self.compile_after:
            self.compute(self._plain, laid_out, past)
        elif not self._compute_compiled(laid_out, past):
            self.compile_after = None
            self.compute(self._plain, laid_out, past)
        self.forward.tokens_read += len(laid_out.row.ids)

    def _compute_compiled(self, laid_out: LaidOut, past: KeysValues) -> bool:
        """Compute a row by compiled layers; returns False, with a printed line, if they fail or differ at first."""
        row = laid_out.row
        if not self._compiled:
            say("the layers are compiled now, which takes up to a minute")
            # linear attention goes on in Python loops or in kernels of its own
            self._compiled = [
                call if hasattr(layer, "linear_attn") else torch.compile(call, dynamic=True)
                for layer, call in zip(self._layers, self._plain, strict=True)
            ]
        try:
            self.compute(self._compiled, laid_out, past)
        except Exception as error:  # a compiler has many types of errors
            if is_out_of_memory(error):
                raise
            problem = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        else:
            found = row.states[: len(row.ids)].float()
            if self._is_compared:
                return True
            self.compute(self._plain, laid_out, past)
            expected = row.states[: len(row.ids)].float()
            self._is_compared = not bool((found - expected).norm() > 0.1 * expected.norm())  # NaN is refused elsewhere
            if self._is_compared:
                return True
            problem = "they give other numbers"
        say(f"layers are not compiled: {problem}")
        return False

    def compute(self, calls: Sequence[Any], laid_out: LaidOut, past: KeysValues) -> None:
        """Run the language model over a row with these calls of its layers; keep its states, keys and values."""
        memories = [list(pair) for pair in past] or [[] for _ in self._layers]
        inputs, recurrence, row = laid_out.inputs, laid_out.recurrence, laid_out.row
        if recurrence is not None:
            recurrence.before = continued_states(laid_out.firsts)
            inputs = {**inputs, "attention_mask": {FULL: inputs["attention_mask"], LINEAR: recurrence}}
        given = zip(calls, memories, strict=True)  # not by a layer's index, for which each would be compiled alone
        own = [functools.partial(call, packed_mask=laid_out.mask, memory=memory) for call, memory in given]
        with called_as(self._layers, own):
            output = self.forward.model.model.language_model(**inputs)
        if recurrence is not None:
            row.linear = recurrence.after
            nothing = memories[self._full][0][..., :0]
            memories = [[nothing, nothing] if n in row.linear else own for n, own in enumerate(memories)]
        row.states, row.cache = output.last_hidden_state[0], [(keys, values) for keys, values in memories]

    def _joined(self, spots: Sequence[Spot]) -> KeysValues:
        """Copy spots' keys and values one after another, padded to whole blocks; see `ranges_of`."""
        if not spots:
            return []

        def one(layer: int, side: int) -> Tensor:
            parts = [spot.row.cache[layer][side][:, :, first:end] for spot in spots for first, end in spot.seen]
            joined = torch.cat(parts, 2)
            return F.pad(joined, (0, 0, 0, padded(joined.shape[2]) - joined.shape[2]))

        return [(one(layer, 0), one(layer, 1)) for layer in range(len(self._layers))]


@contextmanager
def called_as(layers: Sequence[Any], calls: Sequence[Any]) -> Iterator[None]:
    """Replace the compiled calls of layers inside this block; None runs a layer as it is."""
    before = [layer._compiled_call_impl for layer in layers]
    for layer, call in zip(layers, calls, strict=True):
        layer._compiled_call_impl = call
    try:
        yield
    finally:
        for layer, call in zip(layers, before, strict=True):
            layer._compiled_call_impl = call
