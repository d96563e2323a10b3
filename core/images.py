"""Open images, always in the same way: upright, 8 bits a channel. Write them atomically.

No other module calls Pillow's `open`, so that training, indexing and inference see the same pixels of a file:

- The orientation in EXIF or XMP is applied.
- 16-bit grey is scaled from 0..65535 to 0..255.
- Floats within 0..1 are scaled by 255. Whole floats and 32-bit integers within 0..255 stay, within 0..65535 they are
  read as 16 bits. Other values are scaled from their minimum to their maximum.
- Transparency is dropped and the colours below it stay, as in the vision towers' training data.
- Other modes (CMYK, palettes, 1 bit …) are converted by Pillow. An animation's first frame counts.
- A strip with one side more than 200 times the other is refused: resizing its short side would exhaust memory.
- A PNG may have 64 MB of texts and colour profiles.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import stat
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.paths import OutsideRoot, Roots, resolve_below

PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY  # of one text: 1 MB by default, which profiles exceed

Images: TypeAlias = Image.Image | Sequence[Image.Image] | None
"""A question's image, or its images in order; None if it has none."""
ImageKey: TypeAlias = str | bytes
"""Identity of an image: the path of its file, or a hash of its pixels."""
_IMAGES: Final = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
"""Formats to read, by Pillow's names. Pillow would also open HDF5, GRIB and PostScript, which starts a program."""
MAX_RATIO: Final = 200
"""Maximum ratio of an image's sides. Qwen's processors refuse more; CLIP's resize the short side to 224 or 336 pixels,
the long side by the same factor."""
_ORIGIN: Final = "reflectune_origin"
"""Attribute of an image that was loaded: its path, and the row that needs it."""
_READY: Final = "reflectune_ready"
"""Attribute of an image: model inputs that were prepared ahead, by the object that made them."""
_SERVED: Final = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
_MAX_SENT: Final = 8 << 20
"""Maximum bytes of a file that is sent unchanged."""
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
_DAMAGED: Final = (None, errno.EINVAL)
"""Error numbers of decoders: None in Pillow's own errors, EINVAL after a seek beyond any file's range."""
_ORIENTATION: Final = 0x0112
_SAMPLE_FORMAT: Final = 339
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadImage(UnusableInput):
    """An image that can't be used.

    Attributes:
        problem: The problem, with the file's path.
        fix: Advice to the user.
        is_missing: True if the file doesn't exist.
    """

    def __init__(self, problem: str, fix: str = "", *, is_missing: bool = False) -> None:
        """Store problem and fix. A DataLoader recreates the error in another process from its message alone."""
        self.problem, self.fix, self.is_missing = problem, fix, is_missing
        super().__init__(f"{problem}; {fix}" if fix else problem)


@dataclass(frozen=True)
class Header:
    """An image's format and size, read without decoding it.

    Attributes:
        format: Pillow's name of the format in lower case, e.g. `jpeg`.
        width: Pixels of a row as stored, before the orientation is applied.
        height: Rows as stored.
        is_animated: True if the file holds several frames.
    """

    format: str
    width: int
    height: int
    is_animated: bool = False


def load_image(path: str | Path, *, root: Roots | None = None, needed_by: str = "") -> Image.Image:
    """Read an image whole, as RGB.

    Args:
        path: The image, absolute or relative to `root`.
        root: The folders that the data may lead into; relative paths start at the first. None: it may lead anywhere.
        needed_by: The row that needs it, for errors, e.g. `question infoseek_val_00000012`.

    Raises:
        BadImage: The file is missing, truncated, not an image, or so large that decoding it would exhaust memory.
        UserError: The file leads out of `root`.
        OSError: The file can't be read for another reason, which may pass; also MemoryError.
    """
    suffix = f" (needed by {needed_by})" if needed_by else ""
    try:
        full = Path(path) if root is None else resolve_below(path, root)
    except OutsideRoot as error:
        raise UserError(f"image refused{suffix}: {error}") from error
    if not _is_file(full):
        raise BadImage(f"image not found: {full}{suffix}", "check the path, or re-create the data set", is_missing=True)
    image = open_image(full, suffix=suffix)
    setattr(image, _ORIGIN, (full, suffix))
    return image


def each_image(images: Images) -> Sequence[Image.Image]:
    """Return a question's images, in order."""
    if images is None:
        return ()
    return (images,) if isinstance(images, Image.Image) else images


def first_image(images: Images) -> Image.Image | None:
    """Return a question's first image; None if it has none."""
    return next(iter(each_image(images)), None)


