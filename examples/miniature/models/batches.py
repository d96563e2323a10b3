"""Lessons of a miniature's pre-training into token trees, and trees into batches."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reflectune.models.attention.recurrence import is_hybrid
from reflectune.models.attention.shared import share_prefixes
from reflectune.models.attention.tree_mask import STRIDE

_END_WEIGHT = 0.2
"""Loss weight of an answer's end token: it is soon learned, and would outweigh a one-word answer."""

_TEXT = -1
"""The group of targets that are the user's words: no turn's answer."""


@dataclass(frozen=True)
class LessonTurn:
    """A continuation of a lesson's prefix: the user's text, the assistant's answer, and its weight.

    `text_weight` is the loss weight of the user's own words: a description that fits the image is worth predicting.
    `shown` lists words by the character of the text where they end, each with True if the image shows it.
    """

    text: str
    answer: str
    skill: str
    weight: float = 1.0
    text_weight: float = 0.0
    shown: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True)
class Lesson:
    """An image (or none), the beginning of the user's turn, and the turns that continue it independently."""

    image: int | None
    question: str
    turns: tuple[LessonTurn, ...]

    def characters(self) -> int:
        """Number of characters that a model reads."""
        return len(self.question) + sum(len(turn.text) + len(turn.answer) for turn in self.turns)


class LessonEncoder:
    """Turns lessons into token trees with a family's own tokenizer and chat template."""

    def __init__(self, processor: Any, image_tokens: int) -> None:
        self._tokenizer = processor.tokenizer
        self._image_token = processor.image_token
        self._image_tokens = image_tokens
        self._heads = {flag: self._pieces(processor, with_image=flag)[0] for flag in (False, True)}
        _, middle, answer_start, end = self._pieces(processor, with_image=True)
        self._middle, self._answer_start, self._end = self.ids(middle), answer_start, self.ids(end)[:1]

    @staticmethod
    def _pieces(processor: Any, *, with_image: bool) -> tuple[str, str, str, str]:
        """Return the chat template's text before a question, between it and the answer's cue, and after the answer."""
        image = [{"type": "image"}] if with_image else []
        user = {"role": "user", "content": [*image, {"type": "text", "text": "QUESTION"}]}
        reply = {"role": "assistant", "content": [{"type": "text", "text": "ANSWER"}]}
        cue = processor.apply_chat_template([user], add_generation_prompt=True)
        whole = processor.apply_chat_template([user, reply])
        head, middle = cue.split("QUESTION")
        answer_start, end = whole[len(cue) :].split("ANSWER")
        return head, middle, answer_start, end

    def image_head(self) -> list[int]:
        """Return the ids of the chat template's head for a question with an image, which is one token."""
        return self.ids(self._heads[True])

    @functools.lru_cache(maxsize=20_000)  # noqa: B019  one encoder lives as long as its process
    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def prefix(self, lesson: Lesson) -> list[int]:
        """Return the ids of the chat template's head, the image's tokens, and the beginning of the user's turn."""
        head = self._heads[lesson.image is not None]
        return self.ids(head.replace(self._image_token, self._image_token * self._image_tokens) + lesson.question)

    def turn(self, lesson: Lesson, turn: LessonTurn) -> EncodedTurn:
        """Return the ids of one continuation."""
        text = f" {turn.text}" if lesson.question else turn.text
        encoded = self._tokenizer.backend_tokenizer.encode(text)
        answer = [*self.ids(self._answer_start + turn.answer), *self._end]
        shift = len(text) - len(turn.text)
        ends = [end for _, end in encoded.offsets]
        shown = [(bisect.bisect_left(ends, end + shift), is_shown) for end, is_shown in turn.shown]
        return EncodedTurn([*encoded.ids, *self._middle, *answer], len(encoded.ids), len(answer), shown)


@dataclass(frozen=True)
class EncodedTurn:
    """Ids of a continuation.

    `text` counts the user's tokens (the first), `answer` those of the answer and its end (the last); `shown` has the
    index of a word's last token and True if the image shows the word.
    """

    ids: list[int]
    text: int
    answer: int
    shown: list[tuple[int, bool]]


@dataclass(frozen=True)
class Batch:
    """Trees as rows. `source` indexes the flattened (batch · length) hidden states that predict `target`.

    `group` is the turn of a target's answer. `word` indexes the same for words that the image may show; `is_shown` is
    True if it shows them.
    """

    inputs: dict[str, Tensor]
    source: Tensor
    target: Tensor
    weight: Tensor
    group: Tensor
    skills: list[str]
    word: Tensor
    is_shown: Tensor

    def whole_answers(self, hits: Tensor) -> list[float]:
        """Return, for each turn, 1 if every token of its answer is right, else 0.

        Args:
            hits: 1 for each target that is predicted, else 0, of shape (targets,).
        """
        answers = self.group != _TEXT
        whole = torch.ones(len(self.skills)).scatter_reduce(0, self.group[answers], hits[answers], "amin")
        return whole.tolist()


