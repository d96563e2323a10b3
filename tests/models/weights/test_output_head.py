"""Logits of gates are those of a head in float32, whatever the precision of the model."""

import pickle

import pytest
import torch
from torch import nn

from reflectune.models.weights.output_head import exact_logits, read_in_float32
from tests.models.weights.test_new_rows import IDS, NEW, adapted, beside, move

ASKED = [5, *NEW[:2]]


def heads() -> list[nn.Module]:
    """A plain head, and one with rows of new tokens, both in bfloat16."""
    with_rows = beside(adapted("llava", False)).get_output_embeddings()
    move(with_rows)
    return [nn.Linear(64, 320, bias=True).bfloat16(), with_rows.bfloat16()]


@pytest.mark.parametrize("head", heads(), ids=["linear", "new rows"])
def test_asked_logits_are_those_of_float32(head: nn.Module) -> None:
    width = next(p.shape[1] for p in head.parameters() if p.ndim == 2)
    hidden = torch.randn(7, width, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    rounded = head(hidden)
    logits = exact_logits(head, hidden, rounded, ASKED)

    exact = head.float()(hidden.detach().float())
    others = [i for i in range(320) if i not in ASKED]
    torch.testing.assert_close(logits[:, ASKED], exact[:, ASKED], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(rounded[:, ASKED].float(), exact[:, ASKED], rtol=1e-6, atol=1e-6)
    assert torch.equal(logits[:, others], rounded.float()[:, others])
    (expected,) = torch.autograd.grad(rounded[:, ASKED].float().sum(), hidden, retain_graph=True)
    assert torch.equal(torch.autograd.grad(logits[:, ASKED].sum(), hidden)[0], expected)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_in_training_gives_them(autocast: bool) -> None:
    model = beside(adapted("qwen2_vl", True))
    model = model if autocast else model.bfloat16()
    states: list[torch.Tensor] = []
    head = model.get_output_embeddings()
    handle = head.register_forward_hook(lambda head, inputs, logits: states.append(inputs[0]))
    read_in_float32(head, ASKED)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits

    handle.remove()
    pickle.dumps(head)  # workers of a data loader may be spawned
    exact = head.float()(states[0].float())
    torch.testing.assert_close(logits[..., ASKED], exact[..., ASKED], rtol=1e-6, atol=1e-6)


def test_float32_heads_are_not_asked_again() -> None:
    head, hidden = nn.Linear(8, 16), torch.randn(2, 8)
    logits = head(hidden)

    assert exact_logits(head, hidden, logits, ASKED[:1]) is logits
