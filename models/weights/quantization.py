"""4-bit base models (NF4, arXiv 2305.14314) through bitsandbytes: what QLoRA trains on and was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectune.core.errors import UserError

if TYPE_CHECKING:  # a config asks for `missing_bitsandbytes` before anything slow is imported
    import torch
    from torch import nn
    from transformers import PreTrainedModel

# transformers matches these with a module's full name, or as regular expressions from its start: a plain `vision_tower`
# would match neither `model.vision_tower` nor its submodules, and the tower would be quantized without a warning.
# Embeddings are not linear layers, so they are never quantized.
_SKIPPED_MODULES = (r".*\.(vision_tower|visual|vision_model|multi_modal_projector)", "lm_head")


@dataclass(frozen=True)
class Quantization:
    """4-bit quantization of the language model's linear layers; everything else stays in `dtype`.

    Attributes:
        dtype: `bfloat16` or `float32`: precision of the weights before quantization, and of products.
    """

    dtype: str = "bfloat16"

    @classmethod
    def recorded(cls, info: Mapping[str, Any], where: Path) -> Quantization | None:
        """Return the quantization in an adapter's record, read from the file `where`; None if its base had none.

        Raises:
            UserError: The entry is damaged.
        """
        try:
            return cls(**info["quantization"]) if info.get("quantization") else None
        except TypeError as error:
            raise UserError(f"{where}: `quantization` is damaged; take the file saved with it") from error

    def arguments(self, device: torch.device) -> dict[str, Any]:
        """Return the arguments of `from_pretrained` that quantize while loading."""
        from transformers import BitsAndBytesConfig

        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,  # quantizes the scales too: 0.37 bits less per weight
            bnb_4bit_compute_dtype=self.dtype,
            llm_int8_skip_modules=list(_SKIPPED_MODULES),  # despite its name, also used for 4 bits
        )
        return {"quantization_config": config, "device_map": {"": device}}


def missing_bitsandbytes() -> str:
    """Return the problem of a missing bitsandbytes; "" if it is installed."""
    if find_spec("bitsandbytes") is not None:
        return ""
    return "4-bit weights need bitsandbytes: `pip install 'reflectune[quantization]'`"


def require_bitsandbytes() -> None:
    """Raise a `UserError` where bitsandbytes is not installed."""
    if problem := missing_bitsandbytes():
        raise UserError(problem)


def check_quantized(model: PreTrainedModel) -> PreTrainedModel:
    """Check that exactly the language model's linear layers are quantized, and disable weight repacking.

    On a CPU with AVX512-BF16, the first forward pass in evaluation mode repacks bitsandbytes' (0.50.2) weights. After
    it, earlier layers silently get no gradients, and layers with a bias (Qwen2-VL's q, k and v) fail. Can go once
    `Linear4bit.forward` keeps the gradient of repacked weights.

    Raises:
        UserError: Another part of the model is quantized, or nothing is.
    """
    quantized = quantized_layers(model)
    outside = [name for name in quantized if "language_model" not in name]
    if outside or not quantized:
        problem = f"would quantise {', '.join(outside[:3])}" if outside else "finds no linear layer to quantise"
        raise UserError(
            f"only the language model can be in 4 bits, but transformers {problem} in {type(model).__name__}; train "
            "it with `method: lora`"
        )
    for layer in quantized.values():
        layer.support_avx512bf16_for_cpu = False
    return model


def quantized_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers with 4-bit weights, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "support_avx512bf16_for_cpu")}
