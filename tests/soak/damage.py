"""Damage one thing of one file, at random."""

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

VALUES: Sequence[Any] = (
    *(None, "", " ", "nan", "x" * 300, "../../etc/passwd", "/dev/null", "\x00", "‮", "<script>", "[Relevant]"),
    *(True, False, -1, 0, 3, 2**63, 10**30, 1e308, math.inf, math.nan, -0.0, [], [[]], {}, {"a": 1}, [None], ["x", 1]),
)
"""Replacements of a value of a manifest or a config."""
CELLS: dict[str, Sequence[Any]] = {
    "string": (None, "", " ", "x" * 5000, "\x00", "../../x.jpg", "nan", "[No Retrieval]"),
    "bool": (None, True, False),
    "double": (None, math.nan, math.inf, -1e308),
    "int32": (None, -1, 2**31 - 1),
    "int64": (None, -1, 2**63 - 1),
}
"""Replacements of a cell of a Parquet file, by type."""


def replaced(value: Any, rng: random.Random) -> tuple[Any, str]:
    """Replace or remove one value inside a JSON value; return the result and a description."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {name: inner for name, inner in value.items() if name != key}, f"without {key}"
        inner, description = replaced(value[key], rng)
        return value | {key: inner}, f"{key}: {description}"
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        inner, description = replaced(value[index], rng)
        return [*value[:index], inner, *value[index + 1 :]], f"[{index}]: {description}"
    new = rng.choice(VALUES)
    return new, f"{str(value)[:30]!r} is {str(new)[:30]!r}"


def damage_json(path: Path, rng: random.Random) -> str:
    """Damage one value of a JSON file, or of one line of a JSONL file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else []
    index = rng.randrange(len(lines)) if lines else 0
    value, description = replaced(json.loads(lines[index] if lines else path.read_text(encoding="utf-8")), rng)
    text = json.dumps(value)
    path.write_text("\n".join([*lines[:index], text, *lines[index + 1 :], ""]) if lines else text, encoding="utf-8")
    return description


def damage_parquet(path: Path, rng: random.Random) -> str:
    """Damage one cell, one row, or one column."""
    table = pq.read_table(path)
    rows, column = table.to_pylist(), rng.choice(table.column_names)
    way = rng.choice(["cell"] * 6 + ["twice", "column", "type", "no rows"])
    if not rows or way == "no rows":
        pq.write_table(table.slice(0, 0), path)
        return "no rows"
    if way == "twice":
        pq.write_table(pa.concat_tables([table, table.slice(rng.randrange(len(rows)), 1)]), path)
        return "a row twice"
    if way == "column":
        pq.write_table(table.drop_columns([column]), path)
        return f"without column {column}"
    if way == "type":
        pq.write_table(table.set_column(table.column_names.index(column), column, pa.array(range(len(rows)))), path)
        return f"column {column} of numbers"
    index, kind = rng.randrange(len(rows)), str(table.schema.field(column).type)
    new = rng.choice(CELLS.get(kind, (None,)))
    rows[index][column] = new
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return f"{column} of row {index} is {str(new)[:20]!r}"


def damage_image(path: Path, rng: random.Random) -> str:
    """Replace an image by one of a different kind, or by text."""
    way = rng.choice(["text", "tiny", "16 bits", "transparent", "palette", "svg"])
    if way == "text":
        path.write_text("not an image", encoding="utf-8")
    elif way == "svg":
        path.write_text('<svg xmlns="http://www.w3.org/2000/svg"/>', encoding="utf-8")
    else:
        mode = {"tiny": "RGB", "16 bits": "I;16", "transparent": "RGBA", "palette": "P"}[way]
        Image.new(mode, (1, 1) if way == "tiny" else (40, 40)).save(path, format="PNG")
    return way


def damage_bytes(path: Path, rng: random.Random) -> str:
    """Damage the end of a file, or a byte of it."""
    content = bytearray(path.read_bytes())
    way = rng.choice(["empty", "cut", "longer", "flipped", "flipped"])
    if not content or way == "empty":
        path.write_bytes(b"")
    elif way == "cut":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif way == "longer":
        path.write_bytes(bytes(content) + b"\x00" * 7)
    else:
        index = rng.randrange(len(content))
        content[index] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        way = f"bit flipped at {index}"
    return way


_BY_SUFFIX: dict[str, Callable[[Path, random.Random], str]] = {
    ".json": damage_json,
    ".jsonl": damage_json,
    ".parquet": damage_parquet,
    ".jpg": damage_image,
    ".png": damage_image,
}


def damage_input(folder: Path, reads: Sequence[str], rng: random.Random) -> str:
    """Damage one input file of a command, and return a description."""
    files: dict[str, list[Path]] = defaultdict(list)
    for name in reads:
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and path.suffix not in (".lock", ".html", ".log"):
                files[f"{name}{path.suffix}"].append(path)
    path = rng.choice(files[rng.choice(sorted(files))])  # each kind of file equally often, images not above all
    shown = path.relative_to(folder)
    if rng.random() < 0.1:
        path.unlink()
        return f"{shown}: gone"
    by_kind = _BY_SUFFIX.get(path.suffix, damage_bytes)
    return f"{shown}: {(by_kind if rng.random() < 0.7 else damage_bytes)(path, rng)}"


Keys = tuple[str, ...]
"""Path of a value in a JSON object: keys, outermost first."""


def keys_of(folder: Path, reads: Sequence[str]) -> Iterator[tuple[Path, Keys]]:
    """Yield the JSON inputs of a command and the path of each key in them.

    Objects of more than 60 keys are tables, such as a vocabulary, and are skipped. So are the checkpoints inside a
    finished training, which no command reads.
    """
    for name in reads:
        for path in sorted((folder / name).rglob("*.json")):
            if path.parent.name.startswith("checkpoint-"):
                continue
            for keys in _keys(json.loads(path.read_text(encoding="utf-8")), ()):
                yield path.relative_to(folder), keys


def _keys(value: Any, outer: Keys) -> Iterator[Keys]:
    if isinstance(value, dict) and len(value) <= 60:
        for key, inner in value.items():
            yield (*outer, key)
            yield from _keys(inner, (*outer, key))


def damage_key(path: Path, keys: Keys, new: Any = ...) -> str:
    """Remove a key of a JSON file, or set it to a value; return a description."""
    value = json.loads(path.read_text(encoding="utf-8"))
    holder = value
    for key in keys[:-1]:
        holder = holder[key]
    if new is ...:
        del holder[keys[-1]]
    else:
        holder[keys[-1]] = new
    path.write_text(json.dumps(value), encoding="utf-8")
    return f"without {'.'.join(keys)}" if new is ... else f"{'.'.join(keys)} is {new}"
