"""Settings of validation while training."""

from __future__ import annotations

from typing import Final

from reflectune.core.config import Settings, setting
from reflectune.models.schemes.registry import all_schemes
from reflectune.train.data.mixture import DataSource

ANSWERS: Final = "answer_exact_match"
"""The metric of answers: the share of right ones."""

_METRICS: Final = ("accuracy", "auroc", "calibration_error")


class ValidationConfig(Settings):
    """Settings of the validation data, and of the metric that chooses the weights."""

    eval_data: str = setting(
        "",
        "validation data, a folder whose split val is read, or one Parquet file: its gates are read every eval_steps",
        hashed=False,  # its content is
    )
    eval_answers: int = setting(
        0, "also decode greedy answers to this many questions of eval_data, drawn by seed; 0 for none", ge=0
    )
    eval_steps: int = setting(500, "steps between validations", ge=1)
    best_metric: str = setting("", "metric that selects the final weights, e.g. relevance_auroc; the last if unset")
    early_stopping_patience: int | None = setting(
        None, "stop after this many validations without a better best_metric", ge=1
    )

    def validation_problems(self, scheme: str, source: DataSource) -> list[str]:
        """Return the problems of validation, one sentence each.

        Args:
            scheme: The scheme, whose gates are measured.
            source: The validation data; ignored unless `eval_data` is set.
        """
        issues: list[str] = []
        known = metric_names(scheme)
        if self.eval_data and not source.file.is_file():
            issues.append(f"`eval_data`: {source.file} does not exist; build it, or give the file of another split")
        if self.best_metric and self.best_metric not in known:
            issues.append(f"`best_metric` must be one of {', '.join(known)} for {scheme}, found {self.best_metric}")
        if self.eval_answers and not self.eval_data:
            issues.append("`eval_answers` needs `eval_data` to take questions from")
        if self.best_metric == ANSWERS and not self.eval_answers:
            issues.append(f"`best_metric: {ANSWERS}` needs `eval_answers`: how many to read")
        if self.best_metric and not self.eval_data:
            issues.append("`best_metric` needs `eval_data` to be measured on")
        if self.early_stopping_patience is not None and not self.best_metric:
            issues.append("`early_stopping_patience` needs a `best_metric` to be patient about")
        return issues


def metric_names(scheme: str) -> list[str]:
    """Return the metrics of validation, which `best_metric` may be; no gate's for an unknown scheme."""
    gates = all_schemes()[scheme].gates if scheme in all_schemes() else ()
    return ["loss", *(f"{gate.name}_{metric}" for gate in gates for metric in _METRICS), ANSWERS]


def greater_is_better(metric: str) -> bool:
    """Return True if a greater value of a metric is better."""
    return not metric.endswith(("loss", "calibration_error"))
