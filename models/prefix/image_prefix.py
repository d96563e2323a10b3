"""Image prefixes: the tokens up to just after the last image, which questions about the same images share."""

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

CachedPrefix = TypeVar("CachedPrefix")
SAMPLED = 64
"""Values of each image tensor that are compared before whole images are hashed."""
WORTHWHILE = 512
"""Minimum saved tokens that are worth another forward pass: more than a small image's, fewer than LLaVA-1.5's 576."""


def split_after_images(prefix: Rendered, image_token_id: int) -> tuple[Rendered, list[int]] | None:
    """Split a prefix after the token that follows its last image.

    The first part includes that token, so that positions continue from a text token: under M-RoPE an image advances
    them by its size.

    Returns:
        The image prefix, and the ids after it. None for a prefix without an image, with an image at its end, or with
        images that only this prompt shows.
    """
    if prefix.own_images or image_token_id not in prefix.ids:
        return None
    end = len(prefix.ids) - prefix.ids[::-1].index(image_token_id) + 1
    if end >= len(prefix.ids):
        return None
    return Rendered(prefix.ids[:end], prefix.labels[:end], prefix.vision), prefix.ids[end:]


def image_prefix_key(image_prefix: Rendered) -> str:
    """Return a hash of an image prefix's tokens and images."""
    return hashlib.blake2b(
        str(image_prefix.ids).encode() + content_key(image_prefix.vision), digest_size=16
    ).hexdigest()


def image_prefix_sample(image_prefix: Rendered) -> tuple[Any, ...]:
    """Return a cheap sample of an image prefix, to find candidates for equality: hashing whole images is slow."""
    rows = (tensor.flatten()[:: tensor.numel() // SAMPLED + 1].tolist() for tensor in image_prefix.vision.values())
    return (*image_prefix.ids, *itertools.chain.from_iterable(rows))


def shared_image_prefixes(
    prefixes: Sequence[Rendered], image_token_id: int, share_all: bool
) -> dict[int, tuple[str, Rendered, list[int]]]:
    """Return (key, image prefix, suffix) by question, for the prefixes whose images should be read separately.

    Args:
        prefixes: The questions' prefixes.
        image_token_id: Id of image tokens.
        share_all: Return every image prefix, since they are cached for later calls. Otherwise only those that several
            questions share, and only if that saves enough tokens.
    """
    splits = {q: split_after_images(prefix, image_token_id) for q, prefix in enumerate(prefixes)}
    candidates = {q: split for q, split in splits.items() if split is not None}
    if not share_all:
        samples = {q: image_prefix_sample(image_prefix) for q, (image_prefix, _) in candidates.items()}
        sample_counts = Counter(samples.values())
        candidates = {q: split for q, split in candidates.items() if sample_counts[samples[q]] > 1}
    keyed = {q: (image_prefix_key(split[0]), *split) for q, split in candidates.items()}
    if share_all:
        return keyed
    counts = Counter(key for key, _, _ in keyed.values())
    shared = {q: parts for q, parts in keyed.items() if counts[parts[0]] > 1}
    lengths = {key: len(image_prefix.ids) for key, image_prefix, _ in shared.values()}
    saved = sum((counts[key] - 1) * length for key, length in lengths.items())
    return shared if saved >= WORTHWHILE else {}


def stack_image_prefixes(image_prefixes: Sequence[Rows]) -> Rows:
    """Stack image prefixes of one row each into one batch, padded to the longest."""
    if len(image_prefixes) == 1:
        return image_prefixes[0]
    level = Level.stack([image_prefix.last_level for image_prefix in image_prefixes])
    row = torch.arange(len(image_prefixes), device=level.real.device)
    next_position = torch.cat([image_prefix.next_position for image_prefix in image_prefixes])
    hidden = torch.cat([image_prefix.hidden for image_prefix in image_prefixes])
    return Rows((level,), (row,), next_position, hidden)


class ImagePrefixCache(Generic[CachedPrefix]):
    """LRU cache of keys and values of image prefixes, by `image_prefix_key`.

    Args:
        max_entries: Maximum image prefixes to cache.
        max_bytes: Maximum bytes of all; the last one is cached even if it alone takes more.

    Attributes:
        bytes: Bytes of the cached image prefixes.
    """

    def __init__(self, max_entries: int, max_bytes: float = math.inf) -> None:
        self.max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[str, tuple[CachedPrefix, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> CachedPrefix | None:
        """Return a cached image prefix and mark it as recently used; None if it isn't cached."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def keep(self, entries: int) -> None:
        """Make room for at least this many image prefixes."""
        self.max_entries = max(self.max_entries, entries)

    def put(self, key: str, image_prefix: CachedPrefix, size: int) -> None:
        """Cache an image prefix of one row, which must own its memory; drop the least recently used if full.

        Args:
            key: From `image_prefix_key`.
            image_prefix: Its keys and values.
            size: Bytes of its keys and values.
        """
        if not self.max_entries:
            return
        self.bytes += size - self._entries.pop(key, (None, 0))[1]
        self._entries[key] = image_prefix, size
        while len(self._entries) > self.max_entries or (self.bytes > self._max_bytes and len(self._entries) > 1):
            self.bytes -= self._entries.popitem(last=False)[1][1]
