"""What a launcher leaves its processes: they end when it is gone, and start others without what it told them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final

MPI_SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
SIZES: Final = ("WORLD_SIZE", *MPI_SIZES)
"""Where launchers say how many processes they start."""
_POLL: Final = 1.0
"""Seconds between two looks."""


def launched() -> int:
    """How many processes this launch has, as accelerate counts them; 1 without a launcher."""
    return max(int(os.environ.get(name, 1)) for name in SIZES)


def spreading_problem(device_map: str | None) -> str:
    """What is wrong with a `device_map` in this launch; "" if nothing is.

    Each of several processes would spread a model of its own over the same GPUs.
    """
    if not device_map or launched() == 1:
        return ""
    return (
        f"`device_map: {device_map}` has one process use all GPUs, and this launch has {launched()}; start the command "
        "with python, or leave `device_map` out to have a whole model in each process"
    )


def end_with_launcher() -> None:
    """End this process when torchrun, by which `accelerate launch` starts several processes, is gone.

    The launcher ends or restarts all processes when one dies. Without it the others would wait half an hour for the
    dead one, and hold the output meanwhile. Finished rows are kept, and the same command goes on.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:  # a process whose parent ended has another one
        time.sleep(_POLL)
    print(
        f"error: the launcher (PID {launcher}) is gone; run the same command again to go on",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what a launcher told this process of the others, which a command of its own is not one of.

    A training that were started with it would wait for processes that run something else.
    """
    return {
        name: value for name, value in environment.items() if name not in _LAUNCHED and not name.startswith(_LAUNCHERS)
    }


_LAUNCHED = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT".split()
)
_LAUNCHERS = ("ACCELERATE_", "TORCHELASTIC_", "FSDP_", "OMPI_", "PMI_", "MV2_")
"""What accelerate, torchrun and MPI call the variables that say which process this is, and of how many."""
