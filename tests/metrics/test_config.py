"""The metric of a data set: its own, its reader's, the config's, or an error."""

import json
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.config import find_problems, parse_config
from reflectune.core.errors import UserError
from reflectune.core.types import METRICS
from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.data_builders.readers.registry import METRIC_OF, QUESTIONS
from reflectune.formats.dataset import Dataset
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.sweeps.config import SweepConfig
from reflectune.metrics.config import MetricConfig, ScoreConfig
from reflectune.train.grpo import GrpoConfig


def write(folder: Path, **manifest: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(json.dumps({"fingerprint": "f", **manifest}))
    return str(folder)


@pytest.mark.parametrize(
    ("manifest", "found"),
    [
        ({}, "has no `metric`"),
        ({"metric": "bleu"}, "has the unknown `metric` bleu"),
    ],
)
def test_a_data_set_without_a_known_metric_is_not_scored_as_infoseek(
    manifest: dict[str, Any], found: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, **manifest)
    for scored_by in (lambda: Dataset(tmp_path).metric, lambda: MetricConfig().scored_by(folder)):
        with pytest.raises(
            UserError, match=rf"dataset\.json {found}; set it to one of inf.*, or convert the data set again"
        ):
            scored_by()


def test_every_reader_of_one_set_has_a_metric() -> None:
    assert set(QUESTIONS) - set(METRIC_OF) == {"ara", "m2kr", "reflectiva"}
    assert set(METRIC_OF) <= set(QUESTIONS)
    assert set(METRIC_OF.values()) <= set(METRICS)


def test_keys_without_effect_on_a_score_or_a_submission_are_refused() -> None:
    def told(**keys: Any) -> list[str]:
        return [problem for problem in find_problems(ScoreConfig, keys) if "has no effect" in problem]

    assert told(fill_missing=True) == ["`fill_missing` has no effect: it is for a `submission`; leave it out"]
    assert told(submission="s.jsonl", fill_missing=True) == []
    scored = told(submission="s.jsonl", against="q.jsonl", output="o.json")
    assert scored == [
        f"`{key}` has no effect: `submission` scores nothing; leave it out" for key in ("against", "output")
    ]


@pytest.mark.parametrize("kind", [ProbeConfig, EvaluateConfig, SweepConfig, GrpoConfig, ScoreConfig])
def test_every_command_that_scores_complains_of_what_the_metric_lacks_before_it_loads(kind: Any, tmp_path) -> None:
    evqa, silent = write(tmp_path / "evqa", metric="evqa"), write(tmp_path / "silent")

    def told(*arguments: str) -> str:
        with pytest.raises(UserError) as caught:
            parse_config(kind, argv=list(arguments))
        return str(caught.value)

    assert "the metric `evqa` needs `bem`" in told("--dataset", evqa)
    assert "has no `metric`" in told("--dataset", silent)
    assert "`bem`" not in told("--dataset", evqa, "--metric", "evqa_exact")
    assert "scored by" not in told("--dataset", silent, "--metric", "vqa")
    assert "bleu" in told("--dataset", evqa, "--metric", "bleu")
