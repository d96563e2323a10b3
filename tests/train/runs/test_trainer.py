import re
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.examples.miniature.models.architecture import Family
from reflectune.formats.reflection_data import read_examples, write_examples
from reflectune.models.attention.collation import GateBrier, TreeCollator, loss_terms
from reflectune.models.attention.tree import IGNORE, Tree, independent_rows
from reflectune.models.loading import Loaded, load
from reflectune.models.schemes.examples import PromptedExample
from reflectune.models.schemes.passages import PassageScheme
from reflectune.models.schemes.registry import find_scheme
from reflectune.train.data.examples import EncodedExamples
from reflectune.train.gate_rewards.trainer import GateTrainer
from reflectune.train.runs.checkpointed_trainer import load_weights
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.runs.trainer import ReflectionTrainer, supervised_weight
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.loading import prepare_model
from tests.narrow_models import plain_inputs


def row_losses(loaded: Loaded, row: Tree, brier: float = 0.0) -> list[float]:
    """-log p of each supervised token of one row, read plainly: no tree, no mask, no position ids of ours.

    A gate's token has `brier` · (p - y)² in addition, p by the ratio of its two tokens' probabilities.
    """
    with torch.no_grad():
        log_p = loaded.model(**plain_inputs(loaded.model, row.prefix.ids, row.vision)).logits[0].log_softmax(-1)
    terms = []
    for i, label in enumerate(row.prefix.labels):
        if label == IGNORE:
            continue
        terms.append(-float(log_p[i - 1, label]))
        for yes, no in (("retrieve", "no_retrieve"), ("relevant", "irrelevant")):
            (p, y), (q, n) = ((float(log_p[i - 1, t].exp()), t) for t in map(loaded.renderer.token_id, (yes, no)))
            if label in (y, n):
                terms[-1] += brier * (p / (p + q) - (label == y)) ** 2
    return terms


@pytest.mark.parametrize(("family", "brier"), [("llava", 0.0), ("qwen2_vl", 0.0), ("llava", 3.0)])
def test_the_loss_is_equations_8_and_9_over_the_global_batch(
    family: Family, brier: float, config, losses, data_folder, examples
) -> None:
    examples = examples[:9] + examples[18:21]
    write_examples(data_folder / "train.parquet", examples)
    whole = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "max_steps": 1}
    run = config(family=family, learning_rate=1e-12, gate_brier=brier, **whole)
    loaded = load(run.model, scheme="mr2ag", seed=run.seed)
    terms: list[float] = []
    gates = 0
    for example in examples:
        tree = PassageScheme.of(loaded.renderer).encode(
            loaded.renderer, example, load_image(example.image, root=data_folder / "images")
        )
        gates += sum(label == loaded.renderer.token_id("retrieve") for label in tree.prefix.labels)
        terms += [loss for row in independent_rows(tree) for loss in row_losses(loaded, row, brier)]

    fine_tune(run)

    assert losses(run.output_dir)[0] == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    assert gates == sum(example.retrieve for example in examples)  # once per question, not once per passage


@pytest.mark.parametrize("scheme", ["mr2ag", "mmkb_rag"])
def test_the_brier_term_of_trees_has_the_gradients_of_separate_rows(
    scheme: str, base_model, data_folder, prompted_folder, examples
) -> None:
    loaded = load(str(base_model()), scheme=scheme)
    made = examples if scheme == "mr2ag" else read_examples(prompted_folder / "train.parquet", PromptedExample)
    gates = [tuple(map(loaded.renderer.token_id, (gate.positive, gate.negative))) for gate in find_scheme(scheme).gates]
    results = []
    for brier in (GateBrier(3.0, gates), None):
        for tree in (True, False):
            dataset = EncodedExamples(made, loaded.renderer, data_folder / "images", share_prefix=tree, max_tokens=4096)
            trees = [tree for i in (1, 3, 19) for tree in dataset[i].trees]
            loaded.model.zero_grad()
            loss, weight = loss_terms(loaded.model, TreeCollator(loaded.model)(trees), brier)
            loss.backward()
            gradient = torch.cat([p.grad.flatten() for p in loaded.model.parameters() if p.grad is not None])
            results.append((loss.item(), weight.item(), gradient))
    (trees_loss, trees_weight, trees_gradient), (loss, weight, gradient), without, _ = results
    assert (trees_loss, trees_weight) == pytest.approx((loss, weight))
    torch.testing.assert_close(trees_gradient, gradient, rtol=1e-3, atol=1e-5)
    assert trees_weight == without[1]
    assert trees_loss > without[0] + 0.1
    assert not torch.allclose(trees_gradient, without[2], rtol=1e-2, atol=1e-4)


