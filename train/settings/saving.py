"""What a run writes: checkpoints, a log, and an upload of the finished checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec

from reflectune.core import checks
from reflectune.core.config import bound_problems, setting

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass
class SavingConfig:
    """Where checkpoints go, how often they are written, and what is told on the way."""

    output_dir: str = setting(
        "",
        "folder for the checkpoint",
        check=checks.output_of("scheme.json", "config.json", "adapter_config.json", "log.jsonl"),
    )
    resume: bool = setting(True, "go on from the last checkpoint in output_dir")
    save_steps: int = setting(500, "steps between checkpoints", low=1)
    save_total_limit: int = setting(1, "checkpoints to keep", low=1)
    logging_steps: int = setting(10, "steps between log lines", low=1)
    report_to: list[str] = setting(
        [], "trackers, e.g. tensorboard, wandb, trackio; none by default. log.jsonl is always written"
    )

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        return bound_problems(self, SavingConfig)

    def tracker_problems(self) -> list[str]:
        """Which trackers are unknown or not installed, one sentence each."""
        return [problem for name in self.report_to if (problem := _tracker_problem(name))]


@dataclass
class PublishingConfig:
    """Whether the finished checkpoint is uploaded, and where to."""

    push_to_hub: str = setting("", "upload the finished checkpoint to this repository, owner/name")
    hub_private: bool = setting(True, "make that repository private, if it is new")
    licence: str = setting("", "of the checkpoint, for its card, e.g. apache-2.0")

    def hub_problems(self) -> list[str]:
        """What is wrong with the upload that is asked for, one sentence each; the Hub itself isn't asked."""
        return _repository_problems(self.push_to_hub) if self.push_to_hub else []


def _tracker_problem(name: str) -> str:
    if name not in _TRACKERS:
        return f"`report_to`: {name} is not a tracker; choose of {', '.join(_TRACKERS)}"
    return "" if find_spec(name) else f"`report_to`: {name} is not installed: `pip install {name}`"


_TRACKERS = ("clearml", "comet_ml", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
"""What transformers reports to, each by the name of its package."""


def _repository_problems(repository: str) -> list[str]:
    """What is wrong with uploading to a repository, one sentence each; the Hub itself isn't asked."""
    from huggingface_hub import constants, get_token  # slow to import: only if something is to be uploaded

    issues = []
    if not _REPOSITORY.fullmatch(repository):
        issues.append(f"`push_to_hub` must be owner/name, found {repository}")
    if constants.HF_HUB_OFFLINE:
        issues.append("`push_to_hub` needs the Hub, and $HF_HUB_OFFLINE is set; unset it")
    elif get_token() is None:
        issues.append("`push_to_hub` needs a token: `hf auth login`, or set $HF_TOKEN")
    return issues
