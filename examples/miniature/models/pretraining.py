"""Training loop of a miniature base model's pre-training: stages of lessons.

It is independent of the world: `pretrain.py` passes functions that draw lessons.
"""

from __future__ import annotations

import math
import pickle
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import PreTrainedModel, ProcessorMixin

from reflectune.core.errors import UserError, one_line
from reflectune.core.partials import writing
from reflectune.examples.miniature.models.batches import Batch, Lesson, LessonCollator, LessonEncoder


@dataclass(frozen=True)
class Stage:
    """A stage of the curriculum.

    Attributes:
        name: Name in the log.
        steps: Optimiser steps.
        batch: Lessons a step.
        learning_rate: Peak, reached after `warmup` steps, held for 30 % of the stage, then decayed by a cosine.
        lessons: (weight, draw) pairs; a lesson is drawn by one of them, chosen by weight.
        vision_factor: The vision tower's share of the learning rate.
        until: The beginning of a skill's name, and a share: the stage ends once that share of its turns is right, over
            30 steps.
        skill: The beginning of a skill's name whose share of right turns is logged, where it ends nothing.
    """

    name: str
    steps: int
    batch: int
    learning_rate: float
    lessons: Sequence[tuple[float, Callable[[], Lesson]]]
    vision_factor: float = 1.0
    warmup: int = 50
    until: tuple[str, float] | None = None
    skill: str = ""

    @property
    def watch(self) -> str:
        """The skill whose share of right turns is measured; "" for none."""
        return self.until[0] if self.until else self.skill


@dataclass(frozen=True)
class VisionStage:
    """The stage of the vision tower and the projector alone.

    Attributes:
        name: Name in the log.
        steps: Optimiser steps.
        batch: Images a step.
        learning_rate: Peak, reached after 50 steps, then decayed linearly.
        labels: Index of each image's value, shape (images, attributes).
        names: Each attribute's values as words.
    """

    name: str
    steps: int
    batch: int
    learning_rate: float
    labels: Tensor
    names: Sequence[Sequence[str]]


GROUNDING_WEIGHT = 1.0
"""Weight of the grounding loss; see `Pretrainer.forward`."""

SAVE_STEPS = 100
"""Steps after which an unfinished stage is saved."""
_LONG = 2000
"""Characters above which a lesson is read in a separate pass from the short ones of its step."""


