"""The loop that pre-trains a miniature base model: lessons into trees, trees into batches, batches into steps.

It knows nothing of the world: `pretrain.py` hands it functions that draw lessons.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_model
from torch import Tensor, nn
from transformers import PreTrainedModel, ProcessorMixin


class TurnLike(Protocol):
    """What a continuation of a lesson offers: see `reflectune.data_builders.world.lessons.Turn`."""

    text: str
    answer: str
    skill: str
    weight: float
    text_weight: float


class LessonLike(Protocol):
    """A picture's index (or none), the beginning of the user's turn, and turns that continue it independently."""

    picture: int | None
    question: str
    turns: tuple[Any, ...]


@dataclass(frozen=True)
class Stage:
    """One stage of the curriculum.

    Attributes:
        name: For the log.
        steps: Optimiser steps.
        batch: Lessons a step.
        learning_rate: Its peak, reached after `warmup` steps, held for 30 % of the stage, then decayed by a cosine.
        lessons: (weight, draw) pairs; a lesson is drawn from one of them by weight.
        vision_factor: The vision tower's share of the learning rate.
        until: The beginning of a skill's name, and a share: the stage ends once that share of its turns is right, over
            30 steps.
    """

    name: str
    steps: int
    batch: int
    learning_rate: float
    lessons: Sequence[tuple[float, Callable[[], LessonLike]]]
    vision_factor: float = 1.0
    warmup: int = 50
    until: tuple[str, float] | None = None


class LessonEncoder:
    """Turns lessons into token trees with a family's own tokenizer and chat template."""

    def __init__(self, processor: Any, image_tokens: int) -> None:
        self._tokenizer = processor.tokenizer
        self._image_token = processor.image_token
        self._image_tokens = image_tokens
        self._heads = {flag: self._pieces(processor, with_image=flag)[0] for flag in (False, True)}
        _, middle, answer_start, end = self._pieces(processor, with_image=True)
        self._middle, self._answer_start, self._end = self._ids(middle), answer_start, self._ids(end)[:1]

    @staticmethod
    def _pieces(processor: Any, *, with_image: bool) -> tuple[str, str, str, str]:
        """What the chat template puts before a question, between it and the answer's cue, and after the answer."""
        image = [{"type": "image"}] if with_image else []
        user = {"role": "user", "content": [*image, {"type": "text", "text": "QUESTION"}]}
        reply = {"role": "assistant", "content": [{"type": "text", "text": "ANSWER"}]}
        cue = processor.apply_chat_template([user], add_generation_prompt=True)
        whole = processor.apply_chat_template([user, reply])
        head, middle = cue.split("QUESTION")
        answer_start, end = whole[len(cue) :].split("ANSWER")
        return head, middle, answer_start, end

    @functools.lru_cache(maxsize=20_000)  # noqa: B019  one encoder lives as long as its process
    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def prefix(self, lesson: LessonLike) -> list[int]:
        """Ids of the chat template's head, the picture's tokens, and the beginning of the user's turn."""
        head = self._heads[lesson.picture is not None]
        return self._ids(head.replace(self._image_token, self._image_token * self._image_tokens) + lesson.question)

    def turn(self, lesson: LessonLike, turn: TurnLike) -> tuple[list[int], int, int]:
        """Ids of one continuation; how many of them are the user's text (the first), and the answer and its end."""
        text = self._tokenizer.backend_tokenizer.encode(f" {turn.text}" if lesson.question else turn.text).ids
        answer = [*self._ids(self._answer_start + turn.answer), *self._end]
        return [*text, *self._middle, *answer], len(text), len(answer)


_END_WEIGHT = 0.2
"""What an answer's end token counts beside its words: it is soon learned, and would drown a one-word answer."""

_TEXT = -1
"""The group of targets that are the user's words: no turn's answer."""


@dataclass(frozen=True)
class Batch:
    """Trees as rows. `source` indexes the flattened (batch · length) hidden states that predict `target`.

    `group` says which turn's answer a target belongs to.
    """

    inputs: dict[str, Tensor]
    source: Tensor
    target: Tensor
    weight: Tensor
    group: Tensor
    skills: list[str]


