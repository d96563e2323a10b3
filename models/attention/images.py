"""Repeated images in a batch: the vision tower reads each once, and its features are used in every position.

Exact in both directions: an image's gradient is the sum of the gradients of its positions.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from reflectune.models.attention.positions import inner_model

FEATURES = "tower_features"
"""Key of a batch for the features of a frozen vision tower, in place of pixels."""

_OF_EACH = ("image_grid_thw", "image_sizes", "batch_num_images")
"""Tensors with one row an image, next to its pixels."""


def content_key(vision: Mapping[str, Tensor]) -> bytes:
    """Return a hash that is equal for vision tensors of the same content only."""
    made = hashlib.blake2b(digest_size=16)
    for name, value in sorted(vision.items()):
        made.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        made.update(value.contiguous().view(torch.uint8).numpy().data)
    return made.digest()


def read_images_once(model: nn.Module) -> None:
    """Let a model's vision tower read a repeated image once; the model's output is unchanged."""
    inner: Any = inner_model(model).model
    inner.get_image_features = MethodType(get_image_features, inner)


def get_image_features(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the class's `get_image_features` on the distinct images, and repeat the features.

    Pickle refers to this function by its name.
    """
    names = list(inspect.signature(type(model).get_image_features).parameters)[1:]
    given = dict(zip(names, args, strict=False)) | kwargs
    vision, places = without_repeats(given)
    output = type(model).get_image_features(model, **given | vision)
    if places is not None:
        output.pooler_output = _repeated(output.pooler_output, places)
        if "deepstack_features" in output:  # Qwen3-VL's, of several layers
            output.deepstack_features = [_repeated(features, places) for features in output.deepstack_features]
    return output


def without_repeats(vision: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[int] | None]:
    """Return vision tensors with each image once, and each image's index among them; None if none is repeated.

    InternVL's images are tiles here, and get features one by one.
    """
    pixels, grids = vision["pixel_values"], vision.get("image_grid_thw")
    others = {name: vision[name] for name in _OF_EACH if vision.get(name) is not None}
    images = pixels.unbind() if grids is None else pixels.split(grids.prod(-1).tolist())
    rows = zip(*(tensor.tolist() for tensor in others.values()), strict=True) if others else [()] * len(images)
    places = places_of(images, [str(row) for row in rows])
    kept = list(dict.fromkeys(places))
    if len(kept) == len(places):
        return {"pixel_values": pixels, **others}, None
    once = {name: tensor[kept] for name, tensor in others.items()}
    once["pixel_values"] = pixels[kept] if grids is None else torch.cat([images[place] for place in kept])
    return once, [kept.index(place) for place in places]


def places_of(images: Sequence[Tensor], extras: Sequence[str]) -> list[int]:
    """Return for each image the index of the first equal image, its own if there is none before it.

    Args:
        images: Pixels; compared one by one where their sums are equal.
        extras: Other data that must be equal, e.g. the patch grid: a black image has the same pixels in any grid.
    """
    if len(images) < 2:
        return list(range(len(images)))
    sums = torch.stack([image.sum(dtype=torch.float32) for image in images]).tolist()
    firsts: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    places = []
    for place, (image, total, words) in enumerate(zip(images, sums, extras, strict=True)):
        like = firsts[tuple(image.shape), total, words]
        first = next((each for each in like if torch.equal(images[each], image)), place)
        if first == place:
            like.append(place)
        places.append(first)
    return places


def _repeated(features: Tensor | Sequence[Tensor], places: list[int]) -> Tensor | list[Tensor]:
    """Repeat features by image, (images, tokens, size) or a list of (tokens, size), for every position."""
    return features[places] if isinstance(features, Tensor) else [features[place] for place in places]
