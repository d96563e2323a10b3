"""Both papers' steps from their downloads to their tables, on generated files and random weights, as a Markdown table.

    python benchmarks/rehearsal.py --work runs/rehearsal --output benchmarks/rehearsal.md    # the true counts of rows
    python benchmarks/rehearsal.py --rows 1000 --narrow --work runs/rehearsal_small          # a few minutes

The files of `public_files.py` lie where the downloads would, `inference.reproduce` runs every step on them, each in
processes of its own, and what it takes is measured. Models have the published widths, two layers and random weights;
encoders are the miniature's. Steps that a model bounds take a few questions, all others every row. What is finished
stays in the work folder: the same command goes on where it was cut off.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import yaml
from page import command_line
from public_files import Rows, write_public_files
from random_bases import write_base
from scale import Step, Took, run
from soak_inputs import write_bem
from transformers import AutoModelForImageTextToText, AutoProcessor, CLIPVisionModel, LlamaForCausalLM

from reflectune.core.config import read_config
from reflectune.core.durable import read_json, write_atomically
from reflectune.core.strict_yaml import read_yaml
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.reproduction import steps as listed
from reflectune.inference.reproduction.config import ReproduceConfig

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ("mr2ag", "mmkb_rag")
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "mr2ag": ("table_7", "six_million"),
    "mmkb_rag": ("table_5", "evqa", "six_million"),
}
RETRIEVERS = (
    "openai/clip-vit-large-patch14-336@ce19dc912ca5cd21c8a653c79e251e808ccabcd1",
    "BAAI/EVA-CLIP-8B@feabc73833cf6198fa5b76a067651ab363a24d65",
)
LIMITED = ("data_builders.probe", "inference.evaluate", "inference.sweep", "inference.recall", "train.sft")
"""Modules whose steps take few questions, whatever the number of rows."""
BUILDING = (
    "data_builders.build_mr2ag",
    "data_builders.build_plain",
    "retrieval.build_index",
    "retrieval.build_text_index",
)
"""Modules that compute with encoders."""

ROOM = 0.1
"""Of the room on the disk that a step asks for: models of two layers, not 28 or 32, and pictures that are few."""

TEXT = """# Both papers from their downloads to their tables

{command}, {cores} CPU thread(s), {widths}.
Nothing was downloaded. Other programs ran beside it (load average {load:.1f} at the end).

- Generated files in the public layouts. Rows: {rows}.
- Every step of `configs/reproduce/*/steps.yaml` was run by `python -m reflectune.inference.reproduce`, with the
  settings that stand below. Those that a model bounds ({limited})
  take {limit} questions of each split, or 2 optimiser steps, and training data are built of {built} questions of each
  set: their minutes say nothing of 7 B; what is shown is that their processes end on such data in this memory. What
  both lists write is made once.
- Articles, questions and pictures are those of the tiny drawn world, questions repeated until there are so many,
  articles among others of drawn words. Pictures are few, and each is found anew for each question.
- *Of its own*: the most anonymous memory of a step's processes together. *Resident*: the most of one of them, pages of
  mapped files included, which the system takes back when it needs them.

| step | rows | minutes | rows/s | GiB of its own | GiB resident | GB on the disk |
|---|--:|--:|--:|--:|--:|--:|
{table}

The settings that differ from the lists:

