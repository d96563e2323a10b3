"""Prompts for TRL: rendered by our renderer, in the guise of a processor, so that no text of theirs forges a token.

TRL's trainer renders each prompt twice, once to sample replies and once for its forward pass: it has the processor's
chat template write one text and tokenises the whole, in which `<image>` or `<|im_end|>` of a passage would count. So
its prompts here say nothing but which one they are, and the processor that it is given answers with that prompt's ids,
as the pipeline reads them, and the picture's tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import ProcessorMixin

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.models.attention.collation import join_vision
from reflectune.models.rendering.renderer import Rendered, Renderer
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import PromptedExample

Conversation = Sequence[Mapping[str, Any]]
_KEPT = 64
"""Rendered prompts that are kept: TRL asks for those of a batch twice."""


class PromptRenderer:
    """Renders the prompts of lessons by their ids.

    Args:
        examples: Whose prompts.
        renderer: The model's.
        roots: The folders that image paths may lead into.
        max_tokens: What a prompt may have at most.
    """

    def __init__(self, examples: Sequence[PromptedExample], renderer: Renderer, roots: Roots, max_tokens: int) -> None:
        self._examples = {example.id: example for example in examples}
        self._renderer, self._roots, self._max_tokens = renderer, roots, max_tokens
        self.rendered: Callable[[str], Rendered] = functools.lru_cache(_KEPT)(self._render)

    def _render(self, example_id: str) -> Rendered:
        example = self._examples[example_id]
        image = load_image(example.image, root=self._roots, needed_by=f"prompt {example_id}")
        tree = Scheme.of(self._renderer).encode(self._renderer, example, image)
        if len(tree.prefix.ids) > self._max_tokens:
            raise UserError(
                f"prompt {example_id} has {len(tree.prefix.ids)} tokens, and {self._max_tokens} leave room for a "
                "reply; write the prompts with a larger `max_record_tokens`, or lower `max_new_tokens`"
            )
        return Rendered(list(tree.prefix.ids), list(tree.prefix.labels), tree.vision)


class PromptProcessor(ProcessorMixin):
    """What TRL takes for the model's processor. A conversation's text is a prompt's id, and its ids are the prompt's.

    Args:
        renderer: The model's; its tokenizer decodes replies.
        rendered: A prompt by its id.
        is_typed: Whether the model reads `mm_token_type_ids` (M-RoPE): 1 where an image's token stands, else 0.
    """

    def __init__(self, renderer: Renderer, rendered: Callable[[str], Rendered], *, is_typed: bool) -> None:
        # ProcessorMixin's own constructor wants the parts of one family; nothing of it is needed here
        self.tokenizer = renderer.tokenizer
        self.image_processor = renderer.processor.image_processor
        self.chat_template = None
        self._renderer, self._rendered, self._is_typed = renderer, rendered, is_typed

    def apply_chat_template(self, conversation: Any, chat_template: str | None = None, **options: Any) -> Any:  # type: ignore[override]  # what TRL asks for
        """The ids and tensors of several prompts if they are to be tokenised, else the id of one."""
        if not options.get("tokenize"):
            return _prompt_id(conversation)
        prompts = [self._rendered(_prompt_id(each)) for each in conversation]
        rows = {"input_ids": [prompt.ids for prompt in prompts]}
        if self._is_typed:
            rows["mm_token_type_ids"] = [self._types(prompt.ids) for prompt in prompts]
        return rows | join_vision([prompt.vision for prompt in prompts])

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> dict[str, Tensor]:  # type: ignore[override]  # what TRL asks for
        """The same prompts as tensors, by their ids, filled up on the left: shape (prompts, tokens)."""
        prompts = [self._rendered(prompt_id) for prompt_id in text]
        rows = [prompt.ids for prompt in prompts]
        tensors = {
            "input_ids": _filled(rows, self.tokenizer.pad_token_id),
            "attention_mask": _filled([[1] * len(ids) for ids in rows], 0),
        }
        if self._is_typed:
            tensors["mm_token_type_ids"] = _filled([self._types(ids) for ids in rows], 0)
        return tensors | join_vision([prompt.vision for prompt in prompts])

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **options: Any) -> list[str]:
        """Write the model's own processor."""
        written: list[str] = self._renderer.processor.save_pretrained(save_directory, push_to_hub, **options)
        return written

    def _types(self, ids: Sequence[int]) -> list[int]:
        return [int(token == self._renderer.image_token_id) for token in ids]


def rows_of(examples: Sequence[PromptedExample]) -> list[dict[str, Any]]:
    """The rows of TRL's data set. The picture's path stands for the picture, which the processor loads."""
    return [
        {
            "prompt": [{"role": "user", "content": example.id}],
            "image": example.image,
            "question_id": example.id,
        }
        for example in examples
    ]


def _prompt_id(conversation: Conversation) -> str:
    return next(str(part["text"]) for part in conversation[-1]["content"] if part["type"] == "text")


def _filled(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[value] * (longest - len(row)) + list(row) for row in rows])
