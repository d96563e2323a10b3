"""Spread one model's layers over several GPUs (`device_map`), and find its input device."""

from __future__ import annotations

import gc
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Final

import torch
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import get_balanced_memory, get_max_memory, set_module_tensor_to_device
from transformers import PreTrainedModel

from reflectune.core.errors import UserError
from reflectune.models.weights.pretrained import cast_buffers

DeviceMap = Mapping[str, int | str]
"""By the name of a module, the device of what lies in it: `0` is the first GPU, `cpu` the main memory."""

_WEIGHTS: Final = 0.8
"""Share of each GPU's free memory for weights; the rest is for keys, values and activations."""
_GIB: Final = 2**30


def spread(model: PreTrainedModel, device_map: str | DeviceMap, dtype: torch.dtype) -> PreTrainedModel:
    """Put a model's layers on several devices; accelerate's hooks move tensors between them.

    Weights go from their file to their device one by one. Those that no GPU has room for stay in the main memory, and
    every forward pass copies them to the first GPU. The placement is printed if there is more than one device.

    Args:
        model: On the CPU, with all its tokens and its adapter merged: no weight can be changed afterwards.
        device_map: `auto` (or `balanced`), `balanced_low_0` or `sequential`, as in transformers, or devices by module.
        dtype: Precision of the weights; stored weights of a different one are cast in place.

    Raises:
        UserError: The memory of this machine can't hold the model.
    """
    places = dict(plan_device_map(model, device_map, dtype) if isinstance(device_map, str) else device_map)
    if "disk" in places.values():
        need = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize / _GIB
        raise UserError(
            f"the model's {need:,.1f} GiB of weights don't fit: they may take {_WEIGHTS:.0%} of each GPU's free memory "
            "and the free main memory; take `dtype: bfloat16`, a smaller model, or more GPUs"
        )
    bytes_by_place: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        place = _device_of(name, places)
        if parameter.dtype != dtype:
            parameter.data = parameter.data.to(place).to(dtype)
        bytes_by_place[f"GPU {place}" if isinstance(place, int) else place] += parameter.nbytes
    cast_buffers(model, dtype)
    if len(bytes_by_place) > 1:
        placed = ", ".join(f"{size / _GIB:.1f} GiB on {place}" for place, size in bytes_by_place.items())
        slow = "; each pass copies what lies on cpu to a GPU, which is slow" if "cpu" in bytes_by_place else ""
        print(f"the model's weights: {placed}{slow}", file=sys.stderr, flush=True)
    first = next((place for place in places.values() if place != "cpu"), "cpu")
    for name in places.keys() & dict(model.named_parameters()):  # dispatch_model moves those of whole modules alone
        set_module_tensor_to_device(model, name, first if places[name] == "cpu" else places[name])
    skipped = model._skip_keys_device_placement  # caches, whose layers lie where they are used
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The following device_map keys do not match any submodules")
        spread_model: PreTrainedModel = dispatch_model(model, places, main_device=first, skip_keys=skipped)
    return spread_model


def plan_device_map(
    model: PreTrainedModel, device_map: str, dtype: torch.dtype, free: Mapping[int | str, int] | None = None
) -> DeviceMap:
    """Return the device of each layer, layers whole; `disk` without room.

    Args:
        model: The model; its weights are not read.
        device_map: See `spread`.
        dtype: Precision of the weights.
        free: Free bytes by device; those of this machine if None.
    """
    sizes = {name: dtype for name, _ in model.named_parameters()}
    if free is None:
        gc.collect()  # what an earlier model leaves behind isn't free yet: hooks and modules hold each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        free = get_max_memory()
    room = {place: int(size * _WEIGHTS) if isinstance(place, int) else size for place, size in free.items()}
    whole = sorted(model._no_split_modules or ())
    if device_map != "sequential":
        low_zero = device_map == "balanced_low_0"
        room = get_balanced_memory(model, room, whole, special_dtypes=sizes, low_zero=low_zero)
    places: DeviceMap = infer_auto_device_map(model, room, whole, special_dtypes=sizes)
    return places


def input_device(model: PreTrainedModel) -> torch.device:
    """Return a model's input device: that of its embeddings, if its layers lie on several devices."""
    places: DeviceMap | None = getattr(model, "hf_device_map", None)
    if places is None or (len(set(places.values())) == 1 and "disk" not in places.values()):
        return model.device
    embeddings = model.get_input_embeddings()
    name = next(name for name, module in model.named_modules() if module is embeddings)
    stored = ("cpu", "disk")  # what lies there is used on the first of the other devices
    first = next((place for place in places.values() if place not in stored), "cpu")
    place = _device_of(f"{name}.weight", places)
    place = first if place in stored else place
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def gpus_of(model: PreTrainedModel) -> list[torch.device]:
    """Return the GPUs that hold a model's weights, including the one of its input tokens; none for a model on a CPU."""
    lying = {parameter.device for parameter in model.parameters()} | {input_device(model)}
    return sorted((device for device in lying if device.type == "cuda"), key=str)


def _device_of(parameter: str, places: DeviceMap) -> int | str:
    """Return the device of a parameter: by the longest module name around it, or its own."""
    around = [name for name in places if not name or parameter == name or parameter.startswith(f"{name}.")]
    return places[max(around, key=len)]
