"""Benchmarks are scripts: a test imports one as Python does when it is run by its path."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a script of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module
