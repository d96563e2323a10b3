"""The common structure of every training: launch → model → data → train → save."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch
from accelerate.utils import broadcast_object_list
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy, fsdp2_prepare_model
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

from reflectune.core.devices import precision_warning
from reflectune.core.errors import UserError
from reflectune.core.launching import any_process, launch_processes
from reflectune.models.loading import Loaded, save_checkpoint
from reflectune.models.prefix.forward import check_logits
from reflectune.models.records import adapter_folder
from reflectune.models.schemes.base import Scheme
from reflectune.models.weights.output_head import read_in_float32
from reflectune.models.weights.pretrained import cast_buffers
from reflectune.train.data.global_batch import GlobalBatch, refuse_other_batch, why_fixed
from reflectune.train.runs.arguments import common_arguments, global_batch
from reflectune.train.runs.checkpointed_trainer import CheckpointedTrainer, Run
from reflectune.train.runs.failures import advising_on_memory
from reflectune.train.runs.launch import (
    check_launch_took_effect,
    idle_gpus,
    refuse_bad_launch,
    refuse_sharded_weights,
    sharding,
    use_one_gpu,
)
from reflectune.train.runs.logs import track_as_one_run, write_log
from reflectune.train.settings.model import AdapterConfig
from reflectune.train.settings.saving import PublishingConfig
from reflectune.train.settings.training import ComputeConfig, TrainingConfig
from reflectune.train.weights.checkpoints import (
    STARTED_FROM,
    final_record,
    finish_with_best,
    has_stopped_early,
    is_finished,
    last_complete_checkpoint,
    mark_complete,
    recorded_settings,
    refuse_occupied,
)
from reflectune.train.weights.loading import (
    Sharding,
    adapter_settings,
    load_base,
    load_tuned,
    model_files,
    prepare_model,
)
from reflectune.train.weights.model_card import publish, write_card
from reflectune.train.weights.parameters import parameter_table, recompute_layers

_DONE: Final = "nothing to do: {} holds this run's final checkpoint"


class Method(ABC):
    """The parts in which trainings differ. `run` calls the methods in the order of their definition."""

    needs_tuned = False
    """True if training continues a fine-tuned checkpoint."""
    whole_model_for = ""
    """Work that needs unsharded weights in each process, for the error under ZeRO-3 and FSDP; "" if there is none."""
    quantizes = True
    """False if it can't train adapters on a 4-bit model."""
    reads_whole_model = False
    """True if part of the model runs before training, so that FSDP can't load its shards directly from the file."""
    fixes_processes = ""
    """Reason why a run can't continue with a different number of processes; "" if it depends on the model."""

    @abstractmethod
    def arguments(self, common: Mapping[str, Any]) -> TrainingArguments:
        """Return the trainer's arguments, given the common ones; this joins the processes of the launch."""

    @abstractmethod
    def fingerprints(self) -> dict[str, Any]:
        """Return hashes of the inputs, besides settings and model, that determine the weights."""

    @abstractmethod
    def load_data(self, args: TrainingArguments) -> None:
        """Read and check the data. No model is loaded yet."""

    def before_training(self, loaded: Loaded, args: TrainingArguments) -> None:  # noqa: B027  most do nothing
        """Do work that needs the model without adapters, also in a dry run."""

    @abstractmethod
    def preview(self, model: nn.Module, loaded: Loaded, args: TrainingArguments, batch: GlobalBatch) -> str:
        """Describe the run, for a dry run."""

    def recomputed(self, model: nn.Module, loaded: Loaded, args: TrainingArguments) -> int:
        """Return n if every n-th layer is recomputed in the backward pass, as the config says; 0 for none."""
        return 1

    @abstractmethod
    def trainer(self, run: Run, loaded: Loaded, batch: GlobalBatch) -> CheckpointedTrainer:
        """Make the trainer."""

    @abstractmethod
    def data_summary(self) -> str:
        """Describe the training data in one line, for the model card."""


def run(config: TrainingConfig, method: Method) -> None:
    """Train and write the checkpoint into `output_dir`; resume from the last checkpoint there."""
    kind = sharding(os.environ)
    refuse_bad_launch(config, os.environ)
    refuse_sharded_weights(method.whole_model_for, kind)
    torch.set_float32_matmul_precision(config.matmul_precision)
    logging.disable_progress_bar()  # of loading and saving; the trainer has its own
    args = method.arguments(common_arguments(config))
    use_one_gpu(args)
    launch_processes("" if config.dry_run else config.output_dir)
    say(args, idle_gpus(args))
    _run(config, method, args, kind)
    if not config.dry_run:
        publish(config.output_dir, PublishingConfig.of(config), args)


