from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen2_5_vl
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

from reflectune.models.attention.windows import read_windows_at_once

SIDES = {"num_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
WIDTHS = {"hidden_size": 16, "out_hidden_size": 16, "intermediate_size": 16}
TOWERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen2_vl": (
        qwen2_vl.Qwen2VisionTransformerPretrainedModel,
        {"depth": 2, "embed_dim": 16, "hidden_size": 16, "mlp_ratio": 1},
    ),
    "qwen2_5_vl": (
        qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel,
        {**WIDTHS, "depth": 32, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
    ),
    "qwen3_vl": (
        qwen3_vl.Qwen3VLVisionModel,
        {**WIDTHS, "depth": 3, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
    ),
}
"""Narrow vision towers; windows, and layers that have none, are those of the published Qwen2.5-VL."""


@pytest.mark.parametrize(
    ("family", "grids", "before", "after"),
    [
        ("qwen2_5_vl", [(1, 32, 40)], 28 * 20 + 4, 32),  # 2,244 for an image of 1,280 tokens
        ("qwen2_5_vl", [(1, 20, 12), (1, 8, 24)], 28 * (6 + 3) + 4 * 2, 28 * 3 + 4 * 2),  # of 64, 32 and 16
        ("qwen2_vl", [(1, 4, 6), (1, 8, 4), (1, 6, 4)], 2 * 3, 2 * 2),
        ("qwen3_vl", [(1, 4, 4)] * 5, 3 * 5, 3),
    ],
)
def test_windows_of_a_length_are_one_call_and_give_transformers_numbers(
    family: str, grids: list[tuple[int, int, int]], before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    kind, shapes = TOWERS[family]
    tower = kind(kind.config_class(**SIDES, **shapes)).train()
    grid = torch.tensor(grids)
    pixels = torch.randn(int(grid.prod(-1).sum()), 3 * 2 * 14 * 14)
    counted = mock.Mock(wraps=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)

    def read() -> tuple[int, Tensor, list[Tensor]]:
        counted.reset_mock()
        tower.zero_grad()
        features = tower(pixels, grid_thw=grid).pooler_output
        features.square().sum().backward()
        gradients = [p.grad.clone() for p in tower.parameters() if p.grad is not None]
        return counted.call_count, features.detach(), gradients

    expected_calls, expected, gradients = read()
    read_windows_at_once(SimpleNamespace(model=SimpleNamespace(visual=tower)))  # type: ignore[arg-type]
    found_calls, found, found_gradients = read()

    assert (expected_calls, found_calls) == (before, after)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_gradients, gradients, rtol=1e-3, atol=1e-4)
