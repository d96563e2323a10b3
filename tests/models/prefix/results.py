"""Questions for an engine, and all that it gives for them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.rendering.renderer import Rendered

GATES = [7, 8]
COUNTS = [3, 0, 2]
"""Branches of each question."""
Branches = Sequence[Sequence[Sequence[int]]]


def asked(loaded: Loaded, make: SimpleNamespace) -> tuple[list[Rendered], Branches]:
    sizes = [(80, 60), (64, 64), (30, 120)]
    prefixes = [loaded.renderer.prefix("Who drew it?", make.image(seed, size)) for seed, size in enumerate(sizes)]
    return prefixes, [
        [[40 + q, 50 + k, *range(60, 64 + 4 * k)] for k in range(count)] for q, count in enumerate(COUNTS)
    ]


def said(engine: PrefixEngine, prefixes: Sequence[Rendered], branches: Branches) -> tuple[Any, ...]:
    """Both gates, and answers from some branches and from a prefix; log-probabilities of these and of given answers."""
    opened = engine.read(prefixes)
    state = engine.branch(opened, branches)
    gates = [*state.probabilities(GATES), opened.probabilities(GATES)]
    rows = [(2, 1), (0, 0), (0, 2)]
    answers = engine.generate(state, rows, [39], 5) + engine.generate(opened, [(1, 0), (0, 0)], max_new_tokens=3)
    scores = [answer.log_probs for answer in answers] + engine.score(state, rows, [[45, 46], [47], [48]])
    return torch.cat(gates), [answer.token_ids for answer in answers], scores


def assert_same(actual: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-4, atol=1e-7)
    assert actual[1] == expected[1]
    for log_probs, wanted in zip(actual[2], expected[2], strict=True):
        assert log_probs == pytest.approx(wanted, abs=1e-4)
