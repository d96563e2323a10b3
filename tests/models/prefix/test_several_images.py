"""Prompts with images between their texts: read as the family's own processor and model read them."""

import dataclasses

import pytest
import torch

from reflectune.core.errors import UnusableInput
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.image_prefix import split_after_images
from reflectune.models.rendering.turns import IMAGE, QUESTION, Slot, Turn

PARTS = (QUESTION, " Read ", Slot("a"), " ", IMAGE, Slot("b"), " ", IMAGE, Slot("c"), " Say.")
TURNS = (Turn("user", PARTS, image=True),)
TEXTS = {"question": "Who drew this?", "a": "Picture 2:", "b": "a tower\nPicture 3:", "c": "an <image> owl"}


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def loaded(request, make):
    return make.loaded(request.param)


def test_images_of_one_prompt_alone_are_not_kept(loaded, make):
    rendered = loaded.renderer.conversation(TURNS, TEXTS, [make.image(n) for n in range(3)])
    image = loaded.renderer.image_token_id
    assert split_after_images(rendered, image) is not None
    assert split_after_images(dataclasses.replace(rendered, own_images=True), image) is None


def test_each_place_has_an_image_and_no_text_makes_one(loaded, make):
    one = loaded.renderer.conversation(TURNS, TEXTS, [make.image()] * 3)
    assert one.ids.count(loaded.renderer.image_token_id) % 3 == 0
    assert [one.ids[start] for _, start, _ in one.images] == [loaded.renderer.image_token_id] * 3
    assert sum(end - start for _, start, end in one.images) == one.ids.count(loaded.renderer.image_token_id)
    with pytest.raises(UnusableInput, match="2 images for 3 placeholders"):
        loaded.renderer.conversation(TURNS, TEXTS, [make.image()] * 2)


@torch.no_grad()
def test_a_question_with_several_images_is_answered_as_by_plain_transformers(loaded, make):
    """The prompt that a user would write, its probabilities, and its greedy answer; the images' prefix is shared."""
    renderer, images = loaded.renderer, [make.image(n, size) for n, size in enumerate([(80, 60), (30, 120), (64, 64)])]
    words = "Who drew this? Answer the question with a single word or phrase."
    shown = [{"type": "image"}]
    for label in ("Picture 2: ", "\nPicture 3: "):
        shown += [{"type": "text", "text": label}, {"type": "image"}]
    messages = [{"role": "user", "content": [*shown, {"type": "text", "text": f"\n{words}"}]}]
    text = renderer.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = renderer.processor(text=[text], images=images, return_tensors="pt")
    rendered = renderer.plain("Who drew this?", images)
    assert rendered.ids == inputs["input_ids"][0].tolist()
    for name, value in rendered.vision.items():
        torch.testing.assert_close(value, inputs[name])
    ids = list(range(20, 40))
    expected = loaded.model(**inputs).logits[0, -1].softmax(-1)
    engine = PrefixEngine(loaded)
    engine.image_prefixes.keep(2)
    other, one = renderer.plain("What is it?", images), renderer.plain("Who drew this?", images[0])
    for prompt in (dataclasses.replace(rendered, own_images=True), rendered):
        read = engine.read([other, prompt, one])
        torch.testing.assert_close(read.probabilities(ids)[1], expected[ids], rtol=2e-4, atol=1e-7)
    written = loaded.model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, len(rendered.ids) :].tolist()
    assert engine.generate(read, [(1, 0)], max_new_tokens=6)[0].token_ids == written
    assert len(engine.image_prefixes) == 2
