"""Processors that need no torchvision."""

from __future__ import annotations

from transformers import Qwen2VLProcessor


class ImageOnlyQwen2VLProcessor(Qwen2VLProcessor):
    """Qwen2-VL's processor without its video half, which is what needs torchvision."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        """The parts that are saved and loaded: no video processor."""
        return ["image_processor", "tokenizer"]
