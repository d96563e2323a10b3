"""A list of public files and models: what each is, where it comes from, and how one knows that it is whole."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from reflectune.core import checks
from reflectune.core.addresses import is_address
from reflectune.core.config import bound_problems, setting

_SIZE: Final = re.compile(r"(\d+(?:\.(\d+))?)([KMGT])B?")
_POWERS: Final = {"K": 1, "M": 2, "G": 3, "T": 4}
_REPOSITORY: Final = re.compile(r"(?:datasets/)?[\w.-]+/[\w.-]+")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Size:
    """Bytes of a download, as exactly as they are published: `245M` is anything that may be rounded so.

    Attributes:
        text: As published; "" if it isn't.
        low: The least number of bytes.
        high: The greatest one.
    """

    text: str = ""
    low: float = 0
    high: float = math.inf

    @property
    def is_known(self) -> bool:
        """Whether a size is published at all."""
        return bool(self.text)

    def __str__(self) -> str:
        return self.text or "not published"


def parse_size(value: int | str) -> Size:
    """A size as a page gives it: bytes, or `245M`, `6.9GB` and the like, which may be of 1,000 or of 1,024.

    Raises:
        ValueError: It is neither.

    Example:
        >>> parse_size("1.5K")
        Size(text='1.5K', low=1450.0, high=1587.2)
    """
    if isinstance(value, int) and value > 0:
        return Size(f"{value:,} bytes", value, value)
    if (match := _SIZE.fullmatch(str(value))) is None:
        raise ValueError(f"`{value}` is no size: write bytes, or e.g. 245M")
    half = 0.5 * 10 ** -len(match[2] or "")
    power = _POWERS[match[3]]
    return Size(str(value), (float(match[1]) - half) * 1000**power, (float(match[1]) + half) * 1024**power)


@dataclass(frozen=True)
class PublicFile:
    """A public file, a folder of files, or a model in the Hub's own cache.

    Attributes:
        path: Below the list's `root`; a folder's ends with `/`. Of a model "".
        size: Of the download, as published: bytes or `245M`; "" if it isn't.
        rows: How many it has, as published.
        licence: As its page says.
        hub: Its repository on the Hub: `OWNER/NAME`, or `datasets/OWNER/NAME`.
        revision: The commit; "" for the newest, where none is known.
        file: Its path in the repository, which `path` ends with; of a folder this may be "", the whole repository. Of
            a model patterns of its files; none for all.
        url: A direct address, to be fetched by hand.
        page: The page that says how it is had: a form, a licence, a choice of mirrors.
        then: What to do with the download before it is `path`, e.g. to unpack it.
        sha256: As published.
        member: The file in the archive that `sha256` is of; "" for the file itself.
        gated: Whether a licence or a form must be accepted first.
        optional: Whether a run goes on without it.
        read_by: Configs that read it.
        fields: Of the first rows.
        rows_at: Where a JSON document has its rows, in ijson's words: `questions.item`.
        example: A pattern that a file of a folder matches, e.g. `0*/oven_*`.
        note: What else one should know.
    """

    path: str = ""
    size: int | str = ""
    rows: int | None = None
    licence: str = ""
    hub: str = ""
    revision: str = ""
    file: str | list[str] = ""
    url: str = ""
    page: str = ""
    then: str = ""
    sha256: str = ""
    member: str = ""
    gated: bool = False
    optional: bool = False
    read_by: list[str] = dataclasses.field(default_factory=list)
    fields: list[str] = dataclasses.field(default_factory=list)
    rows_at: str = ""
    example: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """What it is called: its path, a model its repository."""
        return self.path or self.hub

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of files."""
        return self.path.endswith("/")

    @property
    def published_size(self) -> Size:
        """Bytes of the download."""
        return parse_size(self.size) if self.size else Size()

    @property
    def repository(self) -> tuple[str, str]:
        """The Hub's kind of repository (`dataset` or `model`), and `OWNER/NAME`."""
        kind, mark, name = self.hub.partition("datasets/")
        return ("dataset", name) if mark else ("model", kind)

    @property
    def patterns(self) -> list[str] | None:
        """Which files of the repository; None for all."""
        if not self.file:
            return None
        if isinstance(self.file, str):
            return [f"{self.file}*" if self.is_folder else self.file]
        return self.file

    @property
    def hub_folder(self) -> str:
        """The folder below `root` that the Hub's client puts the repository's files into, under their names there."""
        return self.path.removesuffix(str(self.file))

    def problems(self) -> Iterator[str]:
        """What is wrong with the entry, one sentence each."""
        parts = PurePosixPath(self.path).parts
        if self.path.startswith("/") or ".." in parts or "\\" in self.path or not self.path.isprintable():
            yield "is no path below `root`"
        if self.size:
            try:
                parse_size(self.size)
            except ValueError as error:
                yield f"`size`: {error}"
        if self.hub and not _REPOSITORY.fullmatch(self.hub):
            yield f"`hub`: {self.hub} is no OWNER/NAME or datasets/OWNER/NAME"
        if self.revision and not _COMMIT.fullmatch(self.revision):
            yield f"`revision`: {self.revision} is no whole commit of 40 hexadecimal digits"
        if self.sha256 and not _SHA256.fullmatch(self.sha256):
            yield "`sha256` has 64 hexadecimal digits"
        if not self.licence:
            yield "`licence` is needed: `not stated` if the page doesn't say"
        if not (self.hub or self.url or self.page):
            yield "one of `hub`, `url` and `page` is needed: where it is had"
        yield from (f"`{key}`: {url} is no address" for key, url in self._addresses() if not is_address(url))
        if self.hub and self.path and not self._is_named_as_there():
            yield "it must end with `file`, its path in the repository"

    def _addresses(self) -> Iterator[tuple[str, str]]:
        yield from ((key, url) for key, url in (("url", self.url), ("page", self.page)) if url)

    def _is_named_as_there(self) -> bool:
        if not self.file:
            return self.is_folder
        return isinstance(self.file, str) and f"/{self.path}".endswith(f"/{self.file}")


