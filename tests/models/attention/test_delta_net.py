"""Linear attention that begins with given states is transformers' own over the whole row."""

from typing import Any

import pytest
import torch
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from reflectune.core.errors import UserError
from reflectune.models.attention.delta_net import ForkingDeltaNet
from reflectune.models.attention.recurrence import Recurrence, StatesByLayer, state_tokens
from reflectune.models.attention.shared import share_prefixes

CONFIG: Any = Qwen3_5TextConfig(
    hidden_size=16,
    num_hidden_layers=4,
    num_key_value_heads=2,
    head_dim=8,
    linear_key_head_dim=8,
    linear_value_head_dim=4,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
)
PARTS = ((70, 3, 1), (2, 65, 4))
"""Tokens of each row, part by part: longer and shorter than a chunk of the kernel and than the convolution."""


@pytest.fixture
def layers() -> tuple[Any, Any]:
    torch.manual_seed(0)
    own = Qwen3_5GatedDeltaNet(CONFIG, 0).eval()
    forking = Qwen3_5GatedDeltaNet(CONFIG, 0).eval()
    forking.load_state_dict(own.state_dict())
    forking.__class__ = ForkingDeltaNet
    return own, forking


@torch.no_grad()
def test_padding_reaches_no_state(layers) -> None:
    own, forking = layers
    rows = [torch.randn(sum(counts), 16) for counts in PARTS]
    expected = [own(row[None])[0] for row in rows]
    before: StatesByLayer = {}
    starts = [0, 0]
    for counts in zip(*PARTS, strict=True):
        padded = torch.full((2, max(counts), 16), 1e3)
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            padded[row, :count] = rows[row][start : start + count]
        real = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        recurrence = Recurrence(real, before)
        output = forking(padded, attention_mask=recurrence)
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            wanted = expected[row][start : start + count]
            torch.testing.assert_close(output[row, :count], wanted, rtol=1e-3, atol=3e-5)
        before = recurrence.after
        starts = [start + count for start, count in zip(starts, counts, strict=True)]


def test_the_states_of_a_row_are_counted_as_tokens() -> None:
    states = 3 * ((2 * 2 * 8 + 4 * 4) * 3 * 2 + 4 * 8 * 4 * 4)  # of three layers, the inputs in bfloat16
    keys_and_values = 2 * 2 * 8 * 2
    assert state_tokens(CONFIG, torch.bfloat16) == -(-states // keys_and_values)
    assert state_tokens(Qwen3_5TextConfig(layer_types=["full_attention"] * 32), torch.bfloat16) == 0


def test_unknown_linear_attention_is_refused(make) -> None:
    model = make.model("qwen2_vl")
    model.config.get_text_config().layer_types = ["full_attention", "linear_attention"]

    class Mamba(torch.nn.Module):
        """Layer of a different family."""

    model.model.language_model.layers[1].linear_attn = Mamba()
    with pytest.raises(UserError, match="the states of Mamba can't be copied"):
        share_prefixes(model)
