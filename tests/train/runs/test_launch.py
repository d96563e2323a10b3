import importlib.util
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from transformers import TrainingArguments
from transformers.training_args import ParallelMode

from reflectune.core.errors import UserError
from reflectune.models.records import ADAPTER_FILE
from reflectune.train.answer_rewards.config import AnswerGrpoConfig
from reflectune.train.answer_rewards.run import grpo_arguments
from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.runs.arguments import common_arguments, global_batch
from reflectune.train.runs.launch import (
    check_launch_took_effect,
    idle_gpus,
    placement,
    refuse_bad_launch,
    use_one_gpu,
)
from reflectune.train.settings.sft import SftConfig

PARTS_OF_ZERO_3 = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
ZERO_3 = PARTS_OF_ZERO_3 | {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true"}
ZERO_2 = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}
PARTS_OF_FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
FSDP = PARTS_OF_FSDP | {"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}
ON_CPU = {"ACCELERATE_USE_CPU": "True"}
PORT = {"MASTER_PORT": "29500"}
BF16, FP16 = ({"ACCELERATE_MIXED_PRECISION": precision} for precision in ("bf16", "fp16"))
SHARDS_ALONE = "training would end without a checkpoint that can be loaded; set `{}`".format
FSDP_KEY, ZERO_KEY = "fsdp_state_dict_type: FULL_STATE_DICT", "zero3_save_16bit_model: true"
LAUNCH_CONFIGS = sorted((Path(__file__).parents[3] / "configs/accelerate").glob("*.yaml"))


def refusal(message: str) -> AbstractContextManager[Any]:
    """A block that is refused with a message, or goes through if there is none."""
    return pytest.raises(UserError, match=message) if message else nullcontext()


@pytest.fixture(autouse=True)
def _no_deepspeed_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("reflectune.train.runs.launch.find_spec", lambda name: name == "deepspeed" or find_spec(name))


@pytest.mark.parametrize(
    ("settings", "environment", "message"),
    [
        ({}, ON_CPU | PORT, "starts one process, not N"),
        ({}, ON_CPU | PORT | {"WORLD_SIZE": "2"}, ""),
        ({}, ON_CPU, ""),
        ({}, PORT, ""),
        ({}, {"ACCELERATE_MIXED_PRECISION": "no"}, ""),
        ({}, BF16, "`mixed_precision: bf16`, and `dtype` is float32"),
        ({"dtype": "bfloat16"}, BF16, ""),
        ({"dtype": "bfloat16"}, FP16, "`mixed_precision: fp16`, and `dtype` is bfloat16"),
        ({"method": "lora"}, ZERO_2, ""),
        ({"method": "lora"}, ZERO_3, r"`method: lora` under zero3 is not supported: .* Launch with .*zero2\.yaml"),
        ({"method": "qlora"}, FSDP, "`method: qlora` under fsdp is not supported"),
        ({"eval_answers": 3}, ZERO_2, ""),
        ({"eval_answers": 3}, ZERO_3, "`eval_answers` under zero3 is not supported"),
        ({"eval_answers": 3}, FSDP, "`eval_answers` under fsdp is not supported"),
        ({}, FSDP, ""),
        ({}, FSDP | {"FSDP_VERSION": "1"}, r"in version 2 alone; launch with .*fsdp2\.yaml"),
        ({}, FSDP | {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "has the first process hold the whole model"),
        ({}, PARTS_OF_FSDP, SHARDS_ALONE(FSDP_KEY)),
        ({}, PARTS_OF_FSDP | {"FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"}, SHARDS_ALONE(FSDP_KEY)),
        ({}, ZERO_3, ""),
        ({}, PARTS_OF_ZERO_3, SHARDS_ALONE(ZERO_KEY)),
        ({}, ZERO_3 | {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "false"}, SHARDS_ALONE(ZERO_KEY)),
    ],
)
def test_a_launch_that_would_do_other_than_it_says_is_refused(
    settings: dict[str, Any], environment: dict[str, str], message: str
) -> None:
    with refusal(message):
        refuse_bad_launch(SftConfig(**settings), environment)


def test_an_adapter_is_not_merged_into_weights_that_are_divided(tmp_path: Path) -> None:
    refuse_bad_launch(SftConfig(method="full"), ZERO_3)
    (tmp_path / ADAPTER_FILE).touch()
    config = SftConfig(method="full", model=str(tmp_path))

    for environment in (ZERO_2, FSDP, {}):
        refuse_bad_launch(config, environment)
    with pytest.raises(UserError, match=r"is an adapter, and zero3 divides .*; merge it with train\.merge first"):
        refuse_bad_launch(config, ZERO_3)


def test_a_missing_deepspeed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reflectune.train.runs.launch.find_spec", lambda name: None)

    with pytest.raises(UserError, match=r"pip install 'reflectune\[deepspeed\]'"):
        refuse_bad_launch(SftConfig(), ZERO_2)


def test_deepspeed_on_the_cpu_of_a_machine_with_an_accelerator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)

    with pytest.raises(UserError, match="`device` is cpu; leave `device` out"):
        refuse_bad_launch(SftConfig(device="cpu"), ZERO_2)
    refuse_bad_launch(SftConfig(dtype="bfloat16"), ZERO_2)


def test_a_gpu_that_is_asked_for_must_be_there_and_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="`device` is cuda, and this machine shows no CUDA device"):
        refuse_bad_launch(SftConfig(device="cuda"), {})

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    refuse_bad_launch(SftConfig(device="cuda", dtype="float32"), {})
    with pytest.raises(UserError, match="`device` is cuda, and this launch computes on the CPU"):
        refuse_bad_launch(SftConfig(device="cuda", dtype="float32"), {"ACCELERATE_USE_CPU": "true"})


