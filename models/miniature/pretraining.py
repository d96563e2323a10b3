"""The loop that pre-trains a miniature base model: lessons into trees, trees into batches, batches into steps.

It knows nothing of the world: `pretrain.py` hands it functions that draw lessons.
"""

from __future__ import annotations

import bisect
import functools
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_model
from torch import Tensor, nn
from transformers import PreTrainedModel, ProcessorMixin


@dataclass(frozen=True)
class Turn:
    """One continuation of a lesson's prefix: what the user adds, what the assistant answers, and how much it counts.

    `text_weight` is what predicting the user's own words counts: a description that fits the picture is worth
    predicting. `shown` lists words by the character of the text where they end, and whether the picture shows them.
    """

    text: str
    answer: str
    skill: str
    weight: float = 1.0
    text_weight: float = 0.0
    shown: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True)
class Lesson:
    """A picture (or none), the beginning of the user's turn, and the turns that continue it independently."""

    picture: int | None
    question: str
    turns: tuple[Turn, ...]

    def characters(self) -> int:
        """Characters that a model reads of it."""
        return len(self.question) + sum(len(turn.text) + len(turn.answer) for turn in self.turns)


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
        """The skill whose share of right turns is looked at; "" for none."""
        return self.until[0] if self.until else self.skill


@dataclass(frozen=True)
class VisionStage:
    """The stage of the vision tower and the projector alone.

    Attributes:
        name: For the log.
        steps: Optimiser steps.
        batch: Pictures a step.
        learning_rate: Its peak, reached after 50 steps, then decayed linearly.
        labels: Of shape (pictures, attributes): the index of each picture's value.
        names: Each attribute's values as words.
    """

    name: str
    steps: int
    batch: int
    learning_rate: float
    labels: Tensor
    names: Sequence[Sequence[str]]


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

    def prefix(self, lesson: Lesson) -> list[int]:
        """Ids of the chat template's head, the picture's tokens, and the beginning of the user's turn."""
        head = self._heads[lesson.picture is not None]
        return self._ids(head.replace(self._image_token, self._image_token * self._image_tokens) + lesson.question)

    def turn(self, lesson: Lesson, turn: Turn) -> EncodedTurn:
        """Ids of one continuation."""
        text = f" {turn.text}" if lesson.question else turn.text
        encoded = self._tokenizer.backend_tokenizer.encode(text)
        answer = [*self._ids(self._answer_start + turn.answer), *self._end]
        shift = len(text) - len(turn.text)
        ends = [end for _, end in encoded.offsets]
        shown = [(bisect.bisect_left(ends, end + shift), is_shown) for end, is_shown in turn.shown]
        return EncodedTurn([*encoded.ids, *self._middle, *answer], len(encoded.ids), len(answer), shown)


@dataclass(frozen=True)
class EncodedTurn:
    """Ids of a continuation.

    `text` counts the user's tokens (the first), `answer` those of the answer and its end (the last); `shown` gives
    the place of a word's last token and whether the picture shows it.
    """

    ids: list[int]
    text: int
    answer: int
    shown: list[tuple[int, bool]]


_END_WEIGHT = 0.2
"""What an answer's end token counts beside its words: it is soon learned, and would drown a one-word answer."""

GROUNDING_WEIGHT = 1.0
"""What the grounding loss counts, see `Pretrainer.forward`."""

_LONG = 2000
"""Characters from which a lesson is read in another pass than the short ones of its step."""

_TEXT = -1
"""The group of targets that are the user's words: no turn's answer."""


@dataclass(frozen=True)
class Batch:
    """Trees as rows. `source` indexes the flattened (batch · length) hidden states that predict `target`.

    `group` says which turn's answer a target belongs to. `word` indexes the same for words that the picture may show,
    and `is_shown` says whether it does.
    """

    inputs: dict[str, Tensor]
    source: Tensor
    target: Tensor
    weight: Tensor
    group: Tensor
    skills: list[str]
    word: Tensor
    is_shown: Tensor


