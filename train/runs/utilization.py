"""Model FLOPs utilization (MFU): FLOPs that training needs, relative to the rate of the device's matrix products."""

from __future__ import annotations

import time

import torch
from torch import nn

from reflectune.train.weights.parameters import parameter_count

PRODUCT = (8192, 4096, 11_008)
"""Rows, inner size and columns of the product that is timed: a matrix of LLaVA-1.5-7B on a packed row."""


def needed_operations(layers: nn.Module) -> int:
    """Count the operations of a token's forward and backward pass through the decoder layers' matrices.

    Forward 2 per weight, the gradient of activations 2, and 2 for each weight that trains. Attention's scores, the
    vision tower and recomputation are not counted.
    """
    matrices = [it for it in layers.parameters() if len(getattr(it, "ds_shape", it.shape)) >= 2]  # ZeRO-3's are empty
    return sum(parameter_count(matrix) * (6 if matrix.requires_grad else 4) for matrix in matrices)


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the operations per second of a large matrix product: 0.1 s on one H100."""
    rows, inner, columns = PRODUCT
    one, other = (torch.randn(shape, device=device, dtype=dtype) for shape in ((rows, inner), (inner, columns)))
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        one @ other
        torch.accelerator.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2 * rows * inner * columns / best
