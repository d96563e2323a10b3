"""Opening an image so that a bad one is a clear error that names the file; and writing one whole."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, UnidentifiedImageError

from reflectune.core.errors import UserError
from reflectune.core.partials import writing
from reflectune.core.paths import OutsideRoot, Roots, resolve_below


class BadImage(UserError):
    """An image that can't be used.

    Attributes:
        problem: What was found, with the file's path.
        fix: What to do.
        is_missing: Whether there is no such file.
    """

    def __init__(self, problem: str, fix: str = "", *, is_missing: bool = False) -> None:
        """A DataLoader makes it anew in another process, from its message alone: then there is no `fix`."""
        self.problem, self.fix, self.is_missing = problem, fix, is_missing
        super().__init__(f"{problem}; {fix}" if fix else problem)


def load_image(path: str | Path, *, root: Roots | None = None, needed_by: str = "") -> Image.Image:
    """Read an image whole, as RGB.

    Args:
        path: The image, absolute or relative to `root`.
        root: The folders that the data may lead into; relative paths start at the first. None: the path is the user's
            own choice, not the data's, and may lead anywhere.
        needed_by: Who asked, for the message, e.g. `question infoseek_val_00000012`.

    Raises:
        BadImage: The file is missing, truncated, no image, or so large that decoding it would exhaust memory.
        UserError: The file leads out of `root`.
    """
    asker = f" (needed by {needed_by})" if needed_by else ""
    try:
        full = Path(path) if root is None else resolve_below(path, root)
    except OutsideRoot as error:
        raise UserError(f"image refused{asker}: {error}") from error
    if not full.is_file():
        raise BadImage(f"image not found: {full}{asker}", "check the path, or re-create the data set", is_missing=True)
    try:
        with Image.open(full) as image:
            return to_rgb(image)
    except Image.DecompressionBombError as error:
        raise BadImage(f"image too large to decode safely: {full}{asker}: {error}", "scale it down first") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise BadImage(f"image unreadable: {full}{asker}: {error}", "replace or remove the file") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """An image as RGB; transparency is dropped, the colours below it stay.

    Pillow warns of a palette whose transparency is a table, and of no other mode; by way of RGBA it has the same
    colours without a warning.
    """
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")
    return image.convert("RGB")


def save_jpeg(image: Image.Image, path: Path) -> None:
    """Write a picture as JPEG; it appears whole or not at all."""
    with writing(path) as partial:
        image.save(partial, format="JPEG", quality=92)
