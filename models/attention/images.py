"""Repeated images in a batch: the vision tower reads each distinct image once, and its features are repeated.

The gradients are exact too: an image's gradient is the sum of the gradients of its copies.
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
"""Batch key for cached features of a frozen vision tower, which replace `pixel_values`."""

_PER_IMAGE = ("image_grid_thw", "image_sizes", "batch_num_images")
"""Vision tensors with one row per image."""


def content_key(vision: Mapping[str, Tensor]) -> bytes:
    """Return a hash of vision tensors: names, shapes, dtypes and values."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(vision.items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()


def read_images_once(model: nn.Module) -> None:
    """Let a model's vision tower read a repeated image once; the model's output is unchanged."""
    inner: Any = inner_model(model).model
    inner.get_image_features = MethodType(get_image_features, inner)


def get_image_features(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the class's `get_image_features` on the distinct images, and repeat the features.

    Pickle refers to this function by its name.
    """
    names = list(inspect.signature(type(model).get_image_features).parameters)[1:]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    vision, indices = deduplicate_images(arguments)
    output = type(model).get_image_features(model, **arguments | vision)
    if indices is not None:
        output.pooler_output = _repeat(output.pooler_output, indices)
        if "deepstack_features" in output:  # Qwen3-VL has features of several layers
            output.deepstack_features = [_repeat(features, indices) for features in output.deepstack_features]
    return output


def deduplicate_images(vision: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[int] | None]:
    """Return the vision tensors of the distinct images, and each image's index among them; None if all are distinct.

    For InternVL the images are tiles. Images with other tensors, such as Idefics3's masks, are returned as they are.
    """
    pixels, grids = vision["pixel_values"], vision.get("image_grid_thw")
    if any(isinstance(value, Tensor) for name, value in vision.items() if name not in ("pixel_values", *_PER_IMAGE)):
        return {"pixel_values": pixels}, None
    per_image = {name: vision[name] for name in _PER_IMAGE if vision.get(name) is not None}
    images = pixels.unbind() if grids is None else pixels.split(grids.prod(-1).tolist())
    rows = zip(*(tensor.tolist() for tensor in per_image.values()), strict=True) if per_image else [()] * len(images)
    first = first_equal(images, [str(row) for row in rows])
    distinct = list(dict.fromkeys(first))
    if len(distinct) == len(first):
        return {"pixel_values": pixels, **per_image}, None
    tensors = {name: tensor[distinct] for name, tensor in per_image.items()}
    tensors["pixel_values"] = pixels[distinct] if grids is None else torch.cat([images[index] for index in distinct])
    return tensors, [distinct.index(index) for index in first]


def first_equal(images: Sequence[Tensor], extras: Sequence[str]) -> list[int]:
    """Return for each image the index of the first image that is equal to it.

    Args:
        images: Pixels. Only images with equal sums are compared pixel by pixel.
        extras: Other data that must be equal, e.g. the patch grid: a black image has the same pixels in any grid.
    """
    if len(images) < 2:
        return list(range(len(images)))
    sums = torch.stack([image.sum(dtype=torch.float32) for image in images]).tolist()
    distinct: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    first_indices = []
    for index, (image, total, extra) in enumerate(zip(images, sums, extras, strict=True)):
        candidates = distinct[tuple(image.shape), total, extra]
        first = next((candidate for candidate in candidates if torch.equal(images[candidate], image)), index)
        if first == index:
            candidates.append(index)
        first_indices.append(first)
    return first_indices


def _repeat(features: Tensor | Sequence[Tensor], indices: list[int]) -> Tensor | list[Tensor]:
    """Select each image's features, from (images, tokens, size) or a list of (tokens, size), by its index."""
    return features[indices] if isinstance(features, Tensor) else [features[index] for index in indices]
