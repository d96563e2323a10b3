"""Engine of a model behind a server: the gates and answers of `PrefixEngine`, by token ids over HTTP.

The server's prefix cache replaces shared prefixes. The first request of a question is sent before the others, so that
these find its image and its prefix in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from reflectune.core.errors import UserError
from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import check_length, end_tokens
from reflectune.models.prefix.image_prefix import ImagePrefixCache
from reflectune.models.prefix.state import Generation
from reflectune.models.remote.images import ImageUrls
from reflectune.models.remote.token_server import TokenReply, TokenRequest, TokenServer, request_after
from reflectune.models.rendering.renderer import Rendered

RowIndex = tuple[int, int]


@dataclass(frozen=True)
class ServedPrefixes:
    """Prefixes that a server reads with their first request.

    Attributes:
        engine: The engine that opened them.
        prefixes: Their prefixes.
        sent: Indices of the questions that the server has read.
    """

    engine: ServedEngine
    prefixes: Sequence[Rendered]
    sent: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.prefixes)

    def probabilities(self, token_ids: Sequence[int]) -> Tensor:
        """Return the probability of each token to come next, full softmax: float32 of shape (questions, tokens)."""
        return self.engine.probabilities(self, [(q, ()) for q in range(len(self))], token_ids)


@dataclass(frozen=True)
class ServedBranches:
    """Branches of questions, as token ids."""

    engine: ServedEngine
    prefixes: ServedPrefixes
    ids: Sequence[Sequence[Sequence[int]]]

    def probabilities(self, token_ids: Sequence[int]) -> list[Tensor]:
        """Return the probability of each token to come next, full softmax: (branches, tokens) for each question."""
        rows = [(q, branch) for q, branches in enumerate(self.ids) for branch in branches]
        return list(self.engine.probabilities(self.prefixes, rows, token_ids).split([*map(len, self.ids)]))


class ServedEngine:
    """Read, judge and answer with a model behind a server; see `PrefixEngine` for the methods.

    Args:
        loaded: The checkpoint, without weights.
        server: The server, which has them.
        max_length: Longest sequence that the server takes; 0: as long as the model's.

    Attributes:
        repeated: Prefix tokens that were sent again.
        cached: Those of them that were in the server's prefix cache; None if it doesn't report it.
    """

    def __init__(self, loaded: Loaded, server: TokenServer, max_length: int) -> None:
        self.renderer, self.calibration = loaded.renderer, loaded.calibration
        longest: int = loaded.model.config.get_text_config().max_position_embeddings
        self.max_length = min(longest, max_length or longest)
        self.image_prefixes: ImagePrefixCache[Any] = ImagePrefixCache(0)
        self.server, self.repeated = server, 0
        self.cached: int | None = None
        self._ends, self._urls = end_tokens(loaded), ImageUrls(lossless=True)

    def read(self, prefixes: Sequence[Rendered]) -> ServedPrefixes:
        """Open prefixes. The server reads them with their first request."""
        for prefix in prefixes:
            check_length(len(prefix.ids), self.max_length)
        return ServedPrefixes(self, prefixes)

    def branch(self, prefixes: ServedPrefixes, branches: Sequence[Sequence[Sequence[int]]]) -> ServedBranches:
        """Continue prefixes by branches."""
        for prefix, question_branches in zip(prefixes.prefixes, branches, strict=True):
            check_length(len(prefix.ids) + max(map(len, question_branches), default=0), self.max_length)
        return ServedBranches(self, prefixes, branches)

    def generate(
        self,
        state: ServedPrefixes | ServedBranches,
        rows: Sequence[RowIndex],
        forced: Sequence[int] = (),
        max_new_tokens: int = 32,
    ) -> list[Generation]:
        """Answer greedily from rows."""
        if isinstance(state, ServedBranches):
            prefixes, ids = state.prefixes, [(q, [*state.ids[q][k], *forced]) for q, k in rows]
        else:
            prefixes, ids = state, [(q, [*forced]) for q, _ in rows]
        ends = {"ignore_eos": True, "stop_token_ids": self._ends}
        replies = self._ask(prefixes, ids, {"max_tokens": max_new_tokens, "logprobs": 0, **ends})
        return [
            Generation(
                reply.ids,
                self.renderer.decode(reply.ids[:-1] if reply.finished else reply.ids),
                reply.log_probs,
                reply.finished,
            )
            for reply in replies
        ]

    def probabilities(
        self, prefixes: ServedPrefixes, rows: Sequence[tuple[int, Sequence[int]]], token_ids: Sequence[int]
    ) -> Tensor:
        """Return softmax probabilities of tokens after (question, branch) rows: float32 of shape (rows, tokens)."""
        # vLLM replaces the last id by the sampled token, so a duplicate is appended
        listed = [*token_ids, token_ids[0]]
        sampling = {"max_tokens": 1, "logprobs": len(listed), "logprob_token_ids": listed}
        replies = self._ask(prefixes, rows, sampling)
        if missing := [reply for reply in replies if not {*token_ids} <= {*reply.first}]:
            raise UserError(
                f"{self.server.endpoint.shown_url} left out log-probabilities of {len(missing):,} of {len(replies):,} "
                "replies; use vLLM 0.32 or later, which takes `logprob_token_ids`"
            )
        values = [[math.exp(reply.first[token_id]) for token_id in token_ids] for reply in replies]
        return torch.tensor(values, dtype=torch.float32).reshape(len(rows), len(token_ids))

    def ask(self, prefix: Rendered, sampling: dict[str, Any]) -> list[TokenReply]:
        """Return the reply to one prefix, under vLLM's `SamplingParams`."""
        return self.server.generate_all([self._request(prefix, (), sampling)])

    def check_numbers(self, *values: float) -> None:
        """Do nothing: a reply with NaN is refused as it is read."""

    def _ask(
        self, prefixes: ServedPrefixes, rows: Sequence[tuple[int, Sequence[int]]], sampling: dict[str, Any]
    ) -> list[TokenReply]:
        """Send rows. For each question whose prefix has not been read, one row is sent before the others."""
        first = {q: i for i, (q, _) in reversed([*enumerate(rows)]) if q not in prefixes.sent}
        leading = sorted(first.values())
        waves = [leading, sorted({*range(len(rows))} - {*leading})]
        replies: dict[int, TokenReply] = {}
        for wave in waves:
            requests = [self._request(prefixes.prefixes[rows[i][0]], rows[i][1], sampling) for i in wave]
            replies.update(zip(wave, self.server.generate_all(requests), strict=True))
            for i in wave:
                question, cached = rows[i][0], replies[i].cached
                length = len(prefixes.prefixes[question].ids)
                if question in prefixes.sent:
                    self.repeated += length
                    self.cached = self.cached if cached is None else (self.cached or 0) + min(cached, length)
                prefixes.sent.add(question)
        return [replies[i] for i in range(len(rows))]

    def _request(self, prefix: Rendered, branch: Sequence[int], sampling: dict[str, Any]) -> TokenRequest:
        return request_after(prefix, branch, sampling, self._urls, self.renderer)
