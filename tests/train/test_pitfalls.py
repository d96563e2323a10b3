"""Pitfalls of other trainers, and bad input in the middle of a training."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.examples.miniature.models.architecture import Family
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.loading import load
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.train.data.examples import EncodedExamples
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.weights.checkpoints import RECORD, checkpoint_folders


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_training_and_inference_see_the_same_pixels(family: Family, config, data_folder, examples) -> None:
    """The image is neither square nor of the model's size, so that cropping and padding would differ."""
    Image.effect_mandelbrot((150, 64), (-2, -1, 1, 1), 50).convert("RGB").save(data_folder / "images" / "wide.png")
    run = config(family=family, max_steps=1)
    fine_tune(run)
    image = load_image("wide.png", root=data_folder / "images")

    trained = MR2AG.encode(load(run.model, scheme="mr2ag").renderer, examples[0], image).vision
    read = load(run.output_dir).renderer.prefix(examples[0].question, image).vision

    assert trained.keys() == read.keys()
    assert all(torch.equal(value, read[name]) for name, value in trained.items())


def test_an_example_without_a_supervised_token_is_named(base_model, data_folder, examples, monkeypatch) -> None:
    """A chat template that ends no turn would leave labels empty; here the labels are lost on the way."""
    renderer = load(str(base_model()), scheme="mr2ag").renderer
    encode = type(MR2AG).encode

    def unlabelled(scheme: Scheme, renderer: Renderer, example: ReflectionExample, image: Image.Image) -> Tree:
        tree = encode(scheme, renderer, example, image)
        silent = [Segment.of(part.ids, [IGNORE] * len(part.ids)) for part in (tree.prefix, *tree.branches)]
        return Tree(silent[0], tuple(silent[1:]), tree.vision)

    monkeypatch.setattr(type(MR2AG), "encode", unlabelled)
    dataset = EncodedExamples(examples, renderer, data_folder / "images", max_tokens=4096)

    with pytest.raises(UserError, match="training example k0 has no supervised token: it would teach nothing"):
        dataset[0]


def test_a_corrupt_image_in_the_middle_of_an_epoch_is_named_and_fixed(
    config, data_folder, straight, interrupted, assert_equal_weights
) -> None:
    """The previous checkpoint stays, and with the image fixed the run ends as the straight one."""
    expected, run = straight(), config("spoilt")
    interrupted(run, 4)
    images = data_folder / "images"
    shutil.copytree(images, data_folder / "whole")
    for path in images.iterdir():
        path.write_bytes(path.read_bytes()[:60])

    with pytest.raises(UserError, match=r"^image unreadable: .*\.png \(needed by training example [kv]\d+\)"):
        fine_tune(run)
    assert [folder.name for folder in checkpoint_folders(run.output_dir)] == ["checkpoint-3"]
    shutil.copytree(data_folder / "whole", images, dirs_exist_ok=True)
    fine_tune(run)

    assert_equal_weights(expected.output_dir, run.output_dir)


def test_a_disk_that_fills_up_while_a_checkpoint_is_written_leaves_the_one_before(
    config, straight, monkeypatch, assert_equal_weights
) -> None:
    """There was room when it was looked for, and then somebody else took it."""
    run = config("full")
    save, written = torch.save, []

    def fills_up(content: Any, path: Any, *rest: Any, **named: Any) -> None:
        if "checkpoint-6" in str(path):
            written.append(path)
            Path(path).write_bytes(b"a part")
            raise OSError(28, "No space left on device", str(path))
        save(content, path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fills_up)
        with pytest.raises(OSError, match="No space left"):
            fine_tune(run)
    assert written
    assert Path(run.output_dir, "checkpoint-3", RECORD).is_file()
    assert not Path(run.output_dir, "checkpoint-6", RECORD).exists()
    fine_tune(run)

    assert_equal_weights(straight().output_dir, run.output_dir)
