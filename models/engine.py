"""The shared-prefix engine: one vision pass and one prefix pass a question, its branches as one padded batch on top.

A gate is a probability read at one position. Batches span questions; a token budget splits work, never text, and the
results depend on neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from reflectune.core.errors import UserError
from reflectune.models.loading import Loaded
from reflectune.models.positions import Positions
from reflectune.models.rendering import Rendered
from reflectune.models.rows import Rows, as_cache, cached, join, stack, tail
from reflectune.models.tree import check_attention, join_vision


@dataclass(frozen=True)
class Generation:
    """One greedy answer.

    Attributes:
        token_ids: What was generated, the end token included if it was reached; without the forced tokens.
        text: The same as text, without the end token; reflection tokens are kept.
        log_probs: Log-probability of each token.
        score: S_ans, equation 7 of mR²AG: the geometric mean of the tokens' probabilities, the end token's included.
        finished: Whether the end token was reached.
    """

    token_ids: list[int]
    text: str
    log_probs: list[float]
    score: float
    finished: bool


@dataclass(frozen=True)
class Prefixes:
    """Questions whose images and prefixes have been read.

    Attributes:
        engine: What read them.
        chunks: The batches that they were read in.
        places: For each question its chunk and its row in it.
    """

    engine: PrefixEngine
    chunks: list[Rows]
    places: dict[int, tuple[int, int]]

    def __len__(self) -> int:
        return len(self.places)

    def probabilities(self, token_ids: Sequence[int]) -> Tensor:
        """Probability that each token comes next, in the full softmax; float32 of shape (questions, tokens)."""
        hidden = [chunk.hidden for chunk in self.chunks]
        return self.engine.probabilities(hidden, [self.places[q] for q in range(len(self))], token_ids)


@dataclass(frozen=True)
class BranchRows:
    """Branches read in one batch: which (question, branch) they are, and their own part of what was read.

    `own` is what `Rows` says of the branch's tokens alone, without the prefix; its cache is empty if it was not kept.
    """

    rows: list[tuple[int, int]]
    own: Rows


@dataclass(frozen=True)
class Branches:
    """Branches that have been read on top of prefixes; a question may have any number of them."""

    engine: PrefixEngine
    prefixes: Prefixes
    ids: Sequence[Sequence[Sequence[int]]]
    chunks: list[BranchRows]
    places: dict[tuple[int, int], tuple[int, int]]

    def probabilities(self, token_ids: Sequence[int]) -> list[Tensor]:
        """Probability that each token comes next, in the full softmax: for each question (branches, tokens)."""
        rows = [(q, k) for q, own in enumerate(self.ids) for k in range(len(own))]
        hidden = [chunk.own.hidden for chunk in self.chunks]
        found = self.engine.probabilities(hidden, [self.places[row] for row in rows], token_ids)
        return list(found.split([len(own) for own in self.ids]))


class PrefixEngine:
    """Reads, judges and answers with one model.

    Args:
        loaded: The model.
        token_budget: Most tokens (padding included) in one forward pass, cache and all; a longer row goes alone. The
            keys and values of four times as many tokens of branches are kept; other branches are read again if they
            are decoded from.

    Raises:
        UserError: The model's attention is not one that the engine can mask.
    """

    def __init__(self, loaded: Loaded, token_budget: int = 16_384) -> None:
        check_attention(loaded.model)
        self.renderer, self.token_budget, self._most_kept = loaded.renderer, token_budget, 4 * token_budget
        self._model = loaded.model.eval()
        self._positions = Positions(self._model)
        text_config = self._model.config.get_text_config()
        if set(getattr(text_config, "layer_types", None) or ("full_attention",)) != {"full_attention"}:
            raise UserError(f"{loaded.name} has sliding-window attention, which this engine doesn't cache; use another")
        self.max_length: int = text_config.max_position_embeddings
        self._ends = torch.tensor(_end_tokens(loaded), device=self._model.device)

    @torch.no_grad()
    def read(self, prefixes: Sequence[Rendered]) -> Prefixes:
        """Read images and prefixes, each once.

        Raises:
            UserError: A prefix is longer than the model's context.
        """
        lengths = [len(prefix.ids) for prefix in prefixes]
        for length in lengths:
            self._check_length(length)
        parts = _split(lengths, self.token_budget)
        chunks = [self._read([prefixes[i] for i in part]) for part in parts]
        return Prefixes(self, chunks, {q: (c, row) for c, part in enumerate(parts) for row, q in enumerate(part)})

    @torch.no_grad()
    def branch(self, prefixes: Prefixes, branches: Sequence[Sequence[Sequence[int]]]) -> Branches:
        """Read branches on top of their questions' prefixes.

        Args:
            prefixes: From `read`.
            branches: For each question the token ids of its branches: any number of them, each of at least one token.

        Raises:
            UserError: A prefix and its branch are together longer than the model's context.
        """
        if len(branches) != len(prefixes):
            raise ValueError(f"expected branches for {len(prefixes)} questions, found {len(branches)}")
        state = Branches(self, prefixes, branches, [], {})
        kept = 0
        for number, chunk in enumerate(prefixes.chunks):
            rows = [
                (q, k) for q, own in enumerate(branches) if prefixes.places[q][0] == number for k in range(len(own))
            ]
            width = chunk.real.shape[1]
            for part in _split([width + len(branches[q][k]) for q, k in rows], self.token_budget):
                chosen = [rows[i] for i in part]
                own = tail(self._read_branches(state, chosen), width)
                kept += own.real.numel()
                state.places.update({row: (len(state.chunks), i) for i, row in enumerate(chosen)})
                state.chunks.append(BranchRows(chosen, own if kept <= self._most_kept else replace(own, cache=[])))
        return state

    @torch.no_grad()
    def generate(
        self,
        state: Prefixes | Branches,
        rows: Sequence[tuple[int, int]],
        forced: Sequence[int] = (),
        max_new_tokens: int = 32,
    ) -> list[Generation]:
        """Answer greedily from what has been read, which stays as it is.

        Args:
            state: From `read` or `branch`.
            rows: (question, branch) pairs; for what `read` returned, branch is not looked at.
            forced: Tokens that every answer begins with, such as [Relevant]; they are not part of its score.
            max_new_tokens: Where to stop if the end token doesn't come.

        Returns:
            One answer for each of `rows`, in order.
        """
        new = len(forced) + max_new_tokens
        found: dict[int, Generation] = {}
        for part in _split([self._length(state, row) + new for row in rows], self.token_budget):
            ready = self._resume(state, [rows[i] for i in part])
            found.update(zip(part, self._decode(ready, forced, max_new_tokens), strict=True))
        return [found[i] for i in range(len(rows))]

    @torch.no_grad()
    def probabilities(
        self, hidden: Sequence[Tensor], places: Sequence[tuple[int, int]], token_ids: Sequence[int]
    ) -> Tensor:
        """Softmax probabilities of tokens at some rows of chunks of hidden states: (places, tokens), on the CPU."""
        if not places:
            return torch.empty(0, len(token_ids))
        chunks = [self._log_probabilities(chunk)[:, list(token_ids)].exp().cpu() for chunk in hidden]
        return torch.stack([chunks[chunk][row] for chunk, row in places])

    # One forward pass.

    def _read(self, prefixes: Sequence[Rendered]) -> Rows:
        """Vision and prefixes of one batch."""
        length = max(len(prefix.ids) for prefix in prefixes)
        ids = np.zeros((len(prefixes), length), dtype=np.int64)
        real = np.zeros((len(prefixes), length), dtype=bool)
        positions = np.zeros((3 if self._positions.is_3d else 1, len(prefixes), length), dtype=np.int64)
        for row, prefix in enumerate(prefixes):
            count = len(prefix.ids)
            ids[row, :count], real[row, :count] = prefix.ids, True
            positions[:, row, :count] = self._positions.of_prefix(ids[row, :count], prefix.vision)
        device, dtype = self._model.device, self._model.dtype
        vision = {
            name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
            for name, value in join_vision([prefix.vision for prefix in prefixes]).items()
        }
        if self._positions.is_3d:
            vision["mm_token_type_ids"] = torch.from_numpy(ids == self._positions.image_token_id).int().to(device)
        places = torch.from_numpy(positions).to(device)
        return self._forward(
            torch.from_numpy(ids).to(device), torch.from_numpy(real).to(device), places, before=None, vision=vision
        )

    def _extend(self, rows: Rows, ids: Sequence[Sequence[int]]) -> Rows:
        """Read more tokens on top of rows; the result holds the whole of both."""
        length = max(map(len, ids))
        padded = np.zeros((len(ids), length), dtype=np.int64)
        counts = np.array([len(own) for own in ids])
        real = np.arange(length) < counts[:, None]
        padded[real] = np.concatenate(ids)
        device = self._model.device
        positions = (rows.onward[:, None] + torch.arange(length, device=device))[None]
        if self._positions.is_3d:
            positions = positions.expand(3, -1, -1)
        return self._forward(
            torch.from_numpy(padded).to(device), torch.from_numpy(real).to(device), positions, before=rows, vision={}
        )

    def _forward(
        self, ids: Tensor, real: Tensor, positions: Tensor, before: Rows | None, vision: dict[str, Tensor]
    ) -> Rows:
        """Read tokens of shape (rows, new) at positions (1 or 3, rows, new), on top of what was read before."""
        cache = as_cache(before.cache if before is not None else [])
        past = before.real if before is not None else real[:, :0]
        new, device = ids.shape[1], ids.device
        causal = torch.ones(new, new, dtype=torch.bool, device=device).tril()
        mask = torch.cat([past[:, None].expand(-1, new, -1), real[:, None] & causal], 2)  # (rows, new, past + new)
        states = self._model.model(
            input_ids=ids,
            attention_mask=mask[:, None],
            position_ids=positions if self._positions.is_3d else positions[0],
            past_key_values=cache,
            use_cache=True,
            **vision,
        ).last_hidden_state
        counts = real.sum(1)
        row = torch.arange(len(ids), device=device)
        return Rows(
            cached(cache),
            torch.cat([past, real], 1),
            positions[0][row, counts - 1] + 1,
            states[row, counts - 1],
        )

    # Branches and answers.

    def _read_branches(self, state: Branches, rows: Sequence[tuple[int, int]]) -> Rows:
        """Read branches of one prefix chunk; the result holds prefix and branch."""
        before = self._prefix_rows(state, rows)
        ids = [state.ids[q][k] for q, k in rows]
        for count, own in zip(before.real.sum(1).tolist(), ids, strict=True):
            self._check_length(count + len(own))
        return self._extend(before, ids)

    def _resume(self, state: Prefixes | Branches, rows: Sequence[tuple[int, int]]) -> Rows:
        """Whole rows, to go on from. Branches whose cache was not kept are read again."""
        places = [state.places[row[0]] if isinstance(state, Prefixes) else state.places[row] for row in rows]
        order, parts = [], []
        for chunk in sorted({chunk for chunk, _ in places}):
            members = [i for i, (c, _) in enumerate(places) if c == chunk]
            index = torch.tensor([places[i][1] for i in members], device=self._model.device)
            order += members
            if isinstance(state, Prefixes):
                parts.append(state.chunks[chunk].take(index))
            elif state.chunks[chunk].own.cache:
                before = self._prefix_rows(state, [rows[i] for i in members])
                parts.append(join(before, state.chunks[chunk].own.take(index)))
            else:
                parts.append(self._read_branches(state, [rows[i] for i in members]))
        if len(parts) == 1:
            return parts[0]
        return stack(parts).take(torch.tensor(order, device=self._model.device).argsort())

    def _prefix_rows(self, state: Branches, rows: Sequence[tuple[int, int]]) -> Rows:
        """The prefix under each of these branches, which are all of one prefix chunk."""
        places = [state.prefixes.places[q] for q, _ in rows]
        index = torch.tensor([row for _, row in places], device=self._model.device)
        return state.prefixes.chunks[places[0][0]].take(index)

    def _length(self, state: Prefixes | Branches, row: tuple[int, int]) -> int:
        """Tokens that a row holds, padding included."""
        if isinstance(state, Prefixes):
            return state.chunks[state.places[row[0]][0]].real.shape[1]
        return self._length(state.prefixes, row) + state.chunks[state.places[row][0]].own.real.shape[1]

    def _decode(self, rows: Rows, forced: Sequence[int], max_new_tokens: int) -> list[Generation]:
        """Greedy decoding; a row that has ended leaves the batch."""
        if forced:
            rows = self._extend(rows, [forced] * len(rows.onward))
        count = len(rows.onward)
        ids: list[list[int]] = [[] for _ in range(count)]
        log_probs: list[list[float]] = [[] for _ in range(count)]
        active = torch.arange(count, device=rows.onward.device)
        finished = torch.zeros(count, dtype=torch.bool, device=rows.onward.device)
        for step in range(max_new_tokens):
            best = self._log_probabilities(rows.hidden).max(-1)
            for row, token, value in zip(active.tolist(), best.indices.tolist(), best.values.tolist(), strict=True):
                ids[row].append(token)
                log_probs[row].append(value)
            ended = torch.isin(best.indices, self._ends)
            finished[active[ended]] = True
            if bool(ended.all()) or step == max_new_tokens - 1:
                break
            tokens = best.indices[~ended].tolist()
            if bool(ended.any()):
                active, rows = active[~ended], rows.take((~ended).nonzero()[:, 0])
            rows = self._extend(rows, [[token] for token in tokens])
        return [self._generation(*each) for each in zip(ids, log_probs, finished.tolist(), strict=True)]

    def _generation(self, ids: list[int], log_probs: list[float], finished: bool) -> Generation:
        text = self.renderer.decode(ids[:-1] if finished else ids)
        return Generation(ids, text, log_probs, math.exp(sum(log_probs) / max(1, len(log_probs))), finished)

    def _log_probabilities(self, hidden: Tensor) -> Tensor:
        return self._model.get_output_embeddings()(hidden).float().log_softmax(-1)  # (rows, vocabulary)

    def _check_length(self, length: int) -> None:
        if length > self.max_length:
            raise UserError(
                f"a question with its passage is {length} tokens long, but the model takes {self.max_length}; "
                "shorten the passages (they are never cut here)"
            )


def _split(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Batches of rows of similar length, as indices; each takes at most `budget` tokens, or is a single longer row."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * lengths[index] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _end_tokens(loaded: Loaded) -> list[int]:
    """What ends an answer: the template's end of turn, and the model's own end tokens."""
    own = loaded.model.generation_config.eos_token_id
    return sorted({loaded.renderer.end_token_id, *([own] if isinstance(own, int) else own or ())})
