"""pocket/llava: SmolLM2 and CLIP joined by our own projector and adapters, built in the user's cache on first use."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.locking import locked
from reflectune.core.partials import replacing
from reflectune.models.pocket.parts import PARTS, cache_folder, fetch, is_fetched, read_part

TRAINED: Final = Path(__file__).parent / "trained"
"""What this project trained, by configs/pocket/stage1.yaml and stage2.yaml; see `reflectune.models.pocket.pack`."""
PROJECTOR: Final = "projector.safetensors"
ADAPTER: Final = "adapter_model.safetensors"
IMAGE_SIZE: Final = 112
"""Side of the pictures in pixels: 49 tokens each."""
PARTS_FILE: Final = "parts.json"
"""Says in a built checkpoint what it was built of."""


def pocket_folder(name: str) -> Path:
    """The folder of `pocket/NAME`: a part, or the LLaVA of them, fetched or built if it isn't there.

    Raises:
        UserError: There is no such model, or it can't be had.
    """
    short = name.removeprefix("pocket/")
    if short in PARTS:
        return fetch(short)
    if short != "llava":
        known = ", ".join(f"pocket/{each}" for each in (*PARTS, "llava"))
        raise UserError(f"no model {name}; there are {known}")
    return build(cache_folder() / "llava")


def build(folder: Path, trained: Path = TRAINED, image_size: int = IMAGE_SIZE) -> Path:
    """Join the parts, a projector and adapters into a float32 checkpoint, unless the folder holds just that.

    Args:
        folder: Where to.
        trained: Folder of the projector's four tensors, and of the adapters if there are any.
        image_size: Side of the pictures that it was trained with.

    Raises:
        UserError: A part can't be fetched, or they don't fit together.
    """
    if _is_built(folder, trained, image_size):
        return folder
    with locked(folder):
        if not _is_built(folder, trained, image_size):
            with replacing(folder) as partial:
                _write(partial, trained, image_size)
    return folder


def _is_built(folder: Path, trained: Path, image_size: int) -> bool:
    if not (folder / PARTS_FILE).is_file() or not all(map(is_fetched, ("language", "vision"))):
        return False
    return read_json(folder / PARTS_FILE, "the record of a built model") == _made_of(trained, image_size)


def _made_of(trained: Path, image_size: int) -> dict[str, Any]:
    """All that decides the checkpoint, the parts' sources included."""
    files = [trained / name for name in (PROJECTOR, ADAPTER) if (trained / name).is_file()]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    parts = {name: read_part(name) for name in ("language", "vision")}
    return {"trained": digests, "image_size": image_size, **parts}


def _write(folder: Path, trained: Path, image_size: int) -> None:
    from reflectune.models.weights.assembly import Parts, assemble  # slow to import

    language, vision = fetch("language"), fetch("vision")
    model, processor = assemble(Parts(str(language), str(vision), trained / PROJECTOR, image_size=image_size))
    if (trained / ADAPTER).is_file():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(trained)).merge_and_unload()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    write_json(folder / PARTS_FILE, _made_of(trained, image_size))
