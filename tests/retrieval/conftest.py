"""Encoders of tiny random weights."""

from collections.abc import Callable

import pytest

from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.encoders.encoder import load_encoder


@pytest.fixture(scope="session")
def other_clip_folder(write_clip: Callable[[int], str]) -> str:
    return write_clip(2)


@pytest.fixture(scope="session")
def encoder(clip_folder: str) -> ImageTextEncoder:
    return load_encoder(clip_folder)