class Pretrainer:
    """A miniature in training.

    Args:
        model: The model, trained in place.
        processor: Its processor.
        images: Vision inputs of the pool's images, one dict of tensors each (as the processor returns them).
        log: Function that is called with a line of progress.

    Attributes:
        model: The model.
        encoder: Encoder of lessons.
        collate: Collator of lessons.
        grounding: Classifier of the grounding loss.
        log: The function, which may be replaced.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        images: Sequence[dict[str, Tensor]],
        log: Callable[[str], None],
    ) -> None:
        self.model, self._images, self.log = model, images, log
        self._is_qwen = model.config.model_type != "llava"
        self.encoder = LessonEncoder(processor, image_tokens=16)
        self.grounding = nn.Linear(model.config.get_text_config().hidden_size, 1)  # thrown away with the trainer
        self.collate = LessonCollator(model, self.encoder, images)

    def train_vision(self, stage: VisionStage) -> None:
        """Train the vision tower and the projector to name the attributes, in the language model's own words.

        The classifier's weights are the (frozen) input embeddings of the words. An image token that means "red" moves
        to the embedding of "red", so that attention which finds a word in a text also finds it in an image.
        """
        words = [self._word_embeddings(names) for names in stage.names]
        scale = torch.tensor(20.0, requires_grad=True)
        groups: list[dict[str, Any]] = [{"params": self._vision_parameters()}, {"params": [scale], "weight_decay": 0.0}]
        optimiser = torch.optim.AdamW(groups, lr=stage.learning_rate, weight_decay=0.02, fused=True)
        right: list[float] = []
        for step in range(stage.steps):
            rate = stage.learning_rate * min(1.0, (step + 1) / 50) * max(0.03, 1 - step / stage.steps)
            optimiser.param_groups[0]["lr"], optimiser.param_groups[1]["lr"] = rate, 30 * rate
            rows = torch.randint(len(self._images), (stage.batch,))
            seen, labels = self._features(rows.tolist()).mean(1), stage.labels[rows]
            logits = [scale * seen @ matrix.T for matrix in words]
            loss = torch.stack([F.cross_entropy(x, labels[:, i]) for i, x in enumerate(logits)]).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            hits = torch.stack([x.argmax(1) == labels[:, i] for i, x in enumerate(logits)], 1)
            right.append(hits.all(1).float().mean().item())
            if (step + 1) % 200 == 0:
                self.log(f"{stage.name} step {step + 1}: all attributes right {sum(right[-50:]) / 50:.3f}")

    @torch.no_grad()
    def _word_embeddings(self, words: Sequence[str]) -> Tensor:
        """Return the mean input embedding of each word's tokens, of shape (words, hidden)."""
        table: Any = self.model.get_input_embeddings().weight
        return torch.stack([table[self.encoder.ids(f" {word}")].mean(0) for word in words])

    def _vision_parameters(self) -> list[nn.Parameter]:
        marks = ("vision_tower", "visual", "multi_modal_projector")
        return [p for name, p in self.model.named_parameters() if any(mark in name for mark in marks)]

    def _features(self, rows: list[int]) -> Tensor:
        """Compute projected image features of some images, of shape (rows, 16, hidden)."""
        vision = self.collate.vision(rows)
        return torch.stack(list(self.model.model.get_image_features(**vision).pooler_output))

    def train(self, stage: Stage, rng: random.Random, path: Path | None = None) -> None:
        """Run one stage of the curriculum.

        Args:
            stage: The stage.
            rng: Generator that its lessons are drawn by.
            path: File of the unfinished stage, written every `SAVE_STEPS` steps. If it exists, the stage resumes.
        """
        vision = {id(p) for p in self._vision_parameters()} if stage.vision_factor != 1 else set()
        parameters = [*self.model.parameters(), *self.grounding.parameters()]
        groups = [
            {"params": [p for p in parameters if id(p) not in vision], "factor": 1.0},
            {"params": [p for p in parameters if id(p) in vision], "factor": stage.vision_factor},
        ]
        groups = [group for group in groups if group["params"]]
        optimiser = torch.optim.AdamW(groups, lr=stage.learning_rate, betas=(0.9, 0.98), weight_decay=0.02, fused=True)
        self.model.train()
        losses, grounded, tokens, start = [], [], 0, time.monotonic()
        begin, right = self._resume(path, optimiser, rng) if path and path.exists() else (0, [])
        for step, parts in enumerate(self._batches(stage, rng, stage.steps - begin), begin):
            for group in optimiser.param_groups:
                group["lr"] = _rate(step, stage) * group["factor"]
            weight, words = sum(part.weight.sum() for part in parts), sum(len(part.word) for part in parts)
            optimiser.zero_grad()
            step_loss, step_grounding, watched = 0.0, 0.0, []
            for part in parts:
                logits, grounding = self.forward(part)
                grounding = grounding * (len(part.word) / max(1, words))
                loss = _weighted_loss(logits, part) * (part.weight.sum() / weight) + GROUNDING_WEIGHT * grounding
                loss.backward()
                step_loss, step_grounding = step_loss + loss.item(), step_grounding + grounding.item()
                hits = part.whole_answers((logits.argmax(-1) == part.target).float()) if stage.watch else []
                watched += [v for v, skill in zip(hits, part.skills, strict=False) if skill.startswith(stage.watch)]
                tokens += int((part.inputs["position_ids"] >= 0).sum()) // (3 if self._is_qwen else 1)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            losses.append(step_loss)
            grounded += [step_grounding] if words else []
            right += [_mean(watched)] if watched else []
            learned = stage.until is not None and len(right) >= 60 and _mean(right[-30:]) >= stage.until[1]
            if (step + 1) % min(400, max(50, stage.steps // 9)) == 0 or step + 1 == stage.steps or learned:
                speed = tokens / (time.monotonic() - start)
                share = f", {stage.watch} {_mean(right[-30:]):.3f} right" if right else ""
                share += f", grounding loss {_mean(grounded[-100:]):.3f}" if grounded else ""
                line = f"{stage.name} step {step + 1}/{stage.steps}: loss {_mean(losses[-100:]):.3f}{share}"
                self.log(f"{line}, {speed:.0f} tokens/s")
            if learned:
                break
            if path and (step + 1) % SAVE_STEPS == 0:
                self._save(path, optimiser, rng, step + 1, right)
        self.model.eval()

    def _save(
        self, path: Path, optimiser: torch.optim.Optimizer, rng: random.Random, steps: int, right: list[float]
    ) -> None:
        draws = (rng.getstate(), random.getstate(), torch.get_rng_state())
        parts = (self.model.state_dict(), self.grounding.state_dict(), optimiser.state_dict())
        with writing(path) as partial:
            torch.save((steps, right, draws, parts), partial)

    def _resume(self, path: Path, optimiser: torch.optim.Optimizer, rng: random.Random) -> tuple[int, list[float]]:
        """Restore an unfinished stage, and return its steps so far and its shares of right turns."""
        try:
            steps, right, draws, parts = torch.load(path, weights_only=True)
            self.model.load_state_dict(parts[0])
        except (RuntimeError, OSError, pickle.UnpicklingError, EOFError) as error:
            raise _damaged(path, error) from error
        self.grounding.load_state_dict(parts[1])
        optimiser.load_state_dict(parts[2])
        rng.setstate(draws[0])
        random.setstate(draws[1])
        torch.set_rng_state(draws[2])
        return steps, right

    def _batches(self, stage: Stage, rng: random.Random, steps: int) -> Iterator[list[Batch]]:
        """Yield each step's lessons, the long ones as a batch of their own, which saves padding."""
        weights = [weight for weight, _ in stage.lessons]
        for _ in range(steps):
            draws = rng.choices([draw for _, draw in stage.lessons], weights, k=stage.batch)
            lessons = sorted((draw() for draw in draws), key=Lesson.characters)
            cut = next((i for i, lesson in enumerate(lessons) if lesson.characters() > _LONG), 0)
            yield [self.collate(part) for part in (lessons[:cut], lessons[cut:]) if part]

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute logits of the targets, and the grounding loss: a middle layer predicts if the image shows a word.

        One bit per word, early in the network, teaches the comparison of words with images. A yes or no at the end of a
        description would take thousands of steps for it.
        """
        if not len(batch.word):
            hidden = self.model.model(**batch.inputs, use_cache=False).last_hidden_state
            return self.model.lm_head(hidden.flatten(0, 1)[batch.source]), hidden.new_zeros(())
        layers = self.model.model(**batch.inputs, use_cache=False, output_hidden_states=True).hidden_states
        middle = F.rms_norm(layers[len(layers) // 2].flatten(0, 1)[batch.word], layers[0].shape[-1:])
        loss = F.binary_cross_entropy_with_logits(self.grounding(middle)[:, 0], batch.is_shown)
        return self.model.lm_head(layers[-1].flatten(0, 1)[batch.source]), loss

    @torch.no_grad()
    def accuracy(self, lessons: Sequence[Lesson], batch: int = 32) -> dict[str, float]:
        """Compute the share of turns whose every answer token is the most probable one, by skill."""
        right: dict[str, list[float]] = defaultdict(list)
        training, _ = self.model.training, self.model.eval()
        for start in range(0, len(lessons), batch):
            rows = self.collate(lessons[start : start + batch])
            hits = (self.forward(rows)[0].argmax(-1) == rows.target).float()
            for skill, value in zip(rows.skills, rows.whole_answers(hits), strict=True):
                right[skill].append(value)
        self.model.train(training)
        return {skill: sum(values) / len(values) for skill, values in sorted(right.items())}


def _weighted_loss(logits: Tensor, batch: Batch) -> Tensor:
    losses = F.cross_entropy(logits, batch.target, reduction="none")
    return (losses * batch.weight).sum() / batch.weight.sum()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rate(step: int, stage: Stage) -> float:
    """Compute the learning rate: linear warm-up, a plateau over the first 30 %, then a cosine to 4 % of the peak.

    A stage that ends when its skill is learned stays on the plateau, since its length is unknown.
    """
    done = step / stage.steps
    decay = 1.0 if done < 0.3 or stage.until else 0.04 + 0.96 * 0.5 * (1 + math.cos(math.pi * (done - 0.3) / 0.7))
    return stage.learning_rate * min(1.0, (step + 1) / stage.warmup) * decay


def resume_or_train(
    trainer: Pretrainer, folder: Path, stages: Sequence[Stage | VisionStage], rng: random.Random
) -> None:
    """Run the stages, and save the weights after each. A saved stage is not run again; an unfinished one resumes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, stage in enumerate(stages):
        path = folder / f"{number:02d}-{stage.name.replace(' ', '-')}.safetensors"
        if path.exists():
            _load_finished(trainer.model, path)
            continue
        random.seed(number)
        torch.manual_seed(number)
        rng.seed(1000 + number)
        unfinished = path.with_suffix(".pt")
        if isinstance(stage, VisionStage):
            trainer.train_vision(stage)
        else:
            trainer.train(stage, rng, unfinished)
        with writing(path) as partial:
            save_model(trainer.model, str(partial))
        unfinished.unlink(missing_ok=True)


def _load_finished(model: nn.Module, path: Path) -> None:
    """Load the weights that a finished stage wrote.

    Raises:
        UserError: The file is damaged, or of a different model.
    """
    try:
        load_model(model, path)
    except (SafetensorError, RuntimeError, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    problem = one_line(error, 200)
    return UserError(f"{path} can't be resumed from ({problem}); delete it to run its stage again")
