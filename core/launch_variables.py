"""Environment variables that torchrun, accelerate and MPI set for the processes of a launch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

MPI_SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_SIZES: Final = ("WORLD_SIZE", *MPI_SIZES)
_RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")


def launch_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes of this launch, as accelerate counts them; 1 without a launcher."""
    return max(int(environment.get(name, 1)) for name in _SIZES)


def has_launcher() -> bool:
    """Return True in a process that accelerate, torchrun or MPI started, one alone included."""
    return launch_size() > 1 or any(name.startswith(("ACCELERATE_MIXED", "TORCHELASTIC_")) for name in os.environ)


def rank() -> int:
    """Return this process's number in its launch; 0 without a launcher."""
    return next((int(os.environ[name]) for name in _RANKS if name in os.environ), 0)


def on_cpu(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if accelerate's launch asks for the CPU, on whatever machine."""
    return is_true(environment, "ACCELERATE_USE_CPU")


def is_true(environment: Mapping[str, str], name: str) -> bool:
    """Return True if a variable is set, as launchers set it."""
    return environment.get(name, "").lower() in ("true", "1")


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the environment without the launcher's variables, to start a command outside this launch."""
    return {
        name: value for name, value in environment.items() if name not in _LAUNCHED and not name.startswith(_LAUNCHERS)
    }


_LAUNCHED: Final = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT".split()
)
_LAUNCHERS: Final = ("ACCELERATE_", "TORCHELASTIC_", "FSDP_", "OMPI_", "PMI_", "MV2_")
