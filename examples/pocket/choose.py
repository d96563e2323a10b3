"""Judge probed documents by a trained SRT, and fit MMKB-RAG's choice of documents on those that gave no label.

    reflectune derive_labels … --hold_out 0.2 --output runs/pocket/labels
    python -m reflectune.examples.pocket.choose --model runs/pocket/mmkb --output runs/pocket/choice

The questions of the probes that `--labels` lacks are the held-out ones. `choice.json` has the fitted values, which are
printed as options of `evaluate`. With `--all`, every probed document is judged, and `rel_scores.jsonl` is for
`derive_labels --rel_scores`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from reflectune.core.durable import write_atomically, write_json
from reflectune.core.entry_point import entry_point
from reflectune.core.images import load_image
from reflectune.core.types import Question
from reflectune.data_builders.probing.labels import is_right
from reflectune.data_builders.probing.records import DocumentProbe, Probe
from reflectune.data_builders.probing.store import read_settings, stream_probes
from reflectune.examples.pocket.choice_fit import CHOICE_FILE, DocumentChoice, JudgedDocument, fit_choice
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import stream_ids
from reflectune.inference.reading.prompted_reader import PromptedReader
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine

BATCH = 8
"""Questions that are judged together."""


def judged(
    reader: PromptedReader, dataset: Dataset, questions: dict[str, Question], probes: Sequence[Probe]
) -> Iterator[tuple[str, list[tuple[DocumentProbe, float]]]]:
    """Yield each probe's question id and its documents with their Score_SRT."""
    for start in range(0, len(probes), BATCH):
        batch = probes[start : start + BATCH]
        asked = [questions[probe.question_id] for probe in batch]
        opened = reader.open(asked, [load_image(question.image, root=dataset.image_roots) for question in asked])
        documents = [[document.passage for document in probe.documents] for probe in batch]
        found = [{document.passage.entry_id: document.found for document in probe.documents} for probe in batch]
        for probe, scores in zip(batch, reader.judge(opened, documents, found), strict=True):
            pairs = zip(probe.documents, scores, strict=True)
            yield probe.question_id, [(document, score) for document, score in pairs if score is not None]


def choose(
    model: str, probes: str, dataset: Dataset, labels: str, output: Path, *, device: str, dtype: str, everything: bool
) -> DocumentChoice:
    """Judge the documents, write the files, and return the fitted choice."""
    split = str(read_settings(probes, split=str)["split"])
    trained = set(stream_ids(labels, split))
    asked = [probe for probe in stream_probes(probes) if probe.documents]
    asked = [probe for probe in asked if everything or probe.question_id not in trained]
    names = {probe.question_id for probe in asked}
    questions = {question.id: question for question in dataset.stream(split) if question.id in names}
    reader = PromptedReader(PrefixEngine(load(model, scheme="mmkb_rag", device=device, dtype=dtype)), 1, 1)
    results = dict(judged(reader, dataset, questions, asked))
    if everything:
        rows = [(name, d.passage.id, score) for name, documents in results.items() for d, score in documents]
        lines = [json.dumps(dict(zip(("question_id", "passage_id", "score"), row, strict=True))) for row in rows]
        write_atomically(output / "rel_scores.jsonl", "\n".join(lines) + "\n")
    held_out = [
        [JudgedDocument(d.passage.entry_id, d.score, s, is_right(d.reply) is True) for d, s in documents]
        for name, documents in results.items()
        if name not in trained
    ]
    choice = fit_choice(held_out)
    write_json(output / CHOICE_FILE, {**dataclasses.asdict(choice), "questions": len(held_out)})
    return choice


@entry_point
def main() -> None:
    """Judge and fit, and print the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint of scheme mmkb_rag")
    parser.add_argument("--probes", default="runs/pocket/probes", help="folder of finished probes")
    parser.add_argument("--dataset", default="runs/pocket/gallery", help="data set that was probed")
    parser.add_argument("--labels", default="runs/pocket/labels", help="labels that the checkpoint was trained on")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto")
    parser.add_argument("--dtype", default="bfloat16", help="float32, bfloat16 or float16")
    parser.add_argument("--all", action="store_true", help="judge all probed documents, for `rel_scores`")
    given = parser.parse_args()
    dataset = Dataset(Path(given.dataset))
    choice = choose(
        given.model,
        given.probes,
        dataset,
        given.labels,
        given.output,
        device=given.device,
        dtype=given.dtype,
        everything=given.all,
    )
    print(choice.flags)


if __name__ == "__main__":
    main()
