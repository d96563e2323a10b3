"""Fine-tuning from a config: check everything, prepare the model, train, save."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerState, TrainingArguments, set_seed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

from reflectune.core.hashing import file_fingerprint
from reflectune.core.paths import Roots
from reflectune.models.loading import Loaded, is_stored_in, load, save_checkpoint
from reflectune.models.schemes.examples import TrainingExample
from reflectune.models.weights.quantization import Quantization
from reflectune.train.settings.sft import SftConfig
from reflectune.train.data.examples import Collator, EncodedExamples, load_training_data
from reflectune.train.data.global_batch import GlobalBatch, refuse_other_batch, why_fixed
from reflectune.train.data.mixture import mixture_lines
from reflectune.train.data.order import training_order
from reflectune.train.runs.answers import AnswerReader
from reflectune.train.runs.checkpointed import CheckpointedTrainer
from reflectune.train.runs.failures import advising
from reflectune.train.runs.logs import write_log
from reflectune.train.runs.tracking import track_as_one_run
from reflectune.train.runs.trainer import ReflectionTrainer, TrainingRun
from reflectune.train.runs.validation import GateReader, load_validation
from reflectune.train.estimates.preview import describe, parameter_table
from reflectune.train.runs.model_card import data_in_words, publish, write_card
from reflectune.train.runs.checkpoints import (
    end_with_best,
    has_stopped_early,
    is_finished,
    last_whole_checkpoint,
    mark_whole,
    refuse_occupied,
)
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.settings.validation import ValidationConfig, greater_is_better
from reflectune.train.runs.dividing import divide, divides_from_file
from reflectune.train.runs.features import cache_features
from reflectune.train.runs.launch import (
    check_engaged,
    idle_gpus,
    keep_to_one_gpu,
    placement,
    refuse_bad_launch,
    refuse_unshared,
    sharding,
)
from reflectune.train.runs.parameters import (
    add_adapters,
    freeze_all_but,
    freeze_unread,
    keep_trained_weights_in_fp32,
    projector_modules,
)


def fine_tune(config: SftConfig) -> None:
    """Train as the config says, and write the checkpoint into `output_dir`; go on from the last one if there is one."""
    refuse_bad_launch(config, os.environ)
    data = load_training_data(config.parts(), config.scheme)
    validation = load_validation(config)
    torch.set_float32_matmul_precision(config.matmul_precision)
    logging.disable_progress_bar()  # of loading and saving; the trainer's own is shown
    args = training_arguments(config)
    check_processes(config, args)
    loaded = load_base(config, args)
    batch = global_batch(args)
    fixed = why_fixed(loaded.model, config.adapters_dropout, sharding(os.environ))
    settings = run_settings(config, loaded) | batch.settings(fixed)
    if not config.dry_run and is_trained_already(config, args, batch, fixed, settings):
        return
    if config.cache_features:
        wanted = [(data.examples, data.image_roots), *([validation] if validation else [])]
        cache_features(config, loaded, wanted, args)
    model = prepare_model(loaded, config)
    dataset = encoded_examples(data.examples, data.image_roots, loaded, config)
    reading_order = training_order(data, batch, seed=config.seed, group_by_length=config.group_by_length)
    if config.dry_run:
        steps = total_steps(config, reading_order.examples, args.world_size)
        say(args, "\n".join(mixture_lines(config.parts(), [count for count, _ in data.parts])))
        say(args, describe(config, model, dataset, loaded.renderer, steps, args.device, args.world_size))
        return
    say(args, parameter_table(model))
    collator = Collator(loaded.model)
    reader, answers, batch_size = None, None, config.per_device_train_batch_size
    if validation:
        held_out = encoded_examples(*validation, loaded, config)
        renderer = loaded.renderer
        reader = GateReader(held_out, collator, renderer, batch_size)
    if validation and config.eval_answers:
        count, seed = config.eval_answers, config.seed
        answers = AnswerReader(loaded, *validation, count=count, seed=seed, batch_size=batch_size)
    save = functools.partial(save_model, loaded=loaded, settings=settings)
    run = TrainingRun(model, args, dataset, collator, reading_order, save, settings, config.projector_learning_rate)
    patience = config.early_stopping_patience
    card = functools.partial(
        write_card, config=config, loaded=loaded, data=data_in_words(data.examples, data.scheme), settings=settings
    )
    with advising(config, model, args, fixed):
        train(ReflectionTrainer(run, reader, patience, answers), card)
    publish(config, args)


def training_arguments(config: TrainingConfig) -> TrainingArguments:
    """The stock trainer's arguments; this also joins the processes of a distributed launch. One process has one GPU."""
    args = TrainingArguments(**argument_values(config))
    keep_to_one_gpu(args)
    return args


