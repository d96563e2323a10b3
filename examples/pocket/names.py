"""The collection of models named `pocket/NAME`: fetched, built or loaded on first use."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class PocketModels:
    """The models of `examples/pocket/models`, and the encoder `pocket/clip`."""

    def names(self) -> list[str]:
        """Return every model's name, e.g. `pocket/llava`."""
        from reflectune.examples.pocket.models.llava import pocket_names

        return [*pocket_names(), "pocket/clip"]

    def folder(self, name: str) -> Path:
        """Return the folder of a model of `names`; `pocket/clip` has none.

        Raises:
            UserError: The model can't be fetched or built.
        """
        from reflectune.examples.pocket.models.llava import pocket_folder

        return pocket_folder(name)

    def encoder(self, name: str, device: Any, dtype: Any) -> Any:
        """Load `pocket/clip`, two models joined by a title map; return None for another name."""
        if name != "pocket/clip":
            return None
        from reflectune.examples.pocket.mapped_encoder import MappedEncoder
        from reflectune.examples.pocket.title_map import SHIPPED

        return MappedEncoder(name, SHIPPED, device, dtype)
