"""Settings of how a processor fits an image to the model's input.

LLaVA-1.5 was tuned on images padded to a square with the mean colour (`image_aspect_ratio: pad` of its training
script); llava-hf's processors scale the short side and crop. Qwen's take an image at its own size, up to a number of
pixels: 16,384 tokens as published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from reflectune.core.config import Settings, cross_check, setting

ImageFit = Literal["processor", "pad", "crop"]


@dataclass(frozen=True)
class ImageSettings:
    """Fitting of images.

    Attributes:
        fit: For LLaVA-1.5: `pad` to a square with the mean colour, `crop` the middle, or as the `processor` does.
        min_pixels: For Qwen: smaller images are scaled up to this many pixels; 0: the processor's own bound.
        max_pixels: For Qwen: larger images are scaled down to this many pixels; 0: the processor's own bound. A strip
            stays one token wide, even if it then has more.
    """

    fit: ImageFit = "processor"
    min_pixels: int = 0
    max_pixels: int = 0


AS_IN_PROCESSOR: Final = ImageSettings()


class ImageKeys(Settings):
    """Image settings of a config that loads a model."""

    image_fit: ImageFit = setting(
        "processor",
        "LLaVA-1.5: pad images to a square with the mean colour, as it was tuned, or crop their middle "
        "out; processor: as the model's own. A checkpoint keeps the settings of its training",
    )
    min_pixels: int = setting(0, "Qwen: scale smaller images up to this many pixels; 0: as the model's processor", ge=0)
    max_pixels: int = setting(
        0,
        "Qwen, and a server's model: scale larger images down to this many pixels (a token is 28 x 28 of them in "
        "Qwen2-VL and Qwen2.5-VL, 32 x 32 in Qwen3-VL); 0: as the model's processor, up to 16,384 tokens",
        ge=0,
    )

    def image_settings(self) -> ImageSettings:
        """Return the settings to load a model with."""
        return ImageSettings(self.image_fit, self.min_pixels, self.max_pixels)

    @cross_check
    def image_problems(self) -> Iterator[str]:
        """Yield the problem of bounds that no image fits."""
        if 0 < self.max_pixels < self.min_pixels:
            yield f"`max_pixels`, {self.max_pixels}, must not be below `min_pixels`, {self.min_pixels}"
