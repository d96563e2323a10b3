"""A model behind vLLM's endpoint for token ids (`--enable-scale-out`): unlike text, ids can't be forged."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from reflectune.core.errors import UnusableInput, UserError
from reflectune.models.remote.context import listed_length
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.images import ImageUrls, url_key
from reflectune.models.remote.transport import NotServed, Refused, Transport
from reflectune.models.rendering.renderer import Rendered, Renderer

GENERATE: Final = "/inference/v1/generate"
_NOT_A_NUMBER: Final = -9000.0
"""vLLM sends -9999 for NaN and for probability 0. For the most likely token it must be NaN."""


@dataclass(frozen=True)
class TokenRequest:
    """A sequence to continue, greedily unless `sampling` says otherwise.

    Attributes:
        ids: Token ids, an image as one image token.
        images: The images' data URLs, in order.
        length: Length of the sequence with the images' tokens, as the checkpoint's processor counts them.
        sampling: vLLM's `SamplingParams`.
    """

    ids: Sequence[int]
    images: Sequence[str]
    length: int
    sampling: Mapping[str, Any]


@dataclass(frozen=True)
class TokenReply:
    """A continuation.

    Attributes:
        ids: Generated ids, the end token included.
        log_probs: Their natural log-probabilities.
        first: Log-probabilities of the requested ids as first token.
        prompt: The prompt's ids as the server read them.
        finished: True if the end token was reached.
        cached: Prompt tokens that were in the prefix cache; None without `--enable-prompt-tokens-details`.
    """

    ids: list[int]
    log_probs: list[float]
    first: Mapping[int, float]
    prompt: list[int]
    finished: bool
    cached: int | None


def request_after(
    prefix: Rendered, branch: Sequence[int], sampling: Mapping[str, Any], urls: ImageUrls, renderer: Renderer
) -> TokenRequest:
    """Return the request for a reply after a prefix and token ids that follow it.

    Args:
        prefix: The prefix, with its images.
        branch: Token ids.
        sampling: vLLM's `SamplingParams`.
        urls: Cache of the images' data URLs.
        renderer: Renderer of the model.
    """
    ids = prefix.ids
    if ranges := [(start, end) for _, start, end in prefix.images]:
        ids = renderer.line_breaks.collapse(ids, ranges, renderer.expansion, renderer.image_token_id)
    sent = [urls.of(image) for image, *_ in prefix.images]
    return TokenRequest([*ids, *branch], sent, len(prefix.ids) + len(branch), sampling)


class TokenServer:
    """A model on a server that takes token ids and images.

    Args:
        endpoint: The server. Its URL may end with `/v1`; `find` sets its model's name.

    Attributes:
        salt: Prefixes and images cached under a different salt are not reused; "" for the shared cache.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        url = endpoint.url.strip().rstrip("/")
        self.endpoint = replace(endpoint, url=url.removesuffix("/v1"))
        self._transport = Transport(self.endpoint, GENERATE)
        weakref.finalize(self, self._transport.close)
        self.salt = ""

    def generate_all(self, requests: Sequence[TokenRequest]) -> list[TokenReply]:
        """Send requests in their order, several at a time, and return the replies.

        Raises:
            UnusableInput: The server refuses a request.
            UserError: The server can't be used, or gives no log-probabilities.
        """
        if not requests:
            return []
        with ThreadPoolExecutor(min(self.endpoint.concurrency, len(requests))) as pool:
            futures = [pool.submit(self._generate, request) for request in requests]
            try:
                replies = [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return replies

    def tokenize(self, **prompt: Any) -> list[int]:
        """Return the server's token ids of `prompt`, or of `messages`."""
        with closing(Transport(self.endpoint, "/tokenize")) as transport:
            body = {"model": self.endpoint.model, **prompt}
            return transport.post(body, lambda value: [int(token_id) for token_id in value["tokens"]])

    def find(self, name: str) -> int:
        """Select the server's model of this name or folder, and return its context length; 0 if unknown.

        Raises:
            UserError: The server doesn't list models, or doesn't serve this one.
        """
        try:
            listed = json.loads(self._transport.get("/v1/models"))["data"]
            ids = [str(model["id"]) for model in listed]
            folders = [Path(str(model.get("root") or model["id"])).resolve() for model in listed]
            longest = [listed_length(listed, name) for name in ids]
        except (Refused, NotServed, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self.endpoint.shown_url} is not vLLM's server: it lists no models ({error})") from None
        for i, folder in enumerate(folders):
            if name == ids[i] or (name not in ids and Path(name).resolve() == folder):
                self.endpoint = replace(self.endpoint, model=ids[i])
                return longest[i]
        raise UserError(
            f"{self.endpoint.shown_url} serves {', '.join(ids) or 'no model'}, not {name}; start vLLM with "
            f"--served-model-name {name}"
        )

    def _generate(self, request: TokenRequest) -> TokenReply:
        body = {
            "model": self.endpoint.model,
            "token_ids": [*request.ids],
            "sampling_params": {"temperature": 0, "detokenize": False, **request.sampling},
            "return_token_ids": True,
        }
        if self.salt:
            body["cache_salt"] = self.salt
        if request.images:
            parts = [{"type": "image_url", "url": url, "uuid": url_key(url) + self.salt} for url in request.images]
            body["content_parts"] = parts
        try:
            reply = self._transport.post(body, self._read)
        except Refused as error:
            raise UnusableInput(f"{self.endpoint.shown_url} refuses a request: {error}") from None
        except NotServed:
            raise UserError(
                f"{self.endpoint.shown_url} has no {GENERATE}, or no model {self.endpoint.model}: start vLLM (0.32 or "
                "later) with --enable-scale-out"
            ) from None
        if len(reply.prompt) != request.length:
            raise UserError(
                f"{self.endpoint.shown_url} reads {len(reply.prompt)} tokens where the checkpoint's processor makes "
                f"{request.length}: it preprocesses images differently; serve the checkpoint's own processor, with "
                "the command that `reflectune export` prints"
            )
        return reply

    def _read(self, value: Any) -> TokenReply:
        choice = value["choices"][0]
        ids = [int(token_id) for token_id in choice["token_ids"]]
        if choice["finish_reason"] not in ("stop", "length") or not ids:
            raise ValueError(f"unexpected finish reason {choice['finish_reason']}")
        content = (choice.get("logprobs") or {}).get("content") or []
        if len(content) != len(ids):
            raise UserError(
                f"{self.endpoint.shown_url} gives no log-probabilities: found {len(content)} for {len(ids)} tokens; "
                "start vLLM without --max-logprobs 0"
            )
        log_probs = [float(token["logprob"]) for token in content]
        if any(math.isnan(value) or value < _NOT_A_NUMBER for value in log_probs):
            raise UserError(
                f"{self.endpoint.shown_url} computes NaN: float16 overflows in some models, where bfloat16 does not "
                "(`--dtype bfloat16`); else the weights that it serves are damaged"
            )
        first = {int(token["token_id"]): float(token["logprob"]) for token in content[0].get("top_logprobs") or ()}
        finished = choice["finish_reason"] == "stop"
        cached = ((value.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        return TokenReply(ids, log_probs, first, [int(i) for i in value["prompt_token_ids"]], finished, cached)
