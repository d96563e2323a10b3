"""Batches of prefixes and branches padded to one length: on a CPU, or if rows can't be packed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from reflectune.models.prefix.decoding import Decoded
from reflectune.models.prefix.forward import Forward, within_memory
from reflectune.models.prefix.image_prefix import ImagePrefixCache, shared_image_prefixes, stack_image_prefixes
from reflectune.models.prefix.rows import Level, Rows, level_bytes
from reflectune.models.prefix.state import Branches, Prefixes, Result, RowIndex, Work
from reflectune.models.rendering.renderer import Rendered

Key = TypeVar("Key")


@dataclass(frozen=True)
class Batches:
    """Prefixes or branches that have been read.

    Attributes:
        batches: The batches in which they were read.
        locations: Batch and row of each (question, branch); the branch of a prefix is 0.
    """

    batches: list[Rows] = field(default_factory=list)
    locations: dict[RowIndex, tuple[int, int]] = field(default_factory=dict)

    def add(self, members: Sequence[RowIndex], rows: Rows) -> None:
        """Add a batch."""
        self.locations.update({member: (len(self.batches), row) for row, member in enumerate(members)})
        self.batches.append(rows)


class PaddedReader:
    """Read batches of at most `budget` tokens, padding included. The methods are those of `PackedReader`.

    Args:
        forward: The model.
        budget: Maximum tokens in one pass, fewer after memory has run out. A longer row is read alone.
        images: Cached image prefixes.
        end_ids: Ids of the end tokens.
    """

    def __init__(self, forward: Forward, budget: int, images: ImagePrefixCache[Any], end_ids: Tensor) -> None:
        self.forward, self.images, self._budget, self._end_ids = forward, images, budget, end_ids

    def open(self, prefixes: Sequence[Rendered]) -> Batches:
        """Read images and prefixes. An image at the beginning of several prefixes is read once."""
        share_all = self.images.max_entries > 0
        shared = shared_image_prefixes(prefixes, self.forward.positions.image_token_id, share_all)
        lengths = {q: len(prefix.ids) for q, prefix in enumerate(prefixes) if q not in shared}
        suffixes = {q: len(suffix) for q, (_, _, suffix) in shared.items()}
        opened = Batches()
        for part, rows in self._passes(lengths, lambda part: self.forward.prefill([prefixes[q] for q in part])):
            opened.add([(q, 0) for q in part], rows)
        for part, rows in self._passes(suffixes, lambda part: self._read_suffixes([shared[q] for q in part])):
            opened.add([(q, 0) for q in part], rows)
        return opened

    def branch(self, prefixes: Batches, branches: Sequence[Sequence[Sequence[int]]]) -> Batches:
        """Read branches; keys and values beyond a number of tokens are dropped."""
        read, kept = Batches(), 0
        for number in range(len(prefixes.batches)):
            lengths = {
                (q, k): len(ids)
                for q, question_branches in enumerate(branches)
                if prefixes.locations[q, 0][0] == number
                for k, ids in enumerate(question_branches)
            }
            for part, rows in self._passes(lengths, lambda part: self._read_branches(prefixes, branches, part)):
                kept += rows.last_level.real.numel() + len(part) * self.forward.state_tokens
                if kept > self.forward.kept_budgets * self._budget:  # read again if they are continued
                    rows = replace(rows, levels=(*rows.levels[:-1], rows.last_level.dropped()))
                read.add(part, rows)
        return read

    def hidden(self, state: Prefixes | Branches) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """Return the last hidden states of all prefixes or branches in parts, and the (part, row) of each."""
        return [rows.hidden for rows in state.cache.batches], [state.cache.locations[row] for row in state.rows]

    def continue_rows(
        self, state: Prefixes | Branches, rows: Sequence[RowIndex], new: Sequence[int], work: Work[Rows, Result]
    ) -> Iterator[dict[int, Result]]:
        """Call `work` on batches of rows that get `new` tokens each; yield the results by index in `rows`."""

        def continue_part(part: list[int]) -> dict[int, Result]:
            if isinstance(state, Branches):
                part = sorted(part, key=lambda i: state.cache.locations[rows[i]])
            return dict(zip(part, work(self._ready(state, [rows[i] for i in part]), part), strict=True))

        prefixes: Batches = state.prefixes.cache
        for number in range(len(prefixes.batches)):
            lengths = {
                i: len(state.branch_ids(row)) + new[i]
                for i, row in enumerate(rows)
                if prefixes.locations[row[0], 0][0] == number
            }
            for _, results in self._passes(lengths, continue_part):
                yield results

    def decode(self, rows: Rows, forced: Sequence[int], max_new_tokens: int) -> list[Decoded]:
        """Decode after rows and `forced` tokens; a row that has reached an end token leaves the batch."""
        if forced:
            rows = self.forward.append(rows, [forced] * len(rows))[1]
        count = len(rows)
        ids: list[list[int]] = [[] for _ in range(count)]
        log_probs: list[list[float]] = [[] for _ in range(count)]
        active = torch.arange(count, device=rows.next_position.device)
        finished = torch.zeros(count, dtype=torch.bool, device=rows.next_position.device)
        shared, hidden = rows.shared(), rows.hidden
        written = rows.empty_level()
        for step in range(max_new_tokens):
            all_log_probs = self.forward.log_probabilities(hidden)
            chosen = all_log_probs.argmax(-1)
            values = all_log_probs.gather(1, chosen[:, None])[:, 0]
            for row, token, value in zip(active.tolist(), chosen.tolist(), values.tolist(), strict=True):
                ids[row].append(token)
                log_probs[row].append(value)
            ended = torch.isin(chosen, self._end_ids)
            finished[active[ended]] = True
            if bool(ended.all()) or step == max_new_tokens - 1:
                break
            if bool(ended.any()):
                remaining = (~ended).nonzero()[:, 0]
                active, rows = active[remaining], rows.take(remaining)
                shared, written = rows.shared(), written.take(remaining)
            hidden, written = self.forward.decode_step(chosen[~ended], rows.next_position + step, shared, written)
        return list(zip(ids, log_probs, finished.tolist(), strict=True))

    def states_before(self, ready: Rows, answers: Sequence[Sequence[int]]) -> list[Tensor]:
        """Read an answer after each row; return the hidden states before its tokens."""
        if max(map(len, answers)) == 1:
            return list(ready.hidden[:, None])
        states, _ = self.forward.append(ready, [answer[:-1] or answer for answer in answers])
        return list(torch.cat([ready.hidden[:, None], states], 1))

    def free(self) -> None:
        """Do nothing: decoding keeps no memory."""

    def _passes(
        self, lengths: Mapping[Key, int], read: Callable[[list[Key]], Result]
    ) -> Iterator[tuple[list[Key], Result]]:
        """Read rows of these lengths in batches; yield the keys of each batch, and its result.

        Whenever memory runs out, the budget becomes half of the batch's tokens for good.
        """
        remaining = dict(lengths)
        while remaining:
            keys = [*remaining]
            for part in self.forward.batches([*remaining.values()], self._budget):
                batch = [keys[i] for i in part]
                result = within_memory(
                    functools.partial(read, batch),
                    "a batch ran out of memory: from here on batches have half as many tokens",
                    is_divisible=len(batch) > 1,
                )
                if result is None:
                    tokens = len(batch) * max(remaining[key] for key in batch)
                    self._budget = max(1, min(self._budget, tokens) // 2)
                    break
                yield batch, result
                del result  # frees its memory for the next pass
                for key in batch:
                    del remaining[key]

    def _ready(self, state: Prefixes | Branches, rows: Sequence[RowIndex]) -> Rows:
        """Return rows to continue from. Their prefixes are in one batch; branches are sorted by their batches."""
        before = self._prefixes(state.prefixes.cache, rows)
        if isinstance(state, Prefixes):
            return before
        parts = list[Rows]()
        for number, group in itertools.groupby(rows, lambda row: state.cache.locations[row][0]):
            batch, members = state.cache.batches[number], list(group)
            if batch.last_level.cache:
                part = batch.take(self._index([state.cache.locations[row][1] for row in members]))
            else:  # dropped
                part = self._read_branches(state.prefixes.cache, state.ids, members)
            parts.append(replace(part, levels=(part.last_level.take(part.where[-1]),)))
        level = Level.stack([part.last_level for part in parts])
        next_position = torch.cat([part.next_position for part in parts])
        hidden = torch.cat([part.hidden for part in parts])
        return before.extended(level, next_position, hidden)

    def _prefixes(self, prefixes: Batches, rows: Sequence[RowIndex]) -> Rows:
        """Return the prefixes of rows, which are all in one batch."""
        batch = prefixes.batches[prefixes.locations[rows[0][0], 0][0]]
        return batch.take(self._index([prefixes.locations[q, 0][1] for q, _ in rows])).compact()

    def _read_branches(
        self, prefixes: Batches, branches: Sequence[Sequence[Sequence[int]]], rows: Sequence[RowIndex]
    ) -> Rows:
        """Read some branches, whose prefixes are in one batch."""
        return self.forward.append(self._prefixes(prefixes, rows), [branches[q][k] for q, k in rows])[1]

    def _read_suffixes(self, parts: Sequence[tuple[str, Rendered, list[int]]]) -> Rows:
        """Read the suffixes, and the image prefixes that are not cached."""
        by_key = {key: image_prefix for key, image_prefix, _ in parts}
        cached = {key: self.images.get(key) for key in by_key}
        known = {key: image_prefix for key, image_prefix in cached.items() if image_prefix is not None}
        new = {key: len(image_prefix.ids) for key, image_prefix in by_key.items() if key not in known}
        for keys, read in self._passes(new, lambda keys: self.forward.prefill([by_key[key] for key in keys])):
            known |= {key: read.take(self._index([row])).compact() for row, key in enumerate(keys)}
        for key in by_key:
            self.images.put(key, known[key], level_bytes(known[key].levels))
        order = {key: row for row, key in enumerate(by_key)}
        image_prefixes = stack_image_prefixes([known[key] for key in by_key])
        rows = image_prefixes.take(self._index([order[key] for key, _, _ in parts]))
        return self.forward.append(rows, [suffix for _, _, suffix in parts])[1]

    def _index(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(rows, device=self.forward.device)
