"""Simulate devices that this machine lacks: `cpu:1`, `cpu:2`, …, and GPUs, `cuda:0`, …, within `gpus`.

Their tensors hold numbers of the CPU. An operation on tensors of two devices is an error, as it is between two GPUs; a
number without dimensions and an index may come from the CPU, and copies may cross. A simulated GPU also counts what
would wait for its queue, and records and replays CUDA graphs. It has no kernels of its own. To torch's C++ code it is a
device of a back end in Python, since a build for CPUs has nothing for CUDA.

One GPU has a backward pass, in a process that made none before: torch starts the threads of devices only once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from reflectune.models.attention.packed import BLOCK, WHOLE_BLOCKS

HERE = torch.device("cpu")
BACKEND = "pretended"
"""Device type of the GPUs in C++."""
_COPYING = {"aten::_to_copy", "aten::copy_"}
_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}
_WAITING = {  # operations whose results' shapes or values the host needs
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::_unique2"),
    "aten::repeat_interleave.Tensor",
}
_machine: Machine | None = None


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
            device=_in_cpp(device),
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _in_python(super().device)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.device.type == "cuda"

    def __repr__(self) -> str:
        return f"PretendTensor({self.held}, device={self.device})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = PretendTensor(self.held.detach().clone(), self.device)
        return torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied

    def tolist(self) -> Any:  # torch has neither for a subclass
        _wait("tolist")
        return self.held.tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def storage(self) -> torch.TypedStorage:
        return self.held.storage()

    def record_stream(self, stream: Any) -> None:
        assert isinstance(stream, Stream)

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
        self._calls = _Calls()

    def __enter__(self) -> PretendDevices:
        self._calls.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._calls.__exit__(*raised)

    def __torch_dispatch__(
        self, operation: Any, kinds: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = _compute(operation, args, kwargs or {})
        self.seen |= {tensor.device for tensor in tree_leaves(made) if isinstance(tensor, Tensor)}
        return made


class Stream:
    """A stream of a simulated GPU, which computes at once."""

    def __init__(self, device: Any = None, priority: int = 0) -> None: ...

    def wait_stream(self, other: Stream) -> None:
        assert isinstance(other, Stream)

    def is_capturing(self) -> bool:
        return False


class Graph:
    """A CUDA graph: the operations of a capture, and the tensors that they read and write.

    Attributes:
        replays: How often it was replayed.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []
        self.replays = 0

    def replay(self) -> None:
        """Carry out the operations again, on the same tensors."""
        self.replays += 1
        for operation, args, kwargs, made in self.calls:
            again = operation(*args, **kwargs)
            for tensor, value in zip(tree_leaves(made), tree_leaves(again), strict=True):
                if isinstance(tensor, Tensor) and tensor.data_ptr() != value.data_ptr():  # neither a view nor in place
                    tensor.copy_(value)


