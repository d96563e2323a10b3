"""The launch of a run: join its processes, and refuse a launch that would do less than it was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from transformers import TrainingArguments

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.launch_variables import MPI_SIZES, is_true, launch_size, on_cpu
from reflectune.models.records import adapter_folder
from reflectune.train.estimates.memory import Division
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.settings.validation import ValidationConfig

_AUTOCAST = {"bfloat16": "bf16", "float16": "fp16"}
"""Values of accelerate's `mixed_precision` by `dtype`."""


def refuse_bad_launch(config: TrainingConfig, environment: Mapping[str, str]) -> None:
    """Raise a `UserError` if the launch asks for something that can't be done, or silently wouldn't be done."""
    if problems := [*_problems(config, environment)]:
        raise UserError("\n".join(problems))


def _problems(config: TrainingConfig, environment: Mapping[str, str]) -> Iterator[str]:
    if _starts_one_process(environment):
        yield (
            "`accelerate launch --cpu --num_processes N` starts one process, not N; launch with `--config_file "
            "configs/accelerate/cpu_2_processes.yaml`, or with `torchrun --nproc_per_node N train/sft.py`"
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        yield "`device` is cuda, and this machine shows no CUDA device; leave `device` out, or set it to cpu"
    if config.device == "cuda" and on_cpu(environment):
        yield "`device` is cuda, and this launch computes on the CPU; launch with configs/accelerate/gpu.yaml"
    autocast = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if autocast not in ("", "no", _AUTOCAST.get(config.precision)):
        yield (
            f"this launch's config has `mixed_precision: {autocast}`, and `dtype` is {config.precision}; set "
            "`mixed_precision: no` there, since `dtype` decides"
        )
    if kind := sharding(environment):
        yield from _sharding_problems(kind, config, environment)


def _sharding_problems(kind: str, config: TrainingConfig, environment: Mapping[str, str]) -> Iterator[str]:
    if kind.startswith("zero") and find_spec("deepspeed") is None:
        yield "this launch needs DeepSpeed: `pip install 'reflectune[deepspeed]'`"
    if kind == "fsdp" and environment.get("FSDP_VERSION", "1") != "2":
        yield "FSDP is supported in version 2 alone; launch with configs/accelerate/fsdp2.yaml"
    if kind == "fsdp" and is_true(environment, "FSDP_CPU_RAM_EFFICIENT_LOADING"):
        yield (
            "`fsdp_cpu_ram_efficient_loading: true` has the first process hold the whole model; set it to false in the "
            "launch's config: here each process maps the weights' file, and holds its own shard alone"
        )
    if kind == "fsdp" and environment.get("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT").upper() != "FULL_STATE_DICT":
        yield (
            "this launch saves FSDP's shards alone, and training would end without a checkpoint that can be loaded; "
            "set `fsdp_state_dict_type: FULL_STATE_DICT` in its config, as in configs/accelerate/fsdp2.yaml"
        )
    if kind == "zero3" and not _gathers_weights(environment):
        yield (
            "this launch saves ZeRO-3's shards alone, and training would end without a checkpoint that can be loaded; "
            "set `zero3_save_16bit_model: true` in its config, as in configs/accelerate/zero3.yaml, or in DeepSpeed's "
            "own file `stage3_gather_16bit_weights_on_model_save: true`"
        )
    if config.device == "cpu" and torch.accelerator.is_available():
        yield f"{kind} uses the accelerators of this machine, and `device` is cpu; leave `device` out"
    if config.precision != "float32" and not torch.accelerator.is_available():
        yield f"{kind} without an accelerator computes in float32; leave `dtype` out"
    if kind in ("zero3", "fsdp") and config.method != "full":
        yield (
            f"`method: {config.method}` under {kind} is not supported: new tokens' rows may not be saved "
            "(https://github.com/huggingface/peft/issues/2946). Launch with configs/accelerate/zero2.yaml or "
            "multi_gpu.yaml: adapters have so few optimiser states that there is little to divide"
        )
    if kind == "zero3" and adapter_folder(config.model) is not None:
        yield (
            f"`model`: {config.model} is an adapter, and zero3 divides its base before it could be merged; merge it "
            "with train.merge first, and start from the result"
        )
    if kind in ("zero3", "fsdp") and isinstance(config, ValidationConfig) and config.eval_answers:
        yield (
            f"`eval_answers` under {kind} is not supported: each pass through the divided weights takes all processes, "
            "and answers end at different lengths. Leave it out, and evaluate checkpoints with inference/evaluate.py"
        )


def refuse_sharded_weights(work: str, kind: str) -> None:
    """Raise a `UserError` if a method needs the whole weights in each process, and the launch shards them.

    Args:
        work: The method's work that needs them, e.g. `replies are sampled`; "" if there is none.
        kind: From `sharding`.
    """
    if work and kind in ("zero3", "fsdp"):
        raise UserError(
            f"{work} with unsharded weights, and {kind} shards them; launch with "
            "configs/accelerate/zero2.yaml or multi_gpu.yaml"
        )


def sharding(environment: Mapping[str, str]) -> str:
    """Return the kind of sharding of the launch: `zero1`, `zero2`, `zero3`, `fsdp`, or "" for none (DDP)."""
    if is_true(environment, "ACCELERATE_USE_DEEPSPEED"):
        return f"zero{_zero_stage(environment)}"
    return "fsdp" if is_true(environment, "ACCELERATE_USE_FSDP") else ""


def division(environment: Mapping[str, str], processes: int) -> Division:
    """Return the division of a run among its processes, and its offloading to the CPU's memory."""
    kind = sharding(environment)
    if kind == "fsdp":
        everything = is_true(environment, "FSDP_OFFLOAD_PARAMS")
        return Division(kind, processes, everything, everything)
    optimizer, weights = (
        kind.startswith("zero") and _is_offloaded(environment, part) for part in ("optimizer", "param")
    )
    return Division(kind, processes, optimizer, weights)


def placement(device: str, environment: Mapping[str, str], timeout: int) -> dict[str, Any]:
    """Return the arguments of `TrainingArguments` that choose the device, and how its processes work together.

    Under FSDP each batch's gradients are sharded at once: else each process holds whole ones until the step.
    transformers (5.23) lets processes on CPUs join without `ddp_timeout`, so they join here.

    On a machine without an accelerator accelerate (1.15) shards nothing: DeepSpeed fails or finds no back end, and
    under FSDP each process silently trains alone. There the processes meet over gloo, and FSDP takes them for several
    devices. Only tests use that.
    """
    kind, patience = sharding(environment), timedelta(seconds=timeout)
    has_accelerator = torch.accelerator.is_available()
    config: dict[str, Any] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}} if kind == "fsdp" else {}
    if not kind or has_accelerator:
        use_cpu = device == "cpu" or not has_accelerator
        if use_cpu:
            PartialState(cpu=True, timeout=patience)
        return {"use_cpu": use_cpu, **({"accelerator_config": config} if config else {})}
    if not PartialState._shared_state:
        state = PartialState(backend="gloo", timeout=patience)
        if kind == "fsdp":
            state.distributed_type = DistributedType.MULTI_GPU
    return {"use_cpu": False, "accelerator_config": {**config, "use_configured_state": True}}


