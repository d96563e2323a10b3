"""Devices that models run on, and errors of their memory."""

from __future__ import annotations

import functools
import os
from typing import Literal

import torch
from torch import Tensor

from reflectune.core.errors import UserError
from reflectune.core.launch_variables import on_cpu

_OUT_OF_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "defaultcpuallocator",
)
"""Messages of allocators in a plain RuntimeError, in lower case."""


def find_device(name: str) -> torch.device:
    """Return the device called `cpu`, `cuda`, `cuda:1`, …; `auto` is an accelerator if there is one, else the CPU.

    `auto` is the CPU too where accelerate's launch asks for it. Of several accelerators, `auto` and `cuda` give each
    process of a launch its own, by the launcher's `LOCAL_RANK`.

    Raises:
        UserError: This machine has no device of this name.
    """
    if name == "auto" and on_cpu():
        return torch.device("cpu")
    if name in ("auto", "cuda"):
        found = torch.accelerator.current_accelerator(check_available=True)
        rank = int(os.environ.get("LOCAL_RANK", 0))
        if found and name in ("auto", found.type) and 0 < rank < torch.accelerator.device_count():
            return torch.device(found.type, rank)
        if name == "auto":
            return found or torch.device("cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no values")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device `{name}` cannot be used: {reason}; use cpu, cuda, cuda:0 … or auto") from error
    return device


def default_dtype(name: str) -> Literal["float32", "bfloat16"]:
    """Return the precision of `dtype: auto` on a device: bfloat16 on a CUDA GPU that computes in it, else float32."""
    on_gpu = (name.startswith("cuda") or (name == "auto" and not on_cpu())) and torch.cuda.is_available()
    return "bfloat16" if on_gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


def computes_bfloat16() -> bool:
    """Return True if this machine's CPU has instructions for bfloat16: AVX512-BF16, AMX, or Arm's."""
    has = torch.cpu.get_capabilities()
    return any(has.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def precision_warning(dtype: str, device: torch.device) -> str:
    """Return a sentence if float32 is faster than `dtype` on a device, a CPU that emulates bfloat16; else ""."""
    if dtype != "bfloat16" or device.type != "cpu" or computes_bfloat16():
        return ""
    return "this CPU has no instructions for bfloat16, so float32 is several times as fast; leave `dtype` out"


@functools.lru_cache(maxsize=16)
def on_device(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Return token ids as a tensor, copied to a device once: a copy in each pass would wait for its kernels."""
    return copied(ids, device)


def copied(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Return token ids as a tensor on a device."""
    with torch.inference_mode(False):  # a backward pass may save it
        return torch.tensor(ids, device=device)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that memory ran out, of an accelerator or of the CPU."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _OUT_OF_MEMORY)