def test_half_precision_under_deepspeed_needs_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)

    with pytest.raises(UserError, match="computes in float32; leave `dtype` out"):
        refuse_bad_launch(SftConfig(dtype="bfloat16"), ZERO_2)


@pytest.mark.parametrize(
    ("gathers", "asked_of_accelerate", "refused"),
    [(None, "true", True), (False, "true", True), (True, "false", False), ("auto", "true", False), ("auto", "", True)],
)
def test_deepspeeds_own_file_says_whether_whole_weights_are_saved(
    gathers: bool | str | None, asked_of_accelerate: str, refused: bool, tmp_path
) -> None:
    zero: dict[str, Any] = {"stage": 3}
    if gathers is not None:
        zero["stage3_gather_16bit_weights_on_model_save"] = gathers
    (tmp_path / "deepspeed.json").write_text(json.dumps({"zero_optimization": zero}))
    environment = ZERO_3 | {
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(tmp_path / "deepspeed.json"),
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": asked_of_accelerate,
    }

    with refusal("stage3_gather_16bit_weights_on_model_save: true" if refused else ""):
        refuse_bad_launch(SftConfig(), environment)


@pytest.mark.parametrize(
    ("environment", "world", "deepspeed", "says"),
    [
        ({"WORLD_SIZE": "2"}, 1, False, "2 processes were started, but only 1 would train together"),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, 1, False, "8 processes were started, but only 1 would train together"),
        (ZERO_2, 1, False, "asks for zero2, but accelerate did not turn it on"),
        (FSDP, 1, False, "asks for fsdp, but accelerate did not turn it on"),
        (ZERO_2 | {"WORLD_SIZE": "2"}, 2, True, ""),
        ({}, 1, False, ""),
    ],
)
def test_a_launch_that_would_do_less_than_it_was_asked_for_is_refused(
    environment: dict[str, str], world: int, deepspeed: bool, says: str
) -> None:
    args = SimpleNamespace(world_size=world)
    trainer = SimpleNamespace(args=args, is_deepspeed_enabled=deepspeed, is_fsdp_enabled=False)
    with refusal(says):
        check_launch_took_effect(trainer, environment)


