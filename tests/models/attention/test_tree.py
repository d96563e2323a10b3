import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.models.attention.collation import TreeCollator, join_vision
from reflectune.models.attention.images import deduplicate_images
from reflectune.models.attention.tree import IGNORE, Segment, Tree


def test_tensors_with_a_number_an_image_are_joined_as_those_with_tiles() -> None:
    """LLaVA-OneVision's `batch_num_images`, next to images of one tile and of two."""
    parts = [{"pixels": torch.ones(1, tiles, 2), "batch_num_images": torch.tensor([1])} for tiles in (1, 2)]
    joined = join_vision(parts)
    assert joined["batch_num_images"].tolist() == [1, 1]
    assert joined["pixels"].shape == (2, 2, 2)


def test_images_of_different_sizes_are_padded_with_zeros() -> None:
    """Pixtral's, whose tower reads `image_sizes` of them."""
    wide, high = torch.ones(1, 3, 2, 4), torch.ones(1, 3, 4, 2)
    joined = join_vision([{"pixel_values": wide}, {"pixel_values": high}])["pixel_values"]
    assert joined.shape == (2, 3, 4, 4)
    assert torch.equal(joined[:1, :, :2], wide)
    assert torch.equal(joined[1:, :, :, :2], high)
    assert joined.sum() == wide.sum() + high.sum()


def test_equal_images_with_masks_are_all_read() -> None:
    """Idefics3's features have a row for each tile that its mask leaves, and not one for each image."""
    pixels, mask = torch.ones(2, 5, 3, 4, 4), torch.ones(2, 5, 4, 4, dtype=torch.bool)
    read, indices = deduplicate_images({"pixel_values": pixels, "pixel_attention_mask": mask})
    assert indices is None
    assert torch.equal(read["pixel_values"], pixels)


def test_a_collated_row_is_the_prefix_and_its_branches_with_their_positions(make):
    model = make.loaded("llava").model
    prefix = Segment((1, 5, 6), (IGNORE, IGNORE, 6), (0.0, 0.0, 2.0))
    branches = (Segment.of((7, 8), (IGNORE, 8)), Segment.of((9,), (9,)))
    batch = TreeCollator(model)([Tree(prefix, branches, {})])
    assert batch["input_ids"].tolist() == [[1, 5, 6, 7, 8, 6, 9]]
    assert batch["labels"].tolist() == [[IGNORE, IGNORE, 6, IGNORE, 8, IGNORE, 9]]
    assert batch["weights"].tolist() == [[0, 0, 2, 0, 1, 0, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3]]


@pytest.mark.parametrize(
    ("implementation", "why"), [("eager", "wrong result"), ("flash_attention_2", "see one another")]
)
def test_other_attention_is_refused_with_a_reason(make, implementation, why):
    model = make.model("llava")
    text = model.config.text_config
    model.config.text_config = type(text)(**text.to_dict(), attn_implementation=implementation)
    with pytest.raises(UserError, match=f"needs attn_implementation=sdpa, found {implementation}.*{why}"):
        TreeCollator(model)
