"""Inputs of random shapes and types: each is read, or refused by name; no other exception ends a command."""

import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import MAX_RATIO, open_image, to_rgb
from reflectune.core.parquet import write_parquet
from reflectune.core.rejected import BadRow
from reflectune.core.rows import schema_of, to_row
from reflectune.core.types import Entry, Evidence, Passage, Question, Section
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer, stream_probe_file
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.registry import knowledge_reader, question_reader
from reflectune.formats import dataset
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.formats.reflection_data import stream_examples, write_examples
from reflectune.metrics.scoring.predictions import read_predictions
from reflectune.models.schemes.examples import Branch, ReflectionExample

SEEDS = range(3)
QUESTION = Question(
    "q", "a.png", "What?", ("a", "b"), (1.0, 2.0), "string", "train", True, ("e",), (Evidence("e", 0),), {"m": "x"}
)
ENTRY = Entry("e", "Title", "https://e.org", "It is.", ("a.png",), (Section("Head", "Text."),))
PLAIN = {"id": "q", "image": "a.png", "question": "Who?", "answers": ["Ann"], "range": [1, 2], "entity_ids": ["e"]}
OWN = {"id": "e", "title": "Oak", "sections": [{"title": "", "text": "A tree."}], "images": ["a.png"], "image": "a.png"}


def anything(draw: random.Random, depth: int = 2) -> Any:
    """Return a random JSON value."""
    plain = (
        None,
        True,
        0,
        -1,
        2**63,
        10**400,
        1.0,
        2.5,
        1e308,
        "",
        " ",
        "1.0",
        "a.png",
        "\x00",
        "\ud800",
        "http://[::1",
    )
    made = draw.randrange(4 if depth else 2)
    if made == 2:
        return [anything(draw, depth - 1) for _ in range(draw.randrange(3))]
    if made == 3:
        return {
            draw.choice(["bytes", "path", "text", "id"]): anything(draw, depth - 1) for _ in range(draw.randrange(3))
        }
    return draw.choice(plain)


