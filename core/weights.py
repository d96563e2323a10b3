"""Checks of loaded weights: tensors that are missing, unknown, of a different shape, or not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from reflectune.core.errors import UserError
from reflectune.core.hashing import read_blocks

if TYPE_CHECKING:
    from torch import Tensor, nn

UNLOADABLE: Final = (
    *(OSError, ValueError, RuntimeError, EOFError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(AssertionError, ImportError, SafetensorError, StrictDataclassError),
)
"""Exceptions of transformers and peft for a damaged or odd config, tokenizer or weights."""

_SHOWN: Final = 5
_COMPUTED: Final = ("position_ids", "inv_freq")
"""Endings of buffers that older checkpoints hold but models compute."""
_FLOATS: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Names in safetensors of the stored dtypes that can hold NaN."""
_PIECE: Final = 1 << 20
_FIX: Final = "check or replace its files"


def check_names(
    name: str,
    report: Mapping[str, Collection[Any]],
    *,
    may_lack: Sequence[str] = (),
    may_have: Callable[[str], bool] = lambda key: False,
    fix: str = _FIX,
) -> None:
    """Refuse a model if some tensors were not loaded: transformers would leave them random.

    Args:
        name: The model's name, for the error.
        report: `from_pretrained`'s `output_loading_info`, called with `ignore_mismatched_sizes`.
        may_lack: Prefixes of unused tensors that may be missing.
        may_have: Returns True for a name that the file may hold although the model's class doesn't know it.
        fix: Advice to the user.

    Raises:
        UserError: Names the first tensors, and their number.
    """
    missing = [key for key in report["missing_keys"] if not key.startswith(tuple(may_lack))]
    unknown = [key for key in report["unexpected_keys"] if not key.endswith(_COMPUTED) and not may_have(key)]
    shapes = [
        f"{key} ({_shape(held)}, not {_shape(expected)})" for key, held, expected in report.get("mismatched_keys", ())
    ]
    wrong_shapes = {key for key, *_ in report.get("mismatched_keys", ())}
    found: list[tuple[str, list[str]]] = [
        ("lacks {} of its weights", [key for key in missing if key not in wrong_shapes]),
        ("has {} weights that its class doesn't know", unknown),
        ("has {} weights of a different shape than in its config", shapes),
    ]
    problems = [f"{what.format(len(keys))}, e.g. {first_few(keys)}" for what, keys in found if keys]
    if problems:
        raise UserError(f"{name} {'; it '.join(problems)}; {fix}")


def check_shapes(name: str, held: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, fix: str = _FIX) -> None:
    """Refuse tensors that don't have the names and shapes of a model's, which DeepSpeed may have sharded.

    Raises:
        UserError: Names the first tensors, and their number.
    """
    shapes = {key: getattr(tensor, "ds_shape", tensor.shape) for key, tensor in expected.items()}
    report: dict[str, Collection[Any]] = {
        "missing_keys": shapes.keys() - held.keys(),
        "unexpected_keys": held.keys() - shapes.keys(),
        "mismatched_keys": [
            (key, tensor.shape, shapes[key])
            for key, tensor in held.items()
            if key in shapes and tensor.shape != shapes[key]
        ],
    }
    check_names(name, report, fix=fix)


def check_finite(name: str, model: nn.Module, *, fix: str = _FIX) -> None:
    """Refuse a model with NaN or infinite weights; each is read once.

    Raises:
        UserError: Names the first tensors, and their number.
    """
    _check_weights(name, list(_weights(model)), fix)


def _check_weights(name: str, weights: Sequence[tuple[str, Tensor]], fix: str) -> None:
    bad = {key for key, weight in weights if not _is_finite(weight)}
    if bad:
        raise UserError(_not_finite(name, bad, fix))


def _not_finite(name: str, bad: Collection[str], fix: str) -> str:
    return f"{name} has NaN or infinite values in {len(bad)} of its weights, e.g. {first_few(bad)}; {fix}"


