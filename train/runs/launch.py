"""How this process was started: joins the others, and refuses a launch that would do less than it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import gather_object
from transformers import TrainingArguments

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.launching import MPI_SIZES
from reflectune.models.loading import ADAPTER_FILE
from reflectune.train.runs.checkpoints import records_of
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.settings.validation import ValidationConfig


@dataclass(frozen=True)
class Division:
    """Among how many processes a run is divided, and what of it.

    Attributes:
        kind: `zero1`, `zero2`, `zero3`, `fsdp`, or "" for nothing; see `sharding`.
        processes: How many there are.
        offloads_optimizer: Whether gradients and optimiser states lie in the memory of the CPU.
        offloads_weights: Whether weights do.
    """

    kind: str
    processes: int
    offloads_optimizer: bool = False
    offloads_weights: bool = False


def refuse_bad_launch(config: TrainingConfig, environment: Mapping[str, str]) -> None:
    """Raise a `UserError` if what `accelerate launch` was asked for cannot be done, or would silently not be done."""
    _refuse_lonely(environment)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("`device` is cuda, and this machine shows no CUDA device; leave `device` out, or set it to cpu")
    if config.device == "cuda" and _is_true(environment, "ACCELERATE_USE_CPU"):
        raise UserError(
            "`device` is cuda, and this launch computes on the CPU; launch with configs/accelerate/gpu.yaml"
        )
    kind = sharding(environment)
    if kind.startswith("zero") and find_spec("deepspeed") is None:
        raise UserError("this launch needs DeepSpeed: `pip install 'reflectune[deepspeed]'`")
    if kind == "fsdp" and environment.get("FSDP_VERSION", "1") != "2":
        raise UserError("FSDP is supported in version 2 alone; launch with configs/accelerate/fsdp2.yaml")
    if kind == "fsdp" and _is_true(environment, "FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise UserError(
            "`fsdp_cpu_ram_efficient_loading: true` has the first process hold the whole model; set it to false in the "
            "launch's config: here each process maps the weights' file, and holds its own part alone"
        )
    if kind == "fsdp" and environment.get("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT").upper() != "FULL_STATE_DICT":
        raise UserError(
            "this launch saves FSDP's parts alone, and training would end without a checkpoint that can be loaded; set "
            "`fsdp_state_dict_type: FULL_STATE_DICT` in its config, as in configs/accelerate/fsdp2.yaml"
        )
    if kind == "zero3" and not _gathers_weights(environment):
        raise UserError(
            "this launch saves ZeRO-3's parts alone, and training would end without a checkpoint that can be loaded; "
            "set `zero3_save_16bit_model: true` in its config, as in configs/accelerate/zero3.yaml, or in DeepSpeed's "
            "own file `stage3_gather_16bit_weights_on_model_save: true`"
        )
    if kind and config.device == "cpu" and torch.accelerator.is_available():
        raise UserError(f"{kind} uses the accelerators of this machine, and `device` is cpu; leave `device` out")
    if kind and config.dtype != "float32" and not torch.accelerator.is_available():
        raise UserError(f"{kind} without an accelerator computes in float32; leave `dtype` out")
    if kind in ("zero3", "fsdp") and config.method != "full":
        raise UserError(
            f"`method: {config.method}` under {kind} is not supported: new tokens' rows may not be saved "
            "(https://github.com/huggingface/peft/issues/2946). Launch with configs/accelerate/zero2.yaml or "
            "multi_gpu.yaml: adapters have so few optimiser states that there is little to divide"
        )
    if kind == "zero3" and Path(config.model, ADAPTER_FILE).is_file():
        raise UserError(
            f"`model`: {config.model} is an adapter, and zero3 divides its base before it could be merged; merge it "
            "with train.merge first, and start from the result"
        )
    if kind in ("zero3", "fsdp") and isinstance(config, ValidationConfig) and config.eval_answers:
        raise UserError(
            f"`eval_answers` under {kind} is not supported: each pass through the divided weights takes all processes, "
            "and answers end at different lengths. Leave it out, and evaluate checkpoints with inference/evaluate.py"
        )


def sharding(environment: Mapping[str, str]) -> str:
    """What the launcher was told to divide among the processes: `zero2`, `zero3`, `fsdp`, or "" for nothing (DDP)."""
    if _is_true(environment, "ACCELERATE_USE_DEEPSPEED"):
        return f"zero{_zero_stage(environment)}"
    return "fsdp" if _is_true(environment, "ACCELERATE_USE_FSDP") else ""


def division(environment: Mapping[str, str], processes: int) -> Division:
    """What of a run is divided among its processes, and what lies in the memory of the CPU."""
    kind = sharding(environment)
    if kind == "fsdp":
        everything = _is_true(environment, "FSDP_OFFLOAD_PARAMS")
        return Division(kind, processes, everything, everything)
    optimizer, weights = (
        kind.startswith("zero") and _is_offloaded(environment, what) for what in ("optimizer", "param")
    )
    return Division(kind, processes, optimizer, weights)


def placement(config: TrainingConfig, environment: Mapping[str, str]) -> dict[str, Any]:
    """Where to train, as arguments of `TrainingArguments`.

    On a machine without an accelerator accelerate (1.15) divides nothing: DeepSpeed fails or finds no back end, and
    under FSDP each process trains alone, without a word. So there the processes meet over gloo, and FSDP is told that
    it runs on several devices. That is how both are tested; it has no other use.
    """
    kind = sharding(environment)
    has_accelerator = torch.accelerator.is_available()
    if not kind or has_accelerator:
        return {"use_cpu": config.device == "cpu" or not has_accelerator}
    if not PartialState._shared_state:
        state = PartialState(backend="gloo")
        if kind == "fsdp":
            state.distributed_type = DistributedType.MULTI_GPU
    return {"use_cpu": False, "accelerator_config": {"use_configured_state": True}}


def refuse_unshared(output_dir: str, args: TrainingArguments) -> None:
    """Raise a `UserError` in every process if they don't all find the same checkpoints in `output_dir`.

    Each decides by what it finds whether the run is finished and where it goes on. Two that decide otherwise would wait
    for each other without end.

    Args:
        output_dir: The run's.
        args: The trainer's, which have joined the processes.
    """
    if args.world_size == 1:
        return
    views: list[dict[str, str]] = gather_object([records_of(output_dir)])
    other = next((place for place, view in enumerate(views) if view != views[0]), None)
    if other is not None:
        raise UserError(
            f"process 0 finds {_in_words(views[0])} in {output_dir}, and process {other} {_in_words(views[other])}; "
            "`output_dir` must lie on a file system that all machines of the launch share"
        )


def keep_to_one_gpu(args: TrainingArguments) -> None:
    """Have a process use the GPU that it computes on alone, whatever others it sees. Changes the arguments in place.

    The stock trainer takes all GPUs that a lone process sees: it multiplies the batch by their number, and wraps the
    model in `nn.DataParallel`, whose scatter would cut a packed row of trees into pieces.
    """
    if args.n_gpu > 1:
        args._n_gpu = 1


def idle_gpus(args: TrainingArguments) -> str:
    """Which GPU a lone process uses where it sees several, and how to use all, in one line; "" if none is left idle."""
    visible = torch.cuda.device_count()
    if args.world_size > 1 or args.device.type == "cpu" or visible < 2:
        return ""
    return (
        f"one process uses one GPU: {args.device} of {visible}; to use all, launch with "
        "configs/accelerate/multi_gpu.yaml"
    )


def check_engaged(trainer: Any, environment: Mapping[str, str]) -> None:
    """Raise a `UserError` if fewer processes train together than were started, or nothing is divided that should be."""
    started, joined = int(environment.get("WORLD_SIZE", 1)), trainer.args.world_size
    if joined != started:
        raise UserError(
            f"{started} processes were started, but only {joined} would train together; see configs/accelerate"
        )
    kind = sharding(environment)
    engaged = {"zero": trainer.is_deepspeed_enabled, "fsdp": trainer.is_fsdp_enabled}.get(kind[:4], True)
    if not engaged:
        raise UserError(f"the launch asks for {kind}, but accelerate did not turn it on; see configs/accelerate")


def _in_words(records: Mapping[str, str]) -> str:
    names = ["the final checkpoint" if folder == "." else folder for folder in records]
    return ", ".join(names) or "no checkpoint"


def _refuse_lonely(environment: Mapping[str, str]) -> None:
    """`accelerate launch --cpu --num_processes 2` names a meeting point and no world (1.15): one process starts."""
    on_cpu = _is_true(environment, "ACCELERATE_USE_CPU")
    mpi = any(name in environment for name in MPI_SIZES)
    if on_cpu and "MASTER_PORT" in environment and "WORLD_SIZE" not in environment and not mpi:
        raise UserError(
            "`accelerate launch --cpu --num_processes N` starts one process, not N; launch with `--config_file "
            "configs/accelerate/cpu_2_processes.yaml`, or with `torchrun --nproc_per_node N train/sft.py`"
        )


def _zero_stage(environment: Mapping[str, str]) -> int:
    settings = _own_settings(environment)
    if settings is not None:
        return int(settings.get("stage", 0))
    return int(environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2))


def _gathers_weights(environment: Mapping[str, str]) -> bool:
    """Whether ZeRO-3 has the first process write whole weights; neither accelerate nor DeepSpeed does so unasked."""
    settings = _own_settings(environment)
    asked = "auto" if settings is None else settings.get("stage3_gather_16bit_weights_on_model_save", False)
    return _is_true(environment, "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL") if asked == "auto" else bool(asked)


def _is_offloaded(environment: Mapping[str, str], what: str) -> bool:
    settings = _own_settings(environment)
    if settings is not None:
        return settings.get(f"offload_{what}", {}).get("device", "none") != "none"
    return environment.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{what.upper()}_DEVICE", "none") != "none"


def _own_settings(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """ZeRO's settings in DeepSpeed's own file where the launch names one, as accelerate reads it."""
    file = environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file == "none":
        return None
    return read_json(file, "the launch's `deepspeed_config_file`").get("zero_optimization", {})


def _is_true(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in ("true", "1")
