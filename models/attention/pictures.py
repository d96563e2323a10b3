"""Pictures that several questions of a batch are about: the vision tower reads each once, and its features are used in
every place.

Exact in both directions: a picture's gradient is the sum of those of its places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from reflectune.models.attention.positions import inner_model

PLACES = "picture_places"
"""What a batch, and a model's forward pass, calls which picture stands where."""

FEATURES = "tower_features"
"""What a batch calls what a frozen vision tower said of its pictures, in the place of their pixels."""

_PLACES: ContextVar[Tensor | None] = ContextVar(PLACES, default=None)


def content_key(vision: Mapping[str, Tensor]) -> bytes:
    """The same for vision tensors of the same content, and for no others."""
    made = hashlib.blake2b(digest_size=16)
    for name, value in sorted(vision.items()):
        made.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        made.update(value.contiguous().view(torch.uint8).numpy().data)
    return made.digest()


def distinct(visions: Sequence[Mapping[str, Tensor]]) -> tuple[list[Mapping[str, Tensor]], Tensor | None]:
    """Each content once, and where the pictures of all questions are among theirs.

    Args:
        visions: The vision tensors of each question, of any number of pictures.

    Returns:
        Those of different content, in order of their first appearance; and for each picture of `visions`, in order, its
        place among the pictures returned, or None if nothing is repeated.
    """
    by_identity: dict[int, bytes] = {}
    first: dict[bytes, int] = {}  # the place of its first picture
    kept: list[Mapping[str, Tensor]] = []
    places: list[int] = []
    total = 0
    for vision in visions:
        if id(vision) not in by_identity:
            by_identity[id(vision)] = content_key(vision)
        key, count = by_identity[id(vision)], _picture_count(vision)
        if key not in first:
            first[key] = total
            total += count
            kept.append(vision)
        places += range(first[key], first[key] + count)
    return kept, torch.tensor(places) if len(places) > total else None


def repeat_pictures(model: nn.Module) -> None:
    """Let a model take `picture_places`, of shape (places,): which of the pictures that it is given stands in each.

    Without it, the model computes what it did.
    """
    inner: Any = inner_model(model).model
    if inner.get_image_features.__func__ is get_image_features:
        return  # it can already
    inner.get_image_features = MethodType(get_image_features, inner)
    inner.register_forward_pre_hook(_take_places, with_kwargs=True)
    inner.register_forward_hook(_forget_places, always_call=True)


def _take_places(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if PLACES in kwargs:
        _PLACES.set(kwargs.pop(PLACES))
    return args, kwargs


def _forget_places(*_: Any) -> None:
    _PLACES.set(None)


def get_image_features(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The class's own `get_image_features`, with a picture's features repeated for each place that shows it.

    Pickle refers to this function by its name.
    """
    output = type(model).get_image_features(model, *args, **kwargs)
    places = _PLACES.get()
    if places is not None:
        output.pooler_output = taken(output.pooler_output, places)
        if "deepstack_features" in output:  # Qwen3-VL's, of several layers
            output.deepstack_features = [taken(features, places) for features in output.deepstack_features]
    return output


def current_places() -> Tensor | None:
    """The `picture_places` of the forward pass that is being made, if it has any."""
    return _PLACES.get()


def taken(features: Tensor | Sequence[Tensor], places: Tensor) -> Tensor | list[Tensor]:
    """Features by picture, (pictures, tokens, size) or a tensor (tokens, size) each, for every place."""
    return features[places] if isinstance(features, Tensor) else [features[place] for place in places.tolist()]


def _picture_count(vision: Mapping[str, Tensor]) -> int:
    """Pictures, or what the model gives features for one by one (InternVL: tiles)."""
    if "image_grid_thw" in vision:
        return len(vision["image_grid_thw"])
    pictures = vision.get("pixel_values", vision.get(FEATURES))
    return 0 if pictures is None else len(pictures)