def first_images(images: Sequence[Images]) -> list[Image.Image]:
    """Return the first image of each question; retrievers search by it."""
    return [each_image(of_question)[0] for of_question in images]


def open_image(source: Path | bytes, mode: Literal["RGB", "RGBA"] = "RGB", *, suffix: str = "") -> Image.Image:
    """Decode an image upright, as the module's docstring describes.

    Args:
        source: An existing file, or a file's bytes.
        mode: `RGBA` keeps transparency.
        suffix: Text after the file's name in errors.

    Raises:
        BadImage: It is not an image, damaged, holds NaN or infinite values, or is too large to decode safely.
        OSError: The file can't be read for another reason, which may pass; also MemoryError.
    """
    with _opened(source, suffix) as image:
        try:
            return _converted(image, mode)
        except ValueError as error:
            raise _unreadable(source, suffix, error) from error


def read_header(source: Path | bytes) -> Header:
    """Read an image's format and size without decoding it.

    Raises:
        BadImage: It is not in a format that is read, or is too large to decode safely.
        OSError: The file can't be read for another reason, which may pass; also MemoryError.
    """
    with _opened(source, whole=False) as image:
        is_animated = bool(getattr(image, "is_animated", False))
        return Header((image.format or "img").lower(), image.width, image.height, is_animated)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image in memory to RGB as `open_image` does. Only the pixels are kept.

    Raises:
        BadImage: It is a strip.
        ValueError: It holds NaN or infinite values.
    """
    _check_shape(image, origin_of(image))
    return _converted(image, "RGB")


def origin_of(image: Image.Image) -> str:
    """Return the path of an image that `load_image` read, with the row that needs it; else its size."""
    return "".join(map(str, getattr(image, _ORIGIN, (f"an image of {image.width:,} × {image.height:,} pixels",))))


def encode_image(image: Image.Image, max_pixels: int = 0, *, lossless: bool = False) -> tuple[str, bytes]:
    """Return an image's MIME type and the bytes of a file, to be sent to a server.

    The file that it was loaded from is sent unchanged if any server reads the same pixels from it. Otherwise the image
    is encoded as JPEG or PNG.

    Args:
        image: The image, in RGB.
        max_pixels: Maximum pixels; a larger image is scaled down. 0: any.
        lossless: True for a PNG in place of a JPEG.
    """
    factor = math.sqrt(max_pixels / (image.width * image.height)) if max_pixels else 1
    if factor >= 1 and (path := getattr(image, _ORIGIN, (None,))[0]):
        content = path.read_bytes()
        if len(content) <= _MAX_SENT and (mime := _served_as(content, image.size)):
            return mime, content
    if factor < 1:
        image = image.resize(
            (max(1, int(image.width * factor)), max(1, int(image.height * factor))), Image.Resampling.LANCZOS
        )
    buffer = io.BytesIO()
    form = "PNG" if lossless else "JPEG"
    image.convert("RGB").save(buffer, format=form, **({} if lossless else {"quality": 92}))
    return _SERVED[form], buffer.getvalue()


def _served_as(content: bytes, size: tuple[int, int]) -> str:
    """Return the MIME type of a file that any server reads as `open_image` does; "" for others."""
    with _opened(content, whole=False) as image:
        is_plain = image.mode in ("RGB", "L") and image.size == size and getattr(image, "n_frames", 1) == 1
        is_plain = is_plain and "transparency" not in image.info and _upright(image) is image
        return _SERVED.get(image.format or "", "") if is_plain else ""


def keep_ready(image: Image.Image, maker: Hashable, made: object) -> None:
    """Store inputs that were prepared from an image ahead, for the lifetime of the image object."""
    vars(image).setdefault(_READY, {})[maker] = made


def ready_for(image: Image.Image, maker: Hashable) -> Any:
    """Return the inputs that `keep_ready` stored for a maker; None if there are none."""
    return vars(image).get(_READY, {}).get(maker)


def image_key(image: Image.Image) -> ImageKey:
    """Return the file that `load_image` read an image from, links resolved; for any other a hash of its pixels."""
    path = getattr(image, _ORIGIN, (None,))[0]
    return pixel_hash(image) if path is None else os.path.realpath(path)


def pixel_hash(image: Image.Image) -> bytes:
    """Return a hash of an image's mode, size and pixels, 32 bytes."""
    return hashlib.sha256(f"{image.mode} {image.size} ".encode() + image.tobytes()).digest()


