"""Questions about the same images have the same image prefix, and others have not."""

import pytest
import torch

from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.image_prefix import (
    ImagePrefixCache,
    image_prefix_key,
    image_prefix_sample,
    shared_image_prefixes,
    split_after_images,
)
from reflectune.models.rendering.renderer import Rendered


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def loaded(request, make):
    return make.loaded(request.param)


def parts(loaded, text, image):
    split_prefix = split_after_images(loaded.renderer.prefix(text, image), loaded.renderer.image_token_id)
    assert split_prefix is not None
    return split_prefix


def test_other_pixels_are_another_image_and_other_words_are_not(loaded, make):
    one, same = (image_prefix_key(parts(loaded, text, make.image(1))[0]) for text in ("Who?", "What is it made of?"))
    assert one == same != image_prefix_key(parts(loaded, "Who?", make.image(2))[0])


def test_whole_images_decide_which_are_shared():
    pixels = torch.arange(3 * 400 * 400, dtype=torch.float32).view(1, 3, 400, 400)
    other = pixels.clone()
    other[0, 0, 0, 1] += 1
    prefixes = [
        Rendered([1, *[3] * 600, 2, 7, 8], [], {"pixel_values": image.clone()}) for image in (pixels, other, pixels)
    ]
    assert len({image_prefix_sample(prefix) for prefix in prefixes}) == 1, "the one that differs is not in the sample"
    assert list(shared_image_prefixes(prefixes, 3, share_all=False)) == [0, 2]
    assert not shared_image_prefixes(prefixes[:2], 3, share_all=False)
    assert list(shared_image_prefixes(prefixes[:2], 3, share_all=True)) == [0, 1]


def test_without_an_image_or_with_nothing_after_it_there_is_no_image_prefix(loaded):
    image = loaded.renderer.image_token_id
    assert split_after_images(Rendered([1, 2], []), image) is None
    assert split_after_images(Rendered([1, image, 2], []), image) is None


@pytest.mark.parametrize(("most", "max_bytes"), [(2, 99), (9, 20)])
def test_those_used_last_are_kept(most, max_bytes):
    kept: ImagePrefixCache[str] = ImagePrefixCache(most, max_bytes)
    for name in "abac":
        if kept.get(name) is None:
            kept.put(name, name, 10)
    assert [kept.get(name) for name in "abc"] == ["a", None, "c"]
    kept.put("a", "A", 10)  # again, in its place
    assert [kept.get(name) for name in "ac"] == ["A", "c"]
    kept.put("d", "d", 21)
    assert len(kept) == (2 if most == 2 else 1)


def test_without_room_nothing_is_kept():
    kept: ImagePrefixCache[str] = ImagePrefixCache(0)
    kept.put("a", "a", 1)
    assert not len(kept)


def test_gates_are_the_same_where_few_images_fit(loaded, make):
    """Ten questions about five images, with room for two."""
    engine, small = (PrefixEngine(loaded) for _ in range(2))
    engine.image_prefixes.keep(9)
    prefixes = [loaded.renderer.prefix("Who?", make.image(n % 5, (80, 60))) for n in range(10)]
    engine.read(prefixes[:1])
    size = engine.image_prefixes.bytes
    assert size > 0
    small.image_prefixes = small.reader.images = ImagePrefixCache(9, 2.5 * size)
    for prefix in prefixes:
        whole, bounded = (
            it.branch(it.read([prefix]), [[[7, 8, 9], [5, 6]]]).probabilities([7]) for it in (engine, small)
        )
        torch.testing.assert_close(whole, bounded)
    assert (len(engine.image_prefixes), len(small.image_prefixes)) == (5, 2)
