"""The token budget that is found where none is given."""

import pytest

from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.forward import CPU_BUDGET, KEPT_BUDGETS, MAX_BUDGET, Forward, find_budget, fitting_budget


@pytest.mark.parametrize("free", [2**20, 2**24, 80 * 2**30])
@pytest.mark.parametrize("kept", [10.0, 500.0])
def test_what_is_found_fits_and_twice_as_much_would_not(free: float, kept: float) -> None:
    budget = fitting_budget(free, 100.0, kept)

    def taken(tokens: int) -> float:
        return tokens * (100.0 + 2 * KEPT_BUDGETS * kept)

    assert budget & (budget - 1) == 0
    assert taken(budget) <= free
    assert budget == MAX_BUDGET or taken(2 * budget) > 0.7 * free


def test_a_model_that_barely_fits_still_reads_something() -> None:
    assert fitting_budget(0, 100.0, 10.0) == 1


def test_a_cpu_reads_little_at_a_time_unless_told_otherwise() -> None:
    loaded = load("miniature/llava")
    assert find_budget(Forward(loaded.model)) == CPU_BUDGET
    assert PrefixEngine(loaded).token_budget == CPU_BUDGET
    assert PrefixEngine(loaded, 77).token_budget == 77


def test_as_many_bytes_are_kept_where_few_layers_have_keys_and_values() -> None:
    """Of Qwen3.5's layers every fourth has; states of branches that are dropped are read again to be continued."""
    of_all, of_some = Forward(load("miniature/llava").model), Forward(load("miniature/qwen3_5").model)
    layers = of_some.model.config.get_text_config().layer_types
    assert of_all.kept_budgets == KEPT_BUDGETS
    assert of_some.kept_budgets == KEPT_BUDGETS * len(layers) // layers.count("full_attention") > KEPT_BUDGETS
