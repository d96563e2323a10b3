"""An adapter on its base model, whole: PEFT would leave out what its file lacks, with a warning."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from reflectune.core.errors import UserError
from reflectune.core.weights import UNLOADABLE, check_names, first_few
from reflectune.models.weights.new_rows import read_beside

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_FIX = "copy the checkpoint again, or train it again"


def load_adapter(network: Any, folder: Path, *, is_trainable: bool = False) -> PeftModel:
    """Load an adapter onto the model that it was trained on.

    Args:
        network: The base model, with the scheme's tokens. Changed in place.
        folder: Checkpoint of the adapter.
        is_trainable: Continue to train the adapter.

    Raises:
        UserError: Its file is damaged, or a tensor is missing, unknown, not finite or of a different shape.
    """
    state = read_adapter(folder)
    try:
        with warnings.catch_warnings():  # what they are of is raised below
            warnings.filterwarnings("ignore", message="Found missing adapter keys|Some weights of")
            adapted = PeftModel.from_pretrained(
                network, folder, is_trainable=is_trainable, ignore_mismatched_sizes=True
            )
    except KeyError as error:  # a matrix's new rows
        raise UserError(f"the adapter {folder} lacks {error.args[0]}; {_FIX}") from error
    except UNLOADABLE as error:
        # PEFT looks at few values of adapter_config.json before it computes with them
        raise UserError(f"cannot load the adapter {folder}: {' '.join(str(error).split())[:400]}") from error
    check_adapter(adapted, state, folder)
    read_beside(adapted)
    return adapted


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """An adapter's tensors by name, as its file has them.

    Raises:
        UserError: The file is missing or damaged, or holds NaN or infinite values.
    """
    path = folder / ADAPTER_WEIGHTS
    try:
        state = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
        raise UserError(f"the adapter's {path} {problem}; {_FIX}") from error
    if bad := [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]:
        raise UserError(
            f"{path} has NaN or infinite values in {len(bad)} of its weights, e.g. {first_few(bad)}; {_FIX}"
        )
    return state


def check_adapter(adapted: PeftModel, state: dict[str, Tensor], folder: Path) -> None:
    """Refuse an adapter's tensors if they are not just those that the model has places for.

    Raises:
        UserError: Names the first of them, and says how many there are.
    """
    expected = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    shapes = {name: getattr(tensor, "ds_shape", tensor.shape) for name, tensor in expected.items()}
    report = {
        "missing_keys": expected.keys() - state.keys(),
        "unexpected_keys": state.keys() - expected.keys(),
        "mismatched_keys": [
            (name, tensor.shape, shapes[name])
            for name, tensor in state.items()
            if name in shapes and tensor.shape != shapes[name]
        ],
    }
    check_names(f"the adapter {folder}", report, fix=_FIX)
