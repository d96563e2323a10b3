"""Arguments of the trainers, and the resulting global batch."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainingArguments

from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.runs.launch import placement
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.settings.validation import ValidationConfig, greater_is_better


def common_arguments(config: TrainingConfig) -> dict[str, Any]:
    """Return the arguments that every trainer takes, by name."""
    return dict(
        output_dir=config.output_dir,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler,
        warmup_steps=config.warmup,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        seed=config.seed,
        bf16=config.precision == "bfloat16",
        **placement(config.device, os.environ, config.ddp_timeout),
        ddp_timeout=config.ddp_timeout,
        save_steps=config.save_steps,
        save_total_limit=config.save_total_limit,
        logging_steps=config.logging_steps,
        logging_nan_inf_filter=False,  # a non-finite loss is an error; don't hide it in the mean
        report_to=config.report_to or "none",
        dataloader_num_workers=config.dataloader_workers,
        dataloader_pin_memory=config.device != "cpu",
        remove_unused_columns=False,
        # A trained vision tower has unused layers: LLaVA reads the last but one.
        ddp_find_unused_parameters="vision_tower" in config.trained_towers,
        # Buffers are constants. A process that repeats a pass after running out of memory would broadcast alone.
        ddp_broadcast_buffers=False,
    )


def validation_arguments(validation: ValidationConfig) -> dict[str, Any]:
    """Return the arguments about validation, by name."""
    return {
        "eval_strategy": "steps" if validation.eval_data else "no",
        "eval_steps": validation.eval_steps,
        "metric_for_best_model": validation.best_metric or None,
        "greater_is_better": greater_is_better(validation.best_metric),
    }


def global_batch(args: TrainingArguments) -> GlobalBatch:
    """Return the batch of an optimiser step."""
    return GlobalBatch(args.train_batch_size, args.gradient_accumulation_steps, args.world_size)
