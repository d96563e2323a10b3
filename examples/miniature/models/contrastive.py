"""Contrastive pre-training of the retrievers: an image against its caption, a question against its passage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertModel, CLIPModel, PreTrainedTokenizerBase

_SCALE = 20.0
"""Factor of the cosines before the softmax over passages: a temperature of 0.05."""


@dataclass(frozen=True)
class PassageLesson:
    """Questions, and the passages that contain the right one of each.

    Attributes:
        questions: Texts.
        passages: Texts, of several articles.
        gold: Index of each question's passage.
        neutral: For each question, indices of passages that are neither right nor wrong: the same kind of fact of an
            entity of the same category, which no text can tell from the depicted one.
    """

    questions: Sequence[str]
    passages: Sequence[str]
    gold: Sequence[int]
    neutral: Sequence[Sequence[int]]


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
        pixels: The pool's images, of shape (images, 3, side, side).
        caption: Function that draws a text for the image of an index.
        steps: Optimiser steps.
        batch: Pairs a step.
        learning_rate: Peak of the learning rate.
        log: Function that is called with a line of progress.
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


def train_text_retriever(
    model: BertModel,
    tokenizer: PreTrainedTokenizerBase,
    draw: Callable[[], PassageLesson],
    *,
    steps: int,
    learning_rate: float,
    log: Callable[[str], None],
) -> None:
    """Train a bi-encoder: each question's passage against all others of the lesson that are not neutral to it.

    Args:
        model: Trained in place, with mean pooling.
        tokenizer: Its tokenizer.
        draw: Function that draws the next lesson.
        steps: Optimiser steps, of one lesson each.
        learning_rate: Peak of the learning rate.
        log: Function that is called with a line of progress.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.02, fused=True)
    model.train()
    losses: list[float] = []
    hits: list[float] = []
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = learning_rate * min(1.0, (step + 1) / 50) * max(0.02, 1 - step / steps)
        lesson = draw()
        logits, gold = passage_logits(model, tokenizer, lesson), torch.tensor(lesson.gold)
        loss = F.cross_entropy(logits, gold)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        hits.append((logits.argmax(1) == gold).float().mean().item())
        if (step + 1) % 100 == 0:
            right = sum(hits[-50:]) / len(hits[-50:])
            log(f"text step {step + 1}/{steps}: loss {sum(losses[-50:]) / len(losses[-50:]):.3f}, first {right:.3f}")
    model.eval()


def passage_logits(model: BertModel, tokenizer: PreTrainedTokenizerBase, lesson: PassageLesson) -> Tensor:
    """Compute scaled cosines of a lesson's questions and passages, (questions, passages); -inf where neutral."""
    questions, passages = (embed_texts(model, tokenizer, texts) for texts in (lesson.questions, lesson.passages))
    logits = _SCALE * questions @ passages.T
    mask = torch.zeros(logits.shape, dtype=torch.bool)
    for row, indices in enumerate(lesson.neutral):
        mask[row, list(indices)] = True
    return logits.masked_fill(mask, float("-inf"))


def embed_texts(model: BertModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Tensor:
    """Return the mean of each text's token states at length 1, of shape (texts, d)."""
    inputs = _tokenize(tokenizer, texts)
    states = model(**inputs).last_hidden_state  # (texts, tokens, d)
    weights = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
    return F.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> dict[str, Tensor]:
    encoded = tokenizer(list(texts), padding=True, return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}