def use_one_gpu(args: TrainingArguments) -> None:
    """Let a process use one GPU, however many it sees. Changes the arguments in place.

    The stock trainer takes all GPUs that a lone process sees: it multiplies the batch by their number, and wraps the
    model in `nn.DataParallel`, whose scatter would cut a packed row of trees into pieces.
    """
    if args.n_gpu > 1:
        args._n_gpu = 1


def idle_gpus(args: TrainingArguments) -> str:
    """Return a line about the GPUs that a lone process leaves idle, and how to use all; "" if none is idle."""
    visible = torch.cuda.device_count()
    if args.world_size > 1 or args.device.type == "cpu" or visible < 2:
        return ""
    return (
        f"one process uses one GPU: {args.device} of {visible}; to use all, launch with "
        "configs/accelerate/multi_gpu.yaml"
    )


def check_launch_took_effect(trainer: Any, environment: Mapping[str, str]) -> None:
    """Raise a `UserError` if fewer processes train together than were started, or sharding isn't on that should be."""
    started, joined = launch_size(environment), trainer.args.world_size
    if joined != started:
        raise UserError(
            f"{started} processes were started, but only {joined} would train together; see configs/accelerate"
        )
    kind = sharding(environment)
    engaged = {"zero": trainer.is_deepspeed_enabled, "fsdp": trainer.is_fsdp_enabled}.get(kind[:4], True)
    if not engaged:
        raise UserError(f"the launch asks for {kind}, but accelerate did not turn it on; see configs/accelerate")


def _starts_one_process(environment: Mapping[str, str]) -> bool:
    """Return True after `accelerate launch --cpu --num_processes 2`, which starts one process (1.15)."""
    mpi = any(name in environment for name in MPI_SIZES)
    return on_cpu(environment) and "MASTER_PORT" in environment and "WORLD_SIZE" not in environment and not mpi


def _zero_stage(environment: Mapping[str, str]) -> int:
    settings = _own_settings(environment)
    if settings is not None:
        return int(settings.get("stage", 0))
    return int(environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2))


def _gathers_weights(environment: Mapping[str, str]) -> bool:
    """Return True if ZeRO-3 lets the first process write whole weights, which is off by default."""
    settings = _own_settings(environment)
    asked = "auto" if settings is None else settings.get("stage3_gather_16bit_weights_on_model_save", False)
    return is_true(environment, "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL") if asked == "auto" else bool(asked)


def _is_offloaded(environment: Mapping[str, str], part: str) -> bool:
    settings = _own_settings(environment)
    if settings is not None:
        return settings.get(f"offload_{part}", {}).get("device", "none") != "none"
    return environment.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{part.upper()}_DEVICE", "none") != "none"


def _own_settings(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Read ZeRO's settings from DeepSpeed's own file; None if the launch names none."""
    file = environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file == "none":
        return None
    return read_json(file, "the launch's `deepspeed_config_file`").get("zero_optimization", {})
