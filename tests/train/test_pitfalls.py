"""Pitfalls of other trainers, and bad input in the middle of a training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.loading import load
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.train.data.examples import EncodedExamples
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.weights.checkpoints import RECORD


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


def test_a_disk_that_fills_up_while_a_checkpoint_is_written_leaves_the_one_before(config, monkeypatch) -> None:
    """There was room when it was looked for, and then somebody else took it."""
    run = config("full", save_steps=1)
    save, written = torch.save, []

    def fills_up(content: Any, path: Any, *rest: Any, **named: Any) -> None:
        if "checkpoint-2" in str(path):
            written.append(path)
            Path(path).write_bytes(b"a part")
            raise OSError(28, "No space left on device", str(path))
        save(content, path, *rest, **named)

    monkeypatch.setattr(torch, "save", fills_up)
    with pytest.raises(OSError, match="No space left"):
        fine_tune(run)
    assert written
    assert Path(run.output_dir, "checkpoint-1", RECORD).is_file()
    assert not Path(run.output_dir, "checkpoint-2", RECORD).exists()
