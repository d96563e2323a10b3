"""DeepSpeed and FSDP2 for real, on two CPU processes over gloo: divided, equal to DDP, saved whole, resumed.

A launch is seconds of imports, so runs under the same launch config share one, and all sharded runs are compared with
the same DDP runs.
"""

import contextlib
import fcntl
import json
import math
import random
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from reflectune.examples.miniature.models.architecture import Family, build_model
from reflectune.formats.reflection_data import read_examples, write_examples
from reflectune.models.loading import load
from reflectune.models.schemes.examples import ReflectionExample

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("sharded_worker.py")
BEST = ("--best_metric", "loss")
LORA = ("--method", "lora", "--learning_rate", "1e-2")
needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None or not (shutil.which("c++") or shutil.which("g++")),
    reason="needs reflectune[deepspeed], and a C++ compiler for its extensions",
)


def launch_config(name: str, folder: Path) -> Path:
    """A shipped launch config for two processes; ZeRO-3 of weights so small that by default each process keeps all."""
    content = yaml.safe_load((ROOT / f"configs/accelerate/{name}.yaml").read_text())
    if name == "zero3":
        zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True}
        auto = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        settings = {**dict.fromkeys((*auto, "gradient_clipping"), "auto"), "zero_optimization": zero}
        (folder / "zero3.json").write_text(json.dumps(settings))
        content["deepspeed_config"] = {"deepspeed_config_file": str(folder / "zero3.json"), "zero3_init_flag": True}
        del content["mixed_precision"]  # accelerate wants it in one place alone
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**content, "num_processes": 2}))
    return folder / f"{name}.yaml"


@dataclass(frozen=True)
class Run:
    """Four steps of training into a folder, or up to a fault of `sharded_worker.py`."""

    output: Path
    model: Path
    more: tuple[str, ...]
    fault: str = ""

    @property
    def notes(self) -> Path:
        return self.output.with_name(f"{self.output.name}_notes")

    def settings(self, data: Path) -> dict[str, Any]:
        """Return the settings of `sharded_worker.py`."""
        options = {
            "model": self.model,
            "train_data": data,
            "output_dir": self.output,
            "eval_data": data,
            "eval_steps": 2,
            "device": "cpu",
            "learning_rate": 5e-3,
            "per_device_train_batch_size": 2,
            "max_steps": 4,
            "save_steps": 2,
            "logging_steps": 1,
        }
        argv = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        last = {"cut": 2, "nan": 2, "full in forward": 4}.get(self.fault, 3)
        left = str(self.output / f"checkpoint-{last}" / "run.json")
        where = {"notes": str(self.notes), "left": left, "port": free_port()}
        return {**where, "fault": self.fault, "argv": [*argv, *self.more]}


def free_port() -> int:
    """A port that nobody has, of those that a system gives to no connection: it must still be free when it is used."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)  # no other worker draws the same
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def launch(tmp_path: Path, data_folder: Path, start_launch) -> Callable[..., str]:
    """Does runs, one after the other, on two processes; returns what they print."""
    examples = read_examples(data_folder / "train.parquet", ReflectionExample)
    write_examples(data_folder / "val.parquet", [*examples[:6], *examples[18:23]])  # odd: one process reads more

    def start(name: str, *runs: Run) -> str:
        for run in runs:
            run.notes.mkdir(exist_ok=True)
        (tmp_path / "runs.json").write_text(json.dumps([run.settings(data_folder) for run in runs]))
        program = start_launch(WORKER, [str(tmp_path / "runs.json")], launch_config(name, tmp_path))
        assert program.wait() == 0, program.stderr[-9000:]
        return program.stdout

    return start


@pytest.fixture
def ddp(launch, models, shared_folder: Path) -> dict[str, Path]:
    """Output folders of DDP's runs: of each family, and of adapters; all done in one launch, once for all workers."""
    folder = shared_folder / "ddp"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            runs = [Run(folder / family, models(family), BEST) for family in ("llava", "qwen2_vl")]
            launch("cpu_2_processes", *runs, Run(folder / "adapters", models("llava"), LORA))
            (folder / "done").touch()
    return {name: folder / name for name in ("llava", "qwen2_vl", "adapters")}


@pytest.fixture
def models(base_model) -> Callable[[Family], Path]:
    """Base models; Qwen2-VL is tied and padded: its new tokens' rows lie in a matrix that no process holds whole."""

    def build(family: Family) -> Path:
        model = base_model(family)
        if family == "qwen2_vl":
            tokenizer = load(str(model)).processor.tokenizer
            build_model(family, tokenizer, size="test", vocab_size=len(tokenizer) + 64).save_pretrained(model)
        return model

    return build


def history(output: Path) -> list[dict[str, Any]]:
    return json.loads((output / "trainer_state.json").read_text())["log_history"]


def measured(output: Path) -> dict[str, list[float]]:
    """Losses, gradient norms and validations of a run."""
    rows = history(output)
    names = sorted({name for row in rows for name in row if name in ("loss", "grad_norm") or name.startswith("eval_")})
    return {name: [row[name] for row in rows if name in row] for name in names}


def notes(output: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(output.with_name(f"{output.name}_notes").glob("*.json"))]


