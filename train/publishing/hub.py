"""Uploads a finished checkpoint to the Hub. The checkpoint is whole on the disk before, and stays as it is."""

from __future__ import annotations

import re
from pathlib import Path

from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from reflectune.core.errors import UserError
from reflectune.train.saving.checkpoints import RECORD
from reflectune.train.settings.training import TrainingConfig

_OWN = (RECORD, TRAINER_STATE_NAME, "training_args.bin")
"""Files that belong to the run, and not to the model."""


def publish(config: TrainingConfig, args: TrainingArguments) -> None:
    """Upload the finished checkpoint of a run, if its config says where to."""
    if config.push_to_hub and args.should_save:
        print(f"uploaded: {upload(config.output_dir, config.push_to_hub, private=config.hub_private)}", flush=True)


def upload(folder: str | Path, repository: str, *, private: bool) -> str:
    """Upload a checkpoint's own files: not those of earlier steps, nor the run's record.

    Args:
        folder: The checkpoint.
        repository: `owner/name`; it is made if it is not there.
        private: Whether a new one is private.

    Returns:
        The address of what was uploaded.

    Raises:
        UserError: It failed; the message has the command that uploads it by hand.
    """
    from huggingface_hub import HfApi

    files = sorted(path.name for path in Path(folder).iterdir() if path.is_file() and path.name not in _OWN)
    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=[re.sub(r"([\[*?])", r"[\1]", name) for name in files],
            commit_message="Upload a checkpoint of reflectune",
        )
    except Exception as error:  # whatever it is, the user has the checkpoint and wants to know how to go on
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"the checkpoint is finished, in {folder}, but it could not be uploaded to {repository}: {reason}\n"
            f"give the same command again, or upload it by hand:\n  hf upload {repository} {folder} "
            f"{' '.join(f'--exclude {each!r}' for each in ('*/*', *_OWN))}{' --private' if private else ''}"
        ) from error
    return str(done.commit_url)
