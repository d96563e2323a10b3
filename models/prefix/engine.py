"""Shared-prefix engine: read image and question once, then continue them by branches on the cached keys and values.

A gate is a probability read at one position. Batches span questions, and a token budget limits their size. Results
depend on neither, and no text is truncated.
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
from reflectune.models.prefix.forward import Forward, check_logits, find_budget, image_bytes, within_memory
from reflectune.models.prefix.image_prefix import ImagePrefixCache
from reflectune.models.prefix.packed import packed_for
from reflectune.models.prefix.padded import PaddedReader
from reflectune.models.prefix.state import Branches, Generation, Prefixes, Result, RowIndex, Work
from reflectune.models.rendering.renderer import Rendered


class PrefixEngine:
    """Read, judge and answer with one model.

    Args:
        loaded: The model. Its attention is replaced by an equivalent one that can share prefixes.
        token_budget: Maximum tokens in one forward pass; None fits it to the memory. Keys and values of branches are
            kept up to four times this number; other branches are read again when an answer is decoded from them.

    Attributes:
        image_prefixes: Cache of image prefixes from call to call, in a share of the free memory. It is empty before
            `keep`. Questions of one call share images in any case.

    Raises:
        UserError: The model's attention can't share a prefix, or its logits are not those of its output head.
    """

    def __init__(self, loaded: Loaded, token_budget: int | None = None, *, compiling: bool = True) -> None:
        self._forward = forward = Forward(loaded.model)
        check_logits(loaded.model)
        self.image_prefixes: ImagePrefixCache[Any] = ImagePrefixCache(0, image_bytes(loaded.model))
        self.renderer = loaded.renderer
        self.calibration = loaded.calibration
        self.token_budget = budget = token_budget or find_budget(forward)
        self.max_length = longest_sequence(forward.model)
        self._slides = bool(sliding_window(forward.model.config.get_text_config()))
        end_ids = torch.tensor(end_tokens(loaded), device=forward.device)
        packed = packed_for(forward, budget, self.image_prefixes, end_ids, compiling=compiling)
        self.reader = packed or PaddedReader(forward, budget, self.image_prefixes, end_ids)

    tokens_read = property(lambda self: self._forward.tokens_read, doc="Prompt tokens read so far.")

    @torch.no_grad()
    def read(self, prefixes: Sequence[Rendered]) -> Prefixes:
        """Read images and prefixes. An image at the beginning of several prefixes is read once.

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
            branches: Token ids of each question's branches; each branch has at least one token.

        Raises:
            UserError: A prefix with its branch is longer than the model's context.
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
        """Answer greedily from rows that have been read. The rows are not changed.

        Args:
            state: From `read` or `branch`.
            rows: (question, branch) pairs; the branch is ignored for the result of `read`.
            forced: Tokens that every answer begins with, such as [Relevant]; they don't count in its score.
            max_new_tokens: Maximum tokens of an answer.

        Returns:
            An answer for each row, in order.
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
        """Return log-probabilities of the tokens of given answers, computed in one pass without decoding.

        Args:
            state: From `read` or `branch`.
            rows: (question, branch) pairs, as for `generate`.
            answers: Token ids of an answer for each row, at least one id. Include the end token if it should count.
        """

        def read(ready: Any, part: Sequence[int]) -> list[list[float]]:
            part_answers = [answers[i] for i in part]
            return [*map(self._answer_log_probs, self.reader.states_before(ready, part_answers), part_answers)]

        return self._continue_rows(state, rows, [*map(len, answers)], read)

    @torch.no_grad()
    def probabilities(self, state: Prefixes | Branches, token_ids: Sequence[int]) -> Tensor:
        """Return the probability of each of some tokens to come next after every row: (rows, tokens), on the CPU.

        Raises:
            UserError: A probability is NaN.
        """
        hidden, locations = self.reader.hidden(state)
        if not locations:
            return torch.empty(0, len(token_ids))
        parts = [self._next_probabilities(part, list(token_ids)) for part in hidden]
        probabilities = torch.stack([parts[part][row] for part, row in locations])
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
            dtype = str(self._forward.model.dtype).removeprefix("torch.")
            raise UserError(
                f"the model computes NaN in {dtype}. Some models overflow in float16: use bfloat16 or float32. "
                "Otherwise the weights are damaged"
            )

    def _continue_rows(
        self, state: Prefixes | Branches, rows: Sequence[RowIndex], new: Sequence[int], work: Work[Any, Result]
    ) -> list[Result]:
        """Return the results of work that reads or writes `new` tokens after each row."""
        if self._slides:  # a longer row would slide out of its window
            for row, count in zip(rows, new, strict=True):
                length = state.prefixes.lengths[row[0]] + len(state.branch_ids(row))
                check_length(length + count, self.max_length)
        results: dict[int, Result] = {}
        for part in self.reader.continue_rows(state, rows, new, work):
            results |= part
        return [results[i] for i in range(len(rows))]

    def _answer_log_probs(self, before: Tensor, answer: Sequence[int]) -> list[float]:
        """Return log-probabilities of an answer's tokens, from the hidden state before each token."""
        targets = torch.tensor(answer, device=before.device)
        log_probs = self._forward.log_probabilities(before[: len(answer)], sorted({*answer}))
        values: list[float] = log_probs.gather(1, targets[:, None])[:, 0].tolist()
        return values


def check_length(length: int, max_length: int) -> None:
    """Refuse a sequence that is longer than a model's context.

    Raises:
        UnusableInput: The sequence is too long.
    """
    if length > max_length:
        raise UnusableInput(
            f"a question with its passage is {length} tokens long, but the model takes {max_length}; "
            "shorten the passages (they are never truncated here)"
        )


def end_tokens(loaded: Loaded) -> list[int]:
    """Return the ids that end an answer: the chat template's end of turn, and the model's end tokens."""
    end_ids = loaded.model.generation_config.eos_token_id
    return sorted({loaded.renderer.end_token_id, *([end_ids] if isinstance(end_ids, int) else end_ids or ())})
