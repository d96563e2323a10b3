"""Models by name: resolve the names of installed model collections, and validate names in configs.

A collection is an entry point of the group `reflectune.models`, named by the prefix of its models: `miniature` resolves
`miniature/llava`. The checks are for config keys: they load nothing and use no network.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.launch_variables import launch_size
from reflectune.core.values import Device, DeviceMap, Dtype, checked_by, short

MODEL_FILES: Final = ("config.json", "adapter_config.json")
"""Every model's folder has at least one of these files."""

EMBEDDERS: Final = ("gme", "vlm2vec", "qwen3_vl", "bge_vl")
"""Ways to make a multimodal model an encoder, `WAY:MODEL`; see `reflectune.retrieval.encoders.lvlm`."""

PAIR: Final = "pair"
"""Prefix of an image tower and a text encoder, `pair:IMAGE+TEXT`; see `reflectune.retrieval.encoders.decoupled`."""
MIXTURE: Final = "mixture"
"""The same with entries' images mixed with their texts, `mixture:IMAGE+TEXT`."""

_HUB_ID: Final = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9][\w.-]{0,95}(/[\w][\w.-]{0,95})?", re.ASCII)


class ModelCollection(Protocol):
    """Collection of models of an installed package, from an entry point of `reflectune.models`."""

    def names(self) -> list[str]:
        """Return every model's name, prefix included."""

    def folder(self, name: str) -> Path:
        """Return the folder of a model of `names`, fetched or built first if necessary."""

    def encoder(self, name: str, device: Any, dtype: Any) -> Any:
        """Load an encoder that isn't one folder; return None if `name` is not such an encoder."""


@functools.cache
def _entry_points() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group="reflectune.models")}


def find_collection(name: str) -> ModelCollection | None:
    """Return the installed collection that `name` belongs to by its prefix; None for a folder or a hub id."""
    prefix, slash, _ = name.partition("/")
    entry = _entry_points().get(prefix) if slash else None
    return None if entry is None else entry.load()()


def shipped_folder(name: str) -> Path | None:
    """Return the folder of a collection's model; None for any other name, which is a folder or a hub id.

    Raises:
        UserError: The collection has no model of this name, or it can't be fetched.
    """
    if (collection := find_collection(name)) is None:
        return None
    if name not in (known := collection.names()):
        raise UserError(f"no model {name}; this installation has {', '.join(known) or 'none'}")
    return collection.folder(name)


def model_name(value: str) -> str:
    """Return the problem of a model's name, a shipped model, folder or hub id; "" for none."""
    return _named(value, MODEL_FILES)


def recorded_scheme(model: str) -> str:
    """Return the scheme that a checkpoint's folder names; "" for other models, and for a file that can't be read."""
    return _recorded(model, "scheme.json", "name")


def recorded_encoder(index: str) -> str:
    """Return the encoder that an index's manifest names; "" for a file that can't be read."""
    return _recorded(index, "manifest.json", "encoder")


def encoder_name(value: str) -> str:
    """Return the problem of an encoder's name.

    The name is as in `model_name`, without adapters, with hub commits; or `gme:MODEL`, `pair:IMAGE+TEXT` or
    `mixture:IMAGE+TEXT`.
    """
    try:
        pair = pair_of(value)
    except UserError as error:
        return str(error)
    if pair is not None:
        return "; ".join(filter(None, map(encoder_name, pair)))
    way, colon, model = value.partition(":")
    if colon and way in EMBEDDERS:
        return _named(model, ("config.json",)) if model else f"{short(value)} names no model after the colon"
    if value.endswith(".safetensors"):
        return "" if os.path.isfile(value) else f"file not found: {short(value)}"
    if os.path.isdir(value):
        return _named(value, ("config.json",))
    return _named(value.partition("@")[0], ("config.json",)) if value else ""


def pair_of(name: str) -> tuple[str, str] | None:
    """Return the image tower and the text encoder of `pair:IMAGE+TEXT` or `mixture:IMAGE+TEXT`; None for other names.

    Raises:
        UserError: One of the two is missing.
    """
    way, colon, models = name.partition(":")
    if not colon or way not in (PAIR, MIXTURE):
        return None
    image, _, text = models.partition("+")
    if not (image and text):
        raise UserError(f"{name} names no two models; give `{way}:IMAGE+TEXT`")
    return image, text


def bem_name(value: str) -> str:
    """Return the problem of a converted BEM's name, a folder or hub id; "" for none."""
    return _named(value, ("bem.json",))


ModelName = Annotated[str, checked_by(model_name)]
EncoderName = Annotated[str, checked_by(encoder_name)]
BemName = Annotated[str, checked_by(bem_name)]


def _recorded(folder: str, file: str, key: str) -> str:
    if not folder:
        return ""
    try:
        record = json.loads(Path(folder, file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(record.get(key, "")) if isinstance(record, dict) else ""


def _named(value: str, files: Sequence[str]) -> str:
    if not value:
        return ""
    if (collection := find_collection(value)) is not None:
        known = collection.names()
        return "" if value in known else f"no model {short(value)}; there are {', '.join(known)}"
    if os.path.isdir(value):
        if any(os.path.isfile(os.path.join(value, name)) for name in files):
            return ""
        return f"{short(value)} holds no model: it has no {' and no '.join(files)}"
    if os.path.exists(value):
        return f"{short(value)} is not a folder, but a file; name the folder of a model"
    if (folder := os.path.dirname(value)) and os.path.isdir(folder):
        return f"{short(value)} does not exist, and its folder does; check the path"
    if _HUB_ID.fullmatch(value):
        return ""
    return f"{short(value)} is not a folder, and no name of a model on the Hub; check the path"


class PrecisionKeys(Settings):
    """Precision of a model, and the device that decides it."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "float32, bfloat16, float16, or auto: bfloat16 on a GPU that computes in it, else float32"
    )
    device: Device = setting("auto", "cpu, cuda, cuda:1, or auto: this process's own", hashed=False)

    @property
    def precision(self) -> Dtype:
        """The value of `dtype`; for `auto` the one chosen for this machine."""
        if self.dtype != "auto":
            return self.dtype
        from reflectune.core.devices import default_dtype  # torch is slow to import: after the config is right

        return default_dtype(self.device)

    def hashed(self) -> dict[str, Any]:
        """Return the keys that determine the results, with the precision on this machine."""
        return super().hashed() | {"dtype": self.precision}


class PlacementKeys(PrecisionKeys):
    """Precision and place of a model that reads."""

    device_map: DeviceMap | None = setting(
        None, "spread a model's layers over all GPUs: auto, balanced_low_0, sequential", hashed=False
    )

    @cross_check
    def spreading_problems(self) -> Iterator[str]:
        """Yield the problem of layers that can't be spread over GPUs."""
        if self.device_map and (processes := launch_size()) > 1:
            yield (
                f"`device_map: {self.device_map}` has one process use all GPUs, and this launch has {processes}; start "
                "the command with python, or leave `device_map` out to have a whole model in each process"
            )
