"""The cache of features on disk."""

from pathlib import Path

import torch

from reflectune.models.features.cache import FeatureCache, image_key

KEY = "ab" * 16


def test_what_is_put_is_got_bit_by_bit(tmp_path: Path) -> None:
    features, cache = torch.randn(1, 4, 8), FeatureCache(tmp_path, "one")
    assert KEY not in cache
    cache.put(KEY, features)
    assert KEY in cache
    assert torch.equal(cache.get(KEY), features)


def test_an_image_keeps_all_but_its_pixels(tmp_path: Path) -> None:
    cache, grid = FeatureCache(tmp_path, "one"), torch.tensor([[1, 4, 4]])
    vision = {"pixel_values": torch.randn(16, 12), "image_grid_thw": grid}
    cache.put(image_key(vision), torch.ones(4, 8))

    swapped = cache.swapped(vision)

    assert set(swapped) == {"image_grid_thw", "tower_features"}
    assert swapped["image_grid_thw"] is grid


def test_the_key_is_of_what_the_processor_made() -> None:
    pixels = torch.randn(1, 3, 8, 8)
    other = pixels.clone()
    other[0, 0, 0, 0] += 1e-6

    assert image_key({"pixel_values": pixels}) == image_key({"pixel_values": pixels.clone()})
    assert image_key({"pixel_values": pixels}) != image_key({"pixel_values": other})
    assert image_key({"pixel_values": pixels}) != image_key({"pixel_values": pixels.bfloat16()})
