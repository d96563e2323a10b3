"""Devices that this machine doesn't have: `cpu:1`, `cpu:2`, … hold real numbers, and refuse each other's tensors.

A tensor there is computed with on the CPU. An operation on tensors of two of them, or of one and the plain CPU, is an
error as it is between two GPUs. As there, a number without dimensions and an index may come from the CPU, and copies
are free of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

HERE = torch.device("cpu")
_CROSSING = {"aten::_to_copy", "aten::copy_"}
_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}


class DeviceMismatch(AssertionError):
    """Two tensors of one operation lie on different devices."""


class PretendTensor(Tensor):
    """A tensor of the CPU that says it lies on another device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> PretendTensor:
        made: PretendTensor = cls._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device,
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"PretendTensor({self.held}, device={self.device})"

    def tolist(self) -> Any:  # torch has neither for a subclass
        return self.held.tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, kinds: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _compute(operation, args, kwargs or {})


class PretendDevices(TorchDispatchMode):
    """Within it tensors can be made on pretended devices, and moved to them.

    Attributes:
        seen: The devices on which something was computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.device] = set()
        self._literals = _Literals()

    def __enter__(self) -> PretendDevices:
        self._literals.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._literals.__exit__(*raised)

    def __torch_dispatch__(
        self, operation: Any, kinds: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = _compute(operation, args, kwargs or {})
        self.seen |= {tensor.device for tensor in tree_leaves(made) if isinstance(tensor, Tensor)}
        return made


def halves(model: Any, first: str, second: str) -> dict[str, int | str]:
    """A device map: vision, embeddings and half of the layers on one device, the others and the head on another.

    A head that is tied to the embeddings stays with them, as in every map that accelerate makes.
    """
    inner, text = model.model, model.model.language_model
    beside = [name for name, _ in (*inner.named_children(), *inner.named_parameters(recurse=False))]
    after = [name for name, _ in text.named_children() if name not in ("layers", "embed_tokens")]
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    return {
        **{f"model.{name}": first for name in beside if name != "language_model"},
        "model.language_model.embed_tokens": first,
        **{
            f"model.language_model.layers.{k}": (first, second)[2 * k >= len(text.layers)]
            for k in range(len(text.layers))
        },
        **{f"model.language_model.{name}": second for name in after},
        "lm_head": first if tied else second,
    }


class _Literals(TorchFunctionMode):
    """`torch.tensor` makes its tensor before a dispatch mode sees the device."""

    def __torch_function__(
        self, function: Any, kinds: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if function is torch.tensor and (device := given.pop("device", None)) is not None:
            return torch.tensor(*args, **given).to(device)
        return function(*args, **given)


def _compute(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    wanted = kwargs.get("device")
    if {each.type for each in (wanted, *(tensor.device for tensor in tensors)) if each is not None} - {"cpu"}:
        return operation(*args, **kwargs)  # on `meta`
    numbers = {id(tensor) for tensor in tensors if not tensor.dim()}
    indices = {id(leaf) for leaf in tree_leaves(args[1])} if operation in _INDEXING else set()
    bound = [tensor for tensor in tensors if tensor.device.index or id(tensor) not in numbers | indices]
    devices = {_plain(tensor.device) for tensor in bound}
    if operation.name() in _CROSSING:
        devices = {_plain(tensors[0].device)}
    if len(devices) > 1:
        shapes = [(tuple(tensor.shape), str(tensor.device)) for tensor in tensors]
        raise DeviceMismatch(f"{operation} of {shapes}")
    device = _plain(wanted) if wanted is not None else next(iter(devices), HERE)
    held_args, held_kwargs = tree_map_only(PretendTensor, lambda tensor: tensor.held, (tuple(args), dict(kwargs)))
    if "device" in held_kwargs:
        held_kwargs["device"] = HERE
    made = operation(*held_args, **held_kwargs)
    if isinstance(made, Tensor) and made is held_args[0]:  # changed in place
        return args[0]
    return made if device == HERE else tree_map_only(Tensor, lambda tensor: PretendTensor(tensor, device), made)


def _plain(device: torch.device) -> torch.device:
    """`cpu:0` is the plain CPU, too."""
    return HERE if device.type == "cpu" and not device.index else device
