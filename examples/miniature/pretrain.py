"""Pre-train a miniature's base weights: `python -m reflectune.examples.miniature.pretrain --family llava --output DIR`.

This stands in for a lab's pre-training. The model learns to see, to read a given passage, and the famous entities'
facts by heart. It has no reflection tokens. Training never shows looks or facts of validation or test. The two
retrievers are pre-trained here as well: `clip` (images and titles) and `text` (questions and passages).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import torch
from transformers import PreTrainedTokenizerFast

from reflectune.core.command import command
from reflectune.core.config import Settings, setting
from reflectune.core.durable import write_json
from reflectune.core.values import Seed, output_of
from reflectune.examples.miniature.models.architecture import (
    build_clip,
    build_clip_processor,
    build_model,
    build_processor,
    build_text_encoder,
    train_tokenizer,
)
from reflectune.examples.miniature.models.contrastive import passage_logits, train_contrastively, train_text_retriever
from reflectune.examples.miniature.models.pretraining import Pretrainer, resume_or_train
from reflectune.examples.miniature.world.curriculum import draw_exam, draw_pool, stages_for
from reflectune.examples.miniature.world.entities import describe, make_entity
from reflectune.examples.miniature.world.lessons import Teacher, corpus
from reflectune.examples.miniature.world.passage_lessons import Librarian

CLIP_STEPS = 500
"""Enough for a useful retriever; with more steps the first hit is nearly always right."""

TEXT_STEPS = 900
"""Enough for a strong retriever: the baselines that use it are compared with mR²AG."""

EXAMS = 500
"""Questions of the text retriever's exam, at each number of articles."""

Log = Callable[[str], None]


class PretrainConfig(Settings):
    """Settings of a pre-training run."""

    output: Annotated[str, output_of("config.json")] = setting(
        "", "folder for the weights, the tokenizer, the processor and the log", needed=""
    )
    family: Literal["llava", "qwen2_vl", "qwen3_5", "clip", "text"] = setting("llava", "the miniature to pre-train")
    seed: Seed = setting(11, "seed of all random draws")
    threads: int = setting(1, "CPU threads; one run per core uses a machine best", ge=1, le=4096)
    scale: float = setting(1.0, "factor of every stage's steps; below 1 for a quick try", gt=0)
    dry_run: bool = setting(False, "print the stages, and stop")


@command(PretrainConfig, writes="output")
def pretrain(config: PretrainConfig) -> None:
    """Run the curriculum, stage by stage. A killed run resumes within its stage."""
    torch.set_num_threads(config.threads)
    torch.set_float32_matmul_precision("highest")  # the CPU's attention kernel is slower with less
    torch.manual_seed(config.seed)
    if config.dry_run:
        print(_plan(config))
        return
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    log = _logger(output / "pretrain.log")
    rng = random.Random(config.seed)
    tokenizer = train_tokenizer(corpus(random.Random(5)), 1024, config.family)
    if config.family == "clip":
        _pretrain_clip(config, output, tokenizer, rng, log)
    elif config.family == "text":
        _pretrain_text(config, output, tokenizer, rng, log)
    else:
        _pretrain_language_model(config, output, tokenizer, rng, log)


def _plan(config: PretrainConfig) -> str:
    """Return the stages, for `--dry_run`."""
    if config.family == "clip":
        return f"clip: {CLIP_STEPS} steps of 128 pairs"
    if config.family == "text":
        return f"text: {TEXT_STEPS} steps of 16 articles"
    stages = stages_for(config.family, None, config.scale)
    return "\n".join(f"{stage.name}: {stage.steps} steps of {stage.batch}" for stage in stages)


def _pretrain_language_model(
    config: PretrainConfig, output: Path, tokenizer: PreTrainedTokenizerFast, rng: random.Random, log: Log
) -> None:
    assert config.family in ("llava", "qwen2_vl", "qwen3_5")
    processor = build_processor(config.family, tokenizer)
    shown, pixels, famous = draw_pool(processor.image_processor, random.Random(config.seed))
    model = build_model(config.family, tokenizer, seed=config.seed)
    trainer = Pretrainer(model, processor, pixels, log)
    log(f"{config.family}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(shown)} images")
    stages = stages_for(config.family, Teacher(shown, famous, rng), config.scale)
    resume_or_train(trainer, output / f"stages-{config.seed}-{config.scale:g}", stages, rng)
    exam_pixels, exam = draw_exam(processor.image_processor, random.Random(config.seed + 1))
    shares = Pretrainer(model, processor, exam_pixels, log).accuracy(exam)
    log("held-out looks: " + ", ".join(f"{skill} {share:.3f}" for skill, share in shares.items()))
    model.half().save_pretrained(output)
    processor.save_pretrained(output)


def _pretrain_clip(
    config: PretrainConfig, output: Path, tokenizer: PreTrainedTokenizerFast, rng: random.Random, log: Log
) -> None:
    processor = build_clip_processor(tokenizer)
    shown, pixels, _ = draw_pool(processor.image_processor, random.Random(config.seed))
    model = build_clip(tokenizer, seed=config.seed)
    log(f"clip: {sum(p.numel() for p in model.parameters()):,} parameters, {len(shown)} images")

    def caption(row: int) -> str:
        looks = shown[row].looks
        return describe(looks, rng) if rng.random() < 0.7 else make_entity("", looks, rng, []).title

    stacked = torch.cat([vision["pixel_values"] for vision in pixels])
    steps = max(1, round(CLIP_STEPS * config.scale))
    train_contrastively(model, tokenizer, stacked, caption, steps=steps, batch=128, learning_rate=1e-3, log=log)
    model.half().save_pretrained(output)
    processor.save_pretrained(output)


def _pretrain_text(
    config: PretrainConfig, output: Path, tokenizer: PreTrainedTokenizerFast, rng: random.Random, log: Log
) -> None:
    model = build_text_encoder(tokenizer, seed=config.seed)
    log(f"text: {sum(p.numel() for p in model.parameters()):,} parameters")
    steps = max(1, round(TEXT_STEPS * config.scale))
    draw = Librarian(rng).lesson
    train_text_retriever(model, tokenizer, draw, steps=steps, learning_rate=1e-3, log=log)
    model.half().save_pretrained(output)
    tokenizer.save_pretrained(output)
    # the pooling, as sentence-transformers declares it
    write_json(output / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    model, examiner = model.float(), Librarian(random.Random(config.seed + 1), held_out=True)
    for articles in (1, 5):
        exams = [examiner.exam(articles) for _ in range(EXAMS)]
        with torch.inference_mode():
            firsts = [passage_logits(model, tokenizer, exam).argmax(1).item() for exam in exams]
        right = sum(first == exam.gold[0] for first, exam in zip(firsts, exams, strict=True))
        log(f"held-out looks and phrasings, {articles} articles: {right / EXAMS:.3f} first")


def _logger(path: Path) -> Log:
    start = time.monotonic()

    def log(line: str) -> None:
        stamped = f"{time.monotonic() - start:7.0f} s  {line}"
        print(stamped, flush=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(stamped + "\n")

    return log


if __name__ == "__main__":
    pretrain.main()
