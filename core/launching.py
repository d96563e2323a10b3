"""The processes of a launch by torchrun, accelerate or MPI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from accelerate import PartialState

MPI_SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_SIZES: Final = ("WORLD_SIZE", *MPI_SIZES)
_RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")


_PATIENCE: Final = timedelta(days=30)
"""Time that a process waits for the others: the first may finish hours before the last."""


@dataclass(frozen=True)
class Processes:
    """The processes of a launch, seen from one.

    Attributes:
        index: This process's number.
        count: Number of processes.
        wait: Barrier of all processes.
    """

    index: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block in the first process before the others."""
        if self.index:
            self.wait()
        yield
        if not self.index:
            self.wait()


ALONE: Final = Processes()
"""A process that waits for no others."""


def launch_state() -> PartialState:
    """Return the launch of this process, which joins its group the first time."""
    import torch  # slow to import, as is accelerate
    from accelerate import PartialState

    return PartialState(cpu=not torch.accelerator.is_available(), timeout=_PATIENCE)


def launch_processes() -> Processes:
    """Return the processes of this process's launch."""
    state = launch_state()
    return Processes(state.process_index, state.num_processes, state.wait_for_everyone)


def launch_device(device: str) -> str:
    """Return a config's device; `auto` is this process's in its launch."""
    return str(launch_state().device) if device == "auto" else device


def join_launch(device: str) -> tuple[Processes, str]:
    """Return the processes of this process's launch, and its device.

    Args:
        device: Device of a config. In a launch of several, `auto` becomes this process's accelerator.
    """
    processes = launch_processes()
    return processes, launch_device(device) if processes.count > 1 else device


def launched() -> int:
    """Return the number of processes of this launch, as accelerate counts them; 1 without a launcher."""
    return max(int(os.environ.get(name, 1)) for name in _SIZES)


def rank() -> int:
    """Return this process's number in its launch; 0 without a launcher."""
    return next((int(os.environ[name]) for name in _RANKS if name in os.environ), 0)


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the environment without the launcher's variables, to start a command outside this launch."""
    return {
        name: value for name, value in environment.items() if name not in _LAUNCHED and not name.startswith(_LAUNCHERS)
    }


_LAUNCHED: Final = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT".split()
)
_LAUNCHERS: Final = ("ACCELERATE_", "TORCHELASTIC_", "FSDP_", "OMPI_", "PMI_", "MV2_")