```json
{changes}
```
"""


def write_models(folder: Path, *, narrow: bool) -> None:
    """Write the base models, and the parts that LLaVA's stage 1 is assembled of; those that are there are left.

    Args:
        folder: Where they lie.
        narrow: Whether they have small widths; else the published ones. Two layers in both cases.
    """
    for family, positions in (("llava", 4096), ("qwen2_vl", 32_768)):
        base = folder / family
        if not (base / "processor_config.json").is_file():
            write_base(family, base, narrow=narrow)
            config = json.loads((base / "config.json").read_text())
            config["text_config"]["max_position_embeddings"] = positions
            (base / "config.json").write_text(json.dumps(config))
    if not (folder / "mm_projector.bin").is_file():
        _write_parts(folder)


def _write_parts(folder: Path) -> None:
    """Take the random LLaVA apart, into the three parts that LLaVA-1.5 is published in before its tuning."""
    whole: Any = AutoModelForImageTextToText.from_pretrained(folder / "llava", dtype=torch.bfloat16)
    processor: Any = AutoProcessor.from_pretrained(folder / "llava")
    language: Any = LlamaForCausalLM(whole.config.text_config).bfloat16()
    language.model.load_state_dict(whole.model.language_model.state_dict())
    language.lm_head.load_state_dict(whole.lm_head.state_dict())
    language.save_pretrained(folder / "language")
    processor.tokenizer.save_pretrained(folder / "language")
    vision: Any = CLIPVisionModel(whole.config.vision_config).bfloat16()
    vision.save_pretrained(folder / "vision")
    processor.image_processor.save_pretrained(folder / "vision")
    layers = {0: whole.model.multi_modal_projector.linear_1, 2: whole.model.multi_modal_projector.linear_2}
    weights = {
        f"model.mm_projector.{place}.{name}": tensor.clone()
        for place, layer in layers.items()
        for name, tensor in layer.state_dict().items()
    }
    torch.save(weights, folder / "mm_projector.bin")


def changes(models: Path, rows: Rows, options: argparse.Namespace) -> dict[str, Any]:
    """What differs from the papers' lists."""
    threads, limit = int(os.environ.get("OMP_NUM_THREADS", "0")), options.limit
    answered = {"limit": limit, "max_new_tokens": 4, "batch_questions": 2, "dtype": options.dtype}
    settings: dict[str, dict[str, Any]] = {
        "data_builders.convert": {"workers": threads},
        **{name: {"limit": options.built} for name in ("infoseek_it", "evqa_it", "nq_it", "questions")},
        "data_builders.probe": {"limit": limit, "window": 8, "batch_questions": 2, "max_new_tokens": 4}
        | {"documents": 4, "dtype": options.dtype},
        "data_builders.derive_labels": {"rule": "outcome"},
        "data_builders.build_plain": {"reranker_dtype": "float32"},
        "retrieval.build_index": {"dtype": "float32", "workers": 1},
        "inference.evaluate": {**answered, "max_reply_tokens": 4, "reranker_dtype": "float32"},
        "inference.sweep": {**answered, "max_reply_tokens": 4},
        "inference.recall": {"limit": 50 * limit},
        "train.sft": {"max_steps": 2, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
        | {"dataloader_workers": 0, "dtype": options.dtype, "save_steps": 1},
    }
    return {
        "settings": settings | {name: settings.get(name, {}) | _device(name, options) for name in listed.FINISHED},
        "instead": {
            **dict.fromkeys(RETRIEVERS, "miniature/clip"),
            "Salesforce/SFR-Embedding-Mistral": "miniature/text",
            "facebook/contriever-msmarco@abe8c1493371369031bcb1e02acb754cf4e162fa": "miniature/text",
            "llava-hf/llava-1.5-7b-hf": str(models / "llava"),
            "Qwen/Qwen2-VL-7B-Instruct": str(models / "qwen2_vl"),
            "lmsys/vicuna-7b-v1.5": str(models / "language"),
            "openai/clip-vit-large-patch14-336": str(models / "vision"),
            "data/llava15_stage1/mm_projector.bin": str(models / "mm_projector.bin"),
            "data/bem/bem_logits.json": "data/bem/logits.json",
        },
        "launch": dict.fromkeys(("multi_gpu", "zero2"), "cpu_2_processes" if options.processes == 2 else ""),
        "without": ["downloads"],
        "room": ROOM * rows.infoseek / Rows.infoseek,
        "pilot": True,
    }


def _device(module: str, options: argparse.Namespace) -> dict[str, str]:
    """Where a command computes, if it computes with a model."""
    return {"device": options.device} if module in LIMITED or module in BUILDING else {}


def of_paper(paper: str, common: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """The changes of one paper's list: those of both, and those of steps that it alone has."""
    drawn = round(93_259 * rows.wiki6m / Rows.wiki6m)
    own: dict[str, Any] = {"bem": {"names": "data/bem/names.json"}}
    if paper == "mr2ag":
        own |= {"infoseek": {"sample_knowledge": drawn}, "infoseek_it": {"annotator": "string"}}
    without = [*common["without"], *(["evqa_pictures"] if paper == "mmkb_rag" else [])]
    names = set(read_yaml(ROOT / f"configs/reproduce/{paper}/steps.yaml")["steps"]) | set(listed.FINISHED)
    settings = {
        name: common["settings"].get(name, {}) | own.get(name, {}) for name in {*common["settings"], *own} & names
    }
    return {**common, "settings": dict(sorted(settings.items())), "without": without}


def steps_of(paper: str, work: Path) -> Iterator[Step]:
    """The commands that run a paper's steps one by one."""
    path, written = ROOT / f"configs/reproduce/{paper}/steps.yaml", work / f"{paper}.yaml"
    config = read_config(ReproduceConfig, path, data=str(work / "lab"), changes=str(written))
    for step in config.all_steps():
        words: tuple[str, ...] = ("-m", "reflectune.inference.reproduce", "--config", str(path))
        words += ("--data", str(work / "lab"))
        words += ("--changes", str(written), "--extras", *EXTRAS[paper], "--only", step.name)
        yield Step(f"{paper}: {step.name}", words, 0, work / "lab" / step.output, shows=False)


def rows_of(step: listed.Step, data: Path, limit: int) -> int:
    """What a finished step went through: questions and articles, entries, examples, or questions asked."""
    place = data / step.output
    if step.module in LIMITED:
        return {"train.sft": 2, "inference.recall": 50 * limit}.get(step.module, limit)
    if step.module == listed.CONVERT:
        manifest = read_json(place / "dataset.json", "a data set")
        questions = sum(sum(kinds.values()) for kinds in manifest["counts"].values())
        return questions + (len(KnowledgeBase(place / "knowledge")) if (place / "knowledge").is_dir() else 0)
    if step.module == "retrieval.build_index":
        return int(read_json(place / "manifest.json", "an index")["entries"])
    return sum(pq.read_metadata(path).num_rows for path in place.glob("*.parquet")) if place.is_dir() else 0


def main() -> None:
    """Write what isn't there, run what isn't finished; print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=Rows.infoseek, help="of InfoSeek's training file; others alike")
    parser.add_argument("--limit", type=int, default=2, help="questions of each split where a model is the bound")
    parser.add_argument("--built", type=int, default=2000, help="questions of each set that training data are built of")
    parser.add_argument("--narrow", action="store_true", help="small widths, to try this page's command")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="of the models")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1, help="of what the lists launch")
    parser.add_argument("--papers", nargs="+", choices=PAPERS, default=PAPERS)
    parser.add_argument("--work", type=Path, default=Path("runs/rehearsal"))
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    options = parser.parse_args()
    work, rows = options.work.resolve(), Rows().scaled(options.rows / Rows.infoseek)
    if len(str(work).split()) > 1:
        parser.error(f"--work {work}: a folder whose path has no blank")
    write_public_files(work / "lab", rows)
    write_models(work / "models", narrow=options.narrow)
    bem = work / "lab/data/bem"
    if not (bem / "names.json").is_file():
        bem.mkdir(parents=True, exist_ok=True)
        write_bem(bem)
    common = changes(work / "models", rows, options)
    taken: dict[str, Took] = {}
    outputs: set[str] = set()
    for paper in options.papers:
        write_atomically(work / f"{paper}.yaml", yaml.safe_dump(of_paper(paper, common, rows), allow_unicode=True))
        taken |= measured(paper, work, options.limit, outputs)
    page = TEXT.format(
        command=command_line(__file__),
        cores=os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))),
        widths="narrow models" if options.narrow else "models of the published widths with two layers",
        rows=", ".join(f"{count:,} {name}" for name, count in vars(rows).items()),
        load=os.getloadavg()[0],
        limited=", ".join(f"`{name}`" for name in LIMITED),
        limit=options.limit,
        built=f"{options.built:,}",
        table="\n".join(took.row(name) for name, took in taken.items()),
        changes=json.dumps(common, indent=1, ensure_ascii=False).replace(f"{work}/", ""),
    )
    print(page)
    if options.output:
        write_atomically(options.output, page)


def measured(paper: str, work: Path, limit: int, outputs: set[str]) -> dict[str, Took]:
    """What each step of a paper takes, by its name; those whose output is there by another list are left out.

    Args:
        paper: The list.
        work: The rehearsal's folder.
        limit: Questions of each split.
        outputs: What earlier lists wrote; this one's are added.
    """
    (work / paper).mkdir(exist_ok=True)
    path = ROOT / f"configs/reproduce/{paper}/steps.yaml"
    config = read_config(ReproduceConfig, path, data=str(work / "lab"), changes=str(work / f"{paper}.yaml"))
    taken = {}
    for number, (step, one) in enumerate(zip(steps_of(paper, work), config.all_steps(), strict=True)):
        if one.output not in outputs:
            took = run(step, number, work / paper)
            taken[step.name] = dataclasses.replace(took, rows=rows_of(one, work / "lab", limit))
            print(taken[step.name].row(step.name), flush=True)
            outputs.add(one.output)
            for checkpoint in (work / "lab" / one.output).glob("checkpoint-*"):
                shutil.rmtree(checkpoint)  # with optimiser states; what is read is beside it
    return taken


if __name__ == "__main__":
    main()
