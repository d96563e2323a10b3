"""Processors that need no torchvision."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase, ProcessorMixin, Qwen2VLProcessor
from transformers.image_processing_utils import BaseImageProcessor


class ImageOnlyQwen2VLProcessor(Qwen2VLProcessor):
    """Qwen2-VL's processor without its video half, which is what needs torchvision."""

    def __init__(
        self,
        image_processor: BaseImageProcessor,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str | None = None,
        **kwargs: object,
    ) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    @classmethod
    def get_attributes(cls) -> list[str]:
        """The parts that are saved and loaded: no video processor."""
        return ["image_processor", "tokenizer"]
