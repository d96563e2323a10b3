"""Baselines that a model behind a server reads are asked in the words of the local reader."""

import pytest
from PIL import Image

from reflectune.inference.operators.models import LocalModel
from reflectune.inference.pipelines.plain_reader import plain_prompt
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from tests.inference.families import ONE_FAMILY


@ONE_FAMILY
@pytest.mark.parametrize("answer_type", ["string", "multi_answer", "free_form"])
def test_a_server_is_asked_in_the_local_readers_words(checkpoints, make, answer_type) -> None:
    engine = PrefixEngine(load(checkpoints.base), 1024)
    question = make.question(0, answer_type=answer_type, text="What is <image> it?")
    shown = tuple(Image.new("RGB", (32, 32), colour) for colour in ("red", "blue"))
    for images, read in ((shown[:1], []), (shown, [make.passage("a")])):
        _, rendered = LocalModel(engine, 1).fit(images, plain_prompt(question, images, read), 8)
        assert rendered.ids == engine.renderer.plain(question.text, images, read, question.answer_style).ids
