from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel

from reflectune.core.errors import UserError
from reflectune.examples.miniature.models.architecture import Family, build_model, train_tokenizer
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.parameters import adapters_of, add_adapters, without_input_cast

TARGETS = SftConfig().lora_targets
NEW = [300, 301, 302, 303]
TEXTS = ("USER: what is this ? ASSISTANT: a gold tower", "It was founded in 1872 and designed by Ada Berg .")
CASES = [("llava", False), ("llava", True), ("qwen2_vl", True), ("qwen2_vl", False), ("qwen3_5", True)]


def tiny(family: Family, tie: bool) -> PreTrainedModel:
    """A model with 320 rows in its table; those from 300 on are of new tokens and padding."""
    tokenizer = train_tokenizer(TEXTS, 300, family)
    return build_model(family, tokenizer, size="test", vocab_size=320, tie_word_embeddings=tie)


def adapted(model: PreTrainedModel, new: Sequence[int] = NEW, targets: str = TARGETS) -> PeftModel:
    return add_adapters(model, new, rank=4, alpha=8, dropout=0.0, targets=targets)


def step(model: torch.nn.Module) -> None:
    """Take an optimiser step of a loss that reads and writes the new tokens."""
    ids = torch.tensor([[20, 300, 21, 301, 302, 22, 303, 23]])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
    optimizer.step()


def rows(model: PeftModel) -> dict[str, torch.Tensor]:
    """Both matrices as the merged model has them."""
    merged = model.merge_and_unload()
    matrices = {"input": merged.get_input_embeddings(), "output": merged.get_output_embeddings()}
    return {name: matrix.weight.detach().clone() for name, matrix in matrices.items()}


@pytest.mark.parametrize(("family", "tie"), CASES)
def test_before_the_first_step_nothing_changes_and_then_the_new_rows_of_both_matrices_alone(
    family: Family, tie: bool
) -> None:
    original, ids = tiny(family, tie), torch.tensor([[20, 300, 21]])
    before = {"input": original.get_input_embeddings().weight, "output": original.get_output_embeddings().weight}
    model = adapted(tiny(family, tie))
    assert torch.equal(model(input_ids=ids).logits, original(input_ids=ids).logits)
    step(model)

    after = rows(model)

    for name, weight in before.items():
        moved = (after[name] != weight).any(dim=1).nonzero().flatten().tolist()
        assert moved == NEW, name
    assert torch.equal(after["input"], after["output"]) == tie


@pytest.mark.parametrize(("family", "tie"), CASES)
def test_everything_that_trains_is_in_fp32_and_in_the_language_model(family: Family, tie: bool) -> None:
    model = adapted(tiny(family, tie).bfloat16())

    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

    assert all(parameter.dtype == torch.float32 for parameter in trained.values())
    assert all("language_model" in name or "lm_head" in name for name in trained)
    assert sum("trainable_tokens_delta" in name for name in trained) == (1 if tie else 2)
    assert all(p.dtype == torch.bfloat16 for name, p in model.named_parameters() if name not in trained)


@pytest.mark.parametrize(("family", "tie"), CASES)
def test_adapter_reloaded_and_merged_compute_the_same(family: Family, tie: bool, tmp_path: Path) -> None:
    ids = torch.tensor([[20, 300, 21, 303]])
    model = adapted(tiny(family, tie))
    step(model)
    model.save_pretrained(str(tmp_path))
    expected = model(input_ids=ids).logits

    reloaded = PeftModel.from_pretrained(tiny(family, tie), tmp_path)
    torch.testing.assert_close(reloaded(input_ids=ids).logits, expected, rtol=1e-5, atol=1e-6)  # by PEFT alone

    merged = reloaded.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=ids).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (r".*\.(q|v)_proj", r"outside of the language model, e\.g\. model\.vision_tower"),
        (r".*language_model.*", r"modules without a matrix, e\.g\. model\.language_model, .*; narrow it"),
        ("nothing", r"'nothing' matches no linear module; there are e\.g\. model\."),
    ],
)
def test_targets_that_are_no_matrices_of_the_language_model_are_refused(targets: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        adapted(tiny("llava", False), targets=targets)
    assert len(adapters_of(adapted(tiny("llava", False), targets=r".*language_model.*_proj"))) == 14  # 7 a layer


@pytest.mark.parametrize(
    ("targets", "named"),
    [
        (r".*language_model.*_proj|lm_head", "lm_head"),
        (r".*language_model.*(_proj|embed_tokens)", r"model\.language_model\.embed_tokens"),
        (r".*language_model.*(_proj|embed_tokens)|lm_head", r"model\.language_model\.embed_tokens and lm_head"),
    ],
)
def test_matrices_whose_new_rows_train_are_refused(targets: str, named: str) -> None:
    """PEFT fails over them with a TypeError. Without new tokens they may have adapters."""
    with pytest.raises(UserError, match=rf"also matches {named}, whose rows of new tokens train by themselves"):
        adapted(tiny("llava", False), targets=targets)

    layers = adapters_of(adapted(tiny("llava", False), (), targets))
    assert len(layers) == 14 + len(named.split(" and "))


@pytest.mark.parametrize(("family", "tie"), CASES)
def test_under_autocast_the_same_loss_and_gradients_come_without_casts(family: Family, tie: bool) -> None:
    model = adapted(tiny(family, tie).bfloat16())
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # they begin at zero, where nothing could differ
            torch.nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(len(name)))
        assert parameter.dtype == (torch.float32 if "lora_" in name else parameter.dtype)
    ids = torch.tensor([[20, 300, 21, 301, 302, 22, 303, 23]])

    def read() -> list[torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    expected = read()
    with without_input_cast(adapters_of(model)):
        assert not any(layer.cast_input_dtype_enabled for layer in layers)
        found = read()
    assert all(layer.cast_input_dtype_enabled for layer in layers)
    assert len(found) == len(expected) > 1
    torch.testing.assert_close(found, expected, rtol=0.02, atol=1e-4)
    assert torch.equal(found[0], expected[0])
