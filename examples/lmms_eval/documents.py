"""Write a data set's questions as the documents of lmms-eval's tasks `infoseek` and `encyclopedic_vqa`.

    python -m reflectune.examples.lmms_eval.documents --dataset runs/data/infoseek \\
        --splits val_unseen_question val_unseen_entity --subset 2000 --output runs/lmms_eval/infoseek.parquet

`--subset N` takes, of each split, the N questions with the lowest SHA-256 of their ids: the same ones for everybody who
names N. The ids are written to `OUTPUT.ids.txt`.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.durable import write_atomically
from reflectune.core.entry_point import entry_point
from reflectune.core.errors import UserError
from reflectune.core.images import encode_image, load_image
from reflectune.core.partials import writing
from reflectune.core.rows import to_row
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.questions import check_one_image
from reflectune.metrics.scoring.registry import has_truth

_TEXTS: Final = ("id", "question", "split", "reference")
_FEATURES: Final = {**{name: {"dtype": "string", "_type": "Value"} for name in _TEXTS}, "image": {"_type": "Image"}}
SCHEMA: Final = pa.schema(
    [*((name, pa.string()) for name in _TEXTS), ("image", pa.struct({"bytes": pa.binary(), "path": pa.string()}))],
    metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
)
"""`reference` is the whole question as JSON, from which it is scored."""
_CHUNK: Final = 256


def subset(questions: Iterable[Question], size: int) -> list[Question]:
    """Return the `size` questions with the lowest SHA-256 of their ids, in that order; all, as they are, for 0."""
    if not size:
        return list(questions)
    return heapq.nsmallest(size, questions, key=lambda question: hashlib.sha256(question.id.encode()).hexdigest())


def write_documents(dataset: Dataset, splits: Sequence[str], size: int, output: Path) -> int:
    """Write the documents of some splits, and return their number. Questions without a reference are left out.

    Raises:
        UserError: No question has a reference, or an image is missing or bad.
    """
    questions: list[Question] = []
    for split in splits:
        scored = (question for question in dataset.stream(split) if has_truth(question, dataset.metric))
        questions += subset(scored, size)
    if not questions:
        raise UserError(f"{dataset.root}: no question of {', '.join(splits)} has a reference; name other splits")
    with writing(output) as partial, pq.ParquetWriter(partial, SCHEMA) as writer:
        for start in range(0, len(questions), _CHUNK):
            rows = [_document(question, dataset) for question in questions[start : start + _CHUNK]]
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    write_atomically(f"{output}.ids.txt", "".join(f"{question.id}\n" for question in questions))
    return len(questions)


def _document(question: Question, dataset: Dataset) -> dict[str, object]:
    check_one_image(question, "a document of lmms-eval")
    image = load_image(question.image, root=dataset.image_roots, needed_by=f"question {question.id}")
    values = (question.id, question.text, question.split, json.dumps(to_row(question)))
    return {**dict(zip(_TEXTS, values, strict=True)), "image": {"bytes": encode_image(image)[1], "path": None}}


@entry_point
def main() -> None:
    """Write the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="data set folder, the output of convert")
    parser.add_argument("--splits", nargs="+", required=True)
    parser.add_argument("--subset", type=int, default=0, metavar="N", help="questions of each split; default: all")
    parser.add_argument("--output", type=Path, required=True, help="Parquet file")
    given = parser.parse_args()
    count = write_documents(Dataset(given.dataset), given.splits, given.subset, given.output)
    print(f"{given.output}: {count:,} documents")


if __name__ == "__main__":
    main()
