import numpy as np
import pytest
import torch

from reflectune.models.attention.positions import Positions, inner_model

QUESTION = "When was the tower built?"


@pytest.mark.parametrize("sizes", [[(80, 60)], [(64, 64)], [(30, 120)], [(200, 40)], [(80, 60), (30, 120)]])
def test_mrope_positions_are_those_of_the_model(make, sizes):
    loaded = make.loaded("qwen2_vl")
    parts = [loaded.renderer.prefix(QUESTION, make.image(size=size)) for size in sizes]
    ids = torch.tensor([[token for part in parts for token in part.ids]])
    grids = torch.cat([part.vision["image_grid_thw"] for part in parts])
    kinds = (ids == loaded.renderer.image_token_id).int()
    expected, _ = loaded.model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grids)
    positions = Positions(loaded.model).of_prefix(ids[0].numpy(), {"image_grid_thw": grids})
    assert np.array_equal(positions, expected[:, 0].numpy())


def test_llava_counts(make):
    positions = Positions(make.loaded("llava").model)
    assert not positions.is_3d
    assert positions.of_prefix(np.array([5, 6, 7]), {}).tolist() == [[0, 1, 2]]


def test_the_inner_model_is_found_through_wrappers(make):
    model = make.loaded("llava").model
    wrapped = torch.nn.Module()
    wrapped.module = model
    assert inner_model(wrapped) is model