class Machine:
    """What happened on the simulated GPUs.

    Attributes:
        waits: What waited for a GPU's queue, in order.
        graphs: The captured CUDA graphs.
    """

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.graphs: list[Graph] = []
        self.streams: list[Stream] = [Stream()]
        self._captured: Graph | None = None
        self._before: dict[int, tuple[Any, Any]] = {}

    def wait(self, reason: str) -> None:
        """Note that the host waits, which a capture doesn't permit."""
        if self._captured is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {reason}")
        self.waits.append(reason)

    def record(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Carry out an operation, and record it during a capture."""
        if self._captured is None:
            return operation(*args, **kwargs)
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        made = operation(*args, **kwargs)
        self._captured.calls.append((operation, args, kwargs, made))
        return made

    @contextmanager
    def capture(self, graph: Graph, pool: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:
        """Record operations as `torch.cuda.graph` does; a capture computes nothing, so all tensors are restored."""
        self._captured = graph
        try:
            yield
        finally:
            self._captured = None
            for storage, before in self._before.values():
                storage.copy_(before)
            self._before.clear()

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Make a stream the current one, as `torch.cuda.stream` does."""
        self.streams.append(stream)
        try:
            yield
        finally:
            self.streams.pop()

    def set_stream(self, stream: Stream) -> None:
        """Replace the current stream."""
        self.streams[-1] = stream

    def functions(self, count: int, free: int) -> dict[str, Any]:
        """Return stand-ins for functions of `torch.cuda` and `torch.accelerator`."""

        def new_graph() -> Graph:
            self.graphs.append(Graph())
            return self.graphs[-1]

        numbers = {"memory_allocated": 0, "memory_reserved": 0, "max_memory_allocated": 2**26, "current_device": 0}
        numbers |= {"device_count": count, "is_available": True, "is_bf16_supported": True}
        nothing = ("_lazy_init", "empty_cache", "reset_peak_memory_stats", "set_device")
        return {
            **{name: lambda *_, value=value, **__: value for name, value in numbers.items()},
            **{name: lambda *_, **__: None for name in nothing},
            "mem_get_info": lambda *_: (free, 2 * free),
            "get_memory_info": lambda *_: (free, 2 * free),
            "current_accelerator": lambda *_, **__: torch.device("cuda", 0),
            "get_rng_state": torch.get_rng_state,  # all devices draw from the CPU's generator
            "set_rng_state": torch.set_rng_state,
            "synchronize": lambda *_: self.wait("synchronize"),
            "device": lambda *_: nullcontext(),
            "Stream": Stream,
            "current_stream": lambda *_: self.streams[-1],
            "stream": self.stream,
            "set_stream": self.set_stream,
            "CUDAGraph": new_graph,
            "graph": self.capture,
            "graph_pool_handle": lambda: (0, 1),
        }


@contextmanager
def gpus(count: int = 1, free: int = 2**33) -> Iterator[Machine]:
    """Simulate GPUs inside this block. Layers are not compiled, and FlexAttention reads what its block mask lists.

    Args:
        count: Number of GPUs.
        free: Bytes of free memory of each.
    """
    global _machine
    if torch.backends.cuda.is_built():
        pytest.skip("a build for CUDA simulates no GPU: its accelerator would be the simulation's from here on")
    import peft  # noqa: F401  imports bitsandbytes, which looks for kernels if it sees a GPU
    import transformers.generation  # noqa: F401  annotations of its modules name classes of torch.cuda

    _machine = machine = Machine()
    _register_backend()
    packed = "reflectune.models.attention.packed"
    with ExitStack() as stack:
        for name, function in machine.functions(count, free).items():
            for module in (torch.cuda, torch.cuda.random, torch.accelerator):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, function))
        stack.enter_context(mock.patch(f"{packed}.flex_attention", _flex_attention))
        stack.enter_context(mock.patch(f"{packed}._compiled", return_value=_flex_attention))
        stack.enter_context(mock.patch.object(torch, "compile", lambda call, **_: call))
        for name, function in (("__enter__", _enter_no_grad), ("__exit__", _exit_no_grad)):
            stack.enter_context(mock.patch.object(torch.inference_mode, name, function))  # it forbids wrapped views
        swapping = torch.__future__.set_swap_module_params_on_conversion
        swapping(True)
        stack.callback(swapping, False)
        stack.enter_context(PretendDevices())
        try:
            yield machine
        finally:
            _machine = None


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


class _Calls(TorchFunctionMode):
    """Calls that a dispatch mode sees too late: `torch.tensor` makes its tensor before, for instance."""

    def __torch_function__(
        self, function: Any, kinds: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if function is torch.device:
            return function(*args, **given)
        if function is Tensor.new_tensor and _is_on_gpu(args[0]):
            given = {"dtype": args[0].dtype, "device": args[0].device, **given}
            function, args = torch.tensor, args[1:]
        if function is torch.tensor and (device := given.pop("device", None)) is not None:
            numbers = tree_map_only(PretendTensor, PretendTensor.tolist, args)
            return torch.tensor(*numbers, **given).to(_in_cpp(device))
        if function is Tensor.pin_memory:
            return args[0]
        if function is Tensor.__getitem__ and _is_on_gpu(args[0]):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, list) for part in index):
                _wait("a list as index")
                return function(args[0], tuple(_on(args[0].device, part) for part in index))
        if function == Tensor.data.__set__ and isinstance(args[1], PretendTensor):
            return _set_data(*args)
        return function(*map(_in_cpp, args), **{name: _in_cpp(value) for name, value in given.items()})


