"""Loads a model by name, with its processor, tokens and scheme; saves a checkpoint that can be loaded again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, PreTrainedModel, ProcessorMixin

from reflectune.core.devices import find_device
from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.models.processors import ImageOnlyQwen2VLProcessor
from reflectune.models.rendering import Renderer
from reflectune.models.scheme import SCHEME_FILE, Scheme, find_scheme, load_scheme
from reflectune.models.tokens import add_reflection_tokens, has_tokens

INFO_FILE = "reflectune.json"
ADAPTER_FILE = "adapter_config.json"
MINIATURES = Path(__file__).parent / "miniature"
_MINIATURE = "miniature/"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_QWEN_2 = ("qwen2_vl", "qwen2_5_vl")


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to train or to answer.

    Attributes:
        model: In evaluation mode, with sdpa attention; an adapter is merged into it.
        processor: Its processor; the tokenizer has the scheme's tokens.
        scheme: Its scheme, or None for a plain model.
        renderer: Renders conversations for it.
        name: As it was asked for.
        fingerprint: A hash of its weights, tokens, template and scheme.
        is_tuned: Whether it is a checkpoint that was fine-tuned with its scheme.
    """

    model: PreTrainedModel
    processor: ProcessorMixin
    scheme: Scheme | None
    renderer: Renderer
    name: str
    fingerprint: str
    is_tuned: bool


def load(
    model: str,
    *,
    scheme: str | None = None,
    dtype: str | torch.dtype = "float32",
    device: str = "cpu",
    seed: int = 0,
) -> Loaded:
    """Load a base model or a checkpoint.

    Args:
        model: `miniature/llava`, `miniature/qwen2_vl`, a hub id, or a folder (a full checkpoint or an adapter).
        scheme: A base model gets this scheme's tokens, untrained; a checkpoint must have been trained with it. None
            takes a base model plainly, and a checkpoint with the scheme it has.
        dtype: `float32`, `bfloat16`, `float16`, or a torch dtype.
        device: `cpu`, `cuda`, …; `auto` takes an accelerator if there is one.
        seed: Of new tokens' rows.

    Raises:
        UserError: There is no such model; it is a checkpoint without its scheme, or of another scheme; or a setting is
            not known.
    """
    wanted = find_scheme(scheme) if scheme else None
    source = _resolve(model)
    own = _own_scheme(source, wanted) if isinstance(source, Path) else None
    if isinstance(source, Path) and (source / ADAPTER_FILE).is_file():
        network, processor, base = _load_adapter(source, own, _dtype(dtype))
    else:
        network, processor = _load_full(str(source), _dtype(dtype))
        base = ""
        if own is None and wanted is not None:
            _refuse_orphan(network, processor, wanted, source)
            add_reflection_tokens(network, processor, wanted, seed=seed)
    used = own or wanted
    renderer = Renderer(used, processor)
    parts = [base, _weights_fingerprint(source, network), renderer.fingerprint, str(_dtype(dtype))]
    if used is not None and own is None:
        parts.append(str(seed))
    network.requires_grad_(True).eval().to(find_device(device))
    return Loaded(network, processor, used, renderer, model, fingerprint(parts), own is not None)


def save_checkpoint(
    folder: str | Path, model: Any, processor: ProcessorMixin, scheme: Scheme, info: Mapping[str, Any]
) -> None:
    """Write a checkpoint: weights or adapter, processor and tokenizer, `scheme.json`, and last `reflectune.json`.

    Args:
        folder: Where to.
        model: A transformers model, or a PEFT model: then only the adapter is written.
        processor: With the scheme's tokens.
        scheme: The scheme that it was trained with.
        info: What else to remember, e.g. the data's fingerprint. An adapter needs `base_model` and `seed`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    is_adapter = hasattr(model, "get_base_model")
    missing = [name for name in ("base_model", "seed") if name not in info]
    if is_adapter and missing:
        raise UserError(f"an adapter's checkpoint needs {', '.join(missing)} in its info, to be loaded again")
    if is_adapter:
        # The new rows are in the adapter; saving the whole matrices as well would be what `auto` guesses.
        model.save_pretrained(folder, save_embedding_layers=False)
    else:
        model.save_pretrained(folder)
    processor.save_pretrained(folder)
    scheme.save(folder)
    write_json(folder / INFO_FILE, {"kind": "adapter" if is_adapter else "full", "scheme": scheme.name, **info})


def read_info(folder: str | Path) -> dict[str, Any]:
    """What `save_checkpoint` was told about a checkpoint."""
    return read_json(Path(folder) / INFO_FILE, "the checkpoint's record")


def _resolve(model: str) -> Path | str:
    """The folder that a name stands for, or the name itself if it can only be a hub id."""
    if model.startswith(_MINIATURE):
        shipped = sorted(path.parent.name for path in MINIATURES.glob("*/config.json"))
        folder = MINIATURES / model.removeprefix(_MINIATURE)
        if not (folder / "config.json").is_file():
            known = ", ".join(_MINIATURE + name for name in shipped) or "none"
            raise UserError(f"no model {model}; this installation has {known}")
        return folder
    if Path(model).is_dir():
        if not any((Path(model) / name).is_file() for name in ("config.json", ADAPTER_FILE)):
            raise UserError(f"{model} holds no model: neither config.json nor {ADAPTER_FILE} is there")
        return Path(model)
    if model.count("/") > 1 or model.startswith((".", "/", "~")):
        raise UserError(f"no model at {model}: there is no such folder")
    return model


def _own_scheme(folder: Path, wanted: Scheme | None) -> Scheme | None:
    """A checkpoint's scheme, which must be the wanted one; None for a base model."""
    if not (folder / SCHEME_FILE).is_file():
        if (folder / INFO_FILE).is_file() or (folder / ADAPTER_FILE).is_file():
            raise UserError(f"{folder} is a fine-tuned checkpoint without its {SCHEME_FILE}; copy that file beside it")
        return None
    found = load_scheme(folder)
    if wanted is not None and found.name != wanted.name:
        raise UserError(
            f"{folder} was trained with scheme {found.name}, but {wanted.name} is asked for; choose another "
            f"checkpoint, or scheme={found.name}"
        )
    return found


