import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.core.rows import from_row, schema_of, to_row
from reflectune.core.types import Passage
from reflectune.data_builders.probing.records import (
    DocumentProbe,
    Probe,
    ProbedAnswer,
    greedy_correctness,
    stream_probe_file,
)

PASSAGE = Passage("e", 0, 0, "E", "", "", "It.")
numbers = st.floats(-1e3, 0) | st.none()
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
replies = st.builds(ProbedAnswer, texts, st.floats(0, 1), numbers) | st.none()
small = st.integers(0, 99)
passages = st.builds(Passage, texts, small, small, texts, texts, texts, texts)
documents = st.builds(DocumentProbe, passages, st.floats(-1, 1), small, replies, numbers, texts, st.booleans())
answers = (replies, st.lists(documents, max_size=3).map(tuple), small)
probes = st.builds(Probe, texts, *answers, texts, numbers, texts, st.lists(texts, max_size=2).map(tuple), texts)


@settings(deadline=None)
@given(st.lists(probes, max_size=3))
def test_a_probe_comes_back_from_json_and_parquet(made: list[Probe]) -> None:
    assert [from_row(Probe, json.loads(json.dumps(to_row(probe)))) for probe in made] == made
    table = pa.Table.from_pylist([to_row(probe) for probe in made], schema=schema_of(Probe))
    assert [from_row(Probe, row) for row in table.to_pylist()] == made


def test_a_broken_answer_has_no_correctness() -> None:
    right, broken = ProbedAnswer("x", 1.0, -1.0), ProbedAnswer("x", 1.0, None)
    assert greedy_correctness(right) == 1.0
    assert greedy_correctness(broken) is greedy_correctness(None) is None


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 no")
    pq.write_table(pa.table({"question_id": ["q"]}), tmp_path / "other.parquet")
    damages = {"none": "is missing", "damaged": "not a readable Parquet file", "other": "it has no column `reply`"}
    for name, message in damages.items():
        with pytest.raises(UserError, match=f"(?s){message}") as caught:
            list(stream_probe_file(tmp_path / f"{name}.parquet"))
        assert f"{name}.parquet" in str(caught.value)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (Probe("q1", gold_log_prob=float("inf")), "q1 has a log-probability or score that is not a finite number"),
        (Probe("q1", ProbedAnswer("x", 1.0, float("nan"))), "question q1 has a log-probability"),
        (Probe("q1", ProbedAnswer("x", 1.5, -1.0)), r"question q1 has a reply whose correctness is not in \[0, 1\]"),
        (Probe("q1", ProbedAnswer("x", float("nan"), -1.0)), "correctness is not in"),
        (Probe("q1", documents=(DocumentProbe(PASSAGE, float("-inf"), 1, None),)), "q1 has a log-probability or score"),
    ],
    ids=["gold", "reply", "too right", "not a number", "score"],
)
def test_a_number_out_of_range_is_refused(tmp_path: Path, broken: Probe, problem: str) -> None:
    path = tmp_path / "probes.parquet"
    pq.write_table(pa.Table.from_pylist([to_row(broken)], schema=schema_of(Probe)), path)
    with pytest.raises(UserError, match=f"probes.parquet is not a readable probe file: .*{problem}"):
        list(stream_probe_file(path))
