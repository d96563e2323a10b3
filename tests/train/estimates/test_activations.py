"""The formulas for activations against what autograd really saves, and against the peak of a whole step."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

from reflectune.examples.miniature.models.architecture import Family
from reflectune.models.attention import tree_mask
from reflectune.models.attention.collation import loss_terms
from reflectune.models.attention.delta_net import ForkingDeltaNet
from reflectune.models.loading import load
from reflectune.train.data.examples import Collator, EncodedExample, load_examples
from reflectune.train.estimates import forecast as forecasting
from reflectune.train.estimates.activations import Activations, activations, delta_rule_bytes
from reflectune.train.estimates.architecture import Architecture, LinearAttention
from reflectune.train.estimates.forecast import Forecast, forecast, largest_batch
from reflectune.train.estimates.memory import Division, count_weights, total
from reflectune.train.runs.supervised import encoded_examples
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.loading import prepare_model
from reflectune.train.weights.parameters import recompute_layers

LORA: dict[str, Any] = {"method": "lora"}
AGAIN: dict[str, Any] = {"gradient_checkpointing": True}
HALF: dict[str, Any] = {"dtype": "bfloat16"}
FROZEN_TOWER: dict[str, Any] = {"train_towers": ["projector", "language_model"]}


@pytest.fixture
def prepared(tmp_path, data_folder, base_model) -> Callable[..., tuple[nn.Module, dict[str, Tensor], Forecast]]:
    """A model that is ready to train, its largest batch of four questions, and its forecast."""

    def build(family: Family, every: int = 1, **changes: Any) -> tuple[nn.Module, dict[str, Tensor], Forecast]:
        base = base_model(family, size="base")
        config = SftConfig(
            model=str(base), train_data=str(data_folder), output_dir=str(tmp_path / "out"), device="cpu", **changes
        )
        dtype = "float32" if config.method == "full" else config.precision
        loaded = load(config.model, scheme="mr2ag", dtype=dtype)
        model = prepare_model(loaded, config)
        if config.gradient_checkpointing:
            recompute_layers(model, every)
        dataset = encoded_examples(*load_examples(config.sources()[0], config.scheme), loaded, config)
        examples = sorted((dataset[i] for i in range(len(dataset))), key=length)[-4:]
        batch = {k: v for k, v in Collator(loaded.model)(examples).items() if isinstance(v, Tensor)}
        shapes = Architecture.of(loaded.model.config)
        largest, weights = largest_batch(examples, 4, shapes.patch_size), count_weights(model)
        made = forecast(config, config, shapes, weights, largest, Division("", 1), "cpu", None)
        recomputed = every if config.gradient_checkpointing else 0
        return model, batch, replace(made, forward=replace(made.forward, recomputed=recomputed))

    return build


def kept_of(predicted: Forecast) -> Activations:
    return activations(predicted.architecture, predicted.batch, predicted.forward)


def length(example: EncodedExample) -> int:
    return sum(tree.length for tree in example.trees)


def saved_bytes(model: nn.Module, batch: dict[str, Tensor], dtype: str) -> int:
    """Bytes of what autograd saves for the backward pass, but for weights and their casts."""
    shapes = {tuple(sorted(parameter.shape)) for parameter in model.parameters()}
    weight_pointers = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_cast = tensor.dtype == torch.bfloat16 and tuple(sorted(tensor.shape)) in shapes
        if storage.data_ptr() not in weight_pointers and not is_cast:
            seen[storage.data_ptr()] = tensor  # held, so that no other one gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast(dtype):
        loss_terms(model, batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


@contextmanager
def autocast(dtype: str) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        yield


@pytest.mark.parametrize(
    ("family", "changes"),
    [  # any two of family, method, checkpointing and dtype in all combinations
        ("llava", {}),
        ("qwen2_vl", LORA | AGAIN),
        pytest.param("llava", LORA | AGAIN | HALF, marks=pytest.mark.slow),
        pytest.param("qwen2_vl", AGAIN | HALF, marks=pytest.mark.slow),
        pytest.param("qwen2_vl", LORA | HALF, marks=pytest.mark.slow),
        ("llava", FROZEN_TOWER),
        ("llava", AGAIN | FROZEN_TOWER | {"every": 2}),
        ("llava", LORA | {"lora_dropout": 0.1, "lora_r": 64}),
        ("llava", {"train_towers": ["projector"]}),
        ("llava", HALF | {"train_towers": ["projector"]}),
        ("llava", LORA | FROZEN_TOWER),
    ],
)
def test_the_formulas_give_what_autograd_saves(prepared, family: Family, changes: dict[str, Any]) -> None:
    model, batch, predicted = prepared(family, **changes)
    dtype = changes.get("dtype", "float32")

    assert kept_of(predicted).kept == pytest.approx(saved_bytes(model, batch, dtype), rel=0.15)


def test_the_formulas_give_what_autograd_saves_under_a_dense_mask(prepared, monkeypatch) -> None:
    """Accelerators have one mask for all layers."""
    for module in (tree_mask, forecasting):
        monkeypatch.setattr(module, "has_backward", lambda *kind: False)
    model, batch, predicted = prepared("llava", **FROZEN_TOWER)
    assert predicted.forward.attention == "dense"

    assert kept_of(predicted).kept == pytest.approx(saved_bytes(model, batch, "float32"), rel=0.05)


class Peak(TorchDispatchMode):
    """The most bytes of storages that were made within it and alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.most = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(output):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._seen:
                self._seen.add(storage)
                self.alive += storage.nbytes()
                weakref.finalize(storage, self._forget, storage.nbytes())
        self.most = max(self.most, self.alive)
        return output

    def _forget(self, size: int) -> None:
        self.alive -= size


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimated_sum_is_the_peak_of_a_step(prepared, checkpointing: bool) -> None:
    model, batch, predicted = prepared("llava", method="full", gradient_checkpointing=checkpointing)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    def step() -> None:
        loss, weight = loss_terms(model, batch)
        (loss / weight).backward()

    step()
    optimizer.step()
    held = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
    held += [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    with Peak() as peak:
        step()

    whole = sum({t.untyped_storage().data_ptr(): t.nbytes for t in held}.values()) + peak.most
    assert total(predicted.parts()) == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("compute", [2, 4])
def test_linear_attention_keeps_what_the_formula_says(compute: int) -> None:
    tokens, width = 256, 64
    shapes = LinearAttention(1, key_heads=2, value_heads=4, key_size=32, value_size=16)
    config: Any = Qwen3_5TextConfig(
        hidden_size=width,
        num_hidden_layers=4,
        linear_num_key_heads=shapes.key_heads,
        linear_num_value_heads=shapes.value_heads,
        linear_key_head_dim=shapes.key_size,
        linear_value_head_dim=shapes.value_size,
    )
    layer = ForkingDeltaNet(config, 0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            kept[place] = tensor
        return tensor

    inputs, segments = torch.randn(1, tokens, width, requires_grad=True), torch.zeros(1, 1, 1, tokens).long()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=compute == 2)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        output = layer(inputs, attention_mask=segments)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / tokens
    assert output.requires_grad
    assert delta_rule_bytes(shapes, compute) == pytest.approx(measured - 4 * width, rel=0.1)
