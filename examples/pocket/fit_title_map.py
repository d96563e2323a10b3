"""Fit a title map: `python -m reflectune.examples.pocket.fit_title_map --images FILE --knowledge DIR --output FILE`.

A title map makes images and titles of two models comparable that were not trained together, as equation 3 needs. The
output is the map of the encoder `pocket/clip`. Only images whose `use` is `train` are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reflectune.core.command import command
from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.values import Device, InputFile, OutputFile
from reflectune.models.names import EncoderName


class TitleMapConfig(Settings):
    """Images, models and output of a title map."""

    images: InputFile = setting("", "JSON lines with image, entity and use, e.g. DATASET/images.jsonl", needed="")
    knowledge: str = setting("", "knowledge base folder with the entities' titles, e.g. DATASET/knowledge", needed="")
    output: OutputFile = setting("", "the map to write, FILE.safetensors", needed="")
    vision: EncoderName = setting(
        "pocket/vision", "an image tower with a projection: pocket/vision, a folder, or a hub id"
    )
    text: EncoderName = setting(
        "pocket/text", "a text model that declares its pooling: pocket/text, a folder, or a hub id"
    )
    batch_size: int = setting(16, "images encoded together", ge=1)
    device: Device = setting("auto", "cpu, cuda, cuda:1, or auto")

    @cross_check
    def title_map_problems(self) -> Iterator[str]:
        """Yield the problems of keys, and of files that they name."""
        if self.output and not self.output.endswith(".safetensors"):
            yield f"`output` must end in .safetensors, found {self.output}"
        if Path(self.knowledge).is_dir() and self.knowledge and not Path(self.knowledge, "kb.json").is_file():
            yield f"`knowledge`: {self.knowledge} has no kb.json; give a knowledge base's folder"


def run(config: TitleMapConfig) -> dict[str, Any]:
    """Encode the training images and their titles, fit the map and write it.

    Returns:
        The map's record.

    Raises:
        UserError: A row is not as it should be, an image is bad, or fewer than two entities have images.
    """
    import numpy as np  # slow to import, as those below: after the config is right

    from reflectune.core.devices import find_device
    from reflectune.core.hashing import file_fingerprint
    from reflectune.examples.pocket.mapped_encoder import TitleModel
    from reflectune.examples.pocket.title_map import TitleMap, fit_title_map, write_title_map
    from reflectune.examples.pocket.training_images import encode_images, training_images
    from reflectune.formats.knowledge_base import KnowledgeBase
    from reflectune.retrieval.encoders.checkpoints import find_checkpoint
    from reflectune.retrieval.encoders.clip import ImageTower

    kb = KnowledgeBase(config.knowledge)
    rows = training_images(Path(config.images))
    titles = {entry.id: entry.title for entry in kb if entry.title.strip()}
    rows_of = {entry_id: row for row, entry_id in enumerate(titles)}
    if unknown := [entity for _, entity in rows if entity not in rows_of]:
        raise UserError(f"{config.images} names {unknown[0]}, which {kb.folder} has no entry with a title of")
    shown = np.array([rows_of[entity] for _, entity in rows], dtype=np.int64)
    if len(set(shown)) < 2:
        raise UserError(f"{config.images} has training images of fewer than two entities: nothing can be held out")
    vision, text = find_checkpoint(config.vision), find_checkpoint(config.text)
    device = find_device(config.device)
    folder, images = Path(config.images).parent, [image for image, _ in rows]
    image_vectors = encode_images(ImageTower(vision, device), folder, images, config.batch_size)
    title_vectors = TitleModel(text, device).encode(list(titles.values()))
    weight, bias, fitted = fit_title_map(image_vectors, title_vectors, shown)
    record = {
        "vision": config.vision,
        "vision_fingerprint": vision.fingerprint,
        "text": config.text,
        "text_fingerprint": text.fingerprint,
        "kb": kb.name,
        "kb_fingerprint": kb.fingerprint,
        "images_fingerprint": file_fingerprint(config.images),
        "use": "train",
        "images": len(rows),
        "entities": len(set(shown)),
        **fitted,
    }
    write_title_map(Path(config.output), TitleMap(weight, bias, record))
    return record


@command(TitleMapConfig, writes="output")
def fit_title_map(config: TitleMapConfig) -> None:
    """Fit a map of titles into an image encoder's space."""
    record = run(config)
    print(f"{config.output}: fitted on {record['images']:,} images of {record['entities']:,} entities")
    best = max(record["held_out_mrr"].values())
    print(f"  penalty {record['penalty']:.3g}; mean reciprocal rank of the title, entities held out: {best:.3f}")


if __name__ == "__main__":
    fit_title_map.main()
