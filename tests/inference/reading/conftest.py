"""Questions with their passages, and what a model computes of one row, read from the beginning."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from reflectune.core.types import Passage, Question
from reflectune.models.loading import Loaded
from reflectune.models.rendering.renderer import Rendered


@pytest.fixture(scope="session")
def questions(make: SimpleNamespace) -> list[Question]:
    return [make.question(0), make.question(1, text="Who made it?"), make.question(2, text="Where is it?")]


@pytest.fixture(scope="session")
def passages(make: SimpleNamespace) -> list[list[Passage]]:
    """Return two passages of the first question, none of the second and one of the third."""
    grey = make.passage("e2", text="Long ago, it was made of old grey stone.")
    return [[make.passage("e1"), grey], [], [make.passage("e3", text="Oak.")]]


@pytest.fixture(scope="session")
def log_probabilities() -> Callable[[Loaded, Rendered, list[int]], torch.Tensor]:
    """Return a function of a prefix and what follows it: the log-softmax of the next token."""

    def compute(loaded: Loaded, rendered: Rendered, more: list[int]) -> torch.Tensor:
        ids = torch.tensor([[*rendered.ids, *more]])
        kinds = (ids == loaded.renderer.image_token_id).int()
        extra = {"mm_token_type_ids": kinds} if loaded.model.config.model_type == "qwen2_vl" else {}
        with torch.no_grad():
            outputs = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids), **rendered.vision, **extra)
        return outputs.logits[0, -1].float().log_softmax(-1)

    return compute