def test_the_first_token_of_a_row_has_no_weight_since_nothing_predicts_it() -> None:
    batch = {
        "labels": torch.tensor([[5, 6, IGNORE], [IGNORE, 7, 8]]),
        "weights": torch.tensor([[9.0, 1, 9], [9, 2, 3]]),
    }

    assert supervised_weight(batch) == 1 + 2 + 3


@pytest.mark.parametrize("trainer_class", [ReflectionTrainer, GateTrainer])
def test_deepspeed_rounds_a_models_inputs_and_not_the_losss_weights(trainer_class: type[ReflectionTrainer]) -> None:
    class Preparing(trainer_class):  # type: ignore[valid-type, misc]
        def prepared(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            return self._prepare_inputs(batch)

    engine = SimpleNamespace(hf_ds_config=SimpleNamespace(dtype=lambda: torch.bfloat16))
    trainer: Any = object.__new__(Preparing)
    trainer.args = SimpleNamespace(device=torch.device("cpu"))
    trainer.accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=engine))
    trainer.is_deepspeed_enabled, trainer.packs = True, False
    weights = torch.tensor([[1 / 3, 1, 0.3]])
    batch = {"input_ids": torch.tensor([[5, 6, 7]]), "pixel_values": torch.rand(1, 3, 2, 2), "weights": weights}

    prepared = trainer.prepared(dict(batch))

    assert {name: tensor.dtype for name, tensor in prepared.items()} == {
        "input_ids": torch.int64,
        "pixel_values": torch.bfloat16,
        "weights": torch.float32,
    }
    assert torch.equal(prepared["weights"], weights)


def test_the_batches_of_a_step_wait_on_the_cpu(config, monkeypatch) -> None:
    """All of them are taken at its beginning: 128 images of 1,280 tokens would hold 3 GB of an accelerator."""
    devices: set[str] = set()

    def look(trainer: Any, **_: Any) -> None:
        monkeypatch.setattr(trainer.accelerator.state, "device", torch.device("meta"))
        batch = next(iter(trainer.get_train_dataloader()))
        devices.update(value.device.type for value in batch.values() if isinstance(value, Tensor))
        raise KeyboardInterrupt

    monkeypatch.setattr(ReflectionTrainer, "train", look)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(config())

    assert devices == {"cpu"}


@pytest.mark.parametrize("method", ["full", "lora"])
def test_weights_of_another_model_are_refused(method: Literal["full", "lora"], base_model, tmp_path) -> None:
    config = SftConfig(method=method)
    if method == "lora":
        saved = prepare_model(load(str(base_model("llava", tie=False)), scheme="mr2ag"), config)
        other = prepare_model(load(str(base_model("llava", tie=True)), scheme="mr2ag"), config)
    else:
        saved = load(str(base_model("llava"))).model  # without the tokens' rows
        other = prepare_model(load(str(base_model("llava")), scheme="mr2ag"), config)
    saved.save_pretrained(str(tmp_path / "checkpoint"))

    message = "does not hold this model's weights; differing: " if method == "full" else "class doesn't know, e.g. "
    with pytest.raises(UserError, match=rf"{re.escape(message)}\S*lm_head"):
        load_weights(other, tmp_path / "checkpoint")