class Pretrainer:
    """A miniature in training.

    Args:
        model: The model, trained in place.
        processor: Its processor.
        pictures: Vision inputs of the pool's pictures, one dict of tensors each (as the processor returns them).
        log: Called with a line of progress.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        pictures: Sequence[dict[str, Tensor]],
        log: Callable[[str], None],
    ) -> None:
        self.model, self._pictures, self._log = model, pictures, log
        self._is_qwen = model.config.model_type == "qwen2_vl"
        self._image_token_id = model.config.image_token_id
        self._encoder = LessonEncoder(processor, image_tokens=16)
        self._image_shift = self._find_image_shift()

    def _find_image_shift(self) -> tuple[Tensor, int]:
        """M-RoPE: positions (3, n) of a prefix up to the picture's end, and what later indices are shifted by."""
        if not self._is_qwen:
            return torch.empty(3, 0, dtype=torch.long), 0
        ids = torch.tensor([self._encoder._ids(self._encoder._heads[True])])
        place = (ids[0] == self._image_token_id).nonzero().item()
        row = torch.cat([ids[:, :place], ids[:, place : place + 1].expand(-1, 16), ids[:, place + 1 :]], 1)
        kinds = (row == self._image_token_id).int()
        grid = self._pictures[0]["image_grid_thw"]
        positions, _ = self.model.model.get_rope_index(row, mm_token_type_ids=kinds, image_grid_thw=grid)
        return positions[:, 0], int(positions[:, 0].max()) + 1 - row.shape[1]

    def train_vision(self, labels: Tensor, sizes: Sequence[int], steps: int, batch: int, learning_rate: float) -> None:
        """Teach the vision tower (and the projector) to tell attributes apart, through a throw-away linear head.

        Args:
            labels: Of shape (pictures, attributes), the index of each picture's value.
            sizes: How many values each attribute has.
            steps: Optimiser steps.
            batch: Pictures a step.
            learning_rate: Its peak.
        """
        head = nn.Linear(self.model.config.get_text_config().hidden_size, sum(sizes))
        parameters = [*self._vision_parameters(), *head.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.02, fused=True)
        right: list[float] = []
        for step in range(steps):
            rate = learning_rate * min(1.0, (step + 1) / 50) * max(0.03, 1 - step / steps)
            optimiser.param_groups[0]["lr"] = rate
            rows = torch.randint(len(self._pictures), (batch,))
            logits = head(self._features(rows.tolist()).mean(1) * 2).split(list(sizes), dim=1)
            loss = torch.stack([F.cross_entropy(x, labels[rows, i]) for i, x in enumerate(logits)]).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            hits = torch.stack([x.argmax(1) == labels[rows, i] for i, x in enumerate(logits)], 1)
            right.append(hits.all(1).float().mean().item())
            if (step + 1) % 200 == 0:
                self._log(f"vision step {step + 1}: all attributes right {sum(right[-50:]) / 50:.3f}")

    def _vision_parameters(self) -> list[nn.Parameter]:
        marks = ("vision_tower", "visual", "multi_modal_projector")
        return [p for name, p in self.model.named_parameters() if any(mark in name for mark in marks)]

    def _features(self, rows: list[int]) -> Tensor:
        """Projected image features of some pictures, of shape (rows, 16, hidden)."""
        vision = self._vision(rows)
        return torch.stack(list(self.model.model.get_image_features(**vision).pooler_output))

    def _vision(self, rows: Sequence[int]) -> dict[str, Tensor]:
        chosen = [self._pictures[row] for row in rows]
        vision = {key: torch.cat([picture[key] for picture in chosen]) for key in chosen[0]}
        return vision | {"pixel_values": vision["pixel_values"].float()}  # the pool is kept in half precision

    def train(self, stage: Stage, rng: random.Random) -> None:
        """Run one stage of the curriculum."""
        vision = {id(p) for p in self._vision_parameters()} if stage.vision_factor != 1 else set()
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if id(p) not in vision], "factor": 1.0},
            {"params": [p for p in parameters if id(p) in vision], "factor": stage.vision_factor},
        ]
        groups = [group for group in groups if group["params"]]
        optimiser = torch.optim.AdamW(groups, lr=stage.learning_rate, betas=(0.9, 0.98), weight_decay=0.02, fused=True)
        self.model.train()
        losses, right, tokens, start = [], [], 0, time.monotonic()
        for step, batch in enumerate(self._batches(stage, rng)):
            for group in optimiser.param_groups:
                group["lr"] = _rate(step, stage) * group["factor"]
            logits = self._logits(batch)
            loss = _weighted_loss(logits, batch)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            losses.append(loss.item())
            if stage.until:
                hits = _whole_answers(batch, (logits.argmax(-1) == batch.target).float())
                asked = [v for v, skill in zip(hits, batch.skills, strict=True) if skill.startswith(stage.until[0])]
                right += [_mean(asked)] if asked else []
            tokens += int((batch.inputs["position_ids"] >= 0).sum()) // (3 if self._is_qwen else 1)
            learned = stage.until is not None and len(right) >= 60 and _mean(right[-30:]) >= stage.until[1]
            if (step + 1) % max(100, stage.steps // 6) == 0 or step + 1 == stage.steps or learned:
                speed = tokens / (time.monotonic() - start)
                share = f", {stage.until[0]} {_mean(right[-30:]):.3f} right" if stage.until else ""
                line = f"{stage.name} step {step + 1}/{stage.steps}: loss {_mean(losses[-100:]):.3f}{share}"
                self._log(f"{line}, {speed:.0f} tokens/s")
            if learned:
                break
        self.model.eval()

    def _batches(self, stage: Stage, rng: random.Random) -> Iterator[Batch]:
        weights = [weight for weight, _ in stage.lessons]
        for _ in range(stage.steps):
            draws = rng.choices([draw for _, draw in stage.lessons], weights, k=stage.batch)
            yield self.collate([draw() for draw in draws])

    def _logits(self, batch: Batch) -> Tensor:
        hidden = self.model.model(**batch.inputs, use_cache=False).last_hidden_state
        return self.model.lm_head(hidden.flatten(0, 1)[batch.source])

    @torch.no_grad()
    def accuracy(self, lessons: Sequence[LessonLike], batch: int = 32) -> dict[str, float]:
        """Share of turns whose every answer token is the most probable one, by skill."""
        right: dict[str, list[float]] = defaultdict(list)
        training, _ = self.model.training, self.model.eval()
        for start in range(0, len(lessons), batch):
            rows = self.collate(lessons[start : start + batch])
            hits = (self._logits(rows).argmax(-1) == rows.target).float()
            for skill, value in zip(rows.skills, _whole_answers(rows, hits), strict=True):
                right[skill].append(value)
        self.model.train(training)
        return {skill: sum(values) / len(values) for skill, values in sorted(right.items())}

    def collate(self, lessons: Sequence[LessonLike]) -> Batch:
        """One row per lesson: the prefix, then its turns, each attending to the prefix and to itself."""
        rows = [_Row() for _ in lessons]
        targets: list[int] = []
        weights: list[float] = []
        groups: list[int] = []
        sources: list[tuple[int, int]] = []
        skills: list[str] = []
        for number, (row, lesson) in enumerate(zip(rows, lessons, strict=True)):
            row.extend(self._encoder.prefix(lesson), segment=0, start=0)
            prefix = len(row.ids)
            for branch, turn in enumerate(lesson.turns, start=1):
                ids, text, answer = self._encoder.turn(lesson, turn)
                row.extend(ids, segment=branch, start=prefix)
                start, end = len(row.ids) - len(ids), len(row.ids)
                sources += [(number, place - 1) for place in range(end - answer, end)]
                targets += ids[-answer:]
                weights += [*[turn.weight] * (answer - 1), turn.weight * _END_WEIGHT]
                groups += [len(skills)] * answer
                if turn.text_weight:
                    # the first word is predicted by the prefix's last token, not by the branch before
                    sources += [
                        (number, place - 1 if place > start else prefix - 1) for place in range(start, start + text)
                    ]
                    targets += ids[:text]
                    weights += [turn.text_weight] * text
                    groups += [_TEXT] * text
                skills.append(turn.skill)
        length = max(len(row.ids) for row in rows)
        inputs = self._inputs(rows, length, [lesson.picture for lesson in lessons])
        source = torch.tensor([number * length + place for number, place in sources])
        return Batch(inputs, source, torch.tensor(targets), torch.tensor(weights), torch.tensor(groups), skills)

    def _inputs(self, rows: list[_Row], length: int, pictures: list[int | None]) -> dict[str, Tensor]:
        ids = torch.tensor([row.ids + [0] * (length - len(row.ids)) for row in rows])
        segments = torch.tensor([row.segments + [-1] * (length - len(row.ids)) for row in rows])
        positions = torch.tensor([row.positions + [0] * (length - len(row.ids)) for row in rows])
        order = torch.arange(length)
        sees = (segments[:, None, :] == 0) | (segments[:, :, None] == segments[:, None, :])
        mask = (sees & (order[:, None] >= order)) | torch.eye(length, dtype=torch.bool)  # (batch, length, length)
        inputs = {"input_ids": ids, "attention_mask": mask[:, None], "position_ids": positions}
        shown = [picture for picture in pictures if picture is not None]
        if shown:
            inputs |= self._vision(shown)
        if self._is_qwen:
            inputs["mm_token_type_ids"] = (ids == self._image_token_id).int()
            inputs["position_ids"] = self._rope_positions(positions, pictures)
        return inputs

    def _rope_positions(self, positions: Tensor, pictures: list[int | None]) -> Tensor:
        """M-RoPE positions of shape (3, batch, length): text goes on counting after the picture's largest position."""
        head, shift = self._image_shift
        table = torch.arange(int(positions.max()) + 1).expand(3, -1).clone()
        with_picture = torch.cat([head, table[:, head.shape[1] :] + shift], 1)
        has = torch.tensor([picture is not None for picture in pictures])[None, :, None]
        return torch.where(has, with_picture[:, positions], table[:, positions])


class _Row:
    """One row of a batch while it is being put together."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.segments: list[int] = []
        self.positions: list[int] = []

    def extend(self, ids: list[int], *, segment: int, start: int) -> None:
        self.ids += ids
        self.segments += [segment] * len(ids)
        self.positions += range(start, start + len(ids))


def _weighted_loss(logits: Tensor, batch: Batch) -> Tensor:
    losses = F.cross_entropy(logits, batch.target, reduction="none")
    return (losses * batch.weight).sum() / batch.weight.sum()


def _whole_answers(batch: Batch, hits: Tensor) -> list[float]:
    """For each turn, 1 if every token of its answer is right, else 0."""
    answers = batch.group != _TEXT
    whole = torch.ones(len(batch.skills)).scatter_reduce(0, batch.group[answers], hits[answers], "amin")
    return whole.tolist()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rate(step: int, stage: Stage) -> float:
    """Linear warm-up, a plateau over the first 30 %, then a cosine to 4 % of the peak.

    A stage that ends when its skill is learned stays on the plateau: nobody knows when it will be.
    """
    done = step / stage.steps
    decay = 1.0 if done < 0.3 or stage.until else 0.04 + 0.96 * 0.5 * (1 + math.cos(math.pi * (done - 0.3) / 0.7))
    return stage.learning_rate * min(1.0, (step + 1) / stage.warmup) * decay


def resume_or_train(
    trainer: Pretrainer,
    folder: Path,
    stages: Sequence[Stage],
    vision_labels: tuple[Tensor, list[int]],
    scale: float,
    rng: random.Random,
) -> None:
    """Run the vision stage and then `stages`, keeping the weights after each; stages already kept are not run again."""
    folder.mkdir(parents=True, exist_ok=True)
    batch = 64 if trainer.model.config.model_type == "llava" else 32  # Qwen2-VL reads four patches per image token
    vision_steps = max(1, round((1400 if batch == 64 else 900) * scale))
    runs: list[tuple[str, Callable[[], None]]] = [
        ("vision", lambda: trainer.train_vision(*vision_labels, vision_steps, batch, 1.5e-3))
    ]
    runs += [(stage.name, functools.partial(trainer.train, stage, rng)) for stage in stages]
    for number, (name, run) in enumerate(runs):
        kept = folder / f"{number:02d}-{name.replace(' ', '-')}.safetensors"
        if kept.exists():
            trainer.model.load_state_dict(load_file(kept), strict=False)
            continue
        random.seed(number)
        torch.manual_seed(number)
        rng.seed(1000 + number)
        run()
        save_model(trainer.model, str(kept))