def _refuse_orphan(network: PreTrainedModel, processor: ProcessorMixin, wanted: Scheme, source: Path | str) -> None:
    """Refuse a checkpoint that has lost its scheme and its record, but still has reflection tokens."""
    if getattr(network.config, "reflection_scheme", None) is not None or has_tokens(processor.tokenizer, wanted):
        raise UserError(
            f"{source} has reflection tokens already but no {SCHEME_FILE} that says how they were trained; restore "
            "that file, or start from the base model"
        )


def _load_full(source: str, dtype: torch.dtype) -> tuple[PreTrainedModel, ProcessorMixin]:
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        network = AutoModelForImageTextToText.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
        )
        processor = load_processor(source, config.model_type)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the model {source}: {' '.join(str(error).split())[:400]}") from error
    _agree_on_image_tokens(network, processor)
    return network, processor


def load_processor(source: str | Path, model_type: str) -> ProcessorMixin:
    """The processor of a model; Qwen2-VL's without its video half where torchvision is absent."""
    if model_type in _QWEN_2 and find_spec("torchvision") is None:
        return ImageOnlyQwen2VLProcessor.from_pretrained(source)
    return AutoProcessor.from_pretrained(source, trust_remote_code=False)


def _load_adapter(
    folder: Path, scheme: Scheme | None, dtype: torch.dtype
) -> tuple[PreTrainedModel, ProcessorMixin, str]:
    """The base model with the scheme's tokens and the adapter merged into it, and the base weights' fingerprint."""
    from peft import PeftModel  # slow to import

    assert scheme is not None  # an adapter without a scheme is refused before
    info = read_info(folder)
    base = _resolve(str(info["base_model"]))
    network, _ = _load_full(str(base), dtype)
    processor = load_processor(folder, network.config.model_type)
    add_reflection_tokens(network, processor, scheme, seed=int(info["seed"]))
    merged = PeftModel.from_pretrained(network, folder).merge_and_unload()
    return merged, processor, _weights_fingerprint(base, network)


def _agree_on_image_tokens(network: PreTrainedModel, processor: Any) -> None:
    """Give LLaVA's processor what an old processor config lacks: how many tokens an image becomes."""
    if network.config.model_type != "llava" or processor.patch_size is not None:
        return
    processor.patch_size = network.config.vision_config.patch_size
    processor.vision_feature_select_strategy = network.config.vision_feature_select_strategy
    processor.num_additional_image_tokens = 1  # CLIP's class token


def _weights_fingerprint(source: Path | str, network: PreTrainedModel) -> str:
    """A hash of a folder's weights and configs, or the hub's commit and the name."""
    if isinstance(source, str):
        return fingerprint([source, getattr(network.config, "_commit_hash", None)])
    names = ("config.json", ADAPTER_FILE)
    files = [*sorted(source.glob("*.safetensors")), *(source / name for name in names if (source / name).is_file())]
    return file_fingerprint(*files)


def _dtype(name: str | torch.dtype) -> torch.dtype:
    if isinstance(name, torch.dtype):
        return name
    if name not in _DTYPES:
        raise UserError(f"unknown dtype `{name}`; choose one of {', '.join(_DTYPES)}")
    return _DTYPES[name]
