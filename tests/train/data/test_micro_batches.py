import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from reflectune.formats.reflection_data import write_examples
from reflectune.models.loading import load
from reflectune.train.data.examples import Collator, load_training_data
from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.data.micro_batches import (
    balance_by_tokens,
    join_step,
    micro_batches,
    questions_per_batch,
    split_step,
    token_counter,
    tokens_of,
)
from reflectune.train.data.order import training_order
from reflectune.train.runs.supervised import encoded_examples
from reflectune.train.runs.trainer import supervised_weight

LENGTHS = st.lists(st.integers(1, 900), min_size=1, max_size=40)


@given(lengths=LENGTHS, budget=st.integers(1, 1000), least=st.integers(1, 40))
def test_micro_batches_keep_within_the_budget_and_hold_each_example_once(lengths, budget: int, least: int) -> None:
    least = min(least, len(lengths))
    batches = micro_batches(lengths, budget, least)
    sums = [sum(lengths[index] for index in batch) for batch in batches]

    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(total <= budget or len(batch) == 1 for batch, total in zip(batches, sums, strict=True))
    assert len(batches) >= least
    assert sums == sorted(sums, reverse=True)
    # any two of them would not fit into one pass, unless more were asked for
    assert len(batches) == least or len(sums) < 2 or sums[-1] + sums[-2] > budget


@given(lengths=LENGTHS, processes=st.integers(1, 5))
def test_processes_have_as_many_examples_and_about_as_many_tokens(lengths: list[int], processes: int) -> None:
    lengths = lengths * processes
    order = balance_by_tokens(lengths, processes)
    size = len(lengths) // processes
    sums = [sum(lengths[index] for index in order[start : start + size]) for start in range(0, len(order), size)]

    assert sorted(order) == list(range(len(lengths)))
    assert max(sums) - min(sums) <= max(lengths)


@pytest.mark.parametrize("count", [24, 21])
def test_a_step_reads_the_same_examples_with_shares_by_tokens(count: int, config, data_folder) -> None:
    run = config(max_steps=2)
    data = load_training_data(run.sources(), run.scheme)
    write_examples(data_folder / "train.parquet", [*data.examples][:count])
    data = load_training_data(run.sources(), run.scheme)
    loaded, batch = load(run.model, scheme=run.scheme), GlobalBatch(4, 1, 2)
    counter = token_counter(data, loaded.renderer, share_prefix=True)
    plain, shared = ([*training_order(data, batch, seed=0, tokens=tokens)] for tokens in (None, counter))

    assert plain != shared
    for start in range(0, len(plain), batch.size):
        assert sorted(plain[start : start + 8]) == sorted(shared[start : start + 8])


@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_images_tokens_are_counted_without_decoding_them(
    family: str, write_base, config, data_folder, tmp_path
) -> None:
    for place, size in ((0, (70, 64)), (1, (280, 90))):
        Image.new("RGB", size).save(data_folder / "images" / ("red.png", "blue.png")[place])
    write_base(family, tmp_path / "base")
    run = config(model=str(tmp_path / "base"))
    data, loaded = load_training_data(run.sources(), run.scheme), load(run.model, scheme=run.scheme)
    dataset = encoded_examples(data.examples, data.image_roots, loaded, run)
    count = token_counter(data, loaded.renderer, share_prefix=True)

    for index in (0, 1, 2, 3):
        prefix = dataset[index].trees[0].prefix.ids
        with_images = prefix.count(loaded.model.config.image_token_id)
        text = sum(map(len, data.scheme.texts(data.examples[index]))) // 4
        assert count(index) == with_images + text


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_step_has_the_sums_and_the_examples_of_its_batches(family: str, config) -> None:
    run = config(family=family)
    data, loaded = load_training_data(run.sources(), run.scheme), load(run.model, scheme=run.scheme)
    dataset = encoded_examples(data.examples, data.image_roots, loaded, run)
    examples = [dataset[index] for index in (0, 3, 20, ~5)]
    step, batch = join_step(examples), Collator(loaded.model)(examples)

    assert step["weight"] == pytest.approx(float(supervised_weight(batch)))
    assert (step["tokens"], step["left_out"]) == (batch["tokens"], batch["left_out"])
    assert step["tokens"] == sum(map(tokens_of, examples)) == batch["input_ids"].numel()
    again = Collator(loaded.model)(split_step(step))
    assert again.keys() == batch.keys()
    assert all(torch.equal(again[name], value) for name, value in batch.items() if isinstance(value, torch.Tensor))


def test_a_budget_takes_questions_of_middling_length() -> None:
    assert questions_per_batch(100, [10, 30, 50], 8) == 3
    assert questions_per_batch(1000, [10, 30, 50], 8) == 8
    assert questions_per_batch(5, [10, 30, 50], 8) == 1
