"""What the commands of the soaks' chain read that none of them writes: `python tests/soak/inputs.py FOLDER`."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import torch
import yaml
from chain import DATA, INDEX, INPUTS, WORLD
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    LlamaConfig,
    LlamaForCausalLM,
)

from reflectune.examples.miniature.models.architecture import build_clip, build_clip_processor, train_tokenizer
from reflectune.formats.dataset import read_questions
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.metrics.judging.bem import Bem, load_tokenizer


def write(folder: Path) -> None:
    """Questions, articles and Lens results as a user has them, pictures for a title map, parts of a LLaVA and a BEM
    with random weights, and a finished quick start for the tables.
    """
    inputs = folder / INPUTS
    for name in ("user", "language", "vision", "tower", "bem", "run"):
        (inputs / name).mkdir(parents=True)
    _write_user_data(folder / WORLD, inputs / "user")
    _write_llava_parts(inputs)
    write_bem(inputs / "bem")
    for name, target in {WORLD: WORLD, INDEX: INDEX, DATA: DATA, "checkpoint": "tuned"}.items():
        (inputs / "run" / name).symlink_to(folder / target)


def _write_user_data(world: Path, folder: Path) -> None:
    columns = {"id": "id", "image": "image", "text": "question", "answers": "answers", "entity_ids": "entity_ids"}
    questions = [
        {column: getattr(question, name) for name, column in columns.items()}
        for question in read_questions(world, "train")
    ]
    entries = list(KnowledgeBase(world / "knowledge"))
    articles = [
        {"id": entry.id, "title": entry.title, "text": "\n\n".join(section.text for section in entry.sections)}
        for entry in entries
    ]
    pictures = [{"image": image, "entity": entry.id, "use": "train"} for entry in entries for image in entry.images]
    for name, rows in {"questions": questions, "knowledge": articles, "pictures": pictures}.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    shown = {Path(question.image).stem: question.entity_ids for question in read_questions(world, "val_unseen_entity")}
    with (folder / "lens.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("dataset_name", "dataset_image_id", "lens_wiki_urls"))
        writer.writerows(("landmarks", name, repr(list(ids))) for name, ids in shown.items())
    shutil.copytree(world / "images", folder / "images")
    settings = {
        "root": f"{INPUTS}/user",
        "questions": "own",
        "splits": {"train": "questions.jsonl"},
        "images": ".",
        "knowledge": "own",
        "knowledge_source": "knowledge.jsonl",
    }
    (folder / "convert.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def _write_llava_parts(inputs: Path) -> None:
    torch.manual_seed(0)
    words = train_tokenizer(["USER: When was it founded? ASSISTANT: in 1872", "a gold tower"], 300, "clip")
    words.pad_token = None
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
    )
    language = LlamaForCausalLM(config)
    language.save_pretrained(inputs / "language")
    words.save_pretrained(inputs / "language")
    clip, pictures = build_clip(words, size="test"), build_clip_processor(words).image_processor
    clip.save_pretrained(inputs / "vision")
    CLIPVisionModelWithProjection(CLIPVisionConfig(**clip.config.to_dict()["vision_config"])).save_pretrained(
        inputs / "tower"
    )
    for name in ("vision", "tower"):
        pictures.save_pretrained(inputs / name)


def write_bem(folder: Path) -> None:
    """Write a tiny BEM of random weights as TensorFlow's would be exported: variables, names, words, logits."""
    letters = [front + letter for front in ("", "##") for letter in ascii_lowercase]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    (folder / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,
        type_vocab_size=3,
        initializer_range=0.2,
    )
    network = BertForSequenceClassification(config).eval()
    bem = Bem(network, load_tokenizer(folder / "vocab.txt"), mask_padding=True)
    keys, triples = (
        ("candidate", "reference", "question"),
        [("a tower", "the tower", "what"), ("x", "y", "where is it")],
    )
    rows = [{**dict(zip(keys, triple, strict=True)), "logits": bem(*triple)} for triple in triples]
    (folder / "logits.json").write_text(json.dumps(rows), encoding="utf-8")
    variables = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    np.savez(folder / "bem.npz", **variables)
    (folder / "names.json").write_text(json.dumps({name: name for name in variables}), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
