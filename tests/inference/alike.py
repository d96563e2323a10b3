"""Comparison of nested results."""

import math
from typing import Any


def assert_alike(actual: Any, expected: Any, where: str = "") -> None:
    """Equal but for the last digits of floats, which differ with the rows of a batch and with the device."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            assert_alike(actual[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_alike(one, other, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert math.isclose(actual, expected, abs_tol=2e-5), where
    else:
        assert actual == expected, where
