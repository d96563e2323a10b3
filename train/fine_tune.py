"""Fine-tuning from a config: check everything, prepare the model, train, save."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, TrainingArguments, set_seed
from transformers.utils import logging

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.types import TrainingExample
from reflectune.models.loading import Loaded, load, save_checkpoint
from reflectune.train.checkpoints import is_finished, last_whole_checkpoint, mark_whole, refuse_occupied
from reflectune.train.collator import Collator
from reflectune.train.config import SftConfig
from reflectune.train.data import EncodedExamples, approximate_length, kind, load_examples
from reflectune.train.lora import add_adapters
from reflectune.train.order import TrainingOrder
from reflectune.train.parameters import freeze_tower, keep_trained_weights_in_fp32
from reflectune.train.preview import describe, parameter_table
from reflectune.train.trainer import ReflectionTrainer


def fine_tune(config: SftConfig) -> None:
    """Train as the config says, and write the checkpoint into `output_dir`; go on from the last one if there is one."""
    examples, image_root = load_examples(config)
    torch.set_float32_matmul_precision(config.matmul_precision)
    logging.disable_progress_bar()  # of loading and saving; the trainer's own is shown
    args = training_arguments(config)
    loaded = load(config.model, scheme=config.scheme, dtype=_weights_dtype(config), seed=config.seed)
    settings = run_settings(config, loaded, args)
    if not config.dry_run and not config.resume:
        refuse_occupied(config.output_dir)
    if not config.dry_run and is_finished(config.output_dir, settings):
        say(args, f"nothing to do: {config.output_dir} holds this run's final checkpoint")
        return
    model = prepare_model(loaded, config)
    dataset = encoded_examples(examples, image_root, loaded, config)
    if config.dry_run:
        steps = total_steps(config, len(examples), args.world_size)
        say(args, describe(config, model, dataset, loaded.renderer, steps))
        return
    say(args, parameter_table(model))
    train(model, args, dataset, order(examples, config, args), loaded, settings)


def training_arguments(config: SftConfig) -> TrainingArguments:
    """The stock trainer's arguments; this also joins the processes of a distributed launch."""
    return TrainingArguments(
        output_dir=config.output_dir,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler,
        warmup_steps=config.warmup,
        weight_decay=config.weight_decay,
        adam_beta2=config.adam_beta2,
        max_grad_norm=config.max_grad_norm,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        seed=config.seed,
        bf16=config.dtype == "bfloat16",
        use_cpu=config.device == "cpu",
        activation_checkpointing=config.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if config.gradient_checkpointing else None,
        save_steps=config.save_steps,
        save_total_limit=config.save_total_limit,
        logging_steps=config.logging_steps,
        logging_nan_inf_filter=False,  # a loss that is not finite is an error, and not to be averaged away
        report_to=config.report_to or "none",
        dataloader_num_workers=config.dataloader_workers,
        dataloader_pin_memory=config.device != "cpu",
        remove_unused_columns=False,
        # A vision tower that trains has layers that the language model never reads (LLaVA takes the last but one).
        ddp_find_unused_parameters=config.method == "full" and not config.freeze_vision,
    )


def prepare_model(loaded: Loaded, config: SftConfig) -> PreTrainedModel | PeftModel:
    """Choose what trains: everything, everything but the vision tower, or adapters and the new tokens' rows."""
    model: PreTrainedModel | PeftModel = loaded.model
    set_seed(config.seed)  # adapters begin at random
    if config.method == "lora":
        model = add_adapters(
            loaded.model,
            loaded.renderer.token_ids.values(),
            rank=config.lora_r,
            alpha=config.lora_alpha,
            dropout=config.lora_dropout,
            targets=config.lora_targets,
        )
    elif config.freeze_vision:
        freeze_tower(model, "vision tower")
    keep_trained_weights_in_fp32(model)
    return model.train()


