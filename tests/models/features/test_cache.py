"""The cache of features on disk: whole files, one maker each, and errors that say what to do."""

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.models.features import cache as module
from reflectune.models.features.cache import FeatureCache, picture_key

KEY = "ab" * 16


def test_what_is_put_is_got_bit_by_bit(tmp_path: Path) -> None:
    features, cache = torch.randn(1, 4, 8), FeatureCache(tmp_path, "one")
    assert KEY not in cache
    cache.put(KEY, features)
    assert KEY in cache
    assert torch.equal(cache.get(KEY), features)


def test_a_picture_keeps_all_but_its_pixels(tmp_path: Path) -> None:
    cache, grid = FeatureCache(tmp_path, "one"), torch.tensor([[1, 4, 4]])
    vision = {"pixel_values": torch.randn(16, 12), "image_grid_thw": grid}
    cache.put(picture_key(vision), torch.ones(4, 8))

    swapped = cache.swapped(vision)

    assert set(swapped) == {"image_grid_thw", "tower_features"}
    assert swapped["image_grid_thw"] is grid


def test_the_key_is_of_what_the_processor_made() -> None:
    pixels = torch.randn(1, 3, 8, 8)
    other = pixels.clone()
    other[0, 0, 0, 0] += 1e-6

    assert picture_key({"pixel_values": pixels}) == picture_key({"pixel_values": pixels.clone()})
    assert picture_key({"pixel_values": pixels}) != picture_key({"pixel_values": other})
    assert picture_key({"pixel_values": pixels}) != picture_key({"pixel_values": pixels.bfloat16()})


def hold(folder: Path, held: Any, release: Any) -> None:
    with FeatureCache(folder, "one").claim(KEY, wait=True):
        held.set()
        release.wait(30)
        os._exit(9)  # as `kill -9` would: nothing is released by hand


def test_one_process_makes_a_picture_and_its_death_lets_the_next_one(tmp_path: Path) -> None:
    cache, context = FeatureCache(tmp_path, "one"), multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, release))
    other.start()
    assert held.wait(60)

    with cache.claim(KEY, wait=False) as is_ours:
        assert not is_ours
    release.set()
    with cache.claim(KEY, wait=True) as is_ours:
        assert is_ours
    other.join()
    assert not list(cache.folder.rglob("*.lock"))


def test_a_full_disk_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_atomically", full)

    with pytest.raises(UserError, match=r"the disk is full: .* it goes on; or name a different folder"):
        FeatureCache(tmp_path, "one").put(KEY, torch.ones(4, 8))
