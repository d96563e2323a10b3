"""New tokens' rows are read next to their matrix: PEFT's numbers, without its copy of the matrix."""

import copy
from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.trainable_tokens import TrainableTokensLayer
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from reflectune.examples.miniature.models.architecture import Family, build_model, train_tokenizer
from reflectune.models.weights.adapters import NewTokenRows, use_new_token_rows

NEW = [300, 301, 303]
IDS = torch.tensor([[20, 300, 21, 301, 303, 22, 303, 23]])
CASES = [("llava", False), ("llava", True), ("qwen2_vl", True), ("qwen2_vl", False)]


def adapted(family: Family, tie: bool) -> PeftModel:
    """A small model with PEFT's own layers, and rows that differ from the matrices'."""
    tokenizer = train_tokenizer(["what is this ? a gold tower"], 300, family)
    model = build_model(family, tokenizer, size="test", vocab_size=320, tie_word_embeddings=tie)
    names = ["model.language_model.embed_tokens", "lm_head"]
    config = LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=dict.fromkeys(names, NEW))
    wrapped = get_peft_model(model, config)
    move(wrapped)
    return wrapped


def move(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, TrainableTokensLayer) and layer.tied_adapter is None:
            for rows in layer.trainable_tokens_delta.values():
                rows.data += torch.randn(rows.shape, generator=generator) * rows.std()


def beside(model: PeftModel) -> PeftModel:
    changed = copy.deepcopy(model)
    use_new_token_rows(changed)
    assert sum(isinstance(layer, NewTokenRows) for layer in changed.modules()) == 2
    return changed


def step(model: nn.Module) -> dict[str, torch.Tensor]:
    """A loss, and the gradients of all that trains, by name."""
    loss = model(input_ids=IDS, attention_mask=torch.ones_like(IDS), labels=IDS).loss
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}
    assert any("trainable_tokens_delta" in name for name in gradients)
    return {"loss": loss.detach(), **gradients}


@pytest.mark.parametrize(("family", "tie"), CASES)
def test_loss_and_gradients_are_pefts(family: Family, tie: bool) -> None:
    model = adapted(family, tie)
    expected, found = step(copy.deepcopy(model)), step(beside(model))
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("family", "tie"), CASES)
def test_in_half_precision_they_are_as_near_to_float32(family: Family, tie: bool) -> None:
    exact = step(adapted(family, tie))
    model = adapted(family, tie).bfloat16()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    with torch.autocast("cpu", torch.bfloat16):
        theirs, ours = step(copy.deepcopy(model)), step(beside(model))
    for name in (name for name in exact if "trainable_tokens_delta" in name):
        error, their_error = ((found[name] - exact[name]).norm() for found in (ours, theirs))
        assert max(error, their_error) <= 0.02 * exact[name].norm()
        assert error <= 2 * their_error
    torch.testing.assert_close(ours["loss"], theirs["loss"], rtol=1e-3, atol=0)


@pytest.mark.parametrize(("family", "tie"), CASES)
def test_no_matrix_is_copied_and_none_gets_a_gradient(family: Family, tie: bool, monkeypatch) -> None:
    model = beside(adapted(family, tie))
    kept: list[tuple[int, ...]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[:1] == (320,) and not isinstance(tensor, nn.Parameter):
            kept.append(tuple(tensor.shape))
        return tensor

    monkeypatch.setattr(TrainableTokensLayer, "get_merged_weights", None)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gradients = step(model)
    assert not kept
    assert all(gradient.shape[:1] != (320,) for gradient in gradients.values())


@pytest.mark.parametrize("change", [lambda m: m.merge_adapter(), lambda m: m.base_model.disable_adapter_layers()])
def test_merged_or_disabled_they_are_the_matrixs(change: Callable[[PeftModel], None]) -> None:
    model = adapted("llava", False)
    reads = beside(model)
    change(model)
    change(reads)
    assert torch.equal(reads(input_ids=IDS).logits, model(input_ids=IDS).logits)


def layer_of(base: nn.Module, tokens: dict[str, list[int]]) -> TrainableTokensLayer:
    layer = TrainableTokensLayer(base, next(iter(tokens)))
    for name, ids in tokens.items():
        layer.update_layer(name, token_indices=ids)
    layer.set_adapter(list(tokens))
    move(layer)
    return layer


def test_a_scaled_embedding_scales_them() -> None:
    layer = layer_of(Gemma3TextScaledWordEmbedding(320, 8, 0, embed_scale=3.0), {"default": NEW})
    expected = layer(IDS)
    use_new_token_rows(layer)
    torch.testing.assert_close(layer(IDS), expected)


def test_a_heads_bias_is_added_to_their_logits() -> None:
    head = nn.Linear(8, 320)
    layer = layer_of(head, {"default": NEW})
    use_new_token_rows(layer)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    logits = layer(x)
    assert torch.equal(logits[..., :300], head(x)[..., :300])
    expected = x @ layer.trainable_tokens_delta["default"].T + head.bias[NEW]
    torch.testing.assert_close(logits[..., NEW], expected)


@pytest.mark.parametrize("base", [nn.Embedding(320, 8), nn.Linear(8, 320, bias=False)])
def test_two_adapters_have_rows_of_their_own(base: nn.Module) -> None:
    x = IDS if isinstance(base, nn.Embedding) else torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    layer = layer_of(base, {"one": [300], "other": [301, 303]})
    expected = layer(x)
    use_new_token_rows(layer)
    torch.testing.assert_close(layer(x), expected)


def test_an_embedding_that_bounds_its_vectors_stays_pefts() -> None:
    layer = layer_of(nn.Embedding(320, 8, max_norm=0.5), {"default": NEW})
    use_new_token_rows(layer)
    assert float(layer(IDS).detach().norm(dim=-1).max()) <= 0.5 + 1e-6
