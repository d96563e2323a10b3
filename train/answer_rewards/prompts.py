"""A processor for TRL whose prompts are rendered by our renderer, so that no text can forge a token.

TRL's trainer renders each prompt as text and tokenizes it, so `<image>` or `<|im_end|>` in a passage would become
special tokens. Here TRL only sees a prompt's id as its text, and the processor maps the id to the token ids and image
tensors of the pipeline's prompt.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import ProcessorMixin

from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.models.attention.collation import join_vision
from reflectune.models.rendering.renderer import Rendered, Renderer
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import PromptedExample
from reflectune.train.data.examples import LengthBound, blank_image

Conversation = Sequence[Mapping[str, Any]]
_CACHED = 64
"""Rendered prompts to cache: TRL reads each prompt of a batch twice."""


class PromptRenderer:
    """Renders the prompts of lessons by their ids.

    Args:
        examples: The lessons.
        renderer: Renderer of the model.
        roots: Folders that image paths may lead into.
        max_tokens: Maximum tokens of a prompt.
    """

    def __init__(self, examples: Sequence[PromptedExample], renderer: Renderer, roots: Roots, max_tokens: int) -> None:
        self._examples = {example.id: example for example in examples}
        self._renderer, self._roots, self._max_tokens = renderer, roots, max_tokens
        self.rendered: Callable[[str], Rendered] = functools.lru_cache(_CACHED)(self._render)

    def fitting(self, examples: Sequence[PromptedExample]) -> list[PromptedExample]:
        """Return the lessons whose prompts leave room for a reply. Images are not decoded."""
        bound = LengthBound(self._renderer)

        def fits(example: PromptedExample) -> bool:
            if bound(example) <= self._max_tokens:
                return True
            return len(self._prompt(example, blank_image(example, self._roots)).ids) <= self._max_tokens

        return [example for example in examples if fits(example)]

    def _render(self, example_id: str) -> Rendered:
        example = self._examples[example_id]
        return self._prompt(example, load_image(example.image, root=self._roots, needed_by=f"prompt {example_id}"))

    def _prompt(self, example: PromptedExample, image: Image.Image) -> Rendered:
        tree = Scheme.of(self._renderer).encode(self._renderer, example, image)
        ids = list(tree.prefix.ids)
        placed = (image, *self._renderer.expansion.range_in(ids))
        return Rendered(ids, list(tree.prefix.labels), tree.vision, (placed,))


class PromptProcessor(ProcessorMixin):
    """Processor for TRL. It takes a conversation's text as a prompt's id, and returns that prompt.

    Args:
        renderer: Renderer of the model; its tokenizer decodes replies.
        rendered: Returns a prompt by its id.
        types_key: Name of the model's argument that marks image tokens; "" if it has none.

    Attributes:
        rendered: Returns a prompt by its id.
    """

    def __init__(self, renderer: Renderer, rendered: Callable[[str], Rendered], *, types_key: str) -> None:
        # ProcessorMixin's own constructor needs the parts of one family
        self.tokenizer = renderer.tokenizer
        self.image_processor = self._tiles
        self.chat_template = None
        self._renderer, self.rendered, self._types_key = renderer, rendered, types_key

    def apply_chat_template(self, conversation: Any, chat_template: str | None = None, **options: Any) -> Any:  # type: ignore[override]  # TRL's call
        """Return the id of a prompt."""
        return prompt_id(conversation)

    def fields(self, prompts: Sequence[Rendered], rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return the model's other inputs for token ids that begin with these prompts."""
        types = {self._types_key: [self._types(ids) for ids in rows]} if self._types_key else {}
        return types | join_vision([prompt.vision for prompt in prompts])

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> dict[str, Tensor]:  # type: ignore[override]  # TRL's call
        """Return the prompts with these ids as tensors, padded on the left: shape (prompts, tokens)."""
        prompts = [self.rendered(name) for name in text]
        rows = [prompt.ids for prompt in prompts]
        tensors = {
            "input_ids": _padded(rows, self.tokenizer.pad_token_id),
            "attention_mask": _padded([[1] * len(ids) for ids in rows], 0),
        }
        if self._types_key:
            tensors[self._types_key] = _padded([self._types(ids) for ids in rows], 0)
        return tensors | join_vision([prompt.vision for prompt in prompts])

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **options: Any) -> list[str]:
        """Write the model's own processor."""
        written: list[str] = self._renderer.processor.save_pretrained(save_directory, push_to_hub, **options)
        return written

    def _tiles(self, images: Sequence[Sequence[str]], **options: Any) -> dict[str, Tensor]:
        """Return the number of tiles of each prompt's image, which TRL (1.16) needs for InternVL."""
        return {"num_patches": torch.tensor([len(self.rendered(name).vision["pixel_values"]) for [name] in images])}

    def _types(self, ids: Sequence[int]) -> list[int]:
        return [int(token == self._renderer.expansion.token) for token in ids]


def rows_of(examples: Sequence[PromptedExample]) -> list[dict[str, Any]]:
    """Return the rows of TRL's data set. The id stands for prompt and image; the processor loads both."""
    return [
        {"prompt": [{"role": "user", "content": example.id}], "image": example.id, "question_id": example.id}
        for example in examples
    ]


def prompt_id(conversation: Conversation) -> str:
    """Return the id of a prompt, which replaces its text."""
    return next(str(part["text"]) for part in conversation[-1]["content"] if part["type"] == "text")


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[value] * (longest - len(row)) + list(row) for row in rows])