def check_processes(config: TrainingConfig, args: TrainingArguments) -> None:
    """Refuse processes that don't share the run's output, and say which GPUs a lone one leaves idle.

    Raises:
        UserError: They find different checkpoints in `output_dir`.
    """
    refuse_unshared(config.output_dir, args)
    if idle := idle_gpus(args):
        say(args, idle)


def argument_values(config: TrainingConfig) -> dict[str, Any]:
    """The arguments that every trainer takes, by name."""
    return dict(
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
        **placement(config, os.environ),
        activation_checkpointing=config.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if config.gradient_checkpointing else None,
        **(_validation_arguments(config) if isinstance(config, ValidationConfig) else {}),
        save_steps=config.save_steps,
        save_total_limit=config.save_total_limit,
        logging_steps=config.logging_steps,
        logging_nan_inf_filter=False,  # a loss that is not finite is an error, and not to be averaged away
        report_to=config.report_to or "none",
        dataloader_num_workers=config.dataloader_workers,
        dataloader_pin_memory=config.device != "cpu",
        remove_unused_columns=False,
        # A vision tower that trains has layers that the language model never reads (LLaVA takes the last but one).
        ddp_find_unused_parameters="vision_tower" in config.trained_towers,
    )


def _validation_arguments(config: ValidationConfig) -> dict[str, Any]:
    return {
        "eval_strategy": "steps" if config.eval_data else "no",
        "eval_steps": config.eval_steps,
        "metric_for_best_model": config.best_metric or None,
        "greater_is_better": greater_is_better(config.best_metric),
    }


def load_base(config: TrainingConfig, args: TrainingArguments) -> Loaded:
    """The model to train: what trains is kept in fp32, a frozen base in half precision or in four bits.

    A full checkpoint is written of all weights, so its frozen ones are held in what they are stored in, or in fp32.
    What trains whole on its device is cast there; what FSDP divides stays in its file until then (see `divide`).
    """
    dtype, is_divided = config.dtype, sharding(os.environ) in ("zero3", "fsdp")
    if config.method == "full" and not (config.train_towers and is_stored_in(config.model, dtype)):
        dtype = "float32"
    if config.method != "qlora":
        return load(
            config.model,
            scheme=config.scheme,
            dtype=dtype,
            device=str(args.device) if config.method == "full" and not is_divided else "cpu",
            seed=config.seed,
            images=config.image_settings(),
            cast=not divides_from_file(config),
        )
    return load(
        config.model,
        scheme=config.scheme,
        seed=config.seed,
        quantization=Quantization(dtype, config.double_quantization),
        device=str(args.device),
        images=config.image_settings(),
    )


def prepare_model(loaded: Loaded, config: TrainingConfig) -> PreTrainedModel | PeftModel:
    """Choose what trains: whole towers, or adapters and the new tokens' rows, with the projector if it is named."""
    model: PreTrainedModel | PeftModel = loaded.model
    set_seed(config.seed)  # adapters begin at random
    if config.method != "full":
        model = add_adapters(
            loaded.model,
            loaded.renderer.token_ids.values(),
            rank=config.lora_r,
            alpha=config.lora_alpha,
            dropout=config.lora_dropout,
            targets=config.lora_targets,
            whole=projector_modules(loaded.model) if "projector" in config.trained_towers else (),
        )
    else:
        freeze_all_but(model, config.trained_towers)
    if sharding(os.environ) == "fsdp":
        freeze_unread(model)
    if not divides_from_file(config):
        keep_trained_weights_in_fp32(model)
    return model.train()


def global_batch(args: TrainingArguments) -> GlobalBatch:
    """How an optimiser step's examples are divided."""
    return GlobalBatch(args.train_batch_size, args.gradient_accumulation_steps, args.world_size)


def run_settings(config: SftConfig, loaded: Loaded) -> dict[str, Any]:
    """What determines the weights of a run, beside its global batch."""
    return {
        **config.run_settings(),
        "data_fingerprint": [[file_fingerprint(part.file), part.weight] for part in config.parts()],
        "model_fingerprint": loaded.fingerprint,  # of weights, tokens, chat template and scheme
        **({"sharding": kind} if (kind := sharding(os.environ)) else {}),
        **({"eval_fingerprint": file_fingerprint(config.eval_part().file)} if config.best_metric else {}),
    }


