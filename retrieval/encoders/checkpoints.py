"""Find and load the files and weights of retrieval models: safetensors, or pickles of tensors only.

A model is named by `miniature/NAME` or `pocket/NAME`, a folder, or a hub id, `owner/name` or `owner/name@COMMIT`.
Safetensors are preferred. Older repositories have only `pytorch_model.bin`, a pickle. It is loaded with
`weights_only=True`, which refuses everything but tensors. From the hub it is loaded only at a pinned commit, so that it
can't be replaced later.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError, one_line
from reflectune.core.hashing import file_fingerprint
from reflectune.core.weights import UNLOADABLE, check_finite, check_names
from reflectune.models.names import shipped_folder
from reflectune.models.weights.pretrained import without_load_report

_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
_PICKLES = ("pytorch_model.bin", "pytorch_model-*.bin")
_PICKLED_LAYERS = ("*_Dense/pytorch_model.bin",)
_COMMIT = re.compile(r"[0-9a-f]{40}")
OWN_CODE: Final = {
    "nvidia/MM-Embed": "Alibaba-NLP/gme-Qwen2-VL-2B-Instruct",
    "Alibaba-NLP/gte-base-en-v1.5": "Alibaba-NLP/gte-modernbert-base",
    "Alibaba-NLP/gte-large-en-v1.5": "Alibaba-NLP/gte-modernbert-base",
}
"""Repositories whose model needs their own code, and a model to use instead."""
PICKLED: Final = {
    "openai/clip-vit-large-patch14-336": "ce19dc912ca5cd21c8a653c79e251e808ccabcd1",
    "BAAI/EVA-CLIP-8B": "feabc73833cf6198fa5b76a067651ab363a24d65",
    "facebook/contriever-msmarco": "abe8c1493371369031bcb1e02acb754cf4e162fa",
}
"""Repositories without safetensors that configs name, with the commit to pin."""


@dataclass(frozen=True)
class Checkpoint:
    """Files of one model.

    Attributes:
        name: Name as given by the user.
        folder: Folder of the files.
        revision: Commit on the hub; "" for a folder.
        pickled: True if the weights are in `pytorch_model.bin` or its shards, not in safetensors.
        fingerprint: Hash of the files that determine the model's output.
    """

    name: str
    folder: Path
    revision: str
    pickled: bool
    fingerprint: str


def find_checkpoint(name: str) -> Checkpoint:
    """Find a model's files, or download those of a hub id that aren't cached.

    Args:
        name: `miniature/NAME`, `pocket/NAME`, a folder, or a hub id, `owner/name` or `owner/name@COMMIT`.

    Raises:
        UserError: The model is missing, or has no weights that can be loaded safely.
    """
    if (shipped := shipped_folder(name)) is not None:
        return _checked(name, shipped, "")
    if Path(name).is_dir():
        if not Path(name, "config.json").is_file():
            raise UserError(f"{name} holds no model: config.json is missing")
        return _checked(name, Path(name), "")
    repository, pinned, revision = name.partition("@")
    if (other := OWN_CODE.get(repository)) is not None:
        raise UserError(f"{repository} needs its own code, which is never run; use {other} instead")
    if repository.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"no model at {name}: the folder does not exist")
    if pinned and not _COMMIT.fullmatch(revision):
        raise UserError(
            f"{name}: `{revision}` is not a commit hash of 40 hexadecimal digits; branches and tags can move, so pin a "
            f"commit from https://huggingface.co/{repository}/commits/main"
        )
    folder = _download(name, repository, revision, (*_FILES, *(_PICKLED_LAYERS if pinned else ())))
    commit = folder.name if _COMMIT.fullmatch(folder.name) else revision
    if not _has(folder, ("*.safetensors",)):
        if not pinned:
            raise UserError(_advice(repository, commit))
        folder = _download(name, repository, revision, _PICKLES)
    return _checked(name, folder, commit)


def load_weights(
    checkpoint: Checkpoint, kind: Any, *, dtype: torch.dtype, device: torch.device, unused: str = ""
) -> PreTrainedModel:
    """Load a model for inference. Its repository's code is not run, and no weight may be missing.

    Args:
        checkpoint: The model's files.
        kind: Auto class, e.g. `AutoModel`.
        dtype: Precision of the weights.
        device: Device of the model.
        unused: Prefix of weights that may be missing, since they are not used.

    Raises:
        UserError: The files are damaged or incomplete, or belong to a different model; a weight has a wrong shape or
            is not finite; a module has unknown weights (unknown modules, such as a head, are ignored); or a pickle
            contains anything but tensors.
    """
    try:
        with without_load_report():
            model, report = kind.from_pretrained(
                checkpoint.folder,
                dtype=dtype,
                use_safetensors=not checkpoint.pickled,
                weights_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{checkpoint.name}: the weights in {checkpoint.folder} are a pickle that contains more than tensors "
            f"({one_line(error)}), and was not loaded; use a repository with safetensors"
        ) from error
    except UNLOADABLE as error:
        raise UserError(
            f"the model {checkpoint.name} cannot be loaded from {checkpoint.folder}: {one_line(error)}; check or "
            "replace its files"
        ) from error
    prefix = model.base_model_prefix
    modules = {name for parent in (model, getattr(model, prefix, model)) for name, _ in parent.named_children()}
    fix = f"replace the files in {checkpoint.folder}"
    check_names(
        checkpoint.name,
        report,
        may_lack=(unused,) if unused else (),
        may_have=lambda key: key.removeprefix(f"{prefix}.").partition(".")[0] not in modules,
        fix=fix,
    )
    check_finite(checkpoint.name, model, fix=fix)
    return model.requires_grad_(False).eval().to(device)


def weight_files(checkpoint: Checkpoint) -> list[Path]:
    """Return a checkpoint's weight files, sorted by name."""
    patterns = _PICKLES if checkpoint.pickled else ("*.safetensors",)
    return sorted(path for pattern in patterns for path in checkpoint.folder.glob(pattern))


