"""Operations by formula against those that torch counts, and times as arithmetic on rates."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, PreTrainedConfig

from reflectune.models.names import shipped_folder
from reflectune.train.estimates.architecture import Architecture
from reflectune.train.estimates.rates import Rates, few_layers, given_rates, measure_rates
from reflectune.train.estimates.work import Flop, Work, decoder_weights, flop


def shapes(family: str) -> PreTrainedConfig:
    return AutoConfig.from_pretrained(shipped_folder(f"miniature/{family}"))


def counted(model: torch.nn.Module, tokens: int) -> int:
    """Operations of reading text, without the head."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.model(input_ids=torch.zeros(1, tokens, dtype=torch.long))  # type: ignore[operator]
    return counter.get_total_flops()


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_reading_takes_what_torch_counts(family: str) -> None:
    """Torch counts attention to all tokens, and the formula to half of them, which are those before each."""
    model = few_layers(shapes(family), torch.float32, "cpu")
    model.set_attn_implementation("eager")  # torch does not count the fused one on a CPU
    one = Architecture.of(model.config)
    tokens = 200
    attention = 4 * one.layers * one.query_width * tokens * tokens / 2

    assert flop(one, Work(prefix=tokens)).prefix + attention == pytest.approx(counted(model, tokens), rel=0.01)


def test_a_prefix_is_read_once_for_all_branches() -> None:
    model = Architecture.of(shapes("llava"))
    one = Work(prefix=600, branches=1, branch_tokens=100)
    ten = flop(model, replace(one, branches=10))

    assert ten.prefix == flop(model, one).prefix
    assert ten.branches == 10 * flop(model, one).branches
    assert flop(model, replace(one, prefix=0, seen=600)).branches == flop(model, one).branches


def test_a_question_takes_each_pass_by_its_own_rate() -> None:
    rates = Rates(1.0, 2.0, 4.0, 8.0, "by hand")

    assert rates.seconds(Flop(1.0, 2.0, 4.0, 8.0)) == 4.0


def test_writing_few_answers_waits_for_the_weights_and_many_for_products() -> None:
    model = Architecture.of(shapes("llava"))
    few, many = (given_rates(model, 1e-3, 1.0, rows, 2).writing for rows in (1, 1e9))
    weights = decoder_weights(model) + model.vocabulary * model.width

    assert 2 * weights / few == pytest.approx(2 * weights / 1e9)  # two bytes of each weight, at 10⁹ bytes a second
    assert many == 1e9


def test_what_is_not_done_is_not_timed() -> None:
    rates = measure_rates(shapes("qwen2_vl"), Work(prefix=20), batch=2, dtype=torch.float32, device="cpu")

    assert rates.prefix > 1e6
    assert "branches" not in rates.how
    assert "writing" not in rates.how