def encoded_examples(
    examples: Sequence[TrainingExample], roots: Roots, loaded: Loaded, config: SftConfig
) -> EncodedExamples:
    """The examples as the model reads them."""
    most = loaded.model.config.get_text_config().max_position_embeddings
    return EncodedExamples(
        examples,
        loaded.renderer,
        roots,
        share_prefix=config.tree,
        max_tokens=min(config.max_tokens or most, most),
        cache_bytes=config.cache_mib * 2**20,
        answer_weight=config.answer_weight,
    )


def total_steps(config: TrainingConfig, examples: int, processes: int) -> int:
    """Optimiser steps of the whole run; the last step of an epoch may be a short one."""
    if config.max_steps is not None:
        return config.max_steps
    batches = math.ceil(examples / (config.per_device_train_batch_size * processes))
    return math.ceil(config.epochs * math.ceil(batches / config.gradient_accumulation_steps))


def train(trainer: CheckpointedTrainer, write_card: Callable[..., None]) -> None:
    """Run the steps that are left, then write the final checkpoint: the last weights or the best ones, and a card."""
    args, settings = trainer.args, trainer.settings
    output_dir, best_metric = Path(str(args.output_dir)), args.metric_for_best_model
    check_engaged(trainer, os.environ)
    divide(trainer)
    checkpoint = last_whole_checkpoint(output_dir, settings, discard=args.should_save, say=lambda text: say(args, text))
    if checkpoint and has_stopped_early(checkpoint, best_metric or "", trainer.patience):
        trainer.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    else:
        if checkpoint:
            say(args, f"going on from {checkpoint}")
        track_as_one_run(trainer)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if not best_metric:
        trainer.save_model(str(output_dir))
    elif args.should_save:
        end_with_best(output_dir)
        say(args, f"best {best_metric}: {trainer.state.best_metric:.4f}, at step {trainer.state.best_global_step}")
    trainer.save_state()
    if args.should_save:
        write_log(output_dir, trainer.state.log_history)
        last = trainer.state.best_global_step if best_metric else None
        write_card(output_dir, history=trainer.state.log_history, step=last or trainer.state.global_step)
        mark_whole(output_dir, settings, trainer.state.global_step)
    # a process that ends badly has the launcher end the others, which must not be writing then
    trainer.accelerator.wait_for_everyone()


def save_model(
    folder: Path,
    model: nn.Module,
    state_dict: Mapping[str, Tensor] | None,
    *,
    loaded: Loaded,
    settings: Mapping[str, Any],
) -> None:
    """Write a checkpoint that `reflectune.models.loading.load`, transformers and peft load.

    Args:
        folder: Where to.
        model: The model, not wrapped.
        state_dict: Its weights, if they are divided among processes and were gathered.
        loaded: Its processor and scheme, and what it was loaded from.
        settings: What determines the run.
    """
    # A folder's whole path: an adapter is loaded onto its base from any working directory.
    base = str(Path(loaded.name).resolve()) if Path(loaded.name).is_dir() else loaded.name
    quantization = asdict(loaded.quantization) if loaded.quantization else None
    info = {"base_model": base, "seed": settings["seed"], "quantization": quantization, "training": dict(settings)}
    assert loaded.scheme is not None  # it was loaded with one
    save_checkpoint(folder, model, loaded.processor, loaded.scheme, info, state_dict=state_dict)


def is_trained_already(
    config: TrainingConfig, args: TrainingArguments, batch: GlobalBatch, why_fixed: str, settings: Mapping[str, Any]
) -> bool:
    """Whether `output_dir` holds the final checkpoint of this very run, which is then said and published.

    Raises:
        UserError: The folder holds another run, or one with another global batch.
    """
    if not config.resume:
        refuse_occupied(config.output_dir)
    refuse_other_batch(config.output_dir, batch, why_fixed)
    if not is_finished(config.output_dir, settings):
        return False
    say(args, f"nothing to do: {config.output_dir} holds this run's final checkpoint")
    publish(config, args)
    return True


def say(args: TrainingArguments, text: str) -> None:
    """Print once, however many processes train."""
    if args.process_index == 0:
        print(text, flush=True)
