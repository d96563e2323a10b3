"""Shared-prefix engine: read image and question once, then branches on their cached keys and values.

A gate is a probability read at one position. Batches span questions; a token budget splits work, never text, and the
results depend on neither.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reflectune.core.errors import UnusableInput, UserError
from reflectune.models.attention.positions import longest_sequence, sliding_window
from reflectune.models.loading import Loaded
from reflectune.models.prefix.decoding import StaticDecoder
from reflectune.models.prefix.forward import Forward, find_budget, image_bytes, within_budget
from reflectune.models.prefix.image_prefix import ImagePrefixCache, shared_image_prefixes, stacked
from reflectune.models.prefix.packed import packed_for
from reflectune.models.prefix.packed_rows import Spot, TreePart
from reflectune.models.prefix.rows import Level, Rows, kept_bytes
from reflectune.models.prefix.state import Branches, BranchRows, Generation, Prefixes
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.weights.output_head import exact_logits

_HEADS = 512
"""Rows whose logits are computed at once."""


class PrefixEngine:
    """Read, judge and answer with one model.

    Args:
        loaded: The model. Its attention is replaced by one that computes the same and can share prefixes.
        token_budget: Maximum tokens in one forward pass; fitted to the memory if None. Keys and values of four times as
            many tokens of branches are kept; other branches are read again if they are decoded from.

    Attributes:
        image_prefixes: Image prefixes kept from call to call, none before `keep`, in a share of the free memory.
            Questions of one call always share an image.

    Raises:
        UserError: The model's attention can't share a prefix.
    """

    def __init__(self, loaded: Loaded, token_budget: int | None = None, *, compiling: bool = True) -> None:
        self._forward = Forward(loaded.model)
        self.image_prefixes: ImagePrefixCache[Any] = ImagePrefixCache(0, image_bytes(loaded.model))
        self.renderer = loaded.renderer
        self.calibration = loaded.calibration
        self.token_budget = token_budget or find_budget(self._forward)
        self._max_kept = self._forward.kept_budgets * self.token_budget
        self._model = loaded.model
        self.max_length = longest_sequence(self._model)
        self._slides = bool(sliding_window(self._model.config.get_text_config()))
        self._ends = torch.tensor(end_tokens(loaded), device=self._forward.device)
        self.packed = packed_for(self._forward, self.token_budget, self.image_prefixes, compiling=compiling)
        self.decoder = StaticDecoder(self._forward, self._log_probabilities, self._ends)

    tokens_read = property(lambda self: self._forward.tokens_read, doc="Tokens of prompts that were read so far.")

    @torch.no_grad()
    def read(self, prefixes: Sequence[Rendered]) -> Prefixes:
        """Read images and prefixes, each once; images that several prefixes begin with are read once.

        Raises:
            UserError: A prefix is longer than the model's context.
        """
        for prefix in prefixes:
            check_length(len(prefix.ids), self.max_length)
        if self.packed is not None:
            return Prefixes(self, [], {q: (0, q) for q in range(len(prefixes))}, self.packed.open(prefixes))
        shared = shared_image_prefixes(prefixes, self._forward.positions.image_token_id, self.image_prefixes.most > 0)
        whole = [q for q in range(len(prefixes)) if q not in shared]
        chunks: list[Rows] = []
        places: dict[int, tuple[int, int]] = {}

        def add(questions: Sequence[int], rows: Rows) -> None:
            places.update({q: (len(chunks), row) for row, q in enumerate(questions)})
            chunks.append(rows)

        for part in self._forward.batches([len(prefixes[q].ids) for q in whole], self.token_budget):
            questions = [whole[i] for i in part]
            add(questions, self._forward.prefill([prefixes[q] for q in questions]))
        sharing = list(shared)
        for part in self._forward.batches([len(shared[q][2]) for q in sharing], self.token_budget):
            questions = [sharing[i] for i in part]
            add(questions, self._read_suffixes([shared[q] for q in questions]))
        return Prefixes(self, chunks, places)

    def _read_suffixes(self, parts: Sequence[tuple[str, Rendered, list[int]]]) -> Rows:
        """Read the suffixes, and the image prefixes that are not cached."""
        by_key = {key: image_prefix for key, image_prefix, _ in parts}
        known = {key: kept for key in by_key if (kept := self.image_prefixes.get(key)) is not None}
        new = [key for key in by_key if key not in known]
        for part in self._forward.batches([len(by_key[key].ids) for key in new], self.token_budget):
            read = self._forward.prefill([by_key[new[i]] for i in part])
            for row, i in enumerate(part):
                known[new[i]] = read.take(self._index([row])).compact()
        for key in by_key:
            self.image_prefixes.put(key, known[key], kept_bytes(known[key].levels))
        order = {key: row for row, key in enumerate(by_key)}
        rows = stacked([known[key] for key in by_key]).take(self._index([order[key] for key, _, _ in parts]))
        return self._forward.append(rows, [suffix for _, _, suffix in parts])[1]

    @torch.no_grad()
    def branch(self, prefixes: Prefixes, branches: Sequence[Sequence[Sequence[int]]]) -> Branches:
        """Read branches on top of their questions' prefixes.

        Args:
            prefixes: From `read`.
            branches: Token ids of each question's branches: any number of branches, each of at least one token.

        Raises:
            UserError: A prefix and its branch are together longer than the model's context.
        """
        if len(branches) != len(prefixes):
            raise ValueError(f"expected branches for {len(prefixes)} questions, found {len(branches)}")
        if prefixes.trees is not None and self.packed is not None:
            for prefix, question_branches in zip(prefixes.trees.prefixes, branches, strict=True):
                check_length(len(prefix.ids) + max(map(len, question_branches), default=0), self.max_length)
            asked = {q: question_branches for q, question_branches in enumerate(branches) if question_branches}
            spots = self.packed.branch(prefixes.trees, asked, self._max_kept)
            return Branches(self, prefixes, branches, [], {}, spots)
        chunks: list[BranchRows] = []
        places: dict[tuple[int, int], tuple[int, int]] = {}
        kept = 0
        for number in range(len(prefixes.chunks)):
            rows = [
                (q, k)
                for q, question_branches in enumerate(branches)
                if prefixes.places[q][0] == number
                for k in range(len(question_branches))
            ]
            for part in self._forward.batches([len(branches[q][k]) for q, k in rows], self.token_budget):
                chosen = [rows[i] for i in part]
                read = self._read_branches(prefixes, branches, chosen)
                kept += read.last_level.real.numel() + len(chosen) * self._forward.state_tokens
                places.update({row: (len(chunks), i) for i, row in enumerate(chosen)})
                if kept > self._max_kept:  # they are read again to be continued
                    read = replace(read, levels=(*read.levels[:-1], read.last_level.dropped()))
                chunks.append(BranchRows(chosen, read))
        return Branches(self, prefixes, branches, chunks, places)

    @torch.no_grad()
    def generate(
        self,
        state: Prefixes | Branches,
        rows: Sequence[tuple[int, int]],
        forced: Sequence[int] = (),
        max_new_tokens: int = 32,
    ) -> list[Generation]:
        """Answer greedily from rows that have been read; the rows stay unchanged.

        Args:
            state: From `read` or `branch`.
            rows: (question, branch) pairs; the branch is ignored for the result of `read`.
            forced: Tokens that every answer begins with, such as [Relevant]; they are not part of its score.
            max_new_tokens: Limit without an end token.

        Returns:
            An answer for each of `rows`, in order.
        """
        answers: list[Generation | None] = [None] * len(rows)
        for spots, part in self._continued(state, rows, [len(forced) + max_new_tokens] * len(rows)):
            for i, decoded in zip(part, self.decoder.decode(spots, forced, max_new_tokens), strict=True):
                answers[i] = self._generation(*decoded)
        for ready, part in self._ready(state, rows, [len(forced) + max_new_tokens] * len(rows)):
            for i, answer in zip(part, self._decode(ready, forced, max_new_tokens), strict=True):
                answers[i] = answer
        return [answer for answer in answers if answer is not None]

    @torch.no_grad()
    def score(
        self, state: Prefixes | Branches, rows: Sequence[tuple[int, int]], answers: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return log-probabilities of given answers' tokens, computed in one pass without decoding.

        Args:
            state: From `read` or `branch`.
            rows: (question, branch) pairs, as for `generate`.
            answers: Token ids of an answer for each of `rows`, at least one; include the end token if it is to count.
        """
        token_log_probs: list[list[float]] = [[] for _ in rows]
        for spots, part in self._continued(state, rows, [*map(len, answers)]):
            assert self.packed is not None
            written = [[answers[i][:-1] or answers[i]] for i in part]
            ends = self.packed.read([TreePart(spot, None, ids) for spot, ids in zip(spots, written, strict=True)])
            for i, spot, (_, [end]) in zip(part, spots, ends, strict=True):
                before = torch.cat([spot.states[-1:], end.states])
                token_log_probs[i] = self._answer_log_probs(before, answers[i])
        for ready, part in self._ready(state, rows, [*map(len, answers)]):
            for i, log_probs in zip(part, self._score(ready, [answers[i] for i in part]), strict=True):
                token_log_probs[i] = log_probs
        return token_log_probs

    @torch.no_grad()
    def probabilities(
        self, hidden: Sequence[Tensor], places: Sequence[tuple[int, int]], token_ids: Sequence[int]
    ) -> Tensor:
        """Return softmax probabilities of tokens at some rows of chunks of hidden states: (rows, tokens), on the CPU.

        Raises:
            UserError: A probability is NaN.
        """
        if not places:
            return torch.empty(0, len(token_ids))
        ids = list(token_ids)
        chunks = [self._log_probabilities(chunk, ids)[:, ids].exp().cpu() for chunk in hidden]
        probabilities = torch.stack([chunks[chunk][row] for chunk, row in places])
        self.check_numbers(probabilities.sum().item())
        return probabilities

    @torch.no_grad()
    def spots_of(self, prefixes: Prefixes, questions: Sequence[int], *, continued: bool = False) -> list[Spot]:
        """Return the ends of prefixes in packed rows, which are read now if they have not been."""
        assert self.packed is not None
        assert prefixes.trees is not None
        return self.packed.prefixes(prefixes.trees, questions, continued=continued)

    def probabilities_at(self, spots: Sequence[Spot], token_ids: Sequence[int]) -> Tensor:
        """Return `probabilities` at the ends of prefixes or branches in packed rows."""
        parts = [torch.stack([spot.states[-1] for spot in spots[i : i + _HEADS]]) for i in range(0, len(spots), _HEADS)]
        return self.probabilities(parts, [divmod(i, _HEADS) for i in range(len(spots))], token_ids)

    def check_numbers(self, *values: float) -> None:
        """Refuse probabilities or scores that are NaN.

        Raises:
            UserError: A value is NaN.
        """
        if any(map(math.isnan, values)):
            raise UserError(
                f"the model computes NaN, in {str(self._model.dtype).removeprefix('torch.')}: float16 "
                "overflows in some models, where bfloat16 and float32 do not; else its weights are damaged"
            )

    def _read_branches(
        self, prefixes: Prefixes, branches: Sequence[Sequence[Sequence[int]]], rows: Sequence[tuple[int, int]]
    ) -> Rows:
        """Read some (question, branch) rows of the branches, all of one prefix chunk."""
        chunk = prefixes.chunks[prefixes.places[rows[0][0]][0]]
        before = chunk.take(self._index([prefixes.places[q][1] for q, _ in rows])).compact()
        ids = [branches[q][k] for q, k in rows]
        for count, branch_ids in zip(before.lengths().tolist(), ids, strict=True):
            check_length(count + len(branch_ids), self.max_length)
        return self._forward.append(before, ids)[1]

    def _continued(
        self, state: Prefixes | Branches, rows: Sequence[tuple[int, int]], new: Sequence[int]
    ) -> Iterator[tuple[list[Spot], list[int]]]:
        """Yield batches of packed rows' ends to continue from, with their indices in `rows`, as `_ready` does."""
        prefixes = state if isinstance(state, Prefixes) else state.prefixes
        if self.packed is None or prefixes.trees is None:
            return
        given = prefixes.trees.prefixes
        ids = [() if isinstance(state, Prefixes) else state.ids[q][k] for q, k in rows]
        lengths = [len(given[q].ids) + len(own) + count for (q, _), own, count in zip(rows, ids, new, strict=True)]
        if self._slides:
            check_length(max(lengths, default=0), self.max_length)
        for part in within_budget(lengths, self._max_kept):
            if isinstance(state, Prefixes):
                yield self.spots_of(prefixes, [rows[i][0] for i in part], continued=True), part
                continue
            spots = {i: state.spots[rows[i]] for i in part}
            again: dict[int, list[int]] = {}
            for i in (i for i in part if not spots[i].row.cache):
                again.setdefault(rows[i][0], []).append(i)
            read = self.packed.branch(prefixes.trees, {q: [ids[i] for i in own] for q, own in again.items()})
            spots |= {again[q][k]: spot for (q, k), spot in read.items()}
            yield [spots[i] for i in part], part

    def _ready(
        self, state: Prefixes | Branches, rows: Sequence[tuple[int, int]], new: Sequence[int]
    ) -> Iterator[tuple[Rows, list[int]]]:
        """Yield batches of rows to continue from, with their indices in `rows`. Dropped branches are read again."""
        if self.packed is not None:
            return
        prefixes = state if isinstance(state, Prefixes) else state.prefixes
        read = [0 if isinstance(state, Prefixes) else len(state.ids[q][k]) for q, k in rows]
        for number, chunk in enumerate(prefixes.chunks):
            members = [i for i, (q, _) in enumerate(rows) if prefixes.places[q][0] == number]
            for part in self._forward.batches([read[i] + new[i] for i in members], self.token_budget):
                chosen = [members[i] for i in part]
                if isinstance(state, Branches):
                    chosen.sort(key=lambda i: state.places[rows[i]])
                before = chunk.take(self._index([prefixes.places[rows[i][0]][1] for i in chosen])).compact()
                ready = self._under(before, state, [rows[i] for i in chosen])
                if self._slides:
                    longest = max(n + new[i] for n, i in zip(ready.lengths().tolist(), chosen, strict=True))
                    check_length(longest, self.max_length)  # else its beginning would go out of a sliding window
                yield ready, chosen

    def _under(self, before: Rows, state: Prefixes | Branches, rows: Sequence[tuple[int, int]]) -> Rows:
        """Return rows under their prefixes, which are of one chunk; the branches may be of several, one by one."""
        if isinstance(state, Prefixes):
            return before
        parts = list[Rows]()
        for number, group in itertools.groupby(rows, lambda row: state.places[row][0]):
            read, members = state.chunks[number].rows, list(group)
            index = self._index([state.places[row][1] for row in members])
            cached = read.last_level.cache
            parts.append(read.take(index) if cached else self._read_branches(state.prefixes, state.ids, members))
            parts[-1] = replace(parts[-1], levels=(parts[-1].last_level.take(parts[-1].where[-1]),))
        level = Level.stacked([part.last_level for part in parts])
        position, hidden = (torch.cat([getattr(part, name) for part in parts]) for name in ("next_position", "hidden"))
        return before.under(level, position, hidden)

    def _decode(self, rows: Rows, forced: Sequence[int], max_new_tokens: int) -> list[Generation]:
        """Decode greedily; a row that has ended leaves the batch."""
        if forced:
            rows = self._forward.append(rows, [forced] * len(rows))[1]
        count = len(rows)
        ids: list[list[int]] = [[] for _ in range(count)]
        log_probs: list[list[float]] = [[] for _ in range(count)]
        active = torch.arange(count, device=rows.next_position.device)
        finished = torch.zeros(count, dtype=torch.bool, device=rows.next_position.device)
        shared, hidden = rows.shared(), rows.hidden
        written = rows.nothing_written()
        for step in range(max_new_tokens):
            every = self._log_probabilities(hidden)
            chosen = every.argmax(-1)
            values = every.gather(1, chosen[:, None])[:, 0]
            for row, token, value in zip(active.tolist(), chosen.tolist(), values.tolist(), strict=True):
                ids[row].append(token)
                log_probs[row].append(value)
            ended = torch.isin(chosen, self._ends)
            finished[active[ended]] = True
            if bool(ended.all()) or step == max_new_tokens - 1:
                break
            if bool(ended.any()):
                going_on = (~ended).nonzero()[:, 0]
                active, rows = active[going_on], rows.take(going_on)
                shared, written = rows.shared(), written.take(going_on)
            hidden, written = self._forward.decode_step(chosen[~ended], rows.next_position + step, shared, written)
        return [self._generation(*row) for row in zip(ids, log_probs, finished.tolist(), strict=True)]

    def _generation(self, ids: list[int], log_probs: list[float], finished: bool) -> Generation:
        return Generation(ids, self.renderer.decode(ids[:-1] if finished else ids), log_probs, finished)

    def _score(self, rows: Rows, answers: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probabilities of the answers' tokens; the state before a token predicts it."""
        if max(map(len, answers)) == 1:
            before = rows.hidden[:, None]
        else:
            states, _ = self._forward.append(rows, [answer[:-1] or answer for answer in answers])
            before = torch.cat([rows.hidden[:, None], states], 1)
        return [self._answer_log_probs(before[row], answer) for row, answer in enumerate(answers)]

    def _answer_log_probs(self, before: Tensor, answer: Sequence[int]) -> list[float]:
        """Return log-probabilities of an answer's tokens, from the states before them."""
        targets = torch.tensor(answer, device=before.device)
        log_probs = self._log_probabilities(before[: len(answer)], sorted({*answer}))
        values: list[float] = log_probs.gather(1, targets[:, None])[:, 0].tolist()
        return values

    def _log_probabilities(self, hidden: Tensor, asked: Sequence[int] = ()) -> Tensor:
        """Return log-probabilities (rows, vocabulary), from float32 logits of the tokens that are asked for."""
        head = self._model.get_output_embeddings()
        return exact_logits(head, hidden, head(hidden), asked).log_softmax(-1).to(hidden.device)

    def _index(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(rows, device=self._forward.device)


def check_length(length: int, most: int) -> None:
    """Refuse a sequence that is longer than a model's context.

    Raises:
        UnusableInput: It is.
    """
    if length > most:
        raise UnusableInput(
            f"a question with its passage is {length} tokens long, but the model takes {most}; "
            "shorten the passages (they are never cut here)"
        )


def end_tokens(loaded: Loaded) -> list[int]:
    """Return the ids that end an answer: the template's end of turn, and the model's own end tokens."""
    end_ids = loaded.model.generation_config.eos_token_id
    return sorted({loaded.renderer.end_token_id, *([end_ids] if isinstance(end_ids, int) else end_ids or ())})
