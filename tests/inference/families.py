"""Marks of tests that need the models of one family; with `family` of `conftest.py` the others run with both."""

import pytest

ONE_FAMILY = pytest.mark.parametrize("family", ["llava"], indirect=True)
"""Of tests where the model doesn't matter."""
QWEN = pytest.mark.parametrize("family", ["qwen2_vl"], indirect=True)
"""The same, and another test runs with the other family."""
