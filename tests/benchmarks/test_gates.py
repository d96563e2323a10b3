"""Rules that end a trajectory, read from one that ran to its end."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from reflectune.core.types import Question
from reflectune.inference.trace import Step, Trace

Script = Callable[[str], ModuleType]
VECTORS = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [0.6, 0.8], "d": [0.0, 1.0]}


def trace() -> Trace:
    """Four searches, each after a reply with queries; the answer is right from the third on."""
    steps = [Step("caption", 0)]
    for n, query in enumerate("abcd"):
        steps += [Step("rewrite", n)] if n else []
        steps += [Step("search", n, queries=(query,)), Step("reason", n, shown=3)]
        steps += [Step("answer", n, text="oak" if n > 1 else ""), Step("judge", n, each=((0.1, 0.6, 0.3, 0.0)[n],))]
    return Trace("q", "mi_rag", steps=tuple(steps[:-1]))  # the last record is not judged


@pytest.fixture
def course(script: Script) -> Any:
    embed = lambda texts: np.array([VECTORS[text] for text in texts], dtype=np.float32)  # noqa: E731
    return script("gates").Course.of(trace(), embed, filtered=False)


def test_each_rule_has_the_score_and_the_calls_of_its_stop(course: Any) -> None:
    assert course.alike == pytest.approx([-1.0, 0.0, 0.8, 1.0])  # d repeats b
    # caption and a record; each later search has a reply with queries and a record; one answer
    assert [course.fixed(n) for n in range(4)] == [(0.0, 3), (0.0, 5), (1.0, 7), (1.0, 9)]
    assert course.by_cosine(0.9) == (1.0, 6 + 1 + 1)  # stops before the fourth search, behind its queries
    assert course.by_cosine(0.7) == (0.0, 4 + 1 + 1)
    assert course.by_cosine(2.0) == course.fixed(3)
    assert course.by_gate(0.5) == (0.0, 4 + 2 + 1)  # two records judged
    assert course.by_gate(0.05) == (0.0, 2 + 1 + 1)
    assert course.by_gate(1.0) == (1.0, 8 + 3 + 1)
    assert course.documents == 11


def test_the_best_score_is_chosen_then_the_fewest_calls(script: Script, course: Any) -> None:
    gates = script("gates")
    pairs = [(Question("q", "", "?"), course)]
    rules = {f"{n}": lambda it, n=n: it.fixed(n) for n in range(4)}
    assert gates.chosen(pairs, rules) == "2"
    assert gates.chosen(pairs, rules, max_calls=6) == "0"  # none is right: the fewest calls
    assert gates.chosen(pairs, rules, max_calls=1) == "0"
