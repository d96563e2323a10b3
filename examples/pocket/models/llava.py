"""pocket/llava, SmolLM2 and CLIP joined by our projector and adapters, and its tuned models, built on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import sha256_of
from reflectune.examples.pocket.models.cache import locked, replacing
from reflectune.examples.pocket.models.parts import PARTS, cache_folder, fetch, is_fetched, read_part

TRAINED: Final = Path(__file__).parent / "trained"
"""Weights trained by configs/examples/pocket/stage1.yaml and stage2.yaml, written by `examples.pocket.pack`."""
PROJECTOR: Final = "projector.safetensors"
ADAPTER: Final = "adapter_model.safetensors"
IMAGE_SIZE: Final = 112
"""Side of the images in pixels: 49 tokens each."""
PARTS_FILE: Final = "parts.json"
"""File of a built checkpoint that records its parts."""


def pocket_names() -> list[str]:
    """Return every model `pocket/NAME`: the parts, the LLaVA of them, and its tuned models, named by their schemes."""
    tuned = sorted(path.parent.name for path in TRAINED.glob(f"*/{ADAPTER}"))
    return [f"pocket/{name}" for name in (*PARTS, "llava", *tuned)]


def pocket_folder(name: str) -> Path:
    """Return the folder of `pocket/NAME`, fetched or built in the user's cache if necessary.

    Raises:
        UserError: The model is unknown, or it can't be fetched or built.
    """
    if name not in pocket_names():
        raise UserError(f"no model {name}; there are {', '.join(pocket_names())}")
    short = name.removeprefix("pocket/")
    if short in PARTS:
        return fetch(short)
    if short == "llava":
        return build(cache_folder() / short)
    return build_tuned(cache_folder() / short, TRAINED / short)


def build(folder: Path, trained: Path = TRAINED, image_size: int = IMAGE_SIZE) -> Path:
    """Join the parts, a projector and adapters into a float32 checkpoint, unless the folder holds it already.

    Args:
        folder: Output folder.
        trained: Folder of the projector's four tensors, and of the adapters if there are any.
        image_size: Side of the training images.

    Raises:
        UserError: A part can't be fetched, or they don't fit together.
    """
    return _kept(folder, lambda: _made_of(trained, image_size), lambda partial: _write(partial, trained, image_size))


def _kept(folder: Path, made_of: Callable[[], dict[str, Any] | None], write: Callable[[Path], None]) -> Path:
    """Fill a folder by `write`, unless it was made of the same parts; one process at a time.

    Args:
        folder: Output folder.
        made_of: Function that returns the parts that determine the content; None if unknown before writing.
        write: Function that fills an empty folder.
    """

    def is_built() -> bool:
        if not (folder / PARTS_FILE).is_file() or (expected := made_of()) is None:
            return False
        return bool(read_json(folder / PARTS_FILE, "the record of a built model") == expected)

    if is_built():
        return folder
    with locked(folder):
        if not is_built():
            with replacing(folder) as partial:
                write(partial)
                write_json(partial / PARTS_FILE, made_of())
    return folder


def _digests(files: Iterable[Path]) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in files}


def _made_of(trained: Path, image_size: int) -> dict[str, Any] | None:
    """Return everything that determines the checkpoint, the parts' sources included; None before they are fetched."""
    if not all(map(is_fetched, ("language", "vision"))):
        return None
    digests = _digests(trained / name for name in (PROJECTOR, ADAPTER) if (trained / name).is_file())
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


def build_tuned(folder: Path, trained: Path) -> Path:
    """Write adapters of pocket/llava with a processor that has the scheme's tokens, unless the folder has them.

    Args:
        folder: Output folder: an adapter's checkpoint, as written by `sft`.
        trained: Folder of the adapters, of `scheme.json` and of `reflectune.json`.

    Raises:
        UserError: A part can't be fetched.
    """
    files = sorted(path for path in trained.iterdir() if path.is_file())

    def write(partial: Path) -> None:
        from reflectune.models.schemes.registry import load_scheme
        from reflectune.models.weights.pretrained import load_processor
        from reflectune.models.weights.tokens import add_to_tokenizer  # slow to import

        processor = load_processor(pocket_folder("pocket/llava"), "llava")
        add_to_tokenizer(processor, load_scheme(trained))
        processor.save_pretrained(partial)
        for path in files:
            (partial / path.name).write_bytes(path.read_bytes())

    return _kept(folder, lambda: _digests(files), write)
