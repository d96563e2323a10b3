"""Fetching what the Hub has of a list, and saying how the rest is had."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from reflectune.core.errors import UserError
from reflectune.data_builders.downloading.checking import FileState, check, check_one
from reflectune.data_builders.downloading.config import DownloadList, PublicFile

HUB_SECONDS: Final = 10
"""A Hub that says nothing for so long is taken as not reached."""

Say = Callable[[str], None]


class _Unreached(Exception):
    """The Hub isn't reached: no other file is asked for."""


@dataclass(frozen=True)
class Wanted:
    """A file or model that the Hub is to give.

    Attributes:
        file: What it is.
        size: Bytes that are still to be downloaded.
        target: The folder that they go to.
    """

    file: PublicFile
    size: int
    target: Path


def fetch(config: DownloadList, say: Say = print) -> tuple[FileState, ...]:
    """Fetch what the Hub has and isn't there, resuming what was begun, and say how the rest is had.

    A file that is there and wrong is left alone: whoever runs the command deletes it.

    Args:
        config: The list.
        say: Gets each line of what is told.

    Returns:
        The state of each file afterwards.

    Raises:
        UserError: A disk can't hold what is to be fetched; nothing was.
    """
    files = config.chosen()
    states = {file.name: state for file, state in zip(files, check(config), strict=True)}
    missing = [file for file in files if file.hub and states[file.name].state in ("missing", "partial")]
    try:
        wanted = [each for file in missing if (each := _ask(config, file, say)) is not None]
        refuse_full_disk(wanted)
        for each in wanted:
            if _try(each.file, partial(_download, config, each.file), say):
                state = states[each.file.name] = check_one(config, each.file)
                say(f"{each.file.name}: {state.state}{f', {state.why}' if state.why else f' ({state.path})'}")
    except _Unreached as error:
        say(str(error))
    for file in files:
        state = states[file.name]
        if state.state == "wrong" or not (file.hub or state.state == "there"):
            say(f"{file.name}{' (optional)' if file.optional else ''}: {state.state}: {state.why}")
    return tuple(states.values())


def refuse_full_disk(wanted: Sequence[Wanted]) -> None:
    """Before anything is fetched, see whether each disk holds what goes to it.

    Raises:
        UserError: One doesn't.
    """
    by_disk: dict[int, list[Wanted]] = defaultdict(list)
    for each in wanted:
        by_disk[os.stat(_existing(each.target)).st_dev].append(each)
    for group in by_disk.values():
        place = _existing(group[0].target)
        need, free = sum(each.size for each in group), shutil.disk_usage(place).free
        if need > free:
            raise UserError(
                f"{place} has {free / 2**30:,.1f} GiB free, and {need / 2**30:,.1f} GiB are to be fetched "
                f"({', '.join(each.file.name for each in group)[:200]}); free some, name another `root` or $HF_HOME, "
                "or fetch a part by `only`"
            )


def _existing(place: Path) -> Path:
    place = place.absolute()
    return next(path for path in (place, *place.parents) if path.exists())


def _ask(config: DownloadList, file: PublicFile, say: Say) -> Wanted | None:
    """What is to be fetched of a file, as the Hub says; None if it can't be had, which was told."""
    answers: list[Any] = []

    def ask() -> None:
        kind, name = file.repository
        revision = file.revision or None
        # Its client retries a lost connection for half a minute, so the Hub is asked once before.
        HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=HUB_SECONDS)
        answers.extend(_download(config, file, dry_run=True))

    if not _try(file, ask, say):
        return None
    if not answers:
        say(f"{file.name}: {file.hub} has no file like {', '.join(file.patterns or ['any'])}; check its page")
        return None
    target = Path(config.root).expanduser() / file.hub_folder if file.path else Path(constants.HF_HUB_CACHE)
    return Wanted(file, sum(each.file_size for each in answers if each.will_download), target)


def _download(config: DownloadList, file: PublicFile, dry_run: bool = False) -> list[Any]:
    """Have the Hub's client fetch a file, a folder or a model; with `dry_run` what it would fetch."""
    kind, name = file.repository
    options: dict[str, Any] = {"repo_type": kind, "revision": file.revision or None, "dry_run": dry_run}
    if file.path:
        options["local_dir"] = Path(config.root).expanduser() / file.hub_folder
    if file.path and not file.is_folder:
        told: Any = hf_hub_download(name, str(file.file), **options)
        return [told]
    told = snapshot_download(name, allow_patterns=file.patterns, **options)
    return list(told) if dry_run else [told]


def _try(file: PublicFile, work: Callable[[], Any], say: Say) -> bool:
    """Whether some work with the Hub succeeded; if not, why is told in one line.

    Raises:
        _Unreached: There is no network, or no Hub.
    """
    try:
        work()
    except OSError as error:  # also what the Hub's client raises
        if not isinstance(error, HfHubHTTPError | EntryNotFoundError | OfflineModeIsEnabled) and error.errno:
            raise  # the disk's
        if (told := _told(file, error)) is None:
            raise _Unreached(_unreached(error)) from error
        say(told)
        return False
    except httpx2.HTTPError as error:
        raise _Unreached(_unreached(error)) from error
    return True


def _told(file: PublicFile, error: OSError) -> str | None:
    """Why the Hub doesn't give a file, in one line; None if it wasn't reached."""
    kind, name = file.repository
    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{name}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, GatedRepoError):
        return (
            f"{file.name}: {name} is gated: accept its licence at {page}, log in (`hf auth login`, or set $HF_TOKEN), "
            "and run the same command again"
        )
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403):
        return (
            f"{file.name}: the Hub gives no {name} (status {status}): it is private, gone, or wants a login "
            f"(`hf auth login`); see {page}"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{file.name}: {name} has no commit {file.revision}; see {page}/commits/main"
    if isinstance(error, EntryNotFoundError) and status is not None:
        return f"{file.name}: {name} has no file {file.file} at {file.revision or 'its newest commit'}; see {page}"
    if status is not None and status < 500 and status not in (408, 429):
        return f"{file.name}: the Hub answers status {status} for {name}; see {page}"
    return None


def _unreached(error: Exception) -> str:
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    return (
        f"the Hub at {constants.ENDPOINT} isn't reached ({reason}); check the network, $HF_ENDPOINT and "
        "$HF_HUB_OFFLINE, and run the same command again: what was fetched is kept"
    )
