from __future__ import annotations

import pytest

from reflectune.inference.pipelines.closed_book import ClosedBook
from reflectune.inference.pipelines.naive_rag import NaiveRAG
from reflectune.inference.pipelines.oracle import Oracle


def test_closed_book_reads_nothing(make, scripted) -> None:
    reader = scripted.reader(answers={"plain": ("owl", 0.4)})
    traces = ClosedBook(reader).run([make.question(0), make.question(1)], scripted.images(2))
    assert reader.contexts == [[], []]
    assert [(t.question_id, t.pipeline, t.answer, t.confidence) for t in traces] == [
        ("q000", "closed_book", "owl", 0.4),
        ("q001", "closed_book", "owl", 0.4),
    ]
    assert not traces[0].retrieved


def test_the_article_form_reads_the_whole_first_entry(make, scripted, knowledge) -> None:
    reader, retriever = scripted.reader(), scripted.retriever({"b": 0.6, "a": 0.3})
    pipeline = NaiveRAG(reader, retriever, knowledge, "article", lead="none")
    (trace,) = pipeline.run([make.question(0)], scripted.images(1))
    assert reader.contexts == [["b#0.0", "b#1.0"]]
    assert [hit.entry_id for hit in trace.hits] == ["b", "a"]
    assert [p.s_ret for p in trace.passages] == [0.6, 0.6]
    assert trace.pipeline == "naive_rag_article"


def test_the_passages_form_reads_the_closest_in_words(make, scripted, knowledge) -> None:
    reader, retriever = scripted.reader(), scripted.retriever({"a": 0.6, "b": 0.3})
    pipeline = NaiveRAG(reader, retriever, knowledge, "passages", top_n=2, lead="none")
    pipeline.run([make.question(0, text="What does the owl eat?")], scripted.images(1))
    assert reader.contexts == [["a#1.0", "b#1.0"]]


def test_what_does_not_fit_is_left_out_and_counted(make, scripted, knowledge) -> None:
    reader, retriever = scripted.reader(room=1), scripted.retriever({"a": 0.6})
    (trace,) = NaiveRAG(reader, retriever, knowledge, "article", lead="none").run(
        [make.question(0)], scripted.images(1)
    )
    assert reader.contexts == [["a#0.0"]]
    assert len(trace.passages) == trace.tokens["passages_read"] == trace.tokens["passages_left_out"] == 1


@pytest.mark.parametrize(("given", "expected"), [("article", ["a#0.0", "a#1.0"]), ("passage", ["a#1.0"])])
def test_the_oracle_reads_gold(make, scripted, knowledge, given: str, expected: list[str]) -> None:
    reader = scripted.reader()
    question = make.question(0, evidence=make.evidence("a", 1), entity_ids=("a",))
    (trace,) = Oracle(reader, knowledge, given, lead="none").run([question], scripted.images(1))
    assert reader.contexts == [expected]
    assert trace.pipeline == f"oracle_{given}"
    assert trace.hits == ()


def test_the_oracle_takes_the_entry_where_there_is_no_evidence(make, scripted, knowledge) -> None:
    reader = scripted.reader()
    Oracle(reader, knowledge, "article", lead="none").run([make.question(0, entity_ids=("c",))], scripted.images(1))
    assert reader.contexts == [["c#0.0", "c#1.0"]]