@contextmanager
def _opened(source: Path | bytes, suffix: str = "", *, whole: bool = True) -> Iterator[Image.Image]:
    """Open an image inside this block, and decode it if `whole`."""
    with ExitStack() as stack:
        try:
            # A stream: Pillow (13.0) maps a TIFF at a path into memory with the rows of the turned image, and skews it.
            # Can go once `ImageFile.load` maps `_tile_size` there.
            stream = io.BytesIO(source) if isinstance(source, bytes) else stack.enter_context(source.open("rb"))
            image = stack.enter_context(Image.open(stream, formats=_IMAGES))
            _check_shape(image, f"{_name(source)}{suffix}")
            if whole:
                image.load()
        except Image.DecompressionBombError as error:
            problem = f"image too large to decode safely: {_name(source)}{suffix}: {error}"
            raise BadImage(problem, "scale it down first") from error
        except BadImage:
            raise
        except MemoryError as error:
            raise MemoryError(f"too little memory to read the image {_name(source)}{suffix}") from error
        except OSError as error:
            if error.errno in (*_DAMAGED, *_ABSENT):
                raise _unreadable(source, suffix, error) from error
            error.filename = _name(source)  # a failed read has none
            raise
        except Exception as error:  # RuntimeError (AVIF), AttributeError (SPIDER), NotImplementedError (DDS) …
            raise _unreadable(source, suffix, error) from error
        yield image


def _is_file(path: Path) -> bool:
    """Return True for an existing file. Unlike `os.path.isfile`, raise an error that may pass, such as ESTALE."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except ValueError:  # a null byte
        return False
    except OSError as error:
        if error.errno in _ABSENT:
            return False
        raise


def _check_shape(image: Image.Image, name: str) -> None:
    """Refuse a strip."""
    short, long = sorted(image.size)
    if long > MAX_RATIO * short:
        problem = f"image too narrow: {name}: {image.width:,} × {image.height:,} pixels, with one side more than"
        raise BadImage(f"{problem} {MAX_RATIO} times the other", "crop it first")


def _unreadable(source: Path | bytes, suffix: str, error: Exception) -> BadImage:
    reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
    fix = "give another image" if isinstance(source, bytes) else "replace or remove the file"
    return BadImage(f"image unreadable: {_name(source)}{suffix}: {reason}", fix)


def _name(source: Path | bytes) -> str:
    return f"{len(source):,} bytes" if isinstance(source, bytes) else str(source)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    image = _eight_bits(_upright(image))
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        # Pillow warns of a palette whose transparency is a table; through RGBA it doesn't, with the same colours
        image = image.convert("RGBA")
    elif image.mode in ("La", "RGBa"):  # colours multiplied by their opacity
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    converted = image.convert(mode)
    converted.info = {}  # an orientation that stayed would be applied twice
    return converted


def _upright(image: Image.Image) -> Image.Image:
    """Apply the orientation. An image whose EXIF can't be read counts as upright, as in any viewer."""
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # Pillow's reader, given a damaged file
        return image
    way = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if way is None else image.transpose(way)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert grey of more than 8 bits to 8; return other images unchanged."""
    if image.mode.startswith("I;16"):
        return _grey(np.asarray(image), 0, 65535)
    if image.mode not in ("I", "F"):
        return image
    values: npt.NDArray[Any] = np.asarray(image)
    tags = getattr(image, "tag_v2", None)
    if image.mode == "I" and tags is not None and tags.get(_SAMPLE_FORMAT, (1,)) in ((1,), 1):
        values = values.view(np.uint32)  # a TIFF's integers without a sign, which Pillow reads as if they had one
    if not np.isfinite(values).all():
        raise ValueError("it holds NaN or infinite values")
    low, high = float(values.min()), float(values.max())
    if image.mode == "F" and low >= 0 and high <= 1:
        return _grey(values, 0, 1)
    whole = image.mode == "I" or bool((values == np.round(values)).all())
    if whole and low >= 0 and high <= 65535:
        is_deep = high > 255 or image.format in ("PNG", "PPM")  # Pillow reads 16 bits of these two formats as 32
        return _grey(values, 0, 65535 if is_deep else 255)
    return _grey(values, low, high)


def _grey(values: npt.NDArray[Any], low: float, high: float) -> Image.Image:
    """Scale to grey of 8 bits: `low` is black, `high` white."""
    scaled = (values.astype(np.float64) - low) * (255 / (high - low) if high > low else 0)
    return Image.fromarray(np.rint(scaled).astype(np.uint8))
