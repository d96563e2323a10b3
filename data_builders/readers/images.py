"""Find images by id below a folder, with any extension and sharding, and write images that are given as bytes."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reflectune.core.durable import write_atomically
from reflectune.core.images import BadImage, read_header
from reflectune.core.paths import OutsideRoot, resolve_below
from reflectune.core.rejected import BadRow, MissingImage, UnreadableImage
from reflectune.data_builders.readers.rows import SourceRow

_LOWER = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
EXTENSIONS = (".jpg", ".JPEG", ".jpeg", ".png", ".JPG", ".PNG", ".webp", ".gif", ".bmp", ".WEBP", ".GIF", ".BMP")
"""Extensions that `find` tries, the most frequent first; OVEN's images have three of them."""
ADDRESSES = "addresses.parquet"
"""A file that marks a folder of images at the paths of their addresses (`address_path`)."""

_MANY_FOLDERS = 64
_MANY_NAMES = 256
_UNLISTED = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of a folder that count as "no images". Others, such as of a lost network disk, are raised."""
_MAX_LISTED = 16_384
_MAX_KEPT = 4096
_NUMBER = re.compile(r"\d{3,}")
_OF_ADDRESS = re.compile(r"[0-9a-f]{2}(?:/[0-9a-f]{2})?")


@dataclass
class ImageFolder:
    """The images below one folder.

    An image is searched as `<id><extension>` in the folder itself, in the public sets' shards (OVEN: the first two
    digits of the number; GLDv2: the first three letters, one folder each; Wiki6M: the first four characters), and in
    the existing sub-folders, two levels deep. The shard and extension of the last image are tried first, so that most
    look-ups cost one `stat`. Small folders are listed once, since a missing image would cost about fifty `stat`s. A
    worker process keeps its caches between batches.

    Args:
        root: The folder. None disables images: every look-up by `path` returns "" (for scoring, or text-only sets).
        save_to: Folder to write images to that a source holds as bytes; None only checks them.

    Example:
        >>> ImageFolder(Path("oven_images")).find("oven_01963180")
        '01/oven_01963180.JPEG'
    """

    root: Path | None = None
    save_to: Path | None = None
    _lately: list[tuple[str, str]] = field(default_factory=list, init=False, repr=False, compare=False)
    _inside: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    _listed: dict[str, frozenset[str] | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _spellings: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (type(self), self.root, self.save_to)

    @property
    def start(self) -> Path | None:
        """The folder that paths are relative to: `root`, else `save_to`."""
        return self.save_to if self.root is None else self.root

    def find(self, image_id: str) -> str | None:
        """Return the path of an image relative to `root`, or None.

        An id may be a path (`val2014/COCO_val2014_000000000042.jpg`). A path out of the folder gives None.

        Raises:
            OutsideRoot: A link in the path leads out of the folder.
        """
        if self.root is None or not image_id or escapes(image_id):
            return None
        forms = dict.fromkeys((image_id, *(unicodedata.normalize(form, image_id) for form in ("NFC", "NFD"))))
        path = next(filter(None, map(self._locate, forms)), None)
        if path is None and not image_id.isascii() and self._is_file(spelled := self._spelled(image_id)):
            path = os.path.normpath(spelled)
        if path is not None:
            self._refuse_outside(path)
        return path

    def exact(self, row: SourceRow, image_field: str, path: str, *, respell: bool = True) -> str | None:
        """Return the path as spelled on disk if it is a file, else None. Costs one `stat` if the spelling is equal.

        The spellings may differ in Unicode normalization (NFC, NFD) and in the extension's case.

        Args:
            row: The row, for the error.
            image_field: The field of the path, for the error.
            path: A path below `root`.
            respell: False if the spelling is known to be that on disk, so that no folder is listed for a missing file.

        Raises:
            BadRow: A link in the path leads out of the folder.
        """
        if self.root is None or escapes(path):
            return None
        spelled = path if not respell or self._is_file(path) else self._spelled(path)
        if not self._is_file(spelled):
            return None
        direct = os.path.normpath(spelled)
        try:
            self._refuse_outside(direct)
        except OutsideRoot as error:
            raise _leads_out(row, image_field, error) from error
        return direct

    def of_article(self, row: SourceRow, path: str) -> str | None:
        """Return the image with an article's path, which has no extension, or None; see `exact`."""
        return next(filter(None, (self.exact(row, "", path + extension) for extension in _LOWER)), None)

    def _spelled(self, path: str) -> str:
        """Return a path with each of its names as spelled on disk. Missing names stay unchanged."""
        folder, name = os.path.split(path)
        folder = self._spelled(folder) if folder and not os.path.isdir(f"{self.root}/{folder}") else folder
        if folder not in self._spellings:
            if len(self._spellings) >= _MANY_FOLDERS:
                self._spellings.clear()
            self._spellings[folder] = {_plain(name): name for name in sorted(_names_of(f"{self.root}/{folder}"))}
        return os.path.join(folder, self._spellings[folder].get(_plain(name), name))

    def _refuse_outside(self, path: str) -> None:
        """Follow the links of a path, those of each folder once, so that most look-ups cost one more `lstat`."""
        root, folder = self.root or Path(), os.path.dirname(path)
        if folder not in self._inside:
            resolve_below(folder, root)
            if len(self._inside) >= _MAX_KEPT:
                self._inside.clear()
            self._inside.add(folder)
        if os.path.islink(f"{root}/{path}"):
            resolve_below(path, root)

    def _locate(self, image_id: str) -> str | None:
        """Return the path of an image, without a check of its links."""
        if "/" in image_id or image_id.endswith(EXTENSIONS):
            direct = os.path.normpath(image_id)
            if self._is_file(direct):
                return direct
        for sharding, extension in self._lately:
            if self._is_file(path := _join(sharding, image_id, extension)):
                return path
        return self._search(image_id)

    def find_for(self, row: SourceRow, image_field: str, image_id: str) -> str | None:
        """Return the path of a row's optional image, or None; see `find`.

        Raises:
            BadRow: A link in the path leads out of the folder.
        """
        try:
            return self.find(image_id)
        except OutsideRoot as error:
            raise _leads_out(row, image_field, error) from error

    def path(self, row: SourceRow, image_field: str, image_id: str, *, search: bool = True) -> str:
        """Return the path of a row's image relative to `root`; "" if `root` is None.

        Args:
            row: The row, for the error.
            image_field: The field of the id, for the error.
            image_id: The image's id or its path below `root`.
            search: False if `image_id` is the exact path.

        Raises:
            BadRow: The id or a link leads out of the folder.
            MissingImage: The image is not found.
        """
        if self.root is None:
            return ""
        if escapes(image_id):
            if self.below(image_id) is not None:
                raise row.bad(image_field, f"`{image_id}` is an absolute path", f"give the path from {self.root} on")
            raise row.bad(image_field, f"`{image_id}` leads out of {self.root}", "use a path below the image folder")
        path = self.find_for(row, image_field, image_id) if search else self.exact(row, image_field, image_id)
        if path is None:
            problem = f"no image of `{image_id}` below {self.root}"
            fix = "download it or check `images`; `on_error: skip` leaves such rows out"
            raise MissingImage(row.file, row.line, row.id, image_field, problem, fix)
        return path

    def keep(self, row: SourceRow, image_field: str, value: Any) -> str:
        """Return the path, relative to `start`, of an image given by path or as bytes; bytes are written.

        Args:
            row: The row.
            image_field: The field of `value`.
            value: A path, the bytes of a file, `{"bytes": …, "path": …}` as in `datasets`, or a list of one of them.

        Raises:
            BadRow: The value is a URL, has another type, or is a path that leads out of the folder.
            MissingImage: The file is missing.
            UnreadableImage: The bytes are not an image.
        """
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, dict):  # `datasets` writes absolute paths
            path = value.get("path")
            value = value.get("bytes") or (self.below(path) if isinstance(path, str) else None) or path
        if isinstance(value, bytes) and value:
            return self._kept(row, image_field, value)
        if not isinstance(value, str) or not value.strip():
            shown = f"is {value!r:.60} ({type(value).__name__})"
            found = "is null" if value is None else "is empty" if value in ("", b"") else shown
            fix = "give the path of one image below the image folder, or the file's bytes"
            raise row.bad(image_field, f"{found}, not an image", fix)
        if re.match(r"[a-z][a-z0-9+.-]*://", value.strip(), re.IGNORECASE):
            fix = "download the images once, e.g. by img2dataset, and put their paths in this column"
            raise row.bad(image_field, f"holds a URL ({value.strip()[:80]})", fix)
        return self.path(row, image_field, value.strip(), search=False)

    def keep_all(self, row: SourceRow, image_field: str, value: Any) -> list[str]:
        """Return the path of each image of a list, at least one, or of a single image; see `keep`."""
        items = value if isinstance(value, list) and value else [value]
        return [self.keep(row, image_field, item) for item in items]

    def below(self, path: str) -> str | None:
        """Return an absolute path as one relative to `root`; None if it is not absolute, or not below."""
        if self.root is None or not os.path.isabs(path) or ".." in path.split("/"):
            return None
        root = Path(os.path.abspath(self.root))
        return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else None

    def _kept(self, row: SourceRow, image_field: str, content: bytes) -> str:
        """Write bytes once under a name made of their hash, and return the path."""
        try:
            extension = f".{read_header(content).format}"
        except BadImage as error:
            problem = f"{len(content):,} bytes are not an image that can be decoded safely ({error.problem})"
            fix = "replace the image, or leave the row out"
            raise UnreadableImage(row.file, row.line, row.id, image_field, problem, fix) from error
        name = hashlib.sha256(content).hexdigest()[:24]
        if self.save_to is None:
            return f"{name[:2]}/{name}{extension}"
        path = os.path.relpath(self.save_to / name[:2] / f"{name}{extension}", self.start)
        self.write(path, content)
        return path

    def write(self, path: str, content: bytes) -> None:
        """Write an image's bytes to a path below `start`, if they are not there."""
        assert self.start is not None  # `save_to` is given
        if not (self.start / path).is_file():
            write_atomically(self.start / path, content)

    def _search(self, image_id: str) -> str | None:
        stem, extension = os.path.splitext(image_id)
        named = (stem, (extension, *EXTENSIONS)) if extension in EXTENSIONS else (image_id, EXTENSIONS)
        for sharding in (*_SHARDINGS, *self._folders_of(named[0])):
            folder, name = os.path.split(_join(sharding, named[0], ""))
            names = self._names_in(folder)
            for ending in named[1]:
                path = _join(sharding, named[0], ending)
                if (names is None or name + ending in names) and self._is_file(path):
                    if named[0] == image_id:
                        self._remember(sharding, ending)
                    return path
        return None

    def _remember(self, sharding: str, ending: str) -> None:
        """Move this sharding to the front of the recent ones."""
        if (sharding, ending) in self._lately:
            self._lately.remove((sharding, ending))
        self._lately.insert(0, (sharding, ending))
        del self._lately[4:]

    def _folders_of(self, image_id: str) -> list[str]:
        """Return the sub-folders that may hold the image: all if there are few, else those whose name is in the id."""
        if len(self._folders) <= _MANY_FOLDERS:
            return self._folders
        return [folder for folder in self._folders if os.path.basename(folder) in image_id]

    @cached_property
    def _folders(self) -> list[str]:
        """The sub-folders, at most two levels deep, with braces escaped; without those of fetched images."""
        root = self.root or Path()
        first = _folders_in(root)
        folders = [*first, *(f"{folder}/{name}" for folder in first for name in _folders_in(root / folder))]
        if (root / ADDRESSES).is_file():
            folders = [folder for folder in folders if not _OF_ADDRESS.fullmatch(folder)]
        return [folder.replace("{", "{{") for folder in folders]

    def _names_in(self, folder: str) -> frozenset[str] | None:
        """Return the names in a folder, cached at the first call; None if there are many."""
        if folder not in self._listed:
            if len(self._listed) >= _MAX_LISTED:
                self._listed.clear()
            names: list[str] = []
            with _if_listed(), os.scandir(f"{self.root}/{folder}") as found:
                names = [entry.name for entry in islice(found, _MANY_NAMES + 1)]
            self._listed[folder] = None if len(names) > _MANY_NAMES else frozenset(names)
        return self._listed[folder]

    def _is_file(self, path: str) -> bool:
        with _if_listed(), suppress(ValueError):  # a null byte
            return stat.S_ISREG(os.stat(f"{self.root}/{path}").st_mode)
        return False


