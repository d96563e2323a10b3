"""Write the inputs of the soaks' chain that none of its commands writes: `python tests/soak/inputs.py FOLDER`."""

import json
import shutil
import sys
from pathlib import Path

import torch
import yaml
from chain import INPUTS, WORLD
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection, LlamaConfig, LlamaForCausalLM

from reflectune.examples.miniature.models.architecture import build_clip, build_clip_processor, train_tokenizer
from reflectune.formats.dataset import Dataset
from reflectune.formats.knowledge_base import KnowledgeBase


def write(folder: Path) -> None:
    """Write a user's questions and articles, a title map's images, and parts of a LLaVA."""
    inputs = folder / INPUTS
    for name in ("user", "language", "vision", "tower"):
        (inputs / name).mkdir(parents=True)
    _write_user_data(folder / WORLD, inputs / "user")
    _write_llava_parts(inputs)


def _write_user_data(world: Path, folder: Path) -> None:
    columns = {"id": "id", "image": "image", "text": "question", "answers": "answers", "entity_ids": "entity_ids"}
    questions = [
        {column: getattr(question, name) for name, column in columns.items()}
        for question in Dataset(world).questions("train")
    ]
    entries = list(KnowledgeBase(world / "knowledge"))
    articles = [
        {"id": entry.id, "title": entry.title, "text": "\n\n".join(section.text for section in entry.sections)}
        for entry in entries
    ]
    images = [{"image": image, "entity": entry.id, "use": "train"} for entry in entries for image in entry.images]
    for name, rows in {"questions": questions, "knowledge": articles, "images": images}.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    shutil.copytree(world / "images", folder / "images")
    settings = {"root": f"{INPUTS}/user", "questions": "own", "splits": {"train": "questions.jsonl"}, "images": "."}
    settings |= {"knowledge": "own", "knowledge_source": "knowledge.jsonl"}
    (folder / "convert.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def _write_llava_parts(inputs: Path) -> None:
    torch.manual_seed(0)
    words = train_tokenizer(["USER: When was it founded? ASSISTANT: in 1872", "a gold tower"], 300, "clip")
    words.pad_token = None
    shape = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    language = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **shape, max_position_embeddings=2048))
    language.save_pretrained(inputs / "language")
    words.save_pretrained(inputs / "language")
    clip, images = build_clip(words, size="test"), build_clip_processor(words).image_processor
    clip.save_pretrained(inputs / "vision")
    vision = CLIPVisionConfig(**clip.config.to_dict()["vision_config"])
    CLIPVisionModelWithProjection(vision).save_pretrained(inputs / "tower")
    for name in ("vision", "tower"):
        images.save_pretrained(inputs / name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
