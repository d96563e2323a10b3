"""Which metric a data set is scored by: as it says, as its reader says, as the config says, or an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.data_builders.readers.registry import METRIC_OF, QUESTIONS
from reflectune.formats.dataset import Dataset, metric_of
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.sweeps.config import SweepConfig
from reflectune.metrics.config import MetricConfig
from reflectune.metrics.score import ScoreConfig
from reflectune.metrics.scoring.registry import METRICS
from reflectune.train.grpo import GrpoConfig


def write(folder: Path, **manifest: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(json.dumps({"fingerprint": "f", **manifest}))
    return str(folder)


@pytest.mark.parametrize(
    ("manifest", "metric"),
    [
        ({"metric": "vqa"}, "vqa"),
        ({"metric": "vqa", "made_with": {"questions": "evqa"}}, "vqa"),
        ({"made_with": {"questions": "evqa"}}, "evqa"),
        ({"made_with": {"questions": "okvqa"}}, "vqa"),
        ({"made_with": {"questions": "infoseek"}}, "infoseek"),
        ({"looks": {"e1": {}}}, "infoseek"),
    ],
)
def test_the_data_set_says_its_metric_or_its_reader_does(tmp_path: Path, manifest: dict[str, Any], metric: str) -> None:
    folder = write(tmp_path, **manifest)
    assert Dataset(tmp_path).metric == metric
    assert MetricConfig().scored_by(folder) == metric
    assert MetricConfig(metric="cover_match").scored_by(folder) == "cover_match"


@pytest.mark.parametrize("manifest", [{}, {"made_with": {"questions": "m2kr"}}, {"made_with": {"questions": ""}}])
def test_a_data_set_of_which_nothing_is_known_is_not_scored_as_infoseek(manifest: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"d\.json does not say .*add `\"metric\": \"NAME\"`.* or set `metric`"):
        metric_of(manifest, "d.json")


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(UserError, match=r"`metric` is one of infoseek, .*; found `bleu`"):
        metric_of({"metric": "bleu"}, "d.json")


def test_every_reader_of_one_set_has_a_metric() -> None:
    assert set(QUESTIONS) - set(METRIC_OF) == {"ara", "m2kr", "reflectiva"}
    assert set(METRIC_OF) <= set(QUESTIONS)
    assert set(METRIC_OF.values()) <= set(METRICS)


@pytest.mark.parametrize("kind", [ProbeConfig, EvaluateConfig, SweepConfig, GrpoConfig, ScoreConfig])
def test_every_command_that_scores_complains_of_what_the_metric_lacks_before_it_loads(
    kind: Any, tmp_path: Path
) -> None:
    evqa, silent = write(tmp_path / "evqa", metric="evqa"), write(tmp_path / "silent")

    def told(*arguments: str) -> str:
        with pytest.raises(UserError) as caught:
            parse_config(kind, argv=list(arguments))
        return str(caught.value)

    assert "the metric `evqa` needs `bem`" in told("--dataset", evqa)
    assert "does not say what its data set is scored by" in told("--dataset", silent)
    assert "`bem`" not in told("--dataset", evqa, "--metric", "evqa_exact")
    assert "scored by" not in told("--dataset", silent, "--metric", "vqa")
    assert "bleu" in told("--dataset", evqa, "--metric", "bleu")
