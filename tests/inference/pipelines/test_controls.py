"""mR²AG's own reader without its verdicts, and its choice under other settings."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from reflectune.inference.pipelines.controls import FirstPassage, TextScored
from reflectune.inference.pipelines.mr2ag import MR2AG, Mr2agSettings, Unjudged, decide_again
from reflectune.inference.trace import Trace, to_row
from reflectune.inference.trace_files.columns import TraceColumns
from reflectune.inference.trace_files.layout import write_traces
from reflectune.inference.trace_files.reading import TraceFile
from reflectune.retrieval.rerankers.words import WordReranker

ASKED = "What does the owl eat?"
RELEVANCE = {"a#0.0": 0.2, "a#1.0": 0.3, "b#0.0": 0.9, "b#1.0": 0.6}
ANSWERS = {"a#0.0": ("a0", 0.95), "a#1.0": ("Mice!", 0.8), "b#0.0": ("b0", 0.7), "b#1.0": ("mice", 0.6)}


@pytest.fixture
def ask(make, scripted, knowledge) -> Callable[..., Trace]:
    """Return a function that asks a question of a kind of pipeline, with S_ret 0.8 for entry a, 0.6 for b."""

    def run(kind: type[MR2AG] = MR2AG, gate: float = 0.9, **settings: Any) -> Trace:
        reader = scripted.reader({"q000": gate}, RELEVANCE, {**ANSWERS, "direct": ("by heart", 0.5)})
        made = Mr2agSettings(lead="none", **settings)
        retriever = scripted.retriever({"a": 0.8, "b": 0.6})
        pipeline = kind(reader, retriever, knowledge, made, WordReranker())
        return pipeline.run([make.question(0, text=ASKED)], scripted.images(1))[0]

    return run


@pytest.mark.parametrize(
    ("kind", "answer", "read"),
    [
        (MR2AG, "b0", ["b#0.0", "b#1.0"]),  # 0.6·0.9·0.7 among the relevant ones
        (Unjudged, "a0", list(RELEVANCE)),  # 0.8·0.95
        (FirstPassage, "Mice!", ["a#1.0"]),  # of a, the section about eating, though it is judged irrelevant
        (TextScored, "Mice!", list(RELEVANCE)),
    ],
    ids=["mr2ag", "unjudged", "first passage", "text scored"],
)
def test_a_control_chooses_without_the_verdicts_and_shares_the_gate(ask, kind, answer, read) -> None:
    trace = ask(kind)
    assert (trace.answer, trace.fallback) == (answer, "")
    assert [p.passage.id for p in trace.passages if p.answer is not None] == read
    s_rel = [p.s_rel for p in trace.passages]
    if kind is TextScored:
        assert (sum(s_rel), s_rel[1] == s_rel[3] > s_rel[0]) == (pytest.approx(1.0), True)  # two sections about eating
    else:
        assert s_rel == [RELEVANCE[p.passage.id] for p in trace.passages]  # kept, to decide again
    assert ask(kind, gate=0.1).answer == "by heart"


@pytest.mark.parametrize(("on_disk", "scale"), [(False, 1), (True, 1), (False, 1e6)])
def test_the_text_scored_control_takes_the_answers_of_the_unjudged_one(
    ask, monkeypatch, tmp_path, on_disk: bool, scale: float
) -> None:
    """Scores far apart leave shares of 0, which are not candidates."""
    rank = WordReranker.rank

    def scaled(*given: Any) -> Any:
        return [[dataclasses.replace(one, score=one.score * scale) for one in row] for row in rank(*given)]

    monkeypatch.setattr(WordReranker, "rank", scaled)
    own, stored = ([ask(kind, gate) for gate in (0.9, 0.1)] for kind in (TextScored, Unjudged))
    monkeypatch.setattr(MR2AG, "run", None)
    for gate, trace, answered in zip((0.9, 0.1), own, stored, strict=True):
        traces: Mapping[str, Trace] = {trace.question_id: answered}
        if on_disk:
            write_traces(tmp_path / "unjudged.parquet", "f", [to_row(answered)])
            traces = TraceColumns(TraceFile(tmp_path / "unjudged.parquet"), [*traces])
        monkeypatch.setattr(TextScored, "answered", traces)
        assert dataclasses.replace(ask(TextScored, gate), seconds=trace.seconds) == trace


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({}, "b0"),
        ({"exponents": [0.0, 0.0, 1.0]}, "b0"),
        ({"exponents": [9.0, 0.0, 1.0], "relevant_shift": 2.0}, "a0"),  # all are relevant; the entry decides
        ({"relevant_shift": 2.0, "votes": True}, "mice"),  # a1 and b1 together: 0.49 + 0.33, a0 0.49
        ({"relevant_shift": 2.0}, "a0"),
        ({"s_ret_temperature": 0.01, "relevant_shift": 2.0}, "a0"),
        ({"relevant_shift": -9.0}, "b0"),  # none is relevant: the highest product
    ],
)
def test_settings_of_the_choice_decide_the_same_asked_again_or_from_a_stored_trace(ask, settings, answer) -> None:
    asked = ask(**settings)
    for shift in (0.0, -1.5):
        again = decide_again(ask(Unjudged, relevant_shift=shift), Mr2agSettings(**settings))
        assert again.answer.lower().strip("!") == asked.answer.lower().strip("!") == answer
        assert (again.chosen, again.fallback) == (asked.chosen, asked.fallback)
        for first, second in zip(again.passages, asked.passages, strict=True):
            assert first.s_rel == pytest.approx(second.s_rel)
            assert dataclasses.replace(first, s_rel=0, s_irr=0) == dataclasses.replace(second, s_rel=0, s_irr=0)