def _compute(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    wanted = _in_python(kwargs["device"]) if kwargs.get("device") is not None else None
    if {each.type for each in (wanted, *(tensor.device for tensor in tensors)) if each is not None} & {"meta"}:
        return operation(*args, **kwargs)
    numbers = {id(tensor) for tensor in tensors if not tensor.dim()}
    indices = {id(leaf) for leaf in tree_leaves(args[1])} if operation in _INDEXING else set()
    bound = [tensor for tensor in tensors if _plain(tensor.device) != HERE or id(tensor) not in numbers | indices]
    devices = {_plain(tensor.device) for tensor in bound}
    if operation.name() in _COPYING:
        devices = {_plain(tensors[0].device)}
    if len(devices) > 1:
        shapes = [(tuple(tensor.shape), str(tensor.device)) for tensor in tensors]
        raise DeviceMismatch(f"{operation} of {shapes}")
    device = _plain(wanted) if wanted is not None else next(iter(devices), HERE)
    on_gpu = _machine is not None and any(each.type == "cuda" for each in (device, *devices))
    if on_gpu:
        if operation.name() == "aten::_fused_sdp_choice":
            return 0  # plain products; the other kernels belong to devices
        _note_wait(operation, args, kwargs, device)
    held_args, held_kwargs = tree_map_only(PretendTensor, lambda tensor: tensor.held, (tuple(args), dict(kwargs)))
    if "device" in held_kwargs:
        held_kwargs["device"] = HERE
    if on_gpu and _machine is not None:
        made = _machine.record(operation, held_args, held_kwargs)
    else:
        made = operation(*held_args, **held_kwargs)
    for given, held in zip(tree_leaves(args), tree_leaves(held_args), strict=True):
        if made is held and isinstance(made, Tensor):  # changed in place
            return given
    return made if device == HERE else tree_map_only(Tensor, lambda tensor: PretendTensor(tensor, device), made)


def _note_wait(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device) -> None:
    """Note whether the host waits for the GPU in an operation."""
    name = operation.name()
    if name in _COPYING:
        source = args[1] if name == "aten::copy_" else args[0]
        is_waiting = not (kwargs.get("non_blocking") or args[2:3] == (True,)) or device == HERE
        if source.dim() and source.device.type != device.type and is_waiting:
            _wait(f"a copy from {source.device.type} to {device.type}")
    elif name in _WAITING or (operation in _INDEXING and any(map(_is_waited_for, args[1]))):
        _wait(name)


def _is_waited_for(index: Tensor | None) -> bool:
    """Return True for an index of the CPU, which is copied, and for a mask, whose True values are counted."""
    return index is not None and (_plain(index.device) == HERE or index.dtype == torch.bool)


def _wait(reason: str) -> None:
    if _machine is not None:
        _machine.wait(reason)


def _is_on_gpu(tensor: Any) -> bool:
    return isinstance(tensor, PretendTensor) and tensor.device.type == "cuda"


def _plain(device: torch.device) -> torch.device:
    """Return the plain CPU for `cpu:0`, other devices as they are."""
    return HERE if device.type == "cpu" and not device.index else device


def _in_cpp(value: Any) -> Any:
    """Return the device that a GPU is in C++; other values as they are."""
    if isinstance(value, torch.device):
        return torch.device(BACKEND, value.index or 0) if value.type == "cuda" else value
    return _in_cpp(torch.device(value)) if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


def _in_python(device: torch.device) -> torch.device:
    """Return the GPU that a device of C++ is; other devices as they are."""
    return torch.device("cuda", device.index or 0) if device.type == BACKEND else device


def _on(device: torch.device, part: Any) -> Any:
    """Return a list of indices as a tensor on a device, other parts of an index as they are."""
    return PretendTensor(torch.tensor(part), device) if isinstance(part, list) else part


def _set_data(tensor: Tensor, data: PretendTensor) -> None:
    """Assign to `tensor.data`, which would copy the device of `data` without what it holds."""
    made: Tensor = data.detach()
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    torch.utils.swap_tensors(tensor, made)


class _Backend(backend_registration._DummyBackendModule):
    def is_available(self) -> bool:
        return _machine is not None


@functools.cache
def _register_backend() -> None:
    """Register the back end. It is unavailable outside `gpus`."""
    backend_registration._setup_privateuseone_for_python_backend(BACKEND, _Backend())


def _enter_no_grad(inference: Any) -> None:
    inference.no_grad = torch.no_grad() if inference.mode else nullcontext()
    inference.no_grad.__enter__()


def _exit_no_grad(inference: Any, *raised: Any) -> None:
    inference.no_grad.__exit__(*raised)


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, scale: float, enable_gqa: bool, kernel_options: Any
) -> Tensor:
    """Attend as FlexAttention does on a GPU: to what the mask allows in partial blocks, and to full blocks."""
    shape = query.shape[2], key.shape[2]
    assert kernel_options == WHOLE_BLOCKS
    assert not any(count % BLOCK for count in shape)
    assert block_mask.seq_lengths == shape
    assert enable_gqa == (query.shape[1] != key.shape[1])
    rows, columns = (torch.arange(count, device=query.device) for count in shape)
    zero = torch.zeros((), dtype=torch.long, device=query.device)
    allowed = block_mask.mask_mod(zero, zero, rows[:, None], columns).held
    partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices)
    full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    assert not (partial & full).any()
    if query.requires_grad:  # the backward pass reads the blocks of each key
        assert torch.equal(_listed(block_mask.q_num_blocks, block_mask.q_indices).T, partial)
        assert torch.equal(_listed(block_mask.full_q_num_blocks, block_mask.full_q_indices).T, full)
    visible = PretendTensor(full | (partial & allowed), query.device)
    key, value = (side.repeat_interleave(query.shape[1] // side.shape[1], 1) for side in (key, value))
    scores = (query.float() @ key.float().transpose(-1, -2) * scale).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1).to(value.dtype) @ value


def _listed(counts: Any, indices: Any) -> Tensor:
    """Return the pairs of tokens in the listed blocks: bool of shape (queries, keys)."""
    blocks = torch.zeros(indices.held.shape[2:], dtype=torch.bool)
    for row, count in enumerate(counts.held[0, 0].tolist()):
        blocks[row, indices.held[0, 0, row, :count].long()] = True
    return blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