@pytest.mark.parametrize(
    ("name", "family", "divided"),
    [
        pytest.param("zero2", "llava", {"moments"}, marks=needs_deepspeed),
        pytest.param("zero3", "qwen2_vl", {"weights", "moments"}, marks=needs_deepspeed),
        ("fsdp2", "qwen2_vl", {"weights", "moments"}),
    ],
)
def test_divided_among_processes_it_trains_as_ddp_does_and_resumes(
    name: str, family: Family, divided: set[str], launch, models, ddp, tmp_path
) -> None:
    """Qwen2-VL's batches are divided by a budget of tokens, and DDP's are not."""
    model, output, expected = models(family), tmp_path / name, ddp[family]
    more = (*BEST, "--tokens_per_device", "700") if family == "qwen2_vl" else BEST
    dry = Run(output, model, (*more, "--dry_run"))
    printed = launch(name, dry, Run(output, model, more, fault="cut"), Run(output, model, more))

    assert re.search(r"the standard deviation of its table is 0\.\d", printed)
    actual, requested = measured(output), measured(expected)
    assert actual.keys() == requested.keys()
    assert len(actual["eval_loss"]) == 2
    for key, values in requested.items():
        assert actual[key] == pytest.approx(values, rel=1e-4), key
    for note in notes(output):
        for kind in ("weights", "moments"):
            whole = note["all"]
            assert (note[kind] < 0.55 * whole) == (kind in divided), (kind, note)
    assert len(notes(output)) == 2
    ddp_weights, sharded_weights = (load_file(folder / "model.safetensors") for folder in (expected, output))
    assert ddp_weights.keys() == sharded_weights.keys()
    assert all(tensor.dtype == torch.float32 for tensor in sharded_weights.values())
    for key, weight in ddp_weights.items():
        torch.testing.assert_close(sharded_weights[key], weight, rtol=1e-3, atol=1e-4)
    plain = AutoModelForImageTextToText.from_pretrained(output).state_dict()
    assert all(torch.equal(weight, plain[key]) for key, weight in load(str(output)).model.state_dict().items())


@needs_deepspeed
def test_adapters_train_under_zero_2_as_under_ddp(launch, models, ddp, tmp_path) -> None:
    outputs, expected = [tmp_path / "shorter", tmp_path / "budget"], ddp["adapters"]
    shorter = ("--gradient_accumulation_steps", "2", "--per_device_train_batch_size", "1")
    budget = ("--tokens_per_device", "500")
    launch("zero2", *(Run(o, models("llava"), (*LORA, *m)) for o, m in zip(outputs, (shorter, budget), strict=True)))

    ddp_weights = load_file(expected / "adapter_model.safetensors")
    for output in outputs:
        assert not any(note["copies"] for note in notes(output))  # a checkpoint needs no gathering
        assert measured(output)["loss"] == pytest.approx(measured(expected)["loss"], rel=1e-4)
        torch.testing.assert_close(load_file(output / "adapter_model.safetensors"), ddp_weights, rtol=1e-3, atol=1e-4)
        assert load(str(output)).is_tuned
        assert all(math.isfinite(value) for value in measured(output)["eval_loss"])


def test_processes_halve_their_budget_together_if_one_runs_out_of_memory(launch, models, tmp_path) -> None:
    straight, halved = tmp_path / "straight", tmp_path / "halved"
    options = ("--per_device_train_batch_size", "9", "--tokens_per_device", "1200")
    full = Run(halved, models("llava"), options, "full in forward")
    launch("cpu_2_processes", Run(straight, models("llava"), options), full)

    assert measured(halved)["loss"] == pytest.approx(measured(straight)["loss"], rel=1e-4)
    halved_weights, expected = (load_file(folder / "model.safetensors") for folder in (halved, straight))
    torch.testing.assert_close(halved_weights, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "fault"),
    [pytest.param("zero3", "nan", marks=needs_deepspeed), ("fsdp2", "sigterm")],
    ids=["zero3", "fsdp2"],
)
def test_in_bfloat16_a_run_with_a_fault_ends_with_the_straight_runs_weights(
    name: str, fault: str, launch: Callable[..., None], models: Callable[[Family], Path], tmp_path: Path
) -> None:
    """The model's token table has no room for the new tokens."""
    straight, output, model = tmp_path / "straight", tmp_path / "resumed", models("llava")
    shorter = ("--gradient_accumulation_steps", "2", "--per_device_train_batch_size", "1")
    options = ("--dtype", "bfloat16", *shorter, *BEST)
    launch(name, Run(straight, model, options), Run(output, model, options, fault), Run(output, model, options))

    expected, actual = (load_file(folder / "model.safetensors") for folder in (straight, output))
    assert expected.keys() == actual.keys()
    assert [key for key in expected if not torch.equal(expected[key], actual[key])] == []
    assert measured(straight) == measured(output)
    for note in notes(straight):
        assert note["means"] == "torch.float32"
        if name == "fsdp2":
            assert 0.45 * note["all"] < note["gradients"] < 0.55 * note["all"]  # float32, as the weights
        else:
            assert note["sums"] == "torch.float32"
            assert note["copies"]
