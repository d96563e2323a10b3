"""Finds models named `miniature/…`, which are shipped with this installation, and `pocket/…`, fetched on first use."""

from __future__ import annotations

from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.models import miniature

_MINIATURE, _POCKET = "miniature/", "pocket/"


def shipped_folder(name: str) -> Path | None:
    """The folder of a model by such a name; None for any other name, which is a folder or a hub id.

    `pocket/language`, `pocket/vision` and `pocket/text` are fetched, and `pocket/llava` is built, if they aren't in the
    user's cache.

    Raises:
        UserError: There is no model of this name, or it can't be fetched.
    """
    if name.startswith(_POCKET):
        from reflectune.models.pocket.llava import pocket_folder  # slow to import

        return pocket_folder(name)
    if not name.startswith(_MINIATURE):
        return None
    miniatures = Path(next(iter(miniature.__path__)))
    folder = miniatures / name.removeprefix(_MINIATURE)
    if not (folder / "config.json").is_file():
        known = sorted(f"{_MINIATURE}{path.parent.name}" for path in miniatures.glob("*/config.json"))
        raise UserError(f"no model {name}; this installation has {', '.join(known) or 'none'}")
    return folder