def run_settings(config: SftConfig, loaded: Loaded, args: TrainingArguments) -> dict[str, Any]:
    """Everything that determines the weights of a run."""
    return {
        **config.run_settings(),
        "data_fingerprint": file_fingerprint(config.examples_file()),
        "model_fingerprint": loaded.fingerprint,  # of weights, tokens, chat template and scheme
        "processes": args.world_size,
    }


def encoded_examples(
    examples: Sequence[TrainingExample], image_root: Path, loaded: Loaded, config: SftConfig
) -> EncodedExamples:
    """The examples as the model reads them."""
    most = loaded.model.config.get_text_config().max_position_embeddings
    return EncodedExamples(
        examples,
        loaded.renderer,
        image_root,
        share_prefix=config.tree,
        max_tokens=min(config.max_tokens or most, most),
        cache_bytes=config.cache_mib * 2**20,
    )


def order(examples: Sequence[TrainingExample], config: SftConfig, args: TrainingArguments) -> TrainingOrder:
    """The order in which the examples are read."""
    return TrainingOrder(
        [approximate_length(example) for example in examples],
        [kind(example) for example in examples],
        batch_size=args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        seed=config.seed,
        group_by_length=config.group_by_length,
    )


def total_steps(config: SftConfig, examples: int, processes: int) -> int:
    """Optimiser steps of the whole run; the last step of an epoch may be a short one."""
    if config.max_steps is not None:
        return config.max_steps
    batches = math.ceil(examples / (config.per_device_train_batch_size * processes))
    return math.ceil(config.epochs * math.ceil(batches / config.gradient_accumulation_steps))


def train(
    model: PreTrainedModel | PeftModel,
    args: TrainingArguments,
    dataset: EncodedExamples,
    reading_order: TrainingOrder,
    loaded: Loaded,
    settings: Mapping[str, Any],
) -> None:
    """Run the steps that are left, then write the final checkpoint."""
    output_dir = str(args.output_dir)
    checkpoint = last_whole_checkpoint(output_dir, settings)
    save = functools.partial(save_model, loaded=loaded, settings=settings)
    collator = Collator(loaded.model)
    trainer = ReflectionTrainer(model, args, dataset, collator, reading_order, save, settings)
    if checkpoint:
        say(args, f"going on from {checkpoint}")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.save_model(output_dir)
    trainer.save_state()
    if args.should_save:
        mark_whole(output_dir, settings, trainer.state.global_step)


def save_model(folder: Path, model: nn.Module, *, loaded: Loaded, settings: Mapping[str, Any]) -> None:
    """Write a checkpoint that `reflectune.models.loading.load`, transformers and peft load."""
    # A folder's whole path: an adapter is loaded onto its base from any working directory.
    base = str(Path(loaded.name).resolve()) if Path(loaded.name).is_dir() else loaded.name
    info = {"base_model": base, "seed": settings["seed"], "training": dict(settings)}
    assert loaded.scheme is not None  # it was loaded with one
    save_checkpoint(folder, model, loaded.processor, loaded.scheme, info)


def say(args: TrainingArguments, text: str) -> None:
    """Print once, however many processes train."""
    if args.process_index == 0:
        print(text, flush=True)


def refuse_lonely_launch(environment: Mapping[str, str]) -> None:
    """Raise a `UserError` if `accelerate launch` was asked for several CPU processes and started one.

    It does so silently for `--cpu --num_processes 2` (accelerate 1.15): it names a meeting point, and no world.
    """
    on_cpu = environment.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1")
    mpi = any(name in environment for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"))
    if on_cpu and "MASTER_PORT" in environment and "WORLD_SIZE" not in environment and not mpi:
        raise UserError(
            "`accelerate launch --cpu --num_processes N` starts one process, not N; launch with `--config_file "
            "configs/accelerate/cpu_2_processes.yaml`, or with `torchrun --nproc_per_node N train/sft.py`"
        )


def _weights_dtype(config: SftConfig) -> str:
    """What trains is kept in fp32; a frozen base may be read in half precision."""
    return config.dtype if config.method == "lora" else "float32"
