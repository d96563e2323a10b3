"""What the benchmark of traces generates is what a pipeline would leave."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from reflectune.core.resumable import ALONE
from reflectune.inference.trace import from_row, to_row

ROOT = Path(__file__).parents[2]


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/traces.py`, imported as a script is."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("traces")


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/generated_traces.py`, imported as a script imports it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("generated_traces")


def test_a_generated_row_is_that_of_its_trace(generated: ModuleType) -> None:
    size = generated.Size(questions=3, passages=10, base=100)
    made = generated.trace(generated.question(2), size)
    assert len(made.passages) == 10
    assert len({read.passage.entry_id for read in made.passages}) == 5
    assert from_row(generated.row(made)) == from_row(to_row(made)) == made


def test_traces_are_kept_and_opened(traces: ModuleType, tmp_path: Path) -> None:
    size = traces.Size(questions=traces.OPENED, passages=10, base=100)
    questions = [traces.question(number) for number in range(size.questions)]
    traces.store(tmp_path, "parquet").fill(questions, traces.answer(size), 8, ALONE)
    assert traces.open_some(tmp_path, size)["median"] > 0  # it compares what it opens with what was generated