_KINDS: Final[Mapping[str, Any]] = typing.get_type_hints(PublicFile)


def read_file(key: str, values: Any, *, is_model: bool) -> tuple[PublicFile | None, list[str]]:
    """An entry of a list, and what is wrong with it, one sentence each.

    Args:
        key: Its path; of a model its repository.
        values: The mapping that the list has for it.
        is_model: Whether it belongs into the Hub's own cache.
    """
    if not isinstance(values, dict):
        return None, ["needs a mapping: licence, size, hub, url …"]
    own = "hub" if is_model else "path"
    known = [name for name in _KINDS if name != own]
    issues = []
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            issues.append(f"unknown key `{name}`" + (f"; did you mean `{near[0]}`?" if near else ""))
        elif not _is_of(value, _KINDS[name]):
            issues.append(f"`{name}` is of another type: found {value!r}")
    if issues:
        return None, issues
    file = PublicFile(**{own: key, **values})
    return file, list(file.problems())


def _is_of(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    options = typing.get_args(kind) or (kind,)
    if isinstance(value, bool):
        return bool in options
    return any(_is_of(value, option) if typing.get_origin(option) else isinstance(value, option) for option in options)


@dataclass
class DownloadList:
    """The public files that a reproduction reads."""

    root: str = setting("data", "folder that the files lie in", check=checks.output_folder)
    files: dict[str, Any] = setting({}, "for each file below `root` what it is; a folder's name ends with `/`")
    models: dict[str, Any] = setting({}, "for each model of the Hub what it is; they lie in the Hub's own cache")
    only: list[str] = setting([], "only those whose path or repository begins so")
    stand_ins: bool = setting(
        False, "the files are generated ones in the true layouts: compare no size, checksum or number of rows"
    )
    checksums: bool = setting(True, "read files whole to compare checksums and to count rows, once until they change")

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = bound_problems(self, DownloadList)
        if not (self.files or self.models):
            issues.append("`files` is needed: the list, e.g. --config configs/reproduce/mr2ag/downloads.yaml")
        for key, values, is_model in self._entries():
            issues += [f"`{key}`: {told}" for told in read_file(key, values, is_model=is_model)[1]]
        if both := self.files.keys() & self.models.keys():
            issues.append(f"`models`: {min(both)} is among `files` too")
        if not issues and self.only and not self.chosen():
            issues.append(f"`only`: nothing in the list begins with {', '.join(self.only)}")
        return issues

    def chosen(self) -> tuple[PublicFile, ...]:
        """The files and models that are meant, in the list's order."""
        every = (read_file(key, values, is_model=is_model)[0] for key, values, is_model in self._entries())
        return tuple(file for file in every if file and (not self.only or file.name.startswith(tuple(self.only))))

    def place(self, file: PublicFile) -> Path:
        """Where a file belongs."""
        return Path(self.root).expanduser() / file.path

    def _entries(self) -> Iterator[tuple[str, Any, bool]]:
        yield from ((str(key), values, False) for key, values in self.files.items())
        yield from ((str(key), values, True) for key, values in self.models.items())


@dataclass
class DownloadConfig(DownloadList):
    """What to do with a list: without a flag, fetch what the Hub has and say how the rest is had."""

    list: bool = setting(False, "print the files with their sizes, licences and sources, and stop")
    check: bool = setting(False, "say of each file whether it is there and whole, and stop; exit status 1 if one isn't")
