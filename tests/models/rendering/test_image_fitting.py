"""Images are fitted as the config says, alike in training, probing and inference; nothing is cut off a LLaVA's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.images import BadImage, load_image
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.rendering import image_fitting
from reflectune.models.rendering.image_config import ImageKeys, ImageSettings
from reflectune.models.rendering.image_fitting import fit_images, images_fingerprint
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG

SIDE = 64
PAD, CROP = ImageSettings("pad"), ImageSettings("crop")


def pixels_of(renderer: Any, image: Image.Image) -> Tensor:
    return renderer.prefix("Why?", image).vision["pixel_values"]


def padded_to_a_square(image: Image.Image) -> Image.Image:
    """Images as in LLaVA-1.5's training and evaluation: in the middle of a square of the mean colour."""
    side = max(image.size)
    square = Image.new("RGB", (side, side), tuple(int(mean * 255) for mean in OPENAI_CLIP_MEAN))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def as_clip_reads_it(square: Image.Image) -> Tensor:
    """A square image scaled, then normalised: float32, (1, 3, side, side)."""
    clip = CLIPImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_center_crop=False)
    return clip(square, return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("size", [(192, 64), (64, 192), (101, 50), (64, 64), (1, 40)])
def test_an_image_is_padded_bit_for_bit_as_llava_does(make, tmp_path, size: tuple[int, int]) -> None:
    renderer = load(make.saved(tmp_path, "llava"), images=PAD).renderer
    image = make.image(size=size)

    square = padded_to_a_square(image)
    scaled = torch.from_numpy(np.array(square.resize((SIDE, SIDE), Image.Resampling.BICUBIC))).permute(2, 0, 1)
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))

    assert torch.equal(pixels_of(renderer, image), as_clip_reads_it(square))
    torch.testing.assert_close(pixels_of(renderer, image)[0], (scaled / 255 - mean) / deviation)


def test_nothing_of_a_wide_image_is_cut_off_and_what_is_added_has_the_mean_colour(make, tmp_path) -> None:
    """A blue stripe at each end of a red image three times as wide as high."""
    folder = make.saved(tmp_path, "llava")
    image = Image.new("RGB", (192, 64), (255, 0, 0))
    image.paste((0, 0, 255), (0, 0, 16, 64))
    image.paste((0, 0, 255), (176, 0, 192, 64))

    padded, cropped = (pixels_of(load(folder, images=fit).renderer, image)[0] for fit in (PAD, CROP))

    blue = padded[2] > padded[0] + 1
    assert blue[32, [0, -1]].all()
    assert not (cropped[2] > cropped[0] + 1).any()
    rows = torch.cat([padded[:, :20], padded[:, -20:]], dim=1)
    assert rows.abs().max() < 0.02  # the mean colour, in whole steps of 255, is nearly 0 after normalisation


def test_the_keys_say_what_the_processor_would_do_by_itself(make: SimpleNamespace, tmp_path: Path) -> None:
    folder, image = make.saved(tmp_path, "llava"), make.image(size=(192, 64))

    plain, cropped = load(folder), load(folder, images=CROP)

    assert torch.equal(pixels_of(plain.renderer, image), pixels_of(cropped.renderer, image))
    assert plain.fingerprint == cropped.fingerprint != load(folder, images=PAD).fingerprint


@pytest.mark.parametrize(
    ("family", "settings", "other"),
    [
        ("llava", PAD, CROP),
        ("qwen2_vl", ImageSettings(min_pixels=256, max_pixels=2048), ImageSettings(max_pixels=4096)),
    ],
)
@pytest.mark.parametrize("adapter", [False, True])
def test_a_checkpoint_keeps_what_it_was_trained_with(
    make, tmp_path, family: str, settings: ImageSettings, other: ImageSettings, adapter: bool
) -> None:
    from reflectune.train.weights.parameters import add_adapters

    trained = load(make.saved(tmp_path / "base", family), scheme="mr2ag", images=settings)
    model: Any = trained.model
    if adapter:
        ids = trained.renderer.token_ids.values()
        model = add_adapters(model, ids, rank=2, alpha=2, dropout=0.0, targets=r".*language_model.*\.q_proj")
    info = {"base_model": str(tmp_path / "base"), "seed": 0}
    save_checkpoint(tmp_path / "out", model, trained.processor, MR2AG, info)
    image = make.image(size=(192, 64))

    again = load(str(tmp_path / "out"))

    assert torch.equal(pixels_of(again.renderer, image), pixels_of(trained.renderer, image))
    assert load(str(tmp_path / "out"), images=settings).fingerprint == again.fingerprint
    with pytest.raises(UserError, match=r"was trained on images that were fitted with `(image_fit: pad|min_pixels)"):
        load(str(tmp_path / "out"), images=other)