class LessonCollator:
    """Puts lessons together into batches for one model.

    Args:
        model: The model that reads them.
        encoder: Encoder of its family.
        images: Vision inputs of the pool's images, one dict of tensors each (as the processor returns them).
    """

    def __init__(self, model: PreTrainedModel, encoder: LessonEncoder, images: Sequence[dict[str, Tensor]]) -> None:
        self._encoder, self._images = encoder, images
        self._is_qwen = model.config.model_type != "llava"
        self._is_hybrid = is_hybrid(model.config.get_text_config())
        if self._is_hybrid:
            share_prefixes(model)
        self._image_token_id = model.config.image_token_id
        self._image_shift = self._find_image_shift(model)

    def __call__(self, lessons: Sequence[Lesson]) -> Batch:
        """Return one row per lesson: the prefix, then its turns, each attending to the prefix and to itself."""
        rows = [_Row() for _ in lessons]
        targets: list[int] = []
        weights: list[float] = []
        groups: list[int] = []
        sources: list[tuple[int, int]] = []
        skills: list[str] = []
        words: list[tuple[int, int]] = []
        is_shown: list[float] = []
        for number, (row, lesson) in enumerate(zip(rows, lessons, strict=True)):
            row.extend(self._encoder.prefix(lesson), segment=0, start=0)
            prefix = len(row.ids)
            for branch, turn in enumerate(lesson.turns, start=1):
                encoded = self._encoder.turn(lesson, turn)
                row.extend(encoded.ids, segment=branch, start=prefix)
                start, end = len(row.ids) - len(encoded.ids), len(row.ids)
                sources += [(number, index - 1) for index in range(end - encoded.answer, end)]
                targets += encoded.ids[-encoded.answer :]
                weights += [*[turn.weight] * (encoded.answer - 1), turn.weight * _END_WEIGHT]
                groups += [len(skills)] * encoded.answer
                if turn.text_weight:
                    # the first word is predicted by the prefix's last token, not by the branch before
                    read = range(start, start + encoded.text)
                    sources += [(number, index - 1 if index > start else prefix - 1) for index in read]
                    targets += encoded.ids[: encoded.text]
                    weights += [turn.text_weight] * encoded.text
                    groups += [_TEXT] * encoded.text
                words += [(number, start + index) for index, _ in encoded.shown]
                is_shown += [float(shown) for _, shown in encoded.shown]
                skills.append(turn.skill)
        length = max(len(row.ids) for row in rows)
        inputs = self._inputs(rows, length, [lesson.image for lesson in lessons])
        return Batch(
            inputs,
            torch.tensor([number * length + index for number, index in sources]),
            torch.tensor(targets),
            torch.tensor(weights),
            torch.tensor(groups),
            skills,
            torch.tensor([number * length + index for number, index in words], dtype=torch.long),
            torch.tensor(is_shown),
        )

    def vision(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the vision inputs of some images of the pool, by their indices."""
        chosen = [self._images[row] for row in rows]
        vision = {key: torch.cat([image[key] for image in chosen]) for key in chosen[0]}
        return vision | {"pixel_values": vision["pixel_values"].float()}  # the pool is kept in half precision

    def _find_image_shift(self, model: PreTrainedModel) -> tuple[Tensor, int]:
        """Compute M-RoPE positions (3, n) of a prefix up to the image's end, and the shift of later indices."""
        if not self._is_qwen:
            return torch.empty(3, 0, dtype=torch.long), 0
        ids = torch.tensor([self._encoder.image_head()])
        index = (ids[0] == self._image_token_id).nonzero().item()
        row = torch.cat([ids[:, :index], ids[:, index : index + 1].expand(-1, 16), ids[:, index + 1 :]], 1)
        kinds = (row == self._image_token_id).int()
        grid = self._images[0]["image_grid_thw"]
        positions, _ = model.model.get_rope_index(row, mm_token_type_ids=kinds, image_grid_thw=grid)
        return positions[:, 0], int(positions[:, 0].max()) + 1 - row.shape[1]

    def _inputs(self, rows: list[_Row], length: int, images: list[int | None]) -> dict[str, Tensor]:
        ids = torch.tensor([row.ids + [0] * (length - len(row.ids)) for row in rows])
        padded = [row.segments + [-1] * (length - len(row.ids)) for row in rows]
        segments = torch.tensor(padded)  # (batch, length)
        positions = torch.tensor([row.positions + [0] * (length - len(row.ids)) for row in rows])
        order = torch.arange(length)
        sees = (segments[:, None, :] == 0) | (segments[:, :, None] == segments[:, None, :])
        mask = (sees & (order[:, None] >= order)) | torch.eye(length, dtype=torch.bool)  # (batch, length, length)
        inputs = {"input_ids": ids, "attention_mask": mask[:, None], "position_ids": positions}
        if self._is_hybrid:  # linear attention reads trees, and no mask
            tree = torch.arange(len(rows))[:, None] * STRIDE
            inputs["attention_mask"] = torch.where(segments < 0, -1, segments + tree)[:, None, None]
        shown = [image for image in images if image is not None]
        if shown:
            inputs |= self.vision(shown)
        if self._is_qwen:
            inputs["mm_token_type_ids"] = (ids == self._image_token_id).int()
            inputs["position_ids"] = self._rope_positions(positions, images)
        return inputs

    def _rope_positions(self, positions: Tensor, images: list[int | None]) -> Tensor:
        """Compute M-RoPE positions of shape (3, batch, length): text continues after the image's largest position."""
        head, shift = self._image_shift
        table = torch.arange(int(positions.max()) + 1).expand(3, -1).clone()
        with_image = torch.cat([head, table[:, head.shape[1] :] + shift], 1)
        has = torch.tensor([image is not None for image in images])[None, :, None]
        return torch.where(has, with_image[:, positions], table[:, positions])


class _Row:
    """A row of a batch under construction."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.segments: list[int] = []
        self.positions: list[int] = []

    def extend(self, ids: list[int], *, segment: int, start: int) -> None:
        self.ids += ids
        self.segments += [segment] * len(ids)
        self.positions += range(start, start + len(ids))
