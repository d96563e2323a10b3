"""Where a model runs."""

from __future__ import annotations

import torch

from reflectune.core.errors import UserError


def find_device(name: str) -> torch.device:
    """The device called `cpu`, `cuda`, `cuda:1`, …; `auto` is an accelerator if there is one, else the CPU.

    Raises:
        UserError: There is no such device here.
    """
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device `{name}` cannot be used: {reason}; use cpu, cuda, cuda:0 … or auto") from error
    return device