@contextmanager
def checking_finite(name: str, model: nn.Module) -> Iterator[None]:
    """Run `check_finite` in a thread while the block runs, and raise its error at the end.

    Raises:
        UserError: As `check_finite`.
    """
    with ThreadPoolExecutor(1) as pool:
        # listed here, since the block may replace layers
        outcome = pool.submit(_check_weights, name, list(_weights(model)), _FIX)
        yield
        outcome.result()


class FiniteFiles:
    """Check safetensors for NaN and infinite values while their bytes are read for a hash.

    A block in the processor's cache is checked in a fortieth of its hash's time, far faster than the loaded model.

    Args:
        name: The model's name, for the error.
        files: Files that the model is loaded from; others are read without a check.
    """

    def __init__(self, name: str, files: Collection[Path]) -> None:
        self._name, self._files = name, files
        self._bad: set[str] = set()

    def read(self, path: Path) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a file in order; each block is overwritten by the next."""
        return self._read_checked(path) if path in self._files else read_blocks(path)

    def check(self) -> None:
        """Refuse the model if values were found.

        Raises:
            UserError: Names the first tensors with NaN or infinite values, and their number.
        """
        if self._bad:
            raise UserError(_not_finite(self._name, self._bad, _FIX))

    def _read_checked(self, path: Path) -> Iterator[bytes | memoryview]:
        import torch  # slow to import

        buffer = memoryview(bytearray(_PIECE))
        with path.open("rb") as file:
            size = file.read(8)
            header = file.read(int.from_bytes(size, "little"))
            yield size + header
            stored = [
                (tensor["dtype"], *tensor["data_offsets"], name)
                for name, tensor in json.loads(header).items()
                if name != "__metadata__"
            ]
            in_order = sorted(stored, key=itemgetter(1, 2))
            for kind, tensors in groupby(in_order, key=itemgetter(0)):  # many small ones are checked together
                places = [(begin, end, name) for _, begin, end, name in tensors]
                dtype = getattr(torch, _FLOATS.get(kind, ""), None)
                for start in range(places[0][0], places[-1][1], _PIECE):
                    piece = buffer[: min(_PIECE, places[-1][1] - start)]
                    file.readinto(piece)
                    if dtype is not None and not _is_finite(values := torch.frombuffer(piece, dtype=dtype)):
                        self._bad |= set(_not_finite_of(values, start, places))
                    yield piece
            while block := file.read(_PIECE):
                yield block


def first_few(names: Iterable[str]) -> str:
    """Join the first names in order."""
    return ", ".join(sorted(names)[:_SHOWN])


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's floating-point tensors; under ZeRO-3 this process's part, for 4-bit weights the scales."""
    for key, weight in model.named_parameters():
        state = getattr(weight, "quant_state", None)
        if state is not None:
            scales = (state.absmax, state.offset, getattr(state.state2, "absmax", None))
            yield from ((key, scale) for scale in scales if scale is not None and scale.is_floating_point())
        elif weight.is_floating_point():
            yield key, getattr(weight, "ds_tensor", weight).detach()


def _not_finite_of(values: Tensor, start: int, places: Iterable[tuple[int, int, str]]) -> Iterator[str]:
    """Yield the bad tensors in a block from byte `start` on; `places` are first byte, end and name of each."""
    size = values.element_size()
    for begin, end, name in places:
        part = values[max(begin - start, 0) // size : max(end - start, 0) // size]
        if not _is_finite(part):
            yield name


def _is_finite(weight: Tensor) -> bool:
    """Return True if all values are finite. A test of their sum is four times as fast as one of each value."""
    if math.isfinite(weight.sum().item()):
        return True
    return bool(weight.isfinite().all())  # many large ones may have an infinite sum


def _shape(shape: Any) -> str:
    return " × ".join(map(str, shape)) or "a number"
