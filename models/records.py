"""Find a model's files by its name, and keep the record of a checkpoint, `reflectune.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from reflectune.core.durable import read_record, write_json
from reflectune.core.errors import UserError, one_line
from reflectune.core.hashing import file_fingerprint
from reflectune.core.weights import UNLOADABLE
from reflectune.models.names import shipped_folder
from reflectune.models.weights.pretrained import as_dtype, dtype_of

INFO_FILE = "reflectune.json"
ADAPTER_FILE = "adapter_config.json"
ADAPTER_KEYS = ("base_model", "seed")
"""Required keys of an adapter's `reflectune.json`."""
SAVED, SAVED_PROCESSOR = "saved_files", "saved_processor"
"""Keys of `reflectune.json`: hashes of weights and model config, and of the tokenizer's and processor's files.

`load` compares them with the files.
"""


def resolve(model: str) -> Path | str:
    """Return a model's folder, or the name itself if it must be a hub id.

    Raises:
        UserError: The shipped model or the folder is missing, or holds no model.
    """
    if (shipped := shipped_folder(model)) is not None:
        return shipped
    if Path(model).is_dir():
        if not any((Path(model) / name).is_file() for name in ("config.json", ADAPTER_FILE)):
            raise UserError(f"{model} holds no model: it has neither config.json nor {ADAPTER_FILE}")
        return Path(model)
    if model.count("/") > 1 or model.startswith((".", "/", "~")):
        raise UserError(f"no model at {model}: the folder does not exist")
    return model


def is_stored_in(model: str, dtype: str) -> bool:
    """Return True if a model's config gives this dtype for its weights."""
    return stored_dtype(model) == as_dtype(dtype)


def stored_dtype(model: str) -> Any:
    """Return the dtype of a model's weights by its config; None if the config has none.

    Raises:
        UserError: The model is missing, or its config is damaged.
    """
    try:
        return dtype_of(AutoConfig.from_pretrained(shapes_file(model).parent, trust_remote_code=False))
    except UNLOADABLE as error:
        raise UserError(f"cannot load the model {model}: {' '.join(str(error).split())[:400]}") from error


def adapter_folder(model: str) -> Path | None:
    """Return the folder of an adapter, None for another model. A missing model is a `UserError`."""
    source = resolve(model)
    return source if isinstance(source, Path) and (source / ADAPTER_FILE).is_file() else None


def shapes_file(model: str) -> Path:
    """Return the path of a model's `config.json`, without loading weights; for an adapter its base model's.

    Raises:
        UserError: The model is missing.
    """
    from transformers.utils.hub import cached_file

    source = resolve(model)
    if isinstance(source, Path):
        if not (source / "config.json").is_file():  # an adapter
            return shapes_file(str(read_info(source)["base_model"]))
        return source / "config.json"
    try:
        return Path(str(cached_file(source, "config.json")))
    except (OSError, ValueError) as error:
        reason = one_line(error, 400)
        raise UserError(f"{model} is neither a folder nor a model on the Hub: {reason}") from error


def write_info(folder: Path, info: Mapping[str, Any]) -> None:
    """Write `reflectune.json` next to a checkpoint's finished files, with their hashes."""
    saved = {SAVED: file_fingerprint(*saved_files(folder))}
    if files := _processor_files(folder):
        saved[SAVED_PROCESSOR] = file_fingerprint(*files)
    write_json(folder / INFO_FILE, {key: value for key, value in info.items() if key != SAVED_PROCESSOR} | saved)


def read_info(folder: str | Path) -> dict[str, Any]:
    """Return the `info` that `save_checkpoint` wrote.

    Raises:
        UserError: The record is missing, is not a JSON object, or lacks a key that an adapter needs.
    """
    record = read_record(Path(folder) / INFO_FILE, "the checkpoint's record", base_model=str, seed=int)
    missing = [name for name in ADAPTER_KEYS if name not in record]
    if missing and Path(folder, ADAPTER_FILE).is_file():
        raise UserError(f"{Path(folder, INFO_FILE)} lacks {', '.join(missing)}; take the file saved with the adapter")
    return record


def check_saved(folder: Path, weights: str) -> None:
    """Refuse a checkpoint whose files don't match the hashes in its record, if it has one."""
    if not (folder / INFO_FILE).is_file():
        return
    record = read_info(folder)
    now = {SAVED: weights, SAVED_PROCESSOR: file_fingerprint(*_processor_files(folder))}
    for key, what in ((SAVED, "weights or the config"), (SAVED_PROCESSOR, "tokenizer or the image processor")):
        if record.get(key, now[key]) != now[key]:
            raise UserError(
                f"the {what} in {folder} changed after it was saved: copy the folder again; if you changed them on "
                f"purpose, remove `{key}` from its {INFO_FILE}"
            )


def saved_files(folder: Path) -> list[Path]:
    """Return the paths of a checkpoint's weights and configs."""
    configs = (folder / name for name in ("config.json", ADAPTER_FILE))
    return [*sorted(folder.glob("*.safetensors")), *filter(Path.is_file, configs)]


def _processor_files(folder: Path) -> list[Path]:
    names = ("processor_config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
    return [path for name in names if (path := folder / name).is_file()]
