from dataclasses import replace

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.models.attention.collation import TreeCollator, join_vision, loss_terms
from reflectune.models.attention.tree import IGNORE, Segment, Tree, independent_rows
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.models.schemes.passages import PassageScheme

FAMILIES = ["llava", "qwen2_vl"]


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request, make):
    return make.loaded(request.param)


def trees(make, renderer) -> list[Tree]:
    """A question with three ragged branches, a visual one, one with a single branch; images of different shapes."""
    visual = ReflectionExample("v", "", "What colour is it?", False, answer="dark red")
    return [
        PassageScheme.of(renderer).encode(renderer, make.example(3), make.image(1)),
        PassageScheme.of(renderer).encode(renderer, visual, make.image(2, size=(40, 90))),
        PassageScheme.of(renderer).encode(renderer, make.example(1), make.image(3, size=(64, 64))),
    ]


def test_tensors_with_a_number_an_image_are_joined_as_those_with_tiles() -> None:
    """LLaVA-OneVision's `batch_num_images`, next to images of one tile and of two."""
    parts = [{"pixels": torch.ones(1, tiles, 2), "batch_num_images": torch.tensor([1])} for tiles in (1, 2)]
    joined = join_vision(parts)
    assert joined["batch_num_images"].tolist() == [1, 1]
    assert joined["pixels"].shape == (2, 2, 2)


def loss_of(made: list[Tree], model) -> float:
    return loss_terms(model, TreeCollator(model)(made))[0].item()


def test_flat_rows_through_the_collator_are_the_same(make, loaded, plain):
    made = trees(make, loaded.renderer)
    flat = [row for tree in made for row in independent_rows(tree)]
    loss, weight, _ = plain.learned(loaded.model, [TreeCollator(loaded.model)(made)])
    assert weight == sum(tree.supervised for tree in made)
    assert plain.learned(loaded.model, [TreeCollator(loaded.model)(flat)])[:2] == pytest.approx((loss, weight))


def test_weights_multiply_losses(make, loaded):
    tree = trees(make, loaded.renderer)[0]

    def weighted(gate: float, others: float) -> float:
        parts = [gate, *[others] * len(tree.branches)]
        prefix, *branches = (
            replace(part, weights=tuple(w * factor for w in part.weights))
            for part, factor in zip((tree.prefix, *tree.branches), parts, strict=True)
        )
        return loss_of([Tree(prefix, tuple(branches), tree.vision)], loaded.model)

    assert weighted(2, 3) == pytest.approx(2 * weighted(1, 0) + 3 * weighted(0, 1), rel=1e-5)


def test_a_row_written_out(make):
    model = make.loaded("llava").model
    prefix = Segment((1, 5, 6), (IGNORE, IGNORE, 6), (0.0, 0.0, 2.0))
    branches = (Segment.of((7, 8), (IGNORE, 8)), Segment.of((9,), (9,)))
    batch = TreeCollator(model)([Tree(prefix, branches, {})])
    assert batch["input_ids"].tolist() == [[1, 5, 6, 7, 8, 6, 9]]
    assert batch["labels"].tolist() == [[IGNORE, IGNORE, 6, IGNORE, 8, IGNORE, 9]]
    assert batch["weights"].tolist() == [[0, 0, 2, 0, 1, 0, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3]]


@pytest.mark.parametrize(("implementation", "why"), [("eager", "silently"), ("flash_attention_2", "see one another")])
def test_other_attention_is_refused_with_a_reason(make, implementation, why):
    model = make.model("llava")
    text = model.config.text_config
    model.config.text_config = type(text)(**text.to_dict(), attn_implementation=implementation)
    with pytest.raises(UserError, match=f"needs attn_implementation=sdpa, found {implementation}.*{why}"):
        TreeCollator(model)
