"""Work that is tried with a smaller token budget when the memory doesn't suffice."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from reflectune.core.devices import is_out_of_memory
from reflectune.core.errors import UserError

Tool = TypeVar("Tool")
Result = TypeVar("Result")

LEAST = 256
"""Tokens in one forward pass below which it is the model that doesn't fit, not the work."""


class Halving(Generic[Tool]):
    """Does work with a tool that has a token budget, and halves the budget whenever the memory runs out.

    Args:
        make: Makes the tool for a budget.
        budget: To begin with, in tokens of one forward pass.
        fixed: Whether the user chose it: then running out of memory is an error.
    """

    def __init__(self, make: Callable[[int], Tool], budget: int, *, fixed: bool = False) -> None:
        self._make, self.budget, self._fixed = make, budget, fixed
        self.tool = make(budget)

    def run(self, work: Callable[[Tool], Result]) -> Result:
        """What the work returns, tried again from its beginning with half the budget as often as needed.

        Raises:
            UserError: The memory doesn't suffice for the least budget, or for the one that the user chose.
        """
        while True:
            try:
                return work(self.tool)
            except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                message = str(error).splitlines()[0] if str(error) else "out of memory"
            # Here, and not above, the error and what its traceback held in memory are gone.
            if self._fixed or self.budget // 2 < LEAST:
                advice = "lower `token_budget`" if self._fixed else "set `dtype: bfloat16`"
                raise UserError(
                    f"out of memory with {self.budget:,} tokens in one forward pass: {message}; {advice}, or lower "
                    "`batch_questions` or `documents`"
                )
            self.budget //= 2
            self.tool = self._make(self.budget)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
