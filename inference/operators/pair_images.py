"""Images of retrieved pairs, to be shown in prompts next to the pairs' texts."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from reflectune.core.config import Settings, setting
from reflectune.core.images import BadImage, load_image
from reflectune.core.types import Passage
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.operators.requests import SearchReply

_MAX_PIXELS = 448 * 448
"""Maximum pixels of an image; a larger one is scaled down."""
_CACHED = 256
"""Number of scaled images in the cache."""


class PairImageSettings(Settings):
    """Images of pairs in prompts."""

    pair_images: int = setting(
        0,
        "MI-RAG, PMSR: maximum pairs of an iteration whose images are shown with their texts; papers: all 10",
        ge=0,
    )


@dataclass(frozen=True)
class PairImages:
    """Images of a knowledge base's entries, scaled down.

    Attributes:
        knowledge: The entries.
    """

    knowledge: KnowledgeBase

    def path_of(self, entry_id: str) -> str:
        """Return the path of an entry's first image; "" if it has no image, or a damaged one."""
        entry = self.knowledge.get(entry_id)
        path = str(self.knowledge.image_path(entry)) if entry.images else ""
        try:
            return path if path and self.load(path) else ""
        except BadImage:
            return ""

    def load(self, path: str) -> Image.Image:
        """Return an image, scaled down if it is large.

        Raises:
            BadImage: The image is missing or damaged.
        """
        return _scaled(path, (self.knowledge.image_root, self.knowledge.folder.parent))


@functools.lru_cache(maxsize=_CACHED)
def _scaled(path: str, roots: tuple[object, ...]) -> Image.Image:
    image: Image.Image = load_image(path, root=roots)  # type: ignore[arg-type]  # paths
    factor = math.sqrt(_MAX_PIXELS / (image.width * image.height))
    if factor >= 1:
        return image
    return image.resize((max(1, int(image.width * factor)), max(1, int(image.height * factor))))


def images_of(found: SearchReply, passages: Sequence[Passage], max_images: int) -> Mapping[int, str]:
    """Return the paths of the images of the first pairs among passages, by position in `passages`.

    Args:
        found: The search that found them.
        passages: Merged passages, in the order of the documents.
        max_images: Maximum number of images.
    """
    paths = {hit.passage: hit.image for hit in found.all_hits if hit.image}
    pairs = [(position, paths[passage]) for position, passage in enumerate(passages) if passage in paths]
    return dict(pairs[:max_images])
