"""What a reflection's probabilities are held against: is looking up needed, does a passage state the answer?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reflectune.core.types import Question
from reflectune.inference.grid.outcomes import Judgement
from reflectune.inference.grid.points import Point
from reflectune.inference.pipelines.diagnostics import is_stating
from reflectune.inference.scoring.scores import Measure
from reflectune.inference.trace import Trace

Judge = Callable[[Question, Mapping[str, Trace], Measure], Sequence[Judgement]]

MEASURES: Mapping[str, tuple[Point, ...]] = {
    "mr2ag": (Point("(reflection)", {"pipeline": "mr2ag", "gamma": 0.0}),),
    "mmkb_rag": (
        Point("(reflection)", {"pipeline": "reflection"}),
        Point("(closed book)", {"pipeline": "closed_book"}),
    ),
}
"""Points that are run beside a grid's for the reliability diagrams, by pipeline."""

NAMES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "mr2ag": {
        "gate": ("Gate", "share that is knowledge-based"),
        "relevance": ("S_rel", "share that states the answer"),
    },
    "mmkb_rag": {
        "gate": ("RET", "share that the base model gets wrong"),
        "relevance": ("SRT", "share that states the answer"),
    },
}
"""By pipeline and kind of judgement: what it is called, and what is so."""


def judge_mr2ag(question: Question, traces: Mapping[str, Trace], measure: Measure) -> list[Judgement]:
    """The gate against the kind of question, and S_rel of every passage of a knowledge-based question."""
    trace = traces["(reflection)"]
    found = []
    if trace.gate is not None and question.is_knowledge_based is not None:
        found.append(Judgement("gate", trace.gate, question.is_knowledge_based))
    return found + _relevance(question, trace, measure)


def judge_mmkb(question: Question, traces: Mapping[str, Trace], measure: Measure) -> list[Judgement]:
    """RET against a wrong answer of the base model, and SRT of every document of a knowledge-based question."""
    if "(reflection)" not in traces:
        return []
    trace, closed = traces["(reflection)"], traces["(closed book)"]
    found = []
    if trace.gate is not None and not closed.error and (measure.official([question]) or measure.visual([question])):
        found.append(Judgement("gate", trace.gate, measure.correctness(question, closed) < 1))
    return found + _relevance(question, trace, measure)


JUDGES: Mapping[str, Judge] = {"mr2ag": judge_mr2ag, "mmkb_rag": judge_mmkb}


def _relevance(question: Question, trace: Trace, measure: Measure) -> list[Judgement]:
    if not measure.official([question]):
        return []
    judged = [(p.passage, p.s_rel) for p in trace.passages if p.s_rel is not None]
    return [Judgement("relevance", score, is_stating(question, passage)) for passage, score in judged]
