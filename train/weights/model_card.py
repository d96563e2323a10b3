"""The card of a checkpoint, README.md, and its upload to the Hub."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError, one_line
from reflectune.models.loading import Loaded
from reflectune.models.records import resolve
from reflectune.models.schemes.base import Scheme
from reflectune.models.weights.pretrained import is_image_only
from reflectune.train.settings.saving import PublishingConfig
from reflectune.train.weights.checkpoints import RECORD

_SHOWN = (
    "train_towers lora_r lora_alpha lora_dropout learning_rate projector_learning_rate lr_scheduler "
    "warmup weight_decay epochs max_steps global_batch dtype seed".split()
)
"""Settings that the card shows, if the run used them; all are in reflectune.json."""
_OWN = (RECORD, TRAINER_STATE_NAME, "training_args.bin")
"""Files of the run that are not part of the model."""


_SAYS = ", and says in tokens whether it needs to look something up and whether a passage is evidence"


def write_card(
    folder: str | Path,
    *,
    publishing: PublishingConfig,
    loaded: Loaded,
    data: str,
    settings: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    step: int,
) -> None:
    """Write README.md into a checkpoint's folder.

    Args:
        publishing: The repository, and the licence.
        loaded: The base model, and the scheme.
        data: Description of the training data.
        settings: Everything that determines the weights.
        history: The trainer's log.
        step: Step of the weights in the folder.
    """
    assert loaded.scheme is not None  # it was loaded with one
    scheme, base, method = loaded.scheme, loaded.name, settings["method"]
    front = yaml.safe_dump(
        front_matter(publishing.licence, base, method=method, scheme=scheme), sort_keys=False, allow_unicode=True
    )
    tokens = {f"`{scheme.tokens[role]}`": words for role, words in scheme.descriptions.items()}
    parts = [
        "---",
        front.rstrip(),
        "---",
        "",
        f"# {publishing.push_to_hub or Path(folder).resolve().name}",
        "",
        f"Answers questions about an image{_SAYS if scheme.tokens else ''}: {scheme.title}, fine-tuned by reflectune.",
        "",
        *_table(("made from", ""), _origin(loaded, data, settings, step, publishing.licence)),
        *_table(("setting", ""), _used(settings)),
        *_table(("reflection token", "its row began as the mean of"), tokens),
        *_metrics(history, step),
        "## How to load it",
        "",
        "```python",
        *_loading(method, is_plain=not is_image_only(loaded.processor)),
        "```",
        "",
        "Tokens and prompts are in `scheme.json`, the settings of its training in `reflectune.json`.",
        *(["Decode with `skip_special_tokens=False`: reflection tokens are special tokens."] if tokens else []),
        "",
    ]
    write_atomically(Path(folder, "README.md"), "\n".join(parts))


def _origin(loaded: Loaded, data: str, settings: Mapping[str, Any], step: int, licence: str) -> dict[str, Any]:
    return {
        "base model": loaded.name if _is_on_hub(loaded.name) else f"{Path(loaded.name).name} (a folder)",
        "base model's fingerprint": settings["model_fingerprint"],
        "method": settings["method"],
        "scheme": settings["scheme"],
        "training data": data,
        "data's fingerprint": settings["data_fingerprint"],
        "steps": f"{step:,}",
        "licence": licence or "not given: those of the base model and the data hold",
    }


def _used(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings to show: without adapters' of a full fine-tuning, and `epochs` if steps are given."""
    unused = {"epochs"} if settings.get("max_steps") else set()
    unused |= {"lora_r", "lora_alpha", "lora_dropout"} if settings["method"] == "full" else set()
    return {name: settings[name] for name in _SHOWN if name not in unused and settings.get(name) not in (None, [])}


def data_in_words(kinds: Sequence[str], branches: int) -> str:
    """Count the questions by kind, and write the number of their branches."""
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(Counter(kinds).items()))
    return f"{len(kinds):,} questions ({counts}), {branches:,} branches"


def front_matter(licence: str, base: str, *, method: str, scheme: Scheme) -> dict[str, Any]:
    """Return the metadata that the Hub reads from a card; a base model that is a folder is left out."""
    return {
        **({"base_model": base} if _is_on_hub(base) else {}),
        **({"license": licence} if licence else {}),
        "library_name": "transformers" if method == "full" else "peft",
        "pipeline_tag": "image-text-to-text",
        "tags": [
            *(["reflection-tokens"] if scheme.tokens else []),
            *("retrieval-augmented-generation", "reflectune", scheme.name),
        ],
    }


def validation_metrics(history: Sequence[Mapping[str, Any]], step: int) -> dict[str, float]:
    """Return the metrics of the last validation up to a step; empty if there was none."""
    metrics: dict[str, float] = {}
    for row in history:
        if row["step"] <= step and any(name.startswith("eval_") for name in row):
            metrics = {name.removeprefix("eval_"): value for name, value in row.items() if name.startswith("eval_")}
    return metrics


def _is_on_hub(base: str) -> bool:
    return isinstance(resolve(base), str)


def _metrics(history: Sequence[Mapping[str, Any]], step: int) -> list[str]:
    metrics = validation_metrics(history, step)
    return _table(("validation", ""), {name: f"{value:.4f}" for name, value in metrics.items()})


def _loading(method: str, is_plain: bool) -> list[str]:
    if method == "full" and is_plain:
        return [
            "from transformers import AutoModelForImageTextToText, AutoProcessor",
            "",
            'model = AutoModelForImageTextToText.from_pretrained("THIS")',
            'processor = AutoProcessor.from_pretrained("THIS")',
        ]
    return [
        "from reflectune.models.loading import load",
        "",
        *([] if method == "full" else ["# adds the tokens' rows to the base model, then merges the adapter"]),
        'loaded = load("THIS")',
        "model, processor = loaded.model, loaded.processor",
    ]


def _table(head: tuple[str, str], rows: Mapping[str, Any]) -> list[str]:
    if not rows:
        return []
    return [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()), ""]


def publish(folder: str | Path, publishing: PublishingConfig, args: TrainingArguments) -> None:
    """Upload the finished checkpoint of a run, if the settings name a repository."""
    if publishing.push_to_hub and args.should_save:
        print(f"uploaded: {upload(folder, publishing.push_to_hub)}", flush=True)


def upload(folder: str | Path, repository: str) -> str:
    """Upload a checkpoint's own files, without those of earlier steps and the run's record.

    Args:
        repository: `owner/name`; created as a private one if it doesn't exist.

    Returns:
        URL of the commit.

    Raises:
        UserError: The upload failed; the message has the command that uploads by hand.
    """
    from huggingface_hub import HfApi

    files = sorted(path.name for path in Path(folder).iterdir() if path.is_file() and path.name not in _OWN)
    api = HfApi()
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=[re.sub(r"([\[*?])", r"[\1]", name) for name in files],
            commit_message="Upload a checkpoint of reflectune",
        )
    except Exception as error:  # whatever it is, the checkpoint is finished, and the upload can be repeated
        reason = one_line(error)
        raise UserError(
            f"the checkpoint is finished, in {folder}, but it could not be uploaded to {repository}: {reason}\n"
            f"give the same command again, or upload it by hand:\n  hf upload {repository} {folder} "
            f"{' '.join(f'--exclude {pattern!r}' for pattern in ('*/*', *_OWN))} --private"
        ) from error
    return str(done.commit_url)