class Pretrainer:
    """A miniature in training.

    Args:
        model: The model, trained in place.
        processor: Its processor.
        pictures: Vision inputs of the pool's pictures, one dict of tensors each (as the processor returns them).
        log: Called with a line of progress.

    Attributes:
        model: As it is by now.
        encoder: Makes ids of lessons.
        log: As it was given; may be replaced.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        pictures: Sequence[dict[str, Tensor]],
        log: Callable[[str], None],
    ) -> None:
        self.model, self._pictures, self.log = model, pictures, log
        self._is_qwen = model.config.model_type == "qwen2_vl"
        self._image_token_id = model.config.image_token_id
        self.encoder = LessonEncoder(processor, image_tokens=16)
        self._grounding = nn.Linear(model.config.get_text_config().hidden_size, 1)  # thrown away with the trainer
        self._image_shift = self._find_image_shift()

    def _find_image_shift(self) -> tuple[Tensor, int]:
        """M-RoPE: positions (3, n) of a prefix up to the picture's end, and what later indices are shifted by."""
        if not self._is_qwen:
            return torch.empty(3, 0, dtype=torch.long), 0
        ids = torch.tensor([self.encoder._ids(self.encoder._heads[True])])
        place = (ids[0] == self._image_token_id).nonzero().item()
        row = torch.cat([ids[:, :place], ids[:, place : place + 1].expand(-1, 16), ids[:, place + 1 :]], 1)
        kinds = (row == self._image_token_id).int()
        grid = self._pictures[0]["image_grid_thw"]
        positions, _ = self.model.model.get_rope_index(row, mm_token_type_ids=kinds, image_grid_thw=grid)
        return positions[:, 0], int(positions[:, 0].max()) + 1 - row.shape[1]

    def train_vision(self, stage: VisionStage) -> None:
        """Teach the vision tower and the projector to name what is shown, in the language model's own words.

        The classifier's weights are the (frozen) input embeddings of the words: an image token that means "red" comes
        to lie near the word "red", and attention that finds the same word in a text may find it in a picture.
        """
        words = [self._word_embeddings(names) for names in stage.names]
        scale = torch.tensor(20.0, requires_grad=True)
        groups: list[dict[str, Any]] = [{"params": self._vision_parameters()}, {"params": [scale], "weight_decay": 0.0}]
        optimiser = torch.optim.AdamW(groups, lr=stage.learning_rate, weight_decay=0.02, fused=True)
        right: list[float] = []
        for step in range(stage.steps):
            rate = stage.learning_rate * min(1.0, (step + 1) / 50) * max(0.03, 1 - step / stage.steps)
            optimiser.param_groups[0]["lr"], optimiser.param_groups[1]["lr"] = rate, 30 * rate
            rows = torch.randint(len(self._pictures), (stage.batch,))
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
        """The mean input embedding of each word's tokens, of shape (words, hidden)."""
        table: Any = self.model.get_input_embeddings().weight
        return torch.stack([table[self.encoder._ids(f" {word}")].mean(0) for word in words])

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
        parameters = [*self.model.parameters(), *self._grounding.parameters()]
        groups = [
            {"params": [p for p in parameters if id(p) not in vision], "factor": 1.0},
            {"params": [p for p in parameters if id(p) in vision], "factor": stage.vision_factor},
        ]
        groups = [group for group in groups if group["params"]]
        optimiser = torch.optim.AdamW(groups, lr=stage.learning_rate, betas=(0.9, 0.98), weight_decay=0.02, fused=True)
        self.model.train()
        losses, grounded, right, tokens, start = [], [], [], 0, time.monotonic()
        for step, parts in enumerate(self._batches(stage, rng)):
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
                hits = _whole_answers(part, (logits.argmax(-1) == part.target).float()) if stage.watch else []
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
        self.model.eval()

    def _batches(self, stage: Stage, rng: random.Random) -> Iterator[list[Batch]]:
        """Each step's lessons, in parts of about the same length: five articles beside a glance are mostly padding."""
        weights = [weight for weight, _ in stage.lessons]
        for _ in range(stage.steps):
            draws = rng.choices([draw for _, draw in stage.lessons], weights, k=stage.batch)
            lessons = sorted((draw() for draw in draws), key=Lesson.characters)
            cut = next((i for i, each in enumerate(lessons) if each.characters() > _LONG), 0)
            yield [self.collate(part) for part in (lessons[:cut], lessons[cut:]) if part]

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits of the targets, and the grounding loss: does the picture show this word, read from a middle layer.

        One bit per word, early in the network, teaches to compare words with pictures; from yes and no at the end of
        a description that comparison takes thousands of steps to come.
        """
        if not len(batch.word):
            hidden = self.model.model(**batch.inputs, use_cache=False).last_hidden_state
            return self.model.lm_head(hidden.flatten(0, 1)[batch.source]), hidden.new_zeros(())
        layers = self.model.model(**batch.inputs, use_cache=False, output_hidden_states=True).hidden_states
        middle = F.rms_norm(layers[len(layers) // 2].flatten(0, 1)[batch.word], layers[0].shape[-1:])
        loss = F.binary_cross_entropy_with_logits(self._grounding(middle)[:, 0], batch.is_shown)
        return self.model.lm_head(layers[-1].flatten(0, 1)[batch.source]), loss

    @torch.no_grad()
    def accuracy(self, lessons: Sequence[Lesson], batch: int = 32) -> dict[str, float]:
        """Share of turns whose every answer token is the most probable one, by skill."""
        right: dict[str, list[float]] = defaultdict(list)
        training, _ = self.model.training, self.model.eval()
        for start in range(0, len(lessons), batch):
            rows = self.collate(lessons[start : start + batch])
            hits = (self.forward(rows)[0].argmax(-1) == rows.target).float()
            for skill, value in zip(rows.skills, _whole_answers(rows, hits), strict=True):
                right[skill].append(value)
        self.model.train(training)
        return {skill: sum(values) / len(values) for skill, values in sorted(right.items())}

    def collate(self, lessons: Sequence[Lesson]) -> Batch:
        """One row per lesson: the prefix, then its turns, each attending to the prefix and to itself."""
        rows = [_Row() for _ in lessons]
        targets: list[int] = []
        weights: list[float] = []
        groups: list[int] = []
        sources: list[tuple[int, int]] = []
        skills: list[str] = []
        words: list[tuple[int, int]] = []
        is_shown: list[float] = []
        for number, (row, lesson) in enumerate(zip(rows, lessons, strict=True)):
            row.extend(self.encoder.prefix(lesson), segment=0, start=0)
            prefix = len(row.ids)
            for branch, turn in enumerate(lesson.turns, start=1):
                encoded = self.encoder.turn(lesson, turn)
                row.extend(encoded.ids, segment=branch, start=prefix)
                start, end = len(row.ids) - len(encoded.ids), len(row.ids)
                sources += [(number, place - 1) for place in range(end - encoded.answer, end)]
                targets += encoded.ids[-encoded.answer :]
                weights += [*[turn.weight] * (encoded.answer - 1), turn.weight * _END_WEIGHT]
                groups += [len(skills)] * encoded.answer
                if turn.text_weight:
                    # the first word is predicted by the prefix's last token, not by the branch before
                    read = range(start, start + encoded.text)
                    sources += [(number, place - 1 if place > start else prefix - 1) for place in read]
                    targets += encoded.ids[: encoded.text]
                    weights += [turn.text_weight] * encoded.text
                    groups += [_TEXT] * encoded.text
                words += [(number, start + place) for place, _ in encoded.shown]
                is_shown += [float(shown) for _, shown in encoded.shown]
                skills.append(turn.skill)
        length = max(len(row.ids) for row in rows)
        inputs = self._inputs(rows, length, [lesson.picture for lesson in lessons])
        return Batch(
            inputs,
            torch.tensor([number * length + place for number, place in sources]),
            torch.tensor(targets),
            torch.tensor(weights),
            torch.tensor(groups),
            skills,
            torch.tensor([number * length + place for number, place in words], dtype=torch.long),
            torch.tensor(is_shown),
        )

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
    trainer: Pretrainer, folder: Path, stages: Sequence[Stage | VisionStage], rng: random.Random
) -> None:
    """Run the stages, keeping the weights after each; stages already kept are not run again."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, stage in enumerate(stages):
        kept = folder / f"{number:02d}-{stage.name.replace(' ', '-')}.safetensors"
        if kept.exists():
            trainer.model.load_state_dict(load_file(kept), strict=False)
            continue
        random.seed(number)
        torch.manual_seed(number)
        rng.seed(1000 + number)
        if isinstance(stage, VisionStage):
            trainer.train_vision(stage)
        else:
            trainer.train(stage, rng)
        save_model(trainer.model, str(kept))
