"""Questions about the same pictures have the same head, and others have not."""

import pytest
import torch

from reflectune.models.prefix.forward import Forward
from reflectune.models.prefix.image_prefix import ImagePrefixCache, key_of, split, stacked
from reflectune.models.rendering.renderer import Rendered


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def loaded(request, make):
    return make.loaded(request.param)


def parts(loaded, text, image):
    head_and_tail = split(loaded.renderer.prefix(text, image), loaded.renderer.image_token_id)
    assert head_and_tail is not None
    return head_and_tail


def test_head_and_tail_are_the_whole_and_the_head_ends_after_the_picture(loaded, make):
    prefix = loaded.renderer.prefix("Who drew this?", make.image())
    head, tail = parts(loaded, "Who drew this?", make.image())
    assert [*head.ids, *tail] == prefix.ids
    assert head.ids[-2] == loaded.renderer.image_token_id != head.ids[-1]
    assert loaded.renderer.image_token_id not in tail


def test_other_pixels_are_another_picture_and_other_words_are_not(loaded, make):
    one, same = (key_of(parts(loaded, text, make.image(1))[0]) for text in ("Who?", "What is it made of?"))
    assert one == same != key_of(parts(loaded, "Who?", make.image(2))[0])


def test_without_a_picture_or_with_nothing_after_it_there_is_no_head(loaded):
    image = loaded.renderer.image_token_id
    assert split(Rendered([1, 2], []), image) is None
    assert split(Rendered([1, image, 2], []), image) is None


def test_stacked_heads_go_on_as_each_alone_does(loaded, make):
    forward = Forward(loaded.model)
    with torch.no_grad():
        heads = [
            forward.prefill([parts(loaded, "Who?", make.image(n, size))[0]])
            for n, size in enumerate([(80, 60), (30, 120)])
        ]
        tails = [[7, 8, 9], [7]]
        states, rows = forward.append(stacked(heads), tails)
        for n, (head, tail) in enumerate(zip(heads, tails, strict=True)):
            alone, row = forward.append(head, [tail])
            torch.testing.assert_close(states[n, : len(tail)], alone[0], rtol=1e-4, atol=1e-5)
            assert rows.next_position[n] == row.next_position[0]


def test_those_used_last_are_kept():
    kept: ImagePrefixCache = ImagePrefixCache(2)
    for name in "abac":
        if kept.get(name) is None:
            kept.put(name, name)  # type: ignore[arg-type]
    assert [kept.get(name) for name in "abc"] == ["a", None, "c"]
    assert len(kept) == 2
    ImagePrefixCache(0).put("a", "a")  # type: ignore[arg-type]
