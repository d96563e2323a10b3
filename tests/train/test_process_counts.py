"""The same global batch on one process or on two: the same data, the same losses, the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.formats.reflection_data import read_examples, write_examples
from reflectune.models.loading import load
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.train.data.examples import Collator, EncodedExamples
from reflectune.train.data.global_batch import GlobalBatch, refuse_other_batch, why_fixed
from reflectune.train.data.order import TrainingOrder
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.runs.trainer import supervised_weight
from reflectune.train.weights.checkpoints import mark_complete, recorded_settings


def shares(order: TrainingOrder, batch: GlobalBatch) -> list[list[int]]:
    """Return the examples of each optimiser step of an epoch: processes take batches by turns, as accelerate does."""
    indices = list(order)
    assert len(indices) == len(order)
    batches = [indices[i : i + batch.per_device] for i in range(0, len(indices), batch.per_device)]
    assert len(batches) % batch.processes == 0
    turns = batch.processes * batch.accumulation
    steps = [batches[i : i + turns] for i in range(0, len(batches), turns)]
    return [sorted(index for batch_indices in step for index in batch_indices if index >= 0) for step in steps]


@pytest.mark.parametrize("examples", [24, 25, 31, 3])
def test_an_optimiser_step_reads_the_same_examples_however_they_are_shared(examples: int) -> None:
    splits = [GlobalBatch(8, 1, 1), GlobalBatch(2, 4, 1), GlobalBatch(4, 1, 2), GlobalBatch(2, 2, 2)]
    splits += [GlobalBatch(1, 2, 4), GlobalBatch(1, 1, 8)]
    steps_by_split = []
    for batch in splits:
        order = TrainingOrder(
            list(range(examples)),
            [0] * examples,
            batch_size=batch.size,
            seed=0,
            multiple_of=batch.per_device * batch.processes if batch.processes > 1 else 1,
        )
        order.start_epoch(1)
        steps_by_split.append(shares(order, batch))

    assert sorted(index for step in steps_by_split[0] for index in step) == list(range(examples))
    assert all(steps == steps_by_split[0] for steps in steps_by_split)


def test_a_filler_is_read_and_counts_for_nothing(base_model, data_folder, examples) -> None:
    loaded = load(str(base_model()), scheme="mr2ag")
    dataset = EncodedExamples(examples, loaded.renderer, data_folder / "images", max_tokens=4096)
    collate = Collator(loaded.model)

    real, filler = collate([dataset[3]]), collate([dataset[~3]])

    assert torch.equal(real["input_ids"], filler["input_ids"])
    assert torch.equal(real["labels"], filler["labels"])
    assert supervised_weight(real) > 0
    assert supervised_weight(filler) == 0
    assert supervised_weight(collate([dataset[3], dataset[~5]])) == supervised_weight(real)


def test_another_global_batch_is_refused_with_the_numbers_that_are_right(tmp_path: Path) -> None:
    mark_complete(tmp_path, GlobalBatch(4, 1, 1).settings(""), 8)

    refuse_other_batch(tmp_path / "new", recorded_settings(tmp_path / "new"), GlobalBatch(4, 1, 2), "")
    refuse_other_batch(tmp_path, recorded_settings(tmp_path), GlobalBatch(1, 2, 2), "")
    with pytest.raises(UserError, match=r"read 4 examples; .* 4 x .* 1 x 2 process\(es\) would be 8\. .* product is 4"):
        refuse_other_batch(tmp_path, recorded_settings(tmp_path), GlobalBatch(4, 1, 2), "")


def test_processes_that_are_fixed_are_refused_with_the_reason(tmp_path: Path) -> None:
    mark_complete(tmp_path, GlobalBatch(2, 1, 2).settings("dropout"), 8)

    with pytest.raises(UserError, match=r"a run of 2 process\(es\), and 1 were started: because\. Start 2"):
        refuse_other_batch(tmp_path, recorded_settings(tmp_path), GlobalBatch(4, 1, 1), "because")


def test_dropout_and_divided_weights_fix_the_number_of_processes(base_model) -> None:
    model = load(str(base_model()), scheme="mr2ag").model

    assert why_fixed(model, 0.0, "") == ""
    assert "with dropout each process" in why_fixed(model, 0.05, "")
    assert "under zero3 each process" in why_fixed(model, 0.0, "zero3")
    model.config.text_config.attention_dropout = 0.1
    assert "with dropout each process" in why_fixed(model, 0.0, "")


def test_batches_may_be_divided_otherwise_when_a_run_goes_on(config, straight, interrupted, losses, weights) -> None:
    expected, changed = straight(), config("changed")
    interrupted(changed, 4)
    other: dict[str, Any] = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    with pytest.raises(UserError, match=r"would be 6\. Choose factors whose product is 4"):
        fine_tune(config("changed", **{**other, "gradient_accumulation_steps": 3}))
    fine_tune(config("changed", **other))

    assert losses(expected.output_dir) == pytest.approx(losses(changed.output_dir), rel=1e-4)
    torch.testing.assert_close(weights(changed.output_dir), weights(expected.output_dir), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_two_processes_train_and_validate_as_one_does(config, data_folder, finish, history, weights) -> None:
    """DDP over gloo, started by `accelerate launch train/sft.py`, with the same global batch."""
    examples = read_examples(data_folder / "train.parquet", ReflectionExample)
    write_examples(data_folder / "val.parquet", examples[:7] + examples[18:24])  # odd: one process reads more
    changes: dict[str, Any] = {"eval_data": str(data_folder), "eval_steps": 2, "eval_answers": 7}
    changes |= {"max_steps": 4, "gate_brier": 1.0}
    one = config("one", lora_dropout=0.0, **changes)
    two = config("two", lora_dropout=0.0, per_device_train_batch_size=2, **changes)
    fine_tune(one)
    finish(two, processes=2)

    measured, requested = (
        [{name: value for name, value in row.items() if "loss" in name or "eval" in name} for row in history(folder)]
        for folder in (two.output_dir, one.output_dir)
    )
    assert "eval_answer_exact_match" in requested[-2]
    for row, expected in zip(measured, requested, strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(weights(two.output_dir), weights(one.output_dir), rtol=1e-3, atol=1e-4)
