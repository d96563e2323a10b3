"""What is wrong with weights that were loaded: tensors that are missing, unknown, of another shape, or not finite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from reflectune.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

_SHOWN: Final = 5
_COMPUTED: Final = ("position_ids", "inv_freq")
"""Ends of the names of buffers that older checkpoints hold and that a model computes."""
_FIX: Final = "check or replace its files"


def check_names(
    name: str,
    report: Mapping[str, Collection[Any]],
    *,
    may_lack: Sequence[str] = (),
    may_have: Callable[[str], bool] = lambda key: False,
    fix: str = _FIX,
) -> None:
    """Refuse a model of which some tensors were not loaded: transformers leaves these random and goes on.

    Args:
        name: Of the model, for the message.
        report: What `from_pretrained` returns for `output_loading_info`; call it with `ignore_mismatched_sizes`.
        may_lack: Beginnings of the names of tensors that nobody will use and that may be missing.
        may_have: Says of a name whether the file may hold it although the model's class doesn't know it.
        fix: What to do.

    Raises:
        UserError: Names the first of them, and says how many there are.
    """
    missing = [key for key in report["missing_keys"] if not key.startswith(tuple(may_lack))]
    unknown = [key for key in report["unexpected_keys"] if not key.endswith(_COMPUTED) and not may_have(key)]
    shapes = [
        f"{key} ({_shape(held)}, not {_shape(wanted)})" for key, held, wanted in report.get("mismatched_keys", ())
    ]
    wrong_shapes = {key for key, *_ in report.get("mismatched_keys", ())}
    told: list[tuple[str, list[str]]] = [
        ("lacks {} of its weights", [key for key in missing if key not in wrong_shapes]),
        ("has {} weights that its class doesn't know", unknown),
        ("has {} weights of another shape than its config says", shapes),
    ]
    problems = [f"{what.format(len(keys))}, e.g. {first_few(keys)}" for what, keys in told if keys]
    if problems:
        raise UserError(f"{name} {'; it '.join(problems)}; {fix}")


def check_finite(name: str, model: nn.Module, *, fix: str = _FIX) -> None:
    """Refuse a model with NaN or infinite weights; each is read once.

    Raises:
        UserError: Names the first of them, and says how many there are.
    """
    _check_weights(name, list(_weights(model)), fix)


def _check_weights(name: str, weights: Sequence[tuple[str, Tensor]], fix: str) -> None:
    bad = {key for key, weight in weights if not _is_finite(weight)}
    if bad:
        raise UserError(f"{name} has NaN or infinite values in {len(bad)} of its weights, e.g. {first_few(bad)}; {fix}")


@contextmanager
def checking_finite(name: str, model: nn.Module, *, fix: str = _FIX) -> Iterator[None]:
    """As `check_finite`, beside what is done within: the weights are read in a thread, and the error comes at the end.

    Raises:
        UserError: As `check_finite`.
    """
    with ThreadPoolExecutor(1) as pool:
        # listed here, since what is done within may put other layers in the place of some
        found = pool.submit(_check_weights, name, list(_weights(model)), fix)
        yield
        found.result()


def first_few(names: Iterable[str]) -> str:
    """The first names in order."""
    return ", ".join(sorted(names)[:_SHOWN])


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A model's tensors of floating point: of what ZeRO-3 divided a process's part, of 4-bit weights their scales."""
    for key, weight in model.named_parameters():
        state = getattr(weight, "quant_state", None)
        if state is not None:
            scales = (state.absmax, state.offset, getattr(state.state2, "absmax", None))
            yield from ((key, scale) for scale in scales if scale is not None and scale.is_floating_point())
        elif weight.is_floating_point():
            yield key, getattr(weight, "ds_tensor", weight).detach()


def _is_finite(weight: Tensor) -> bool:
    """Whether all values are finite: their sum is not if one isn't, and is read four times as fast as each of them."""
    if bool(weight.sum().isfinite()):
        return True
    return bool(weight.isfinite().all())  # many large ones may have an infinite sum


def _shape(shape: Any) -> str:
    return " × ".join(map(str, shape)) or "a number"