@lru_cache(maxsize=8)
def _received(kind: type[ImageFolder], root: Path | None, save_to: Path | None) -> ImageFolder:
    """Unpickle to one object per folder, which keeps its caches."""
    return kind(root, save_to)


def _plain(name: str) -> str:
    """Return a file's name in composed form, with its extension in lower case."""
    stem, extension = os.path.splitext(unicodedata.normalize("NFC", name))
    return stem + extension.lower()


def _names_of(folder: str) -> list[str]:
    with _if_listed():
        return os.listdir(folder)
    return []


def _folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, in order, without holding those of its files."""
    with _if_listed(), os.scandir(folder) as found:
        return sorted(entry.name for entry in found if _is_folder(entry))
    return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with _if_listed():  # a link to itself is none
        return entry.is_dir()
    return False


@contextmanager
def _if_listed() -> Iterator[None]:
    """Leave this block early if the folder can't be listed (`_UNLISTED`)."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNLISTED:
            raise


def _leads_out(row: SourceRow, image_field: str, error: OutsideRoot) -> BadRow:
    return row.bad(image_field, str(error), "or leave the row out with `on_error: skip`")


def address_path(row: SourceRow, url_field: str, url: str) -> str:
    """Return the path of an image's file below a folder, by a hash of its URL.

    The extension is the URL's if it is an image's, else `.img`.

    Raises:
        BadRow: The URL is malformed.

    Example:
        >>> address_path(row, "image_url", "https://upload.wikimedia.org/a/ab/Dog.JPG")
        'cc/02/cc027d153e5b679b55853f49.jpg'
    """
    digest = hashlib.sha256(url.encode("utf-8", errors="replace")).hexdigest()
    ending = address_extension(row, url_field, url).lower()
    return f"{digest[:2]}/{digest[2:4]}/{digest[:24]}{ending if ending in EXTENSIONS else '.img'}"


