import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_two_curves_are_compared_step_by_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    compare = importlib.import_module("loss_compare")
    (tmp_path / "log.jsonl").write_text(
        '{"step": 1, "loss": 2.5}\n{"step": 1, "eval_loss": 3}\n{"step": 2, "loss": 2}\n'
    )
    first = compare.losses(tmp_path / "log.jsonl")
    assert first == {1: 2.5, 2: 2}

    lines, largest = compare.comparison(["a", "b"], [first, {1: 2.5, 2: 2.25}])
    assert largest == 0.25
    assert lines[-1] == "largest difference: 2.50e-01, at step 2 of 2"
    assert compare.comparison(["a", "b"], [first, first])[1] == 0
    assert compare.comparison(["a", "b"], [first, {1: 2.5}])[1] == float("inf")

    diverged = {1: 2.5, 2: float("nan")}
    assert compare.comparison(["a", "b"], [first, diverged])[1] == float("inf")
    assert compare.comparison(["a", "b"], [diverged, dict(diverged)])[1] == 0