def _run(config: TrainingConfig, method: Method, args: TrainingArguments, kind: str) -> None:
    batch = global_batch(args)
    hashes = launch_processes().from_first(method.fingerprints)

    def all_settings(model_fingerprint: str, fixed: str) -> dict[str, Any]:
        """Return everything that determines the weights."""
        continued = adapter_folder(config.model) if method.needs_tuned and config.method != "full" else None
        return {
            **config.hashed(),
            **(adapter_settings(continued) if continued else {}),
            "device": args.device.type,
            **hashes,
            "model_fingerprint": model_fingerprint,  # of weights, tokens, chat template and scheme
            "sharding": kind,
            **batch.settings(fixed),
        }

    if not config.dry_run:
        (is_unknown,) = any_process(not is_recorded_as_finished(config, all_settings))
        if not is_unknown:
            say(args, _DONE.format(config.output_dir))
            return
    method.load_data(args)
    sharded = Sharding(kind, from_file=kind == "fsdp" and not (config.dry_run or method.reads_whole_model))
    loaded, adapted = _load(config, method, args, sharded)
    fixed = method.fixes_processes or why_fixed(loaded.model, config.adapters_dropout, kind)
    settings = all_settings(loaded.fingerprint, fixed)
    if not config.dry_run and is_trained_already(config, args, batch, fixed, settings):
        return
    started_from = model_files(config)
    if slow := precision_warning(config.precision, args.device):
        say(args, f"warning: {slow}")
    if kind not in ("zero3", "fsdp"):
        say(args, logits_warning(loaded.model))
    method.before_training(loaded, args)
    adapters = AdapterConfig.of(config)
    model = adapted.train() if adapted else prepare_model(loaded, adapters, seed=config.seed, sharding=sharded)
    replies = [loaded.renderer.token_id(role) for role in Scheme.of(loaded.renderer).replies]
    if replies:
        read_in_float32(model.get_output_embeddings(), replies)
    if config.dry_run:
        say(args, method.preview(model, loaded, args, batch))
        return
    say(args, parameter_table(model))
    if config.gradient_checkpointing and (every := method.recomputed(model, loaded, args)):
        recompute_layers(model, every)
    save = functools.partial(save_model, loaded=loaded, settings=settings)
    memory_options = [*(["qlora"] if method.quantizes else []), *([] if method.whole_model_for else ["zero3"])]
    with advising_on_memory(adapters, ComputeConfig.of(config), args, fixed, memory_options):
        trainer = method.trainer(Run(model, args, save, settings), loaded, batch)
        card = functools.partial(
            write_card,
            publishing=PublishingConfig.of(config),
            loaded=loaded,
            data=method.data_summary(),
            settings=settings,
        )
        train(trainer, card, started_from)


def _load(
    config: TrainingConfig, method: Method, args: TrainingArguments, sharded: Sharding
) -> tuple[Loaded, PeftModel | None]:
    if method.needs_tuned:
        return load_tuned(config, args.device, sharded)
    return load_base(config, args.device, sharded), None


def logits_warning(model: PreTrainedModel) -> str:
    """Return a warning if `evaluate` and `answer` will refuse the trained model for its logits; else ""."""
    try:
        check_logits(model)
    except UserError as error:
        return f"warning: `evaluate` and `answer` will refuse the trained model: {error}"
    return ""


def is_recorded_as_finished(config: TrainingConfig, all_settings: Callable[[str, str], Mapping[str, Any]]) -> bool:
    """Return True if the records in `output_dir` show that this run is finished, without loading anything.

    The model's files must have the sizes and times that they had when the run started.

    Args:
        config: The settings.
        all_settings: Returns the run's settings, given the model's fingerprint and the reason for fixed processes.

    Raises:
        UserError: The folder holds a run, and `resume` is off.
    """
    if not config.resume:
        refuse_occupied(config.output_dir)
    record = final_record(config.output_dir)
    if not record or record.get(STARTED_FROM) != model_files(config):
        return False
    recorded = record["settings"]
    fixed = "it was when the run ended" if "processes" in recorded else ""
    return bool(recorded == all_settings(recorded["model_fingerprint"], fixed))


def is_trained_already(
    config: TrainingConfig, args: TrainingArguments, batch: GlobalBatch, why_fixed: str, settings: Mapping[str, Any]
) -> bool:
    """Return True if `output_dir` holds the final checkpoint of this run.

    Raises:
        UserError: The folder holds another run, or one with another global batch.
    """
    folder = config.output_dir
    refuse_other_batch(folder, recorded_settings(folder), batch, why_fixed)
    if not is_finished(folder, settings):
        return False
    say(args, _DONE.format(folder))
    return True


def train(trainer: CheckpointedTrainer, write_card: Callable[..., None], started_from: Any) -> None:
    """Train the remaining steps, then write the final checkpoint (the last or the best weights) and its card.

    Args:
        trainer: The trainer.
        write_card: Writes the card into a folder.
        started_from: The files of the model (`model_files`), for the record.
    """
    args, settings = trainer.args, trainer.settings
    output_dir, best_metric = Path(str(args.output_dir)), args.metric_for_best_model
    check_launch_took_effect(trainer, os.environ)
    reduce_in_float32(trainer)
    shard(trainer)
    checkpoints = [last_complete_checkpoint(output_dir, settings) if args.process_index == 0 else None]
    (checkpoint,) = broadcast_object_list(checkpoints)  # one process reads the archives
    if checkpoint and has_stopped_early(checkpoint, best_metric or "", trainer.patience):
        trainer.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    else:
        if checkpoint:
            say(args, f"resuming from {checkpoint}")
        elif any(output_dir.glob("checkpoint-*")):
            say(args, f"{output_dir} has no complete checkpoint yet: training starts at step 0")
        track_as_one_run(trainer)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if not best_metric:
        trainer.save_model(str(output_dir))
    elif args.should_save:
        finish_with_best(output_dir)
        say(args, f"best {best_metric}: {trainer.state.best_metric:.4f}, at step {trainer.state.best_global_step}")
    trainer.save_state()
    if args.should_save:
        write_log(output_dir, trainer.state.log_history)
        last = trainer.state.best_global_step if best_metric else None
        write_card(output_dir, history=trainer.state.log_history, step=last or trainer.state.global_step)
        mark_complete(output_dir, settings, trainer.state.global_step, started_from=started_from)
        say(args, f"{output_dir}: the checkpoint of step {last or trainer.state.global_step}")