def address_extension(row: SourceRow, url_field: str, url: str) -> str:
    """Return the extension of a URL's path.

    Raises:
        BadRow: The URL is malformed.
    """
    try:
        return os.path.splitext(urlsplit(url).path if "://" in url else url)[1]
    except ValueError as error:
        raise row.bad(url_field, f"is {url[:80]!r}, not an address ({error})", "correct it, or leave it out") from error


def escapes(path: str) -> bool:
    """Return True if a path is absolute or leads out of its folder, on any system."""
    parts = path.replace("\\", "/").split("/")
    return path.startswith(("/", "\\")) or ".." in parts or "\0" in path or bool(re.match(r"^[A-Za-z]:", path))


_SHARDINGS = ("", "{two_digits}", "{gldv2}", "{four}")


def _join(sharding: str, image_id: str, extension: str) -> str:
    return f"{_shard(sharding, image_id)}/{image_id}{extension}" if sharding else image_id + extension


def _shard(sharding: str, image_id: str) -> str:
    """Return the folder of an image in a sharding; any other name is a folder itself."""
    if sharding == "{two_digits}":
        number = _NUMBER.search(image_id)
        return number.group()[:2] if number else image_id[:2]
    if sharding == "{gldv2}":
        return "/".join(image_id[:3])
    if sharding == "{four}":
        return image_id[:4]
    return sharding.replace("{{", "{")
