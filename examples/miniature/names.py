"""The collection of models named `miniature/NAME`, shipped as folders of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

_FOLDERS: Final = Path(__file__).parent / "models"


class Miniatures:
    """The models of `examples/miniature/models`, by name."""

    def names(self) -> list[str]:
        """Return every model's name, e.g. `miniature/llava`."""
        return sorted(f"miniature/{path.parent.name}" for path in _FOLDERS.glob("*/config.json"))

    def folder(self, name: str) -> Path:
        """Return the folder of a model of `names`."""
        return _FOLDERS / name.removeprefix("miniature/")

    def encoder(self, name: str, device: Any, dtype: Any) -> Any:
        """Return None: each encoder here is one folder."""
        return None
