"""Adapters on a 4-bit language model: whole runs on the CPU. Four bits need widths of 64 at least: size `base`."""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.models.attention.collation import TreeCollator, model_inputs
from reflectune.models.loading import load
from reflectune.models.schemes.passages import PassageScheme
from reflectune.models.weights.quantization import Quantization
from reflectune.train.runs.checkpointed_trainer import load_weights
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.loading import prepare_model

pytest.importorskip("bitsandbytes")


@pytest.fixture
def config(config) -> Callable[..., SftConfig]:
    return functools.partial(config, size="base", method="qlora", learning_rate=1e-2, lora_dropout=0.0)


@pytest.mark.slow
def test_a_qlora_run_learns_resumes_exactly_and_loads_what_it_trained(
    config, data_folder, examples, weights, assert_equal_weights, losses, interrupted
) -> None:
    straight, resumed = (config(name, "qwen2_vl", max_steps=6) for name in ("straight", "resumed"))
    fine_tune(straight)
    straight_losses = losses(straight.output_dir)
    assert sum(straight_losses[-2:]) / 2 < 0.8 * straight_losses[0]

    interrupted(resumed, 4)
    fine_tune(resumed)
    assert_equal_weights(straight.output_dir, resumed.output_dir)
    assert {weight.dtype for weight in weights(straight.output_dir).values()} == {torch.float32}
    assert straight_losses == losses(resumed.output_dir)

    loaded = load(straight.output_dir)
    trained = load(straight.model, scheme="mr2ag", quantization=Quantization("float32"))
    adapted = prepare_model(trained, straight)
    load_weights(adapted, straight.output_dir)
    tree = PassageScheme.of(loaded.renderer).encode(
        loaded.renderer, examples[1], load_image(examples[1].image, root=data_folder / "images")
    )
    inputs = model_inputs(TreeCollator(loaded.model)([tree]))
    TreeCollator(trained.model)([tree])  # gives it the attention that reads trees
    with torch.no_grad():
        expected = adapted.eval()(**inputs, use_cache=False).logits
        torch.testing.assert_close(loaded.model(**inputs, use_cache=False).logits, expected, rtol=1e-4, atol=1e-4)


def test_a_dry_run_counts_four_bit_weights_one_by_one(config, capsys) -> None:
    totals = []
    for method in ("qlora", "lora"):
        fine_tune(config(method=method, dry_run=True))
        totals.append([line for line in capsys.readouterr().out.splitlines() if "trainable parameters" in line])

    assert totals[0] == totals[1]


def test_without_bitsandbytes_the_config_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reflection.json").write_text("{}")
    arguments = ["--train_data", str(tmp_path), "--output_dir", str(tmp_path / "out"), "--method", "qlora"]
    parse_config(SftConfig, argv=arguments)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "reflectune.models.weights.quantization.find_spec",
        lambda name: None if name == "bitsandbytes" else find_spec(name),
    )

    with pytest.raises(UserError, match=r"`method`: .* `pip install 'reflectune\[quantization\]'`"):
        parse_config(SftConfig, argv=arguments)