@pytest.mark.parametrize("size", [(640, 480), (300, 900), (1600, 1600), (30, 20)])
@pytest.mark.parametrize("tokens", [4, 16, 61])
def test_the_tokens_of_an_image_obey_max_pixels_and_min_pixels(
    make, tmp_path, size: tuple[int, int], tokens: int
) -> None:
    """A token of the miniature is a square of 16 pixels a side."""
    bounds = ImageSettings(min_pixels=2 * 256, max_pixels=tokens * 256)
    renderer = load(make.saved(tmp_path, "qwen2_vl"), images=bounds).renderer

    rendered = renderer.prefix("Why?", make.image(size=size))

    assert 2 <= rendered.ids.count(renderer.image_token_id) <= tokens
    assert rendered.vision["image_grid_thw"].prod() == 4 * rendered.ids.count(renderer.image_token_id)


def test_a_bound_that_is_not_given_stays(make: SimpleNamespace) -> None:
    processor = make.processor("qwen2_vl")
    processor.image_processor.size = {"shortest_edge": 512, "longest_edge": 8192}

    fit_images(processor, "qwen2_vl", ImageSettings(max_pixels=1024))

    assert dict(processor.image_processor.size) == {"shortest_edge": 512, "longest_edge": 1024}


@pytest.mark.parametrize(
    ("family", "settings", "problem"),
    [
        ("qwen2_vl", PAD, "`image_fit: pad` is for LLaVA-1.5, and this is a qwen2_vl"),
        ("llava", ImageSettings(max_pixels=1024), "are for Qwen's models, and this is a llava"),
        ("qwen2_vl", ImageSettings(max_pixels=1024), "at least `min_pixels`, 4096"),
        ("qwen2_vl", ImageSettings(min_pixels=1, max_pixels=255), "one token, 256 pixels"),
    ],
)
def test_settings_of_another_family_and_bounds_that_cross_are_refused(
    make, family: str, settings: ImageSettings, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        fit_images(make.processor(family), family, settings)


def test_wrong_values_are_found_before_a_model_is_loaded() -> None:
    assert find_problems(ImageKeys, {"image_fit": "pad", "min_pixels": 10, "max_pixels": 20}) == []
    assert len(find_problems(ImageKeys, {"min_pixels": -1, "max_pixels": -1})) == 2
    assert "must not be below" in find_problems(ImageKeys, {"min_pixels": 30, "max_pixels": 20})[0]


def test_an_image_that_a_processor_refuses_or_would_pad_too_far_is_named(make, tmp_path, monkeypatch) -> None:
    Image.new("RGB", (90, 30)).save(path := tmp_path / "wide.png")
    image = load_image(path, needed_by="question q7")
    renderer = make.renderer("qwen2_vl")
    monkeypatch.setattr(renderer.processor.image_processor, "size", {"shortest_edge": "?", "longest_edge": "?"})
    with pytest.raises(BadImage, match=r"refused by the model's processor: .*wide\.png \(needed by question q7\): ."):
        renderer.prefix("Who?", image)
    renderer = make.renderer("llava")
    fit_images(renderer.processor, "llava", PAD)
    monkeypatch.setattr(image_fitting, "MAX_PADDED", 89 * 89)
    with pytest.raises(BadImage, match=r"too large to pad to a square: .*wide\.png .* 90 × 30 pixels; scale it down"):
        renderer.prefix("Who?", image)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")], ids=repr)
def test_a_processor_without_memory_refuses_no_image(error: Exception) -> None:
    def exhausted(**_: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        image_fitting.call_processor(exhausted, Image.new("RGB", (8, 8)))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(GotOcr2ImageProcessorPil, {"max_patches": 6}), (Gemma3ImageProcessorPil, {"do_pan_and_scan": True})],
    ids=["internvl", "gemma3"],
)
def test_the_number_of_tiles_is_a_part_of_the_fingerprint(kind: Any, settings: dict[str, Any]) -> None:
    one, other = (images_fingerprint(SimpleNamespace(image_processor=each)) for each in (kind(), kind(**settings)))
    assert one != other
