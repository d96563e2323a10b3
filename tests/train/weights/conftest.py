from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectune.models.loading import Loaded, load, save_checkpoint
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.parameters import add_adapters, projector_modules


@pytest.fixture
def moved_adapter() -> Callable[..., tuple[Loaded, Any]]:
    """Write an adapter whose every weight has moved: LoRA, the new tokens' rows, and, if asked, the whole projector."""

    def write(base: Path, folder: Path, *, projector: bool = False) -> tuple[Loaded, Any]:
        loaded = load(str(base), scheme="mr2ag", seed=5)
        ids, targets = loaded.renderer.token_ids.values(), SftConfig().lora_targets
        whole: dict[str, Any] = {"whole": projector_modules(loaded.model)} if projector else {}
        model = add_adapters(loaded.model, ids, rank=4, alpha=8, dropout=0.0, targets=targets, **whole).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        save_checkpoint(folder, model, loaded.processor, MR2AG, {"base_model": str(base), "seed": 5})
        return loaded, model

    return write
