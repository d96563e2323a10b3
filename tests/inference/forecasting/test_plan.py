"""The estimate of building and evaluating: arithmetic on what is given, and a rate that is measured."""

import re
import sys
from pathlib import Path

import pytest

from reflectune.inference import estimate
from reflectune.inference.forecasting.config import STAGES, InferenceEstimateConfig
from reflectune.inference.forecasting.plan import model_config, plan_stage, works_of

ARCHITECTURE = str(Path(__file__).parents[3] / "configs/llava15_7b/architecture.json")
GIVEN = InferenceEstimateConfig(architecture=ARCHITECTURE, dtype="bfloat16", tflops=400, bandwidth=3350)


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_takes_time_of_a_machine_that_is_not_here(name: str) -> None:
    stage = plan_stage(name, GIVEN, model_config(GIVEN))

    assert 0.001 < stage.seconds < 10
    assert stage.operations / 400e12 <= stage.seconds


def test_twice_the_passages_cost_no_second_prefix() -> None:
    model = model_config(GIVEN)
    few, many = (
        InferenceEstimateConfig(architecture=ARCHITECTURE, tflops=1, passages=passages) for passages in (50, 100)
    )
    (one,), (two,) = works_of("mr2ag", few, model), works_of("mr2ag", many, model)

    assert (two.prefix, two.patches) == (one.prefix, one.patches) == (636, 576)
    assert two.branches == 2 * one.branches


def test_the_command_measures_and_prints_a_line_a_stage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--model", "miniature/qwen2_vl", "--image_tokens", "16", "--stages", "closed_book", "--questions", "100"]
    monkeypatch.setattr(sys, "argv", ["estimate", *argv])
    estimate.main()
    said = capsys.readouterr().out

    assert re.search(r"^closed_book +101 +6 ", said, re.MULTILINE)
    assert "rate, closed_book: measured on " in said


def test_a_stage_that_is_not_known_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["estimate", "--stages", "guessing"])
    with pytest.raises(SystemExit):
        estimate.main()

    assert "`stages`" in capsys.readouterr().err
