import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.data_builders.probing.worker import MIN_BUDGET, Halving

OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("HIP out of memory"),
]


def needs(most: int, error: Exception):
    def work(budget: int) -> int:
        if budget > most:
            raise error
        return budget

    return work


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_the_budget_is_halved_until_the_work_fits_and_stays_so(error: Exception) -> None:
    made = []
    tools = Halving(4096, lambda budget: made.append(budget) or budget, 4096)
    assert tools.run(needs(1100, error)) == 1024
    assert tools.run(needs(4096, error)) == 1024
    assert made == [2048, 1024]


def test_below_the_least_budget_it_is_the_users_to_help() -> None:
    with pytest.raises(UserError, match=f"out of memory with {MIN_BUDGET} tokens.*bfloat16"):
        Halving(4 * MIN_BUDGET, lambda budget: budget, 4 * MIN_BUDGET).run(needs(0, OUT_OF_MEMORY[0]))


def test_a_budget_of_the_users_own_is_not_changed() -> None:
    with pytest.raises(UserError, match=r"with 4,096 tokens.*lower `token_budget`"):
        Halving(4096, lambda budget: budget, 4096, fixed=True).run(needs(2048, OUT_OF_MEMORY[0]))


def test_other_errors_are_not_swallowed() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        Halving(4096, lambda budget: budget, 4096).run(needs(0, RuntimeError("shape mismatch")))
