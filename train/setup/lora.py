"""LoRA on the language model, with the reflection tokens' rows of both matrices trained in full."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from reflectune.core.errors import UserError
from reflectune.train.setup.parameters import tower_of


def add_adapters(
    model: PreTrainedModel,
    token_ids: Iterable[int],
    *,
    rank: int,
    alpha: int,
    dropout: float,
    targets: str,
) -> PeftModel:
    """Wrap a model so that only LoRA adapters and the new tokens' rows train, both in fp32.

    Reflection tokens are read *and* written, so the rows of the input embedding and of the output head train. A tied
    model has one matrix; its rows stay tied. Peft takes that from the names: the list form of
    `trainable_token_indices` would leave the head of an untied model frozen without a word.

    Args:
        model: The base model, with the tokens added.
        token_ids: The new tokens' rows; none where a scheme has no tokens.
        rank: r of the adapters.
        alpha: The adapters are scaled by alpha / r.
        dropout: Before the adapters.
        targets: Regular expression over whole module names.

    Raises:
        UserError: `targets` matches no linear module, or one outside of the language model.
    """
    _check_targets(model, targets)
    rows = sorted(token_ids)
    names = [_name_of(model, model.get_input_embeddings()), _name_of(model, model.get_output_embeddings())]
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets,
        trainable_token_indices=dict.fromkeys(names, rows) if rows else None,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def _check_targets(model: nn.Module, targets: str) -> None:
    matched = [name for name, module in model.named_modules() if re.fullmatch(targets, name)]
    linear = [name for name in matched if isinstance(model.get_submodule(name), nn.Linear)]
    if not linear:
        candidates = _examples(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
        raise UserError(f"`lora_targets` {targets!r} matches no linear module; there are e.g. {candidates}")
    outside = [name for name in matched if tower_of(name) != "language model"]
    if outside:
        raise UserError(
            f"`lora_targets` {targets!r} also matches modules outside of the language model, e.g. "
            f"{_examples(outside)}; narrow it, e.g. by `.*language_model.*`"
        )


def _examples(names: Iterable[str], count: int = 3) -> str:
    found: Sequence[str] = list(names)
    return ", ".join(found[:count]) or "none"


def _name_of(model: nn.Module, wanted: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)
