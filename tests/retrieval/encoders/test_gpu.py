"""Encoders give the CPU's results on a simulated GPU."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from reflectune.retrieval.encoders.encoder import load_encoder

TEXTS = ["What does the red owl eat?", "The tower"]


@pytest.mark.filterwarnings("ignore:.*will be slower")
@pytest.mark.parametrize(
    "name",
    [
        "miniature/clip",
        "pair:miniature/clip+miniature/text",
        "vlm2vec:miniature/llava",
        "vlm2vec:miniature/qwen2_vl",
        "gme:miniature/qwen2_vl",
    ],
)
def test_an_encoders_vectors(name: str, draw_image: Any, pretended: ModuleType) -> None:
    images = [draw_image(1), draw_image(2).resize((80, 50))]
    encoder: Any = load_encoder(name, device="cpu")
    expected = encoder.encode_images(images), encoder.encode_texts(TEXTS)
    with pretended.gpus():
        on_gpu: Any = load_encoder(name, device="cuda")
        actual = on_gpu.encode_images(images), on_gpu.encode_texts(TEXTS)
    for vectors, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(vectors, wanted, atol=1e-5)
