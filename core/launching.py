"""The processes of a launch by torchrun, accelerate or MPI, which join one group."""

from __future__ import annotations

import functools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reflectune.core.errors import UserError
from reflectune.core.launch_variables import rank
from reflectune.core.partials import partial_path
from reflectune.core.secrets import redacted

if TYPE_CHECKING:
    from accelerate import PartialState

Value = TypeVar("Value")

_PATIENCE: Final = timedelta(days=30)
"""Maximum time that a process waits for the others, since the first may finish hours before the last."""
_FAILURE: Final = "reflectune/failure"
"""The key in the launch's store that holds the first error of a process."""


@dataclass(frozen=True)
class Processes:
    """The processes of a launch, seen from one.

    Attributes:
        index: This process's number.
        count: Number of processes.
        wait: Barrier of all processes.
        broadcast: Replaces the items of a list by those of the first process.
    """

    index: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None
    broadcast: Callable[[list[Any]], None] = lambda items: None

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block in the first process before the others."""
        if self.index:
            self.wait()
        yield
        if not self.index:
            self.wait()

    def from_first(self, make: Callable[[], Value]) -> Value:
        """Return what the first process makes; the others wait for it."""
        made: list[Any] = [None if self.index else make()]
        self.broadcast(made)
        value: Value = made[0]
        return value


ALONE: Final = Processes()
"""A single process, which waits for no others."""


def launch_state() -> PartialState:
    """Return the launch of this process, which joins its group the first time."""
    import torch  # slow to import, as is accelerate
    from accelerate import PartialState

    state = PartialState(cpu=not torch.accelerator.is_available())
    if state.num_processes > 1:
        _waiting_group(torch.distributed.group.WORLD)  # now: creating the group later would wait for failed processes
    return state


def launch_processes(shared: str | Path = "") -> Processes:
    """Return the processes of this process's launch.

    They wait on a group of their own (gloo, 30 days): accelerate's waits end with the timeout of the group that it
    joined, or that a trainer joined before it.

    Args:
        shared: The folder that they write together, which is made; "" if they write none. All must name the same.

    Raises:
        UserError: A process doesn't find what the first one writes into `shared`.
    """
    from torch import distributed  # slow to import

    state = launch_state()
    if state.num_processes == 1:
        return ALONE
    if shared:
        _check_shared(Path(shared), state.process_index)
    group = _waiting_group(distributed.group.WORLD)
    return Processes(
        state.process_index,
        state.num_processes,
        lambda: distributed.barrier(group),
        lambda items: distributed.broadcast_object_list(items, group=group),
    )


def any_process(*flags: bool) -> list[bool]:
    """Return for each flag if it is True in any process of the launch. All processes must call it."""
    import torch  # slow to import

    if launch_state().num_processes == 1:
        return list(flags)
    counts = torch.tensor(flags, dtype=torch.int32)
    torch.distributed.all_reduce(counts, group=_waiting_group(torch.distributed.group.WORLD))
    return [count > 0 for count in counts.tolist()]


def _check_shared(folder: Path, index: int) -> None:
    from torch import distributed  # slow to import

    folder.mkdir(parents=True, exist_ok=True)  # in each: NFS may keep that a name, even the folder's, was missing
    names = [partial_path(folder / secrets.token_hex(8)).name]
    if index == 0:
        Path(folder, names[0]).touch()
    distributed.broadcast_object_list(names, group=_waiting_group(distributed.group.WORLD))
    (is_missing,) = any_process(not Path(folder, names[0]).exists())
    if index == 0:
        Path(folder, names[0]).unlink()
    if is_missing:
        raise UserError(
            f"{folder} is not the same folder for all processes; it must lie on a file system that all machines of the "
            "launch share"
        )


@functools.cache
def _waiting_group(world: Any) -> Any:
    """Make the group that the processes of a launch wait on, and begin to watch the others."""
    from torch import distributed  # slow to import

    group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
    threading.Thread(target=_watch, args=(_store(distributed).clone(),), daemon=True).start()
    return group


@contextmanager
def ending_together() -> Iterator[None]:
    """End all processes of the launch soon after this block fails in one of them. When it succeeds, wait for all.

    A launcher ends the processes of its own machine. Without this, those of other machines wait for the failed one
    until a collective operation times out. A block that joins no group (see `launch_processes`) waits for no others.

    Raises:
        UserError: The block failed because of an error in another process, which is named.
    """
    _BEGUN.set()
    try:
        yield
        if joined_launch():
            launch_processes().wait()
    except Exception as error:
        _BEGUN.clear()
        if (distributed := joined_launch()) is None:
            raise
        failure = first = f"process {rank()} failed: {error}"
        with suppress(RuntimeError):  # the process with the store has gone
            first = _store(distributed).compare_set(_FAILURE, "", failure).decode()
        if first == failure or isinstance(error, UserError):
            raise
        raise UserError(first) from error  # the connection to the failed process closed
    finally:
        _BEGUN.clear()
    if joined_launch():
        launch_processes().wait()  # the process with the store must outlive all watchers


def joined_launch() -> Any:
    """Return `torch.distributed` if this process joined a process group; None otherwise. It is not imported here."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _store(distributed: Any) -> Any:
    """Return the store of the group that this process joined."""
    return distributed.distributed_c10d._get_default_store()


def _watch(store: Any) -> None:
    unanswered = 0
    while True:
        time.sleep(POLL_SECONDS)
        if not _BEGUN.is_set():
            continue
        try:
            failure = store.get(_FAILURE).decode() if store.check([_FAILURE]) else ""
            unanswered = 0
        except RuntimeError:  # the process with the store has gone, or one connection broke
            unanswered += 1
            failure = "the first process of the launch has gone" if unanswered == _POLLS else ""
        if failure and _BEGUN.is_set():
            print(redacted(f"error: {failure}"), file=sys.stderr, flush=True)
            os._exit(1)


_BEGUN: Final = threading.Event()
"""Set inside a block of `ending_together`."""
POLL_SECONDS = 1.0
"""Interval between checks for failures."""
_POLLS: Final = 3
"""Polls in a row without an answer that end a process."""
