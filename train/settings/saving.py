"""Settings of a run's output: checkpoints, a log, and an upload of the finished checkpoint."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Annotated

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import output_of

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class SavingConfig(Settings):
    """Settings of checkpoints and logs. None of them determines the weights."""

    output_dir: Annotated[str, output_of("scheme.json", "config.json", "adapter_config.json", "log.jsonl")] = setting(
        "", "folder for the checkpoint", needed="a folder for the checkpoint", hashed=False
    )
    resume: bool = setting(True, "resume from the last checkpoint in output_dir", hashed=False)
    save_steps: int = setting(500, "steps between checkpoints", ge=1, hashed=False)
    save_total_limit: int = setting(1, "checkpoints to keep", ge=1, hashed=False)
    logging_steps: int = setting(10, "steps between log lines", ge=1, hashed=False)
    report_to: list[str] = setting(
        [], "trackers, e.g. tensorboard, wandb, trackio; none by default. log.jsonl is always written", hashed=False
    )

    @cross_check
    def tracker_problems(self) -> list[str]:
        """Return the trackers that are unknown or not installed, one sentence each."""
        return [problem for name in self.report_to if (problem := _tracker_problem(name))]


class PublishingConfig(Settings):
    """Settings of the finished checkpoint's card and upload. None of them determines the weights."""

    push_to_hub: str = setting(
        "", "upload the finished checkpoint to this repository, owner/name; a new one is private", hashed=False
    )
    licence: str = setting("", "licence of the checkpoint, for its card, e.g. apache-2.0", hashed=False)

    @cross_check
    def hub_problems(self) -> list[str]:
        """Return the problems of the upload that is asked for. The Hub itself isn't asked."""
        return _repository_problems(self.push_to_hub) if self.push_to_hub else []


def _tracker_problem(name: str) -> str:
    if name not in _TRACKERS:
        return f"`report_to`: {name} is not a tracker; choose of {', '.join(_TRACKERS)}"
    return "" if find_spec(name) else f"`report_to`: {name} is not installed: `pip install {name}`"


_TRACKERS = ("clearml", "comet_ml", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
"""Trackers that transformers supports, by the names of their packages."""


def _repository_problems(repository: str) -> list[str]:
    from huggingface_hub import constants, get_token  # slow to import: only if something is to be uploaded

    issues = []
    if not _REPOSITORY.fullmatch(repository):
        issues.append(f"`push_to_hub` must be owner/name, found {repository}")
    if constants.HF_HUB_OFFLINE:
        issues.append("`push_to_hub` needs the Hub, and $HF_HUB_OFFLINE is set; unset it")
    elif get_token() is None:
        issues.append("`push_to_hub` needs a token: `hf auth login`, or set $HF_TOKEN")
    return issues
