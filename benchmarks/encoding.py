"""How many pictures an encoder takes a second, and whether reading them hides behind its model.

    python benchmarks/encoding.py --encoder openai/clip-vit-large-patch14 --device cuda --workers 0 4 8 16
    python benchmarks/encoding.py --own_rate 40 --output benchmarks/encoding.md

Pictures are drawn, JPEG files of the size of a photograph. *Reading alone*: they are decoded and made ready, and no
model runs. *The model alone*: it gets batches that are ready. *Both*: what `build_index` does, with so many workers.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page import command_line
from PIL import Image

from reflectune.core.images import load_image
from reflectune.core.types import Entry
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.retrieval.encoders.base import PreparingEncoder, Vectors
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.pictures import Place, encode_pictures, places_of

TEXT = """# Encoding

{command}, on {device} ({cores} cores, which had {load:.1f} other processes to run), torch with {threads} threads.

{pictures} drawn JPEG files of {width} × {height} pixels through `{encoder}` in {dtype}, {batch_size} together; the
median of {repeats}. *Reading alone*: decoded and made ready by so many threads (0: by the one that asks), without
a model. *Both*: as `build_index` does it; *of the model's own rate*: against a model that gets what is ready.
{stand_in}
The model alone: {own:,.1f} pictures/s.

{table}
"""
STAND_IN = """
**The model is a stand-in** that takes {rate:,.0f} pictures a second and no time of the processor's, as an accelerator
does that is waited for: what is measured is the reading, and how it hides. What an encoder does on an accelerator was
not measured here; `--device cuda` without `--own_rate` does.
"""


class StandIn:
    """An encoder whose model waits instead of computing; pictures are made ready as the encoder does.

    Args:
        encoder: Whose pictures they are.
        rate: Pictures a second.
    """

    def __init__(self, encoder: PreparingEncoder, rate: float) -> None:
        self.name, self.revision, self.fingerprint = encoder.name, encoder.revision, encoder.fingerprint
        self.dimensions, self.precision = encoder.dimensions, encoder.precision
        self.prepare, self.join, self.encode_texts = encoder.prepare, encoder.join, encoder.encode_texts
        self._rate = rate

    def encode_prepared(self, joined: Any) -> Vectors:
        """Rows of zeros, after the time that the model takes."""
        count = len(next(iter(joined.values())))
        time.sleep(count / self._rate)
        return np.zeros((count, self.dimensions), dtype=np.float32)

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """As `encode_prepared`."""
        return self.encode_prepared(self.join([self.prepare(image) for image in images]))


class NoModel(StandIn):
    """An encoder without a model: what it takes is the reading."""

    def __init__(self, encoder: PreparingEncoder) -> None:
        super().__init__(encoder, float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="miniature/clip")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--pictures", type=int, default=480)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--height", type=int, default=768)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--own_rate", type=float, default=0.0, help="pictures/s of a stand-in for the model")
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    encoder: Any = load_encoder(arguments.encoder, device=arguments.device, dtype=arguments.dtype)
    if not isinstance(encoder, PreparingEncoder):
        parser.error(f"{arguments.encoder} doesn't make pictures ready apart from its model")
    model = StandIn(encoder, arguments.own_rate) if arguments.own_rate else encoder
    with tempfile.TemporaryDirectory() as folder:
        kb = draw(Path(folder), arguments.pictures, arguments.width, arguments.height)
        batches = places_of(kb, list(enumerate(kb)), arguments.batch_size)
        own = own_rate(model, batches, arguments.repeats)
        rows = ["| workers | reading alone, /s | both, /s | of the model's own rate |", "|--:|--:|--:|--:|"]
        for workers in arguments.workers:
            reading, both = (
                rate(functools.partial(encode, kb, one, batches, workers), arguments)
                for one in (NoModel(encoder), model)
            )
            rows.append(f"| {workers} | {reading:,.1f} | {both:,.1f} | {both / own:.0%} |")
    cuda = torch.device(arguments.device).type == "cuda"
    values = {**vars(arguments), "device": torch.cuda.get_device_name() if cuda else platform.machine()}
    page = TEXT.format(
        **values,
        command=command_line(__file__),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        load=load,
        own=own,
        table="\n".join(rows),
        stand_in=STAND_IN.format(rate=arguments.own_rate) if arguments.own_rate else "",
    )
    print(page)
    if arguments.output:
        arguments.output.write_text(page, encoding="utf-8")


def draw(folder: Path, count: int, width: int, height: int) -> KnowledgeBase:
    """A knowledge base of smooth random pictures, one an entry."""
    entries = []
    for number in range(count):
        coarse = np.random.default_rng(number).integers(0, 256, (height // 24, width // 24, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number}.jpg", quality=90)
        entries.append(Entry(f"e{number}", f"Picture {number}", images=(f"{number}.jpg",)))
    return write_knowledge_base(folder / "knowledge", entries, name="pictures", image_root="..")


def encode(kb: KnowledgeBase, encoder: PreparingEncoder, batches: Sequence[Sequence[Place]], workers: int) -> None:
    """What `build_index` does with the pictures."""
    for _ in encode_pictures(kb, encoder, batches, workers):
        pass


def own_rate(model: PreparingEncoder, batches: Sequence[Sequence[Place]], repeats: int) -> float:
    """Pictures a second that the model takes when they are ready, after a batch that counts for nothing."""
    ready = [model.join([model.prepare(load_image(place.path)) for place in batch]) for batch in batches]
    model.encode_prepared(ready[0])

    def run() -> None:
        for joined in ready:
            model.encode_prepared(joined)

    return sum(map(len, batches)) / median_seconds(run, repeats)


def rate(run: Callable[[], None], arguments: argparse.Namespace) -> float:
    """Pictures a second."""
    return arguments.pictures / median_seconds(run, arguments.repeats)


def median_seconds(run: Callable[[], None], repeats: int) -> float:
    """The median of several runs."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
