"""Context of a server's model: its length, and the tokens of a prompt before it is sent."""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from reflectune.core.errors import UserError
from reflectune.core.images import read_header
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.pictures import content_of, url_key
from reflectune.models.remote.transport import Refused, Transport

_BYTES_OF_TOKEN: Final = 3
"""UTF-8 bytes of a token, at least: English has 4 and more."""
_PIXELS_OF_TOKEN: Final = 28 * 28
_LEAST_PICTURE: Final = 576
"""Tokens of a picture by the rule without a tokenizer: Qwen2-VL's, and at least LLaVA-1.5's."""
_MARKS: Final = 4
"""Most tokens of a picture's place where a server counts the place, and not the picture."""
_TEMPLATE: Final = 64
"""Most tokens that a chat template adds."""


class ServerContext:
    """The context of a server's model.

    Prompts are counted by vLLM's `/tokenize`, or by a rule: a token for three bytes, and for 28 x 28 pixels.

    Args:
        endpoint: The server and the model.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pictures: dict[str, int] = {}

    @functools.cached_property
    def longest(self) -> int:
        """Most tokens of a prompt and its reply: `max_model_len` of `/v1/models`, or `llm_context`; 0 if unknown."""
        try:
            listed = json.loads(self._transport("").get("/models"))["data"]
            given = [int(it.get("max_model_len") or 0) for it in listed if it["id"] == self._endpoint.model]
        except (Refused, UserError, ValueError, KeyError, TypeError, AttributeError):
            given = []
        return min(filter(None, (*given, self._endpoint.context)), default=0)

    def at_most(self, messages: Sequence[dict[str, Any]]) -> int:
        """Return an upper bound of the tokens of a conversation; texts are not sent for it."""
        texts, urls = _taken_apart(messages)
        return _bytes(texts) + _TEMPLATE + sum(map(self._picture, urls))

    def count(self, messages: Sequence[dict[str, Any]]) -> int:
        """Return the tokens of a conversation. Each picture is counted alone, once."""
        texts, urls = _taken_apart(messages)
        return self._count(texts) + sum(map(self._picture, urls))

    def _picture(self, url: str) -> int:
        key = url_key(url)
        if key not in self._pictures:
            text = {"type": "text", "text": "What is it?"}
            shown = {"type": "image_url", "image_url": {"url": url}}
            alone, without = ([{"role": "user", "content": content}] for content in ([shown, text], [text]))
            counted = self._count(alone) - self._count(without) if self._tokenizes else 0
            self._pictures[key] = counted if counted > _MARKS else _picture_rule(url)
        return self._pictures[key]

    def _count(self, messages: Sequence[dict[str, Any]]) -> int:
        if not self._tokenizes:
            return _bytes(messages) // _BYTES_OF_TOKEN + _TEMPLATE
        try:
            return self._tokenize(messages) or 0
        except Refused:
            return self.longest + 1  # longer than the context

    @functools.cached_property
    def _tokenizes(self) -> bool:
        """True if the server counts the tokens of conversations."""
        try:
            return bool(self._tokenize([{"role": "user", "content": "Say yes."}]))
        except (Refused, UserError):
            return False

    def _tokenize(self, messages: Sequence[dict[str, Any]]) -> int | None:
        kwargs = self._endpoint.options.get("chat_template_kwargs")
        body = {
            "model": self._endpoint.model,
            "messages": messages,
            **({"chat_template_kwargs": kwargs} if kwargs else {}),
        }
        return self._tokenizer.post(body, lambda value: value.get("count"))

    @functools.cached_property
    def _tokenizer(self) -> Transport:
        return self._transport("/tokenize")

    def _transport(self, path: str) -> Transport:
        url = self._endpoint.url.strip().rstrip("/")
        endpoint = replace(self._endpoint, url=url.removesuffix("/v1") if path else url)
        transport = Transport(endpoint, path)
        weakref.finalize(self, transport.close)
        return transport


def _taken_apart(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a conversation without its pictures, and the pictures' URLs."""
    texts, urls = [], []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            urls += [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
            content = [part for part in content if part["type"] != "image_url"]
        texts.append({**message, "content": content})
    return texts, urls


def _bytes(messages: Sequence[dict[str, Any]]) -> int:
    contents = [message["content"] for message in messages]
    texts = [it if isinstance(it, str) else "".join(part["text"] for part in it) for it in contents]
    return sum(len(text.encode()) for text in texts)


def _picture_rule(url: str) -> int:
    header = read_header(content_of(url))
    return max(_LEAST_PICTURE, header.width * header.height // _PIXELS_OF_TOKEN)
