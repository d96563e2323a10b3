"""A run that fails names its batch, and says which settings to change if memory ran out."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import LlavaProcessor

from reflectune.core.devices import is_out_of_memory
from reflectune.core.errors import UserError
from reflectune.formats.reflection_data import read_examples, write_examples
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.runs.trainer import ReflectionTrainer
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.checkpoints import RECORD, checkpoint_folders


@pytest.fixture
def config(config) -> Callable[..., SftConfig]:
    return functools.partial(config, max_steps=6, save_steps=1)


def failing(error: Callable[[], Any], at_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let something go wrong inside of a step's loss."""
    original = ReflectionTrainer.compute_loss

    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step + 1 == at_step:
            error()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(ReflectionTrainer, "compute_loss", compute_loss)


def device_is_full() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize("error", [device_is_full, lambda: torch.empty(2**58)], ids=["accelerator", "cpu"])
def test_out_of_memory_says_what_to_change(config, error: Callable[[], Any], monkeypatch) -> None:
    """`torch.empty` here really asks the CPU's allocator for more than any machine has."""
    failing(error, 3, monkeypatch)

    with pytest.raises(UserError) as raised:
        fine_tune(config())

    printed = str(raised.value)
    assert re.search(r"out of memory at step 3, on the examples [kv]\d+(, [kv]\d+){3} \([\d,]+ tokens\)", printed)
    sizes = re.search(r"`per_device_train_batch_size` 4 → (\d) with `gradient_accumulation_steps` 1 → (\d)", printed)
    assert sizes
    assert int(sizes[1]) * int(sizes[2]) == 4
    for way in ("`gradient_checkpointing: true`", "`method: lora`", "configs/accelerate/zero3.yaml"):
        assert way in printed
    assert [folder.name for folder in checkpoint_folders(config().output_dir)] == ["checkpoint-2"]


@pytest.mark.parametrize(("dropout", "resumes"), [(0.0, True), (0.1, False)])
def test_out_of_memory_says_whether_a_smaller_batch_resumes_from_the_checkpoint(
    config, monkeypatch, dropout: float, resumes: bool
) -> None:
    """With dropout the division of the global batch is fixed. The advice is then followed."""
    run = functools.partial(config, method="lora", lora_dropout=dropout, max_steps=3)
    with monkeypatch.context() as patched:
        failing(device_is_full, 3, patched)
        with pytest.raises(UserError) as raised:
            fine_tune(run())
    assert ("is changed, or with a smaller batch and more accumulation, the run" in str(raised.value)) == resumes
    assert ("`gradient_checkpointing` is changed, the run resumes" in str(raised.value)) != resumes

    smaller = run(per_device_train_batch_size=2, gradient_accumulation_steps=2)
    if not resumes:
        with pytest.raises(UserError, match="belongs to a run with other settings: `per_device_train_batch_size`"):
            fine_tune(smaller)
        return
    fine_tune(smaller)
    assert Path(smaller.output_dir, RECORD).is_file()


def test_out_of_memory_between_batches_gives_advice_but_on_the_batch(config, monkeypatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_, **__: device_is_full())

    with pytest.raises(UserError, match=r"out of memory between batches (.|\n)*`method: lora`") as raised:
        fine_tune(config())

    assert "per_device_train_batch_size" not in str(raised.value)


def test_adapters_are_advised_of_four_bits_and_one_question_of_no_smaller_batch(config, monkeypatch) -> None:
    failing(device_is_full, 1, monkeypatch)

    with pytest.raises(UserError) as raised:
        fine_tune(config(method="lora", per_device_train_batch_size=1, gradient_checkpointing=True))

    assert "`method: qlora`" in str(raised.value)
    for absent in ("per_device_train_batch_size", "gradient_checkpointing: true", "zero3"):
        assert absent not in str(raised.value)


def test_any_other_error_names_the_examples_and_keeps_its_cause(config, monkeypatch) -> None:
    def broken() -> None:
        _, _ = [1]

    failing(broken, 2, monkeypatch)

    with pytest.raises(RuntimeError, match=r"step 2, on the examples [kv]\d+.*: not enough values to unpack") as raised:
        fine_tune(config())

    assert isinstance(raised.value.__cause__, ValueError)


def test_image_tokens_that_the_model_does_not_expect_name_the_examples(config, monkeypatch) -> None:
    monkeypatch.setattr(LlavaProcessor, "replace_image_token", lambda self, *_, **__: 17 * self.image_token)

    with pytest.raises(
        UserError, match=r"refuses step 1, on the examples [kv]\d+(.|\n)*processor belongs to this model"
    ):
        fine_tune(config())  # the model makes 16


@pytest.mark.slow
def test_an_image_that_is_corrupt_is_named_by_a_worker(config, data_folder) -> None:
    examples = read_examples(data_folder / "train.parquet", ReflectionExample)
    images = data_folder / "images"
    Image.new("RGB", (70, 64)).save(images / "odd.png")
    (images / "odd.png").write_bytes((images / "odd.png").read_bytes()[:60])
    broken = [ReflectionExample("odd", "odd.png", "Which colour is it?", False, answer="black")]
    write_examples(data_folder / "train.parquet", [*examples, *broken])

    with pytest.raises(UserError, match=r"^image unreadable: .*odd\.png \(needed by training example odd\)"):
        fine_tune(config(max_steps=None, epochs=1, dataloader_workers=1))


def test_an_image_that_the_processor_refuses_is_named(config, data_folder: Path) -> None:
    examples = read_examples(data_folder / "train.parquet", ReflectionExample)
    Image.new("RGB", (4000, 2)).save(data_folder / "images" / "line.png")
    line = ReflectionExample("line", "line.png", "Which colour is it?", False, answer="black")
    write_examples(data_folder / "train.parquet", [*examples, line])

    with pytest.raises(UserError, match=r"image too narrow: .*line\.png \(needed by training example line\)"):
        fine_tune(config(family="qwen2_vl", max_steps=None, epochs=1))


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert not is_out_of_memory(ValueError("not enough memory"))
