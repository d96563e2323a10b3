from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.types import ReflectionExample
from reflectune.models.loading import load
from reflectune.models.tree import Segment, Tree, collate, loss_terms
from reflectune.train.collator import Collator, split_by_length
from reflectune.train.data import EncodedExamples


def tree(length: int) -> Tree:
    return Tree(Segment.of(range(length), [-100] * length), (), {})


def padded(parts: list[list[Tree]], part_cost: int) -> int:
    return sum(len(part) * max(tree.length for tree in part) + part_cost for part in parts)


def test_a_batch_holds_every_tree_and_names_its_examples(
    base_model: Callable[..., Path], data_folder: Path, examples: list[ReflectionExample]
) -> None:
    loaded = load(str(base_model()), scheme="mr2ag")
    images = data_folder / "images"
    shared = EncodedExamples(examples, loaded.renderer, images, max_tokens=4096)
    separate = EncodedExamples(examples, loaded.renderer, images, share_prefix=False, max_tokens=4096)
    chosen = [3, 7, 20]  # four passages, four passages, and none
    collator = Collator(loaded.model)

    trees, rows = collator([shared[i] for i in chosen]), collator([separate[i] for i in chosen])

    assert trees["sample_ids"] == rows["sample_ids"] == ["k3", "k7", "v2"]
    for batch, count in ((trees, 3), (rows, 9)):
        for name in ("input_ids", "pixel_values"):
            assert sum(len(part[name]) for part in batch["parts"]) == count
    weights = [sum(float(part["weights"].sum()) for part in batch["parts"]) for batch in (trees, rows)]
    assert weights[0] == weights[1] > 0
    assert 0 < trees["tokens"] < rows["tokens"]


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_batch_in_two_parts_has_the_loss_of_the_whole(
    family: str, base_model: Callable[..., Path], data_folder: Path, examples: list[ReflectionExample]
) -> None:
    loaded = load(str(base_model(family)), scheme="mr2ag")
    dataset = EncodedExamples(examples, loaded.renderer, data_folder / "images", max_tokens=4096)
    chosen = [dataset[i] for i in (3, 20, 7, 21)]

    parts = Collator(loaded.model)(chosen)["parts"]
    with torch.no_grad():
        apart = sum(loss_terms(loaded.model, part)[0] for part in parts)
        whole, _ = loss_terms(loaded.model, collate([example.trees[0] for example in chosen], loaded.model))

    assert len(parts) == 2
    assert len(Collator(loaded.model, may_cut=False)(chosen)["parts"]) == 1
    torch.testing.assert_close(apart, whole, rtol=1e-5, atol=1e-5)


@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=12), part_cost=st.integers(0, 500))
def test_a_batch_is_cut_where_it_saves_most_or_not_at_all(lengths: list[int], part_cost: int) -> None:
    trees = [tree(length) for length in lengths]
    ordered = sorted(trees, key=lambda tree: tree.length)
    ways = [[ordered[:cut], ordered[cut:]] for cut in range(1, len(ordered))] + [[ordered]]

    parts = split_by_length(trees, part_cost)

    assert sorted(map(id, [t for part in parts for t in part])) == sorted(map(id, trees))
    assert padded(parts, part_cost) == min(padded(way, part_cost) for way in ways)