def swapped(value: Any, draw: random.Random) -> Any:
    """Return a JSON value with a random part replaced."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(sorted(value))
        return value | {key: swapped(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.7:
        return [swapped(value[0], draw), *value[1:]]
    return anything(draw)


def survives(read: Callable[[], Any]) -> bool:
    """Return True if an input is read; False if it is refused by name."""
    try:
        read()
    except UserError:
        return False
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_an_image_of_any_shape_is_read_or_too_narrow(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(8):
        short = round(10 ** draw.uniform(0, 2.5))
        long = min(round(short * 10 ** draw.uniform(0, 4)), 2_000_000 // short, 65_000)
        size = (short, long) if draw.random() < 0.5 else (long, short)
        image, file = Image.new("RGB", size), io.BytesIO()
        image.save(file, draw.choice(["PNG", "BMP", "TIFF"]))
        fits = max(size) <= MAX_RATIO * min(size)
        assert survives(partial(open_image, file.getvalue())) is survives(partial(to_rgb, image)) is fits, size


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def sound(draw: random.Random) -> bytes:
    """Return a chunk of text or a colour profile, of any size."""
    data = bytes([draw.randrange(32, 127)]) * draw.choice([0, 9, 1 << 20, (1 << 20) + 1, 3 << 20])
    packed, key = zlib.compress(data), draw.choice([b"Comment", b"XML:com.adobe.xmp", b"k"]) + b"\0"
    bodies = {
        b"tEXt": data, b"zTXt": b"\0" + packed, b"iCCP": b"\0" + packed,
        b"iTXt": draw.choice([b"\0\0en\0t\0" + data, b"\1\0en\0t\0" + packed]),
    }  # fmt: skip
    kind = draw.choice(list(bodies))
    return chunk(kind, key + bodies[kind])


def unsound(draw: random.Random) -> bytes:
    kind = draw.choice(
        [b"tEXt", b"zTXt", b"iCCP", b"iTXt", b"eXIf", b"gAMA", b"pHYs", b"tRNS", b"cHRM", b"sRGB", b"acTL"]
    )
    return chunk(kind, draw.choice([draw.randbytes(draw.randrange(40)), b"k\0\1" + draw.randbytes(9), b"\0" * 20]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [sound, unsound])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_png_with_any_chunks_is_read_if_they_are_sound(seed: int, make: Callable[[random.Random], bytes]) -> None:
    draw, file = random.Random(seed), io.BytesIO()
    image = Image.effect_noise((9, 7), 50).convert("RGB")
    image.save(file, "PNG")
    png = file.getvalue()
    for _ in range(6):
        chunks = [b"".join(make(draw) for _ in range(draw.randrange(4))) for _ in range(2)]
        written = png[:33] + chunks[0] + png[33:-12] + chunks[1] + png[-12:]
        read = survives(partial(open_image, written))
        assert make is unsound or (read and open_image(written).tobytes() == image.tobytes())


@pytest.mark.parametrize("kind", ["questions", "articles"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_any_json_types_are_read_or_rejected(tmp_path: Path, seed: int, kind: str) -> None:
    draw, images = random.Random(seed), ImageFolder(tmp_path, tmp_path / "written")
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    path = tmp_path / "rows.jsonl"
    for _ in range(20):
        path.write_text(json.dumps(swapped(PLAIN if kind == "questions" else OWN, draw)) + "\n")
        rejected: list[BadRow] = []
        if kind == "questions":
            read = partial(question_reader("own"), path, split="s", images=images, reject=rejected.append)
        else:
            read = partial(knowledge_reader("own").entries, path, images=images, reject=rejected.append)
        assert not survives(lambda read=read: list(read())) or len(rejected) <= 1


def _tables(folder: Path) -> Iterator[tuple[Path, Callable[[], Any]]]:
    """Write folders of our own; yield each file with the function that reads it."""
    write_knowledge_base(folder / "kb", [ENTRY, replace(ENTRY, id="f")], name="kb")
    dataset.write_questions(folder / "set", "train", [QUESTION, replace(QUESTION, id="r", meta={})])
    (folder / "set/dataset.json").write_text(json.dumps({
        "fingerprint": "0", "metric": "infoseek", "image_root": ".", "counts": {"train": {"string": 2}},
        "parts": {"val": [{"file": "a.parquet", "rows": 2}]}, "files": {"probes.jsonl": "0"},
    }))  # fmt: skip

    passage = Passage("e", 0, 0, "Title", "", "Head", "Text.")
    examples = [ReflectionExample(name, "a.png", "Who?", True, "Ann", (Branch(passage, True, "Ann"),)) for name in "ab"]
    write_examples(folder / "examples.parquet", examples)
    yield folder / "examples.parquet", lambda: list(stream_examples(folder / "examples.parquet", ReflectionExample))
    reply = ProbedAnswer("Ann", 1.0, -0.5)
    probes = [to_row(Probe(name, reply, (DocumentProbe(passage, 0.5, 1, reply),))) for name in "ab"]
    write_parquet(folder / "probes.parquet", pa.Table.from_pylist(probes, schema=schema_of(Probe)))
    yield folder / "probes.parquet", lambda: list(stream_probe_file(folder / "probes.parquet"))

    def read_base() -> None:
        base = KnowledgeBase(folder / "kb")
        assert [base.get(entry.id) for entry in base] == list(base)
        list(base.image_counts())

    def read_set() -> None:
        for split in ("train", "val"):
            dataset.Dataset(folder / "set").questions(split)

    yield from ((path, read_base) for path in (folder / "kb").glob("*.*"))
    yield folder / "set/dataset.json", read_set
    yield folder / "set/questions/train.parquet", partial(dataset.Dataset(folder / "set").questions, "train")


@pytest.mark.parametrize("seed", range(8))
def test_columns_and_manifests_of_any_json_types_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    for path, read in list(_tables(tmp_path)):
        content, done = path.read_bytes(), 0
        while done < 4:
            if path.suffix == ".json":
                path.write_text(json.dumps(swapped(json.loads(content), draw)))
            else:
                table = pq.read_table(io.BytesIO(content))
                number = draw.randrange(table.num_columns)
                values = table.column(number).to_pylist(maps_as_pydicts="lossy")
                values = [swapped(value, random.Random(seed)) for value in values]
                try:
                    table = table.set_column(number, table.column_names[number], pa.array(values))
                    pq.write_table(table, path)
                except (pa.ArrowException, OverflowError, UnicodeEncodeError):
                    seed += 1000
                    continue
            done += 1
            seed += 1000
            survives(read)
        path.write_bytes(content)


@pytest.mark.parametrize("seed", SEEDS)
def test_predictions_of_any_json_types_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    draw, path = random.Random(seed), tmp_path / "p.json"
    row = {"data_id": "q", "prediction": "a", "question_id": 3, "answer": "a", "retrieved_entries": ["e"]}
    for _ in range(20):
        some = {key: value for key, value in row.items() if draw.random() < 0.5}
        value = draw.choice([[some, some], {"q": some, "r": some}, some])
        for written in (value, swapped(value, draw)):
            read = []
            for indent in (None, 1):
                path.write_text(json.dumps(written, indent=indent))
                read.append(survives(partial(read_predictions, path)))
            assert read[0] is read[1], f"line breaks decide: {written}"
