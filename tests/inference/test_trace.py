import json
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.core.types import Passage
from reflectune.formats.hits import Hit
from reflectune.inference.reading.document_choice import PROBLEMS, MctTrace
from reflectune.inference.reading.ranking import PassageScores
from reflectune.inference.trace import PassageTrace, TextlessTrace, Trace, from_row, to_row
from reflectune.inference.trace_files.columns import TraceColumns
from reflectune.inference.trace_files.layout import write_traces
from reflectune.inference.trace_files.reading import TraceFile

text = st.text(max_size=8)
number = st.none() | st.floats(-1, 1)
passages = st.builds(
    PassageTrace,
    passage=st.builds(Passage, text, st.integers(0, 9), st.integers(0, 9), text, text, text, text),
    s_ret=number,
    s_rel=number,
    s_irr=number,
    answer=st.none() | text,
    s_ans=number,
    source=text,
)
hits = st.builds(
    Hit,
    entry_id=text,
    score=st.floats(-1, 1),
    rank=st.integers(0, 9),
    query=text,
    kb=text,
    parts=st.dictionaries(text, st.floats(-1, 1), max_size=2),
)
places = st.lists(st.integers(0, 9), max_size=3).map(tuple)
replies = st.builds(
    MctTrace,
    reply=text,
    shown=st.integers(0, 9),
    finished=st.booleans(),
    keep=places,
    summary=text,
    problem=st.sampled_from(("", *PROBLEMS)),
    merged=st.booleans(),
)
traces = st.builds(
    Trace,
    question_id=text,
    pipeline=text,
    answer=text,
    confidence=number,
    gate=number,
    retrieved=st.booleans(),
    hits=st.lists(hits, max_size=2).map(tuple),
    passages=st.lists(passages, max_size=2).map(tuple),
    chosen=st.none() | st.integers(0, 9),
    kept=places,
    used=places,
    mct=st.none() | replies,
    fallback=text,
    seconds=st.dictionaries(text, st.floats(0, 1), max_size=2),
    tokens=st.dictionaries(text, st.integers(0, 9), max_size=2),
    error=text,
)


@given(traces)
def test_a_trace_comes_back_from_json_as_it_was(trace: Trace) -> None:
    assert from_row(json.loads(json.dumps({"id": trace.question_id, **to_row(trace)}))) == trace


@given(traces)
@settings(deadline=None, max_examples=30)
def test_a_trace_comes_back_from_parquet_as_it_was(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.parquet")
        write_traces(path, "f", [json.loads(json.dumps(to_row(trace)))])
        file = TraceFile(path)
        (whole,) = file
        seen = TraceColumns(file, [trace.question_id])[trace.question_id]
    assert whole == trace
    scores = [{name: value for name, value in vars(read).items() if name != "passage"} for read in trace.passages]
    assert [*map(vars, seen.passages)] == scores
    bare = replace(seen, hits=tuple(seen.hits), steps=tuple(seen.steps), passages=())
    assert bare == TextlessTrace(**vars(replace(trace, passages=())))


def test_a_passage_is_relevant_when_its_token_is_the_more_probable() -> None:
    passage = Passage("e", 0, 0, "t", "", "h", "x")
    assert PassageTrace(passage, s_rel=0.02, s_irr=0.01).relevant  # eq. 6 is a full softmax: both may be small
    assert not PassageTrace(passage, s_rel=0.4, s_irr=0.6).relevant
    assert not PassageTrace(passage, s_rel=0.5, s_irr=0.5).relevant
    assert not PassageTrace(passage).relevant


def test_scores_need_all_three() -> None:
    passage = Passage("e", 0, 0, "t", "", "h", "x")
    assert PassageTrace(passage, s_ret=0.1, s_rel=0.2, s_ans=0.3).scores == PassageScores(ret=0.1, rel=0.2, ans=0.3)
    assert PassageTrace(passage, s_ret=0.1, s_rel=0.2).scores is None
    assert PassageTrace(passage, s_rel=0.2, s_ans=0.3).scores is None


def test_a_row_shows_the_decision_to_a_person() -> None:
    row = to_row(
        Trace("q", "mr2ag", passages=(PassageTrace(Passage("e", 1, 2, "t", "", "h", "x"), s_rel=0.9, s_irr=0.1),))
    )
    assert row["passages"][0]["relevant"] is True
    assert row["passages"][0]["id"] == "e#1.2"
