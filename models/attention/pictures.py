"""Pictures that several questions of a batch are about: the vision tower reads each once, and its features are used in
every place.

Exact in both directions: a picture's gradient is the sum of those of its places.
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
"""What a batch calls what a frozen vision tower said of its pictures, in the place of their pixels."""

_OF_EACH = ("image_grid_thw", "image_sizes")
"""What is told of each picture beside its pixels."""


def content_key(vision: Mapping[str, Tensor]) -> bytes:
    """The same for vision tensors of the same content, and for no others."""
    made = hashlib.blake2b(digest_size=16)
    for name, value in sorted(vision.items()):
        made.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        made.update(value.contiguous().view(torch.uint8).numpy().data)
    return made.digest()


def read_pictures_once(model: nn.Module) -> None:
    """Let a model's vision tower read a picture once that it is given several times; what it computes is the same."""
    inner: Any = inner_model(model).model
    inner.get_image_features = MethodType(get_image_features, inner)


def get_image_features(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The class's own `get_image_features` of the different pictures, repeated wherever they are given again.

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
    """Vision tensors with each picture once, and where among these each picture is; None if none is repeated.

    InternVL's pictures are tiles here, which it gives features for one by one.
    """
    pixels, grids = vision["pixel_values"], vision.get("image_grid_thw")
    beside = {name: vision[name] for name in _OF_EACH if vision.get(name) is not None}
    pictures = pixels.unbind() if grids is None else pixels.split(grids.prod(-1).tolist())
    told = zip(*(tensor.tolist() for tensor in beside.values()), strict=True) if beside else [()] * len(pictures)
    places = places_of(pictures, [str(words) for words in told])
    kept = list(dict.fromkeys(places))
    if len(kept) == len(places):
        return {"pixel_values": pixels, **beside}, None
    once = {name: tensor[kept] for name, tensor in beside.items()}
    once["pixel_values"] = pixels[kept] if grids is None else torch.cat([pictures[place] for place in kept])
    return once, [kept.index(place) for place in places]


def places_of(pictures: Sequence[Tensor], told: Sequence[str]) -> list[int]:
    """Of each picture the place of the first that is equal to it: its own if none came before.

    Args:
        pictures: Their pixels, which are compared one by one where their sums are equal.
        told: What else must be equal, e.g. the grid of the patches: a black picture has the same ones in any.
    """
    if len(pictures) < 2:
        return list(range(len(pictures)))
    sums = torch.stack([picture.sum(dtype=torch.float32) for picture in pictures]).tolist()
    firsts: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    places = []
    for place, (picture, total, words) in enumerate(zip(pictures, sums, told, strict=True)):
        like = firsts[tuple(picture.shape), total, words]
        first = next((each for each in like if torch.equal(pictures[each], picture)), place)
        if first == place:
            like.append(place)
        places.append(first)
    return places


def _repeated(features: Tensor | Sequence[Tensor], places: list[int]) -> Tensor | list[Tensor]:
    """Features by picture, (pictures, tokens, size) or a tensor (tokens, size) each, for every place."""
    return features[places] if isinstance(features, Tensor) else [features[place] for place in places]
