"""Shared-prefix engine: read image and question once, then branches on their cached keys and values.

A gate is a probability read at one position. Batches span questions; a token budget splits work, never text, and the
results depend on neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reflectune.core.errors import UnusableInput, UserError
from reflectune.models.attention.positions import longest_sequence, sliding_window
from reflectune.models.loading import Loaded
from reflectune.models.prefix.forward import Forward, find_budget, image_bytes, within_memory
from reflectune.models.prefix.image_prefix import ImagePrefixCache
from reflectune.models.prefix.packed import packed_for
from reflectune.models.prefix.padded import PaddedReader
from reflectune.models.prefix.state import Branches, Generation, Prefixes, Result, RowIndex, Work
from reflectune.models.rendering.renderer import Rendered


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
        self._forward = forward = Forward(loaded.model)
        self.image_prefixes: ImagePrefixCache[Any] = ImagePrefixCache(0, image_bytes(loaded.model))
        self.renderer = loaded.renderer
        self.calibration = loaded.calibration
        self.token_budget = budget = token_budget or find_budget(forward)
        self.max_length = longest_sequence(forward.model)
        self._slides = bool(sliding_window(forward.model.config.get_text_config()))
        end_ids = torch.tensor(end_tokens(loaded), device=forward.device)
        packed = packed_for(forward, budget, self.image_prefixes, end_ids, compiling=compiling)
        self.reader = packed or PaddedReader(forward, budget, self.image_prefixes, end_ids)

    tokens_read = property(lambda self: self._forward.tokens_read, doc="Tokens of prompts that were read so far.")

    @torch.no_grad()
    def read(self, prefixes: Sequence[Rendered]) -> Prefixes:
        """Read images and prefixes, each once; images that several prefixes begin with are read once.

        Raises:
            UserError: A prefix is longer than the model's context.
        """
        lengths = [len(prefix.ids) for prefix in prefixes]
        for length in lengths:
            check_length(length, self.max_length)
        return Prefixes(self, lengths, self.reader.open(prefixes))

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
        for length, question_branches in zip(prefixes.lengths, branches, strict=True):
            check_length(length + max(map(len, question_branches), default=0), self.max_length)
        return Branches(self, prefixes, branches, self.reader.branch(prefixes.cache, branches))

    @torch.no_grad()
    def generate(
        self,
        state: Prefixes | Branches,
        rows: Sequence[RowIndex],
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
        decoded = self._continue_rows(
            state,
            rows,
            [len(forced) + max_new_tokens] * len(rows),
            lambda ready, _: self.reader.decode(ready, forced, max_new_tokens),
        )
        return [
            Generation(ids, self.renderer.decode(ids[:-1] if finished else ids), log_probs, finished)
            for ids, log_probs, finished in decoded
        ]

    @torch.no_grad()
    def score(
        self, state: Prefixes | Branches, rows: Sequence[RowIndex], answers: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return log-probabilities of given answers' tokens, computed in one pass without decoding.

        Args:
            state: From `read` or `branch`.
            rows: (question, branch) pairs, as for `generate`.
            answers: Token ids of an answer for each of `rows`, at least one; include the end token if it is to count.
        """

        def read(ready: Any, part: Sequence[int]) -> list[list[float]]:
            given = [answers[i] for i in part]
            return [*map(self._answer_log_probs, self.reader.states_before(ready, given), given)]

        return self._continue_rows(state, rows, [*map(len, answers)], read)

    @torch.no_grad()
    def probabilities(self, state: Prefixes | Branches, token_ids: Sequence[int]) -> Tensor:
        """Return softmax probabilities of tokens to come next at all rows: (rows, tokens), on the CPU.

        Raises:
            UserError: A probability is NaN.
        """
        hidden, places = self.reader.hidden(state)
        if not places:
            return torch.empty(0, len(token_ids))
        parts = [self._next_probabilities(part, list(token_ids)) for part in hidden]
        probabilities = torch.stack([parts[part][row] for part, row in places])
        self.check_numbers(probabilities.sum().item())
        return probabilities

    def _next_probabilities(self, hidden: Tensor, token_ids: list[int]) -> Tensor:
        """Return the probabilities of tokens after hidden states, half of these at a time if memory runs out."""
        probabilities = within_memory(
            lambda: self._forward.log_probabilities(hidden, token_ids)[:, token_ids].exp().cpu(),
            "logits are out of memory: half of the rows are computed at a time",
            is_divisible=len(hidden) > 1,
        )
        if probabilities is not None:
            return probabilities
        return torch.cat([self._next_probabilities(half, token_ids) for half in hidden.chunk(2)])

    def check_numbers(self, *values: float) -> None:
        """Refuse probabilities or scores that are NaN.

        Raises:
            UserError: A value is NaN.
        """
        if any(map(math.isnan, values)):
            raise UserError(
                f"the model computes NaN, in {str(self._forward.model.dtype).removeprefix('torch.')}: float16 "
                "overflows in some models, where bfloat16 and float32 do not; else its weights are damaged"
            )

    def _continue_rows(
        self, state: Prefixes | Branches, rows: Sequence[RowIndex], new: Sequence[int], work: Work[Any, Result]
    ) -> list[Result]:
        """Return the results of work that reads or writes `new` tokens after each row."""
        if self._slides:  # else a row's beginning would go out of a sliding window
            for row, count in zip(rows, new, strict=True):
                length = state.prefixes.lengths[row[0]] + len(state.branch_ids(row))
                check_length(length + count, self.max_length)
        results: dict[int, Result] = {}
        for part in self.reader.continue_rows(state, rows, new, work):
            results |= part
        return [results[i] for i in range(len(rows))]

    def _answer_log_probs(self, before: Tensor, answer: Sequence[int]) -> list[float]:
        """Return log-probabilities of an answer's tokens; the state before a token predicts it."""
        targets = torch.tensor(answer, device=before.device)
        log_probs = self._forward.log_probabilities(before[: len(answer)], sorted({*answer}))
        values: list[float] = log_probs.gather(1, targets[:, None])[:, 0].tolist()
        return values


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