def save_model(
    folder: Path,
    model: PreTrainedModel | PeftModel,
    state_dict: Mapping[str, Tensor] | None,
    *,
    loaded: Loaded,
    settings: Mapping[str, Any],
) -> None:
    """Write a checkpoint that `reflectune.models.loading.load`, transformers and peft load.

    Args:
        model: The model, not wrapped.
        state_dict: Its weights, if they are sharded and were gathered.
        loaded: Its processor and scheme, and its base.
        settings: Everything that determines the weights.
    """
    # An absolute path, so that an adapter finds its base model from any working directory.
    base = str(Path(loaded.name).resolve()) if Path(loaded.name).is_dir() else loaded.name
    quantization = asdict(loaded.quantization) if loaded.quantization else None
    info = {"base_model": base, "seed": settings["seed"], "quantization": quantization, "training": dict(settings)}
    assert loaded.scheme is not None  # it was loaded with one
    save_checkpoint(folder, model, loaded.processor, loaded.scheme, info, state_dict=state_dict)


def say(args: TrainingArguments, text: str) -> None:
    """Print a text in the first process; nothing if it is empty."""
    if text and args.process_index == 0:
        print(text, flush=True)


def reduce_in_float32(trainer: Any) -> None:
    """Accumulate and average gradients in float32, as DDP does, unless the launch's DeepSpeed file says otherwise.

    By default DeepSpeed (0.19) and accelerate's FSDP (1.15) use the precision of the forward pass.
    """
    state = trainer.accelerator.state
    if trainer.is_deepspeed_enabled:
        config = state.deepspeed_plugin.deepspeed_config
        config.setdefault("communication_data_type", "fp32")
        config.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")
    elif trainer.is_fsdp_enabled and (policy := state.fsdp_plugin.mixed_precision_policy):
        # don't cast outputs: FSDP would round the gates' float32 logits
        state.fsdp_plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32, output_dtype=None)


def shard(trainer: Any) -> None:
    """Under FSDP, shard the layers of the decoder and of the vision tower among the processes, one at a time.

    accelerate (1.15) casts the whole model in each process before sharding it, or holds it all in the first process
    (`cpu_ram_efficient_loading`). Here a layer's weights are memory-mapped until the layer is cast and sharded, one by
    one. accelerate shards the rest. The shards and the optimiser's groups are equal to accelerate's. Can go once
    `fsdp2_prepare_model` casts modules one by one.

    Args:
        trainer: A trainer whose model has been loaded, and whose weights are frozen as needed.
    """
    if not trainer.is_fsdp_enabled:
        return
    model, plugin = trainer.model, trainer.accelerator.state.fsdp_plugin
    _name_layers(model, plugin)
    plugin.set_auto_wrap_policy(model)
    is_layer = fsdp2_prepare_auto_wrap_policy(plugin, model)
    if is_layer is not None and not plugin.activation_checkpointing and plugin.ignored_modules is None:
        for layer in [module for module in model.modules() if is_layer(module)]:
            _cast(layer, model.config.dtype)
            fully_shard(
                layer,
                reshard_after_forward=plugin.reshard_after_forward,
                offload_policy=plugin.cpu_offload,
                mp_policy=plugin.mixed_precision_policy or MixedPrecisionPolicy(),
            )
        plugin.transformer_cls_names_to_wrap = []  # they are sharded, which has renamed their classes
    _cast(model, model.config.dtype)
    cast_buffers(model, model.config.dtype)
    fsdp2_prepare_model(trainer.accelerator, model)


def _cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast trained weights to float32, and frozen ones to the model's dtype."""
    for parameter in module.parameters():
        target = torch.float32 if parameter.requires_grad else dtype
        if parameter.dtype != target:
            parameter.data = parameter.data.to(target)


def _name_layers(model: Any, plugin: Any) -> None:
    """Set the layer classes that FSDP gathers one at a time, limited to those in the model.

    transformers also lists CLIP's text embeddings, which LLaVA lacks, and accelerate (1.15) fails on a missing class.
    """
    if plugin.transformer_cls_names_to_wrap is None:
        present = {type(module).__name__ for module in model.modules()}
        named = present & set(model._no_split_modules)
        plugin.transformer_cls_names_to_wrap = sorted(name for name in named if name.endswith(("Layer", "Block")))
