import importlib.util
import json
from pathlib import Path

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.examples.miniature.models.architecture import build_model
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.weights.pretrained import dequantized
from reflectune.models.weights.quantization import Quantization, quantized_layers

pytest.importorskip("bitsandbytes")

FAMILIES = ["llava", "qwen2_vl"]
TARGETS = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"


@pytest.fixture(scope="module", params=FAMILIES)
def base(request, make, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / request.param
    build_model(request.param, make.tokenizer(request.param), size="base").save_pretrained(folder)
    make.processor(request.param).save_pretrained(folder)
    return str(folder)


def gradients(model, loaded):
    """One backward pass: the gradient of everything that trains."""
    model.train().zero_grad()
    tokens = torch.tensor([[20, *loaded.renderer.token_ids.values(), 21]])
    model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def adapted(make, loaded):
    torch.manual_seed(0)
    return make.adapted(loaded, TARGETS)


def test_the_language_models_layers_are_in_four_bits_and_nothing_else(base):
    loaded = load(base, scheme="mr2ag", quantization=Quantization("bfloat16"))
    linear = {name for name, module in loaded.model.named_modules() if isinstance(module, torch.nn.Linear)}

    assert set(quantized_layers(loaded.model)) == {name for name in linear if "language_model" in name}
    kept = {name: p.dtype for name, p in loaded.model.named_parameters() if p.dtype != torch.uint8}
    assert set(kept.values()) == {torch.bfloat16}
    assert any("vision" in name or "visual" in name for name in kept)
    assert any("projector" in name or "merger" in name for name in kept)
    weights = [loaded.model.get_parameter(f"{name}.weight") for name in quantized_layers(loaded.model)]
    assert all(weight.quant_state.nested for weight in weights)


def test_new_tokens_get_the_rows_that_they_get_without_four_bits(base):
    plain, four = (load(base, scheme="mr2ag", seed=3, quantization=q) for q in (None, Quantization("float32")))
    rows = list(plain.renderer.token_ids.values())

    for name in ("get_input_embeddings", "get_output_embeddings"):
        one, other = (getattr(loaded.model, name)().weight[rows] for loaded in (plain, four))
        assert torch.equal(one, other)


def test_weights_written_out_compute_the_same(base, make):
    four = load(base, scheme="mr2ag", quantization=Quantization("float32"))
    before = make.logits(four)
    plain = dequantized(four.model, torch.float32)

    assert not quantized_layers(plain)
    torch.testing.assert_close(make.logits(four, plain), before, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before, make.logits(load(base, scheme="mr2ag")), atol=1e-3)


def test_an_evaluation_takes_no_gradient_away(base, make):
    """bitsandbytes repacks weights in evaluation mode on a CPU with AVX512-BF16; see `check_quantized`."""
    loaded = load(base, scheme="mr2ag", quantization=Quantization("float32"))
    model = adapted(make, loaded)
    before = gradients(model, loaded)
    first = make.logits(loaded, model.eval())
    after = gradients(model, loaded)

    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(gradient.abs().sum() > 0 for gradient in before.values())
    assert torch.equal(make.logits(loaded, model.eval()), first)


def test_rotary_frequencies_stay_in_float32_as_in_any_model_that_is_loaded(base):
    plain = load(base, dtype="bfloat16")
    written = dequantized(load(base, quantization=Quantization("bfloat16")).model, torch.bfloat16)

    assert {p.dtype for p in written.parameters()} == {torch.bfloat16}
    kept = dict(written.named_buffers())
    assert {name: buffer.dtype for name, buffer in plain.model.named_buffers()} == {
        name: kept[name].dtype for name in dict(plain.model.named_buffers())
    }
    assert any("inv_freq" in name and buffer.dtype == torch.float32 for name, buffer in kept.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_of_four_bits_loads_merged_into_what_it_was_trained_on(base, make, dtype, tmp_path):
    quantization = Quantization(dtype)
    loaded = load(base, scheme="mr2ag", seed=5, quantization=quantization)
    model = adapted(make, loaded).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "token" in name and parameter.requires_grad:
                parameter.add_(0.1)
    expected = make.logits(loaded, model)
    info = {"base_model": base, "seed": 5, "quantization": {"dtype": dtype}}
    save_checkpoint(tmp_path / "adapter", model, loaded.processor, MR2AG, info)

    again = load(str(tmp_path / "adapter"))

    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    assert again.quantization is None
    assert {p.dtype for p in again.model.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in again.model.parameters())
    rtol = 1e-4 if dtype == "float32" else 0.1  # the first read in bfloat16
    torch.testing.assert_close(make.logits(again), expected, rtol=rtol, atol=rtol * 10)
    plain = json.loads((tmp_path / "adapter" / "reflectune.json").read_text()) | {"quantization": None}
    (tmp_path / "adapter" / "reflectune.json").write_text(json.dumps(plain))
    farther, near = (make.logits(one) - expected for one in (load(str(tmp_path / "adapter")), again))
    assert farther.abs().max() > 3 * near.abs().max()


def test_four_bits_are_part_of_the_fingerprint(base):
    plain, four = (load(base, scheme="mr2ag", quantization=kind) for kind in (None, Quantization("float32")))

    assert plain.fingerprint != four.fingerprint


def test_without_bitsandbytes_nothing_is_loaded(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "reflectune.models.weights.quantization.find_spec",
        lambda name: None if name == "bitsandbytes" else find_spec(name),
    )

    with pytest.raises(UserError, match=r"pip install 'reflectune\[quantization\]'"):
        load("/nowhere", quantization=Quantization())


def test_an_adapter_is_no_base_for_four_bits(base, make, tmp_path):
    loaded = load(base, scheme="mr2ag")
    save_checkpoint(tmp_path, adapted(make, loaded), loaded.processor, MR2AG, {"base_model": base, "seed": 0})

    with pytest.raises(UserError, match="is an adapter, and only a base model can be quantized; merge it"):
        load(str(tmp_path), quantization=Quantization())


def test_a_model_that_is_stored_quantised_is_refused(base, tmp_path):
    config = json.loads(Path(base, "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(UserError, match="is stored quantised; take the plain weights"):
        load(str(tmp_path), scheme="mr2ag")
