"""What a further stage of training starts from: a checkpoint of an earlier one, full or an adapter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from peft import PeftModel
from transformers import TrainingArguments

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.models.loading import ADAPTER_FILE, Loaded, read_info
from reflectune.models.processing.reading import check_reading
from reflectune.models.schemes.registry import load_scheme
from reflectune.models.weights.adapters import load_adapter
from reflectune.train.runs.fine_tune import load_base
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.runs.parameters import keep_trained_weights_in_fp32


def load_start(config: TrainingConfig, args: TrainingArguments) -> tuple[Loaded, PeftModel | None]:
    """The checkpoint to start from, and its adapter if training continues one.

    `method: full` trains all weights, an adapter's merged into them. `lora` and `qlora` go on with the adapter that the
    checkpoint is, so that the result is an adapter of the same base; on a full checkpoint they begin a new one.

    Raises:
        UserError: The model was never fine-tuned, was with another scheme, or is an adapter of the other method.
    """
    folder = Path(config.model)
    if config.method == "full" or not (folder / ADAPTER_FILE).is_file():
        loaded = load_base(config, args)
        if not loaded.is_tuned:
            raise UserError(f"`model`: {config.model} is not fine-tuned; give a checkpoint that train/sft.py wrote")
        return loaded, None
    info = read_info(folder)
    own_method = "qlora" if info.get("quantization") else "lora"
    if own_method != config.method:
        raise UserError(f"{folder} was trained with `method: {own_method}`; go on with it, or with `method: full`")
    if (scheme := load_scheme(folder).name) != config.scheme:
        raise UserError(f"{folder} was trained with scheme {scheme}, and `scheme` is {config.scheme}")
    loaded = load_base(config.model_copy(update={"model": str(info["base_model"]), "seed": int(info["seed"])}), args)
    check_reading(folder, loaded.processor, load_scheme(folder))
    adapted = load_adapter(loaded.model, folder, is_trainable=True)
    keep_trained_weights_in_fp32(adapted)
    files = [folder / ADAPTER_FILE, *sorted(folder.glob("*.safetensors"))]
    return replace(loaded, fingerprint=fingerprint([loaded.fingerprint, file_fingerprint(*files)])), adapted.eval()