@pytest.mark.slow
def test_two_machines_with_a_disk_each_are_refused_and_do_not_hang(tmp_path, config, typed, start_launch) -> None:
    """Two processes over gloo, in folders of their own."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os\nfrom reflectune.train.sft import sft\n"
        f"os.chdir(f'{tmp_path}/disk{{os.environ[\"RANK\"]}}')\nsft.main()\n"
    )
    for disk in ("disk0", "disk1"):
        (tmp_path / disk).mkdir()
    settings = config(per_device_train_batch_size=2).model_copy(update={"output_dir": "out"})

    program = start_launch(worker, typed(settings))

    assert program.wait() != 0
    assert "error: out is not the same folder for all processes" in program.stderr


@pytest.mark.parametrize("path", LAUNCH_CONFIGS, ids=lambda path: path.stem)
def test_accelerate_reads_every_launch_config_and_knows_its_keys(path: Path) -> None:
    loaded = load_config_from_file(str(path))  # refuses a key that it doesn't know
    written = yaml.safe_load(path.read_text())

    assert loaded.num_processes == written["num_processes"]
    assert loaded.distributed_type.value == written["distributed_type"]
    stage = written.get("deepspeed_config", {}).get("zero_stage")
    assert stage == {"zero1": 1, "zero2": 2, "zero3": 3}.get(path.stem)
    assert str(loaded.mixed_precision) == "no"  # `dtype` in the training config decides


@pytest.mark.parametrize(
    ("device", "has_accelerator", "on_cpu"),
    [("auto", False, True), ("auto", True, False), ("cpu", True, True)],
)
def test_a_machine_without_an_accelerator_trains_on_the_cpu(
    monkeypatch, device: str, has_accelerator: bool, on_cpu: bool
) -> None:
    """Said to transformers too, which refuses bfloat16 otherwise."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_accelerator)
    assert placement(device, {}, 1800) == {"use_cpu": on_cpu}


def test_the_timeout_of_collective_operations_is_a_key(start_processes, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import distributed\nfrom transformers import TrainingArguments\n"
        "from reflectune.train.runs.arguments import common_arguments\n"
        "from reflectune.train.settings.sft import SftConfig\n"
        "args = TrainingArguments(**common_arguments(SftConfig(output_dir='out', device='cpu', ddp_timeout=7)))\n"
        "group = distributed.group.WORLD._get_backend(torch.device('cpu')).options\n"
        "print(args.ddp_timeout, group._timeout.seconds, flush=True)\n"
    )
    (program,) = start_processes([str(script)])

    assert (program.wait(timeout=60), program.stdout) == (0, "7 7\n"), program.stderr


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sees four GPUs, as far as transformers asks."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("four_gpus")
def test_a_process_that_sees_several_gpus_reads_the_batch_that_was_asked_for(tmp_path: Path) -> None:
    """The stock trainer would multiply it, and wrap the model in `nn.DataParallel`."""
    batch: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    batch["output_dir"] = str(tmp_path)
    assert TrainingArguments(**batch).n_gpu == 4

    answers = AnswerGrpoConfig(**batch)
    stock = TrainingArguments(**common_arguments(SftConfig(**batch)))
    for args in (stock, grpo_arguments(answers, common_arguments(answers))):
        use_one_gpu(args)
        assert args.n_gpu == 1
        assert args.parallel_mode == ParallelMode.NOT_PARALLEL
        assert global_batch(args) == GlobalBatch(8, 2, 1)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("device", "processes", "message"), [("cuda:0", 1, True), ("cuda:0", 4, False), ("cpu", 1, False)]
)
def test_it_says_which_gpu_it_uses_and_how_to_use_all(device: str, processes: int, message: bool) -> None:
    args: Any = SimpleNamespace(device=torch.device(device), world_size=processes)

    line = idle_gpus(args)

    assert line.startswith("one process uses one GPU: cuda:0 of 4") == message
    assert ("configs/accelerate/multi_gpu.yaml" in line) == message