def load_config(checkpoint: Checkpoint) -> PretrainedConfig:
    """Read a model's configuration.

    Raises:
        UserError: It is damaged, of a type that transformers doesn't know, or needs its repository's code.
    """
    try:
        return AutoConfig.from_pretrained(checkpoint.folder, trust_remote_code=False)
    except UNLOADABLE as error:
        raise UserError(
            f"the config.json of {checkpoint.name} in {checkpoint.folder} cannot be used: {one_line(error)}; models "
            "that need their repository's code are not loaded"
        ) from error


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer, which appends the end token if `tokenizer_config.json` says so.

    Raises:
        UserError: Its files are damaged or missing.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint.folder, trust_remote_code=False)
    except Exception as error:  # tokenizers raises no narrower class for a damaged file
        raise UserError(
            f"the tokenizer of {checkpoint.name} cannot be loaded from {checkpoint.folder}: {one_line(error)}; check "
            "or replace its files"
        ) from error
    path = checkpoint.folder / "tokenizer_config.json"
    declared = read_json(path, "the tokenizer's config") if path.is_file() else {}
    ids = tokenizer("a")["input_ids"]
    if declared.get("add_eos_token") is True and ids[-1] != tokenizer.eos_token_id:
        # transformers 5, unlike 4, ignores the key if there is a tokenizer.json; E5-mistral pools this token
        tokenizer.add_bos_token = declared.get("add_bos_token", ids[0] == tokenizer.bos_token_id)
        tokenizer.add_eos_token = True
    return tokenizer


def _checked(name: str, folder: Path, revision: str) -> Checkpoint:
    """Return the checkpoint of a folder. Raise UserError if it has no weights."""
    pickled = not _has(folder, ("*.safetensors",))
    if pickled and not _has(folder, _PICKLES):
        raise UserError(f"{name} has no weights in safetensors format and no pytorch_model.bin ({folder})")
    patterns = (*_FILES, *(_PICKLES if pickled else ()))
    files = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return Checkpoint(name, folder, revision, pickled, file_fingerprint(*files))


def _has(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def _download(name: str, repository: str, revision: str, patterns: tuple[str, ...]) -> Path:
    """Return the cached folder of a hub repository's files, downloaded if needed."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(patterns)))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise UserError(
            f"the model {name} is not in the local cache and could not be downloaded: {one_line(error)}; "
            "check the name and the network, or give a folder"
        ) from error


def _advice(repository: str, commit: str) -> str:
    commit = PICKLED.get(repository) or commit or "COMMIT"
    return (
        f"{repository} has no weights in safetensors format; to load only the tensors of its pytorch_model.bin, name "
        f"the commit that you trust: `{repository}@{commit}`"
    )
