"""Image prefixes: the beginning that questions about the same images share, up to just after the last image."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch

from reflectune.models.attention.images import content_key
from reflectune.models.prefix.rows import Level, Rows
from reflectune.models.rendering.renderer import Rendered

Kept = TypeVar("Kept")
SAMPLED = 64
"""Values of an image that are compared before whole images are."""
WORTHWHILE = 512
"""Minimum tokens to save that are worth another forward pass: more than a small image, as many as LLaVA-1.5's."""


def split_after_images(prefix: Rendered, image_token_id: int) -> tuple[Rendered, list[int]] | None:
    """Split a prefix after the token that follows its last image.

    That token belongs to the first part: positions continue from a text token, and M-RoPE advances by an image's size.

    Returns:
        The image prefix and the ids that follow it; None without an image, if fewer than two tokens follow it, or if
        it has images that no other prompt shares.
    """
    if prefix.own_images or image_token_id not in prefix.ids:
        return None
    end = len(prefix.ids) - prefix.ids[::-1].index(image_token_id) + 1
    if end >= len(prefix.ids):
        return None
    return Rendered(prefix.ids[:end], prefix.labels[:end], prefix.vision), prefix.ids[end:]


def key_of(image_prefix: Rendered) -> str:
    """Return a hash that two image prefixes share if their tokens and images are equal."""
    return hashlib.blake2b(
        str(image_prefix.ids).encode() + content_key(image_prefix.vision), digest_size=16
    ).hexdigest()


def sample_of(image_prefix: Rendered) -> tuple[Any, ...]:
    """Return values that equal image prefixes share and others hardly: a hash of whole images takes milliseconds."""
    rows = (tensor.flatten()[:: tensor.numel() // SAMPLED + 1].tolist() for tensor in image_prefix.vision.values())
    return (*image_prefix.ids, *itertools.chain.from_iterable(rows))


def shared_image_prefixes(
    prefixes: Sequence[Rendered], image_token_id: int, kept: bool
) -> dict[int, tuple[str, Rendered, list[int]]]:
    """Return (key, image prefix, suffix) by question, for prefixes whose images others read, now or later.

    Args:
        prefixes: Questions' prefixes.
        image_token_id: Id of an image's tokens.
        kept: Share every image, since image prefixes are cached for later calls.
    """
    found = {q: parts for q, prefix in enumerate(prefixes) if (parts := split_after_images(prefix, image_token_id))}
    if not kept:
        samples = {q: sample_of(image_prefix) for q, (image_prefix, _) in found.items()}
        alike = Counter(samples.values())
        found = {q: parts for q, parts in found.items() if alike[samples[q]] > 1}
    parts_by_question = {q: (key_of(parts[0]), *parts) for q, parts in found.items()}
    if kept:
        return parts_by_question
    often = Counter(key for key, _, _ in parts_by_question.values())
    shared = {q: parts for q, parts in parts_by_question.items() if often[parts[0]] > 1}
    lengths = {key: len(image_prefix.ids) for key, image_prefix, _ in shared.values()}
    saved = sum((often[key] - 1) * length for key, length in lengths.items())
    return shared if saved >= WORTHWHILE else {}


def stacked(image_prefixes: Sequence[Rows]) -> Rows:
    """Stack image prefixes of one row each into one batch, padded to the longest."""
    if len(image_prefixes) == 1:
        return image_prefixes[0]
    level = Level.stacked([image_prefix.last_level for image_prefix in image_prefixes])
    row = torch.arange(len(image_prefixes), device=level.real.device)
    next_position = torch.cat([image_prefix.next_position for image_prefix in image_prefixes])
    hidden = torch.cat([image_prefix.hidden for image_prefix in image_prefixes])
    return Rows((level,), (row,), next_position, hidden)


class ImagePrefixCache(Generic[Kept]):
    """LRU cache of keys and values of image prefixes, by `key_of`.

    Args:
        most: Number of image prefixes to keep.
        max_bytes: Maximum bytes that they take together; the one used last is kept even if it takes more.

    Attributes:
        bytes: Bytes of those that are cached.
    """

    def __init__(self, most: int, max_bytes: float = math.inf) -> None:
        self.most, self._max_bytes = most, max_bytes
        self._kept: OrderedDict[str, tuple[Kept, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str) -> Kept | None:
        """Return the cached image prefix, or None, and mark it as used."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def keep(self, least: int) -> None:
        """Raise the number of image prefixes to `least` or more."""
        self.most = max(self.most, least)

    def put(self, key: str, image_prefix: Kept, size: int) -> None:
        """Cache an image prefix of one row that owns its memory, and drop those used longest ago if full.

        Args:
            key: From `key_of`.
            image_prefix: Its keys and values.
            size: Their bytes.
        """
        if not self.most:
            return
        self.bytes += size - self._kept.pop(key, (None, 0))[1]
        self._kept[key] = image_prefix, size
        while len(self._kept) > self.most or (self.bytes > self._max_bytes and len(self._kept) > 1):
            self.bytes -= self._kept.popitem(last=False)[1][1]
