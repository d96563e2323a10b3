from typing import Any

import pytest
import torch
from transformers import get_scheduler

from reflectune.models.loading import load
from reflectune.train.runs.preview import max_row_update, row_update_line
from reflectune.train.settings.sft import SftConfig


@pytest.mark.parametrize("lr_scheduler", ["cosine", "linear", "constant_with_warmup"])
@pytest.mark.parametrize("warmup", [0.03, 20.0])
def test_the_travel_is_the_learning_rates_of_a_run_added_up(lr_scheduler: Any, warmup: float) -> None:
    config, steps = SftConfig(learning_rate=1e-3, warmup=warmup, lr_scheduler=lr_scheduler), 400
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    first = int(warmup) if warmup >= 1 else round(warmup * steps)
    scheduler = get_scheduler(lr_scheduler, optimizer, num_warmup_steps=first, num_training_steps=steps)
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()

    assert max_row_update(config, steps) == pytest.approx(sum(rates), rel=0.01)


def test_a_run_too_short_for_new_rows_gets_a_warning(base_model) -> None:
    model = load(str(base_model())).model

    for steps, adapters, is_short in ((39, True, True), (7300, True, False), (39, False, False)):
        line, is_warning = row_update_line(SftConfig(learning_rate=1e-4), model, steps, adapters=adapters)
        assert is_warning is line.startswith("warning: ") is ("too few" in line) is is_short
