"""Contrastive pre-training of the miniature CLIP: a picture against its caption, as the original was trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import CLIPModel, PreTrainedTokenizerBase


def train_contrastively(
    model: CLIPModel,
    tokenizer: PreTrainedTokenizerBase,
    pixels: Tensor,
    caption: Callable[[int], str],
    *,
    steps: int,
    batch: int,
    learning_rate: float,
    log: Callable[[str], None],
) -> None:
    """Train with CLIP's symmetric cross-entropy over the batch, linear warm-up and linear decay.

    Args:
        model: Trained in place.
        tokenizer: Its tokenizer.
        pixels: The pool's pictures, of shape (pictures, 3, side, side).
        caption: Draws a text for the picture of an index.
        steps: Optimiser steps.
        batch: Pairs a step.
        learning_rate: Its peak.
        log: Called with a line of progress.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.02, fused=True)
    model.train()
    losses: list[float] = []
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = learning_rate * min(1.0, (step + 1) / 50) * max(0.02, 1 - step / steps)
        rows = torch.randint(len(pixels), (batch,))
        texts = _tokenize(tokenizer, [caption(row) for row in rows.tolist()])
        loss = model(pixel_values=pixels[rows].float(), **texts, return_loss=True).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            log(f"clip step {step + 1}/{steps}: loss {sum(losses[-50:]) / len(losses[-50:]):.3f}")
    model.eval()


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> dict[str, Tensor]:
    encoded = tokenizer(list(texts), padding=True, return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}
