import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.models.schemes.calibration import GateScaling

SCALINGS = st.builds(GateScaling, st.floats(0.05, 5), st.floats(0.05, 5), st.floats(-5, 5))


def test_equal_scales_scale_log_odds() -> None:
    assert GateScaling().apply([0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9])
    assert GateScaling(0.5, 0.5).apply([0.9, 0.5, 0.1]) == pytest.approx([0.75, 0.5, 0.25])
    assert GateScaling(1, 1, np.log(3)).apply([0.5, 0.75, 0.25]) == pytest.approx([0.75, 0.9, 0.5])
    assert GateScaling(2, 1).apply([0.5]) == pytest.approx([1 / 3])  # 0.5² / 0.5 against 1


@given(SCALINGS, st.lists(st.floats(0, 1), min_size=1))
def test_a_scaling_keeps_the_order(scaling: GateScaling, probabilities: list[float]) -> None:
    assert (np.diff(scaling.apply(sorted(probabilities))) >= -1e-15).all()


@given(SCALINGS, st.lists(st.floats(0.01, 0.99), min_size=1))
def test_a_scaling_is_undone(scaling: GateScaling, probabilities: list[float]) -> None:
    assert scaling.undo(scaling.apply(probabilities)) == pytest.approx(probabilities, abs=1e-4)


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan")])
def test_a_value_that_is_not_a_probability_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        GateScaling().apply([value])
