"""The weights that come with the package load as any checkpoint does."""

from __future__ import annotations

import pytest
from PIL import Image

from reflectune.models.loading import load
from reflectune.models.miniature.architecture import FAMILIES
from reflectune.retrieval.encoders import load_encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_base_model_loads_without_reflection_tokens(family: str) -> None:
    loaded = load(f"miniature/{family}")
    assert not loaded.is_tuned
    assert "[Retrieval]" not in loaded.processor.tokenizer.get_vocab()


def test_the_encoder_tells_a_red_picture_from_a_blue_one() -> None:
    encoder = load_encoder("miniature/clip")
    vectors = encoder.encode_images([Image.new("RGB", (96, 96), colour) for colour in ("red", "red", "blue")])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
