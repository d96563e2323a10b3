"""Apply image settings to a processor, and describe a processor's own."""

from __future__ import annotations

from typing import Any, Final

from PIL import Image
from transformers.image_utils import SizeDict
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

from reflectune.core.devices import is_out_of_memory
from reflectune.core.errors import UserError, one_line
from reflectune.core.images import BadImage, origin_of
from reflectune.core.weights import UNLOADABLE
from reflectune.models.rendering.image_config import ImageFit, ImageSettings

QWEN: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
"""Types of models whose images keep their shape, between a minimum and a maximum of pixels."""
_DECIDES: Final = (
    *("do_convert_rgb", "do_pad", "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale"),
    *("rescale_factor", "do_normalize", "image_mean", "image_std", "patch_size", "temporal_patch_size", "merge_size"),
    *("image_grid_pinpoints", "min_patches", "max_patches", "do_pan_and_scan"),
)
"""Settings of image processors that determine the pixels of the model's input."""
MAX_PADDED: Final = 1 << 28
"""Pixels of the largest square that an image is padded to: 0.8 GB."""


def call_processor(processor: Any, image: Image.Image, fitted: Image.Image | None = None, **arguments: Any) -> Any:
    """Return a processor's output for one image, as tensors.

    Args:
        processor: A processor of images, or of images and texts.
        fitted: The image at the size that the processor needs; None for the image itself.
        **arguments: Further arguments of the processor.

    Raises:
        BadImage: The processor can't take the image, or would pad it to a square that exhausts memory.
    """
    name = origin_of(image)
    images = getattr(processor, "image_processor", processor)
    is_padded = isinstance(images, LlavaImageProcessorPil) and images.do_pad
    if is_padded and max(image.size) ** 2 > MAX_PADDED:
        problem = f"image too large to pad to a square: {name}: {image.width:,} × {image.height:,} pixels"
        raise BadImage(problem, "scale it down, or set `image_fit: crop`")
    try:
        return processor(images=[fitted or image], return_tensors="pt", **arguments)
    except Exception as error:  # of any model's processor
        if is_out_of_memory(error):
            raise
        said = one_line(error) or type(error).__name__
        raise BadImage(f"image refused by the model's processor: {name}: {said}", "replace it") from error


def fit_images(processor: Any, model_type: str, settings: ImageSettings) -> None:
    """Set a processor to fit images as the settings say; it is saved with them.

    Raises:
        UserError: The settings are for a different family, leave no size between them, or don't match the processor.
    """
    refuse_other_family(settings, model_type)
    if settings.fit != "processor":
        _fit_llava(processor, settings.fit)
    if settings.min_pixels or settings.max_pixels:
        _bound_qwen(processor, settings)


def refuse_other_family(settings: ImageSettings, model_type: str) -> None:
    """Raise a `UserError` if a model of this type lacks this setting."""
    if settings.fit != "processor" and model_type != "llava":
        raise UserError(
            f"`image_fit: {settings.fit}` is for LLaVA-1.5, and this is a {model_type}; leave it at `processor`"
        )
    if (settings.min_pixels or settings.max_pixels) and model_type not in QWEN:
        raise UserError(
            f"`min_pixels` and `max_pixels` are for Qwen's models, and this is a {model_type}, whose images have "
            "sizes of their own; set both to 0"
        )


def images_fingerprint(processor: Any) -> dict[str, Any]:
    """Return everything in a processor that determines the model's input of an image, by name."""
    values = {name: getattr(processor.image_processor, name, None) for name in _DECIDES}
    return {name: _plain(value) for name, value in values.items() if value not in (None, False)}


def images_in_words(processor: Any) -> str:
    """Describe in a line how images are fitted."""
    images = processor.image_processor
    if type(processor).__name__ == "LlavaProcessor":
        fit = "pad" if bool(getattr(processor.image_processor, "do_pad", False)) else "crop"
        return f"`image_fit: {fit}`, {_IN_WORDS[fit]}"
    if size := _pixels(processor):
        side = images.patch_size * images.merge_size
        return (
            f"`min_pixels: {size[0]}`, `max_pixels: {size[1]}`: {max(size[0] // side**2, 1):,} to "
            f"{size[1] // side**2:,} tokens"
        )
    return "as the model's processor has it"


_IN_WORDS: Final = {"pad": "padded to a square", "crop": "the middle cut out"}


def _fit_llava(processor: Any, fit: ImageFit) -> None:
    if fit == "pad" and not isinstance(processor.image_processor, LlavaImageProcessorPil):
        try:
            processor.image_processor = LlavaImageProcessorPil.from_dict(processor.image_processor.to_dict())
        except UNLOADABLE as error:
            said = one_line(error)
            raise UserError(
                f"`image_fit: pad`: cannot use the settings of the model's image processor: {said}; copy or download "
                "its preprocessor_config.json or processor_config.json again"
            ) from error
    if isinstance(processor.image_processor, LlavaImageProcessorPil):
        processor.image_processor.do_pad = fit == "pad"


def _bound_qwen(processor: Any, settings: ImageSettings) -> None:
    images = processor.image_processor
    old = _pixels(processor) or (0, 0)
    low, high = settings.min_pixels or old[0], settings.max_pixels or old[1]
    token = (images.patch_size * images.merge_size) ** 2
    if high < max(low, token):
        raise UserError(
            f"`max_pixels` is {high}, but must be at least `min_pixels`, {low}, and one token, {token} pixels; change "
            "either"
        )
    images.size = SizeDict(shortest_edge=low, longest_edge=high)


def _pixels(processor: Any) -> tuple[int, int] | None:
    """Return the fewest and most pixels of a Qwen processor's images; None for other families."""
    if not hasattr(processor.image_processor, "merge_size"):
        return None
    size = dict(processor.image_processor.size)
    return size["shortest_edge"], size["longest_edge"]


def _plain(value: Any) -> Any:
    """Return a value of an image processor as JSON; a size without the edges that are not set."""
    if isinstance(value, (SizeDict, dict)):
        return {name: edge for name, edge in dict(value).items() if edge is not None}
    return list(value) if isinstance(value, tuple) else value
