"""Context length of a server's model, and token counts of prompts before they are sent."""

from __future__ import annotations

import base64
import functools
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from reflectune.core.errors import UserError
from reflectune.core.images import read_header
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.images import url_key
from reflectune.models.remote.transport import Refused, Transport

_BYTES_OF_TOKEN: Final = 3
_PIXELS_OF_TOKEN: Final = 28 * 28
_MIN_IMAGE: Final = 576
_PLACEHOLDER: Final = 4
"""Maximum tokens of an image if a server counts only its placeholder."""
_TEMPLATE: Final = 64
"""Maximum tokens that a chat template adds."""


class ServerContext:
    """The context of a server's model.

    Prompts are counted by vLLM's `/tokenize`. Otherwise they are estimated: a token per three bytes of text and per
    28 x 28 pixels, at least 576 for an image.

    Args:
        endpoint: The server and the model.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._images: dict[str, int] = {}
        url = endpoint.url.strip().rstrip("/")
        self._root = url.removesuffix("/v1")  # where vLLM has /tokenize
        self._models = url.removeprefix(self._root) + "/models"

    @functools.cached_property
    def _transport(self) -> Transport:
        transport = Transport(replace(self._endpoint, url=self._root), "/tokenize")
        weakref.finalize(self, transport.close)
        return transport

    @functools.cached_property
    def longest(self) -> int:
        """Maximum tokens of a prompt and its reply: `max_model_len` of `/v1/models`, or `llm_context`; 0 if unknown."""
        try:
            given = listed_length(json.loads(self._transport.get(self._models))["data"], self._endpoint.model)
        except (Refused, UserError, ValueError, KeyError, TypeError, AttributeError):
            given = 0
        return min(filter(None, (given, self._endpoint.context)), default=0)

    def upper_bound(self, messages: Sequence[dict[str, Any]]) -> int:
        """Return an upper bound of a conversation's tokens, without sending its texts."""
        texts, images = self._parts(messages)
        return _bytes(texts) + _TEMPLATE + images

    def count(self, messages: Sequence[dict[str, Any]]) -> int:
        """Count the tokens of a conversation. Each image is counted once, separately."""
        texts, images = self._parts(messages)
        return self._count(texts) + images

    def _parts(self, messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
        """Return a conversation without its images, and their tokens."""
        texts, images = [], 0
        for message in messages:
            content = message["content"]
            if isinstance(content, list):
                images += sum(self._image(part["image_url"]["url"]) for part in content if part["type"] == "image_url")
                content = [part for part in content if part["type"] != "image_url"]
            texts.append({**message, "content": content})
        return texts, images

    def _image(self, url: str) -> int:
        if (key := url_key(url)) not in self._images:
            text = {"type": "text", "text": "What is it?"}
            image = {"type": "image_url", "image_url": {"url": url}}
            with_image, without = ([{"role": "user", "content": content}] for content in ([image, text], [text]))
            counted = self._count(with_image) - self._count(without) if self._tokenizes else 0
            header = read_header(base64.b64decode(url.partition(",")[2]))
            estimate = max(_MIN_IMAGE, header.width * header.height // _PIXELS_OF_TOKEN)
            self._images[key] = counted if counted > _PLACEHOLDER else estimate
        return self._images[key]

    def _count(self, messages: Sequence[dict[str, Any]]) -> int:
        if not self._tokenizes:
            return _bytes(messages) // _BYTES_OF_TOKEN + _TEMPLATE
        try:
            return self._tokenize(messages)
        except Refused:
            return self.longest + 1  # longer than the context

    @functools.cached_property
    def _tokenizes(self) -> bool:
        """True if the server counts the tokens of conversations."""
        try:
            return bool(self._tokenize([{"role": "user", "content": "Say yes."}]))
        except (Refused, UserError):
            return False

    def _tokenize(self, messages: Sequence[dict[str, Any]]) -> int:
        switches = {name: value for name, value in self._endpoint.options.items() if name == "chat_template_kwargs"}
        body = {"model": self._endpoint.model, "messages": messages, **switches}
        return self._transport.post(body, lambda value: int(value.get("count") or 0))


def listed_length(models: Sequence[Mapping[str, Any]], name: str) -> int:
    """Return the context length of a model in `/v1/models`, of its base if it is an adapter; 0 if unknown."""
    lengths = {model["id"]: int(model.get("max_model_len") or 0) for model in models}
    parents = {model["id"]: model.get("parent") for model in models}  # vLLM gives an adapter no `max_model_len`
    return lengths.get(name) or lengths.get(parents.get(name), 0)


def _bytes(messages: Sequence[dict[str, Any]]) -> int:
    contents = [message["content"] for message in messages]
    texts = [content if isinstance(content, str) else "".join(part["text"] for part in content) for content in contents]
    return sum(len(text.encode()) for text in texts)
