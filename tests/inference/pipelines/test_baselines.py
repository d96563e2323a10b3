from collections.abc import Callable
from typing import Any

import pytest

from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.pipelines import mr2ag, plain_reader
from reflectune.inference.pipelines.base import ContextPipeline, Pipeline
from reflectune.inference.pipelines.naive_rag import naive_rag
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.trace import Trace, observed_by
from reflectune.retrieval.contexts import ContextBuilder, ContextForm
from reflectune.retrieval.rerankers.words import WordReranker


def naive(reader: Any, retriever: Any, knowledge: KnowledgeBase, form: ContextForm, **settings: Any) -> ContextPipeline:
    contexts = ContextBuilder(knowledge, WordReranker(), lead="none", **settings)
    return naive_rag(f"naive_rag_{form}", reader, retriever, contexts, form)


@pytest.fixture
def build(knowledge, monkeypatch) -> Callable[..., Pipeline]:
    def build(name: str, reader: Any, retriever: Any = None, **settings: Any) -> Pipeline:
        monkeypatch.setattr(plain_reader, "Reader", lambda engine, max_new_tokens: reader)
        monkeypatch.setattr(mr2ag, "PassageReader", lambda engine, max_new_tokens: reader)
        parts = PipelineParts(knowledge, engine=object(), retriever=retriever, reranker=WordReranker())
        return build_pipeline(name, EvaluateConfig(lead="none", **settings), parts)

    return build


NEAR = {"b": 0.6, "a": 0.3, "c": 0.2}


@pytest.mark.parametrize(
    ("form", "settings", "scores", "expected", "s_ret"),
    [
        ("article", {}, NEAR, ["b#0.0", "b#1.0"], [0.6, 0.6]),
        ("articles", {"top_n": 2}, NEAR, ["b#0.0", "b#1.0", "a#0.0", "a#1.0"], [0.6, 0.6, 0.3, 0.3]),
        ("passages", {"top_n": 2, "passages": 2}, {"a": 0.6, "b": 0.3}, ["a#1.0", "b#1.0"], [0.6, 0.3]),
        ("passage", {"top_n": 2, "passages": 2}, {"empty": 0.6, "a": 0.3}, ["a#1.0"], [0.3]),
        ("passage", {"top_n": 1}, {"b": 0.6, "a": 0.3}, ["b#1.0"], [0.6]),
    ],
    ids=["first entry", "as many whole entries as mR²AG", "closest in words", "closest of all", "closest of the first"],
)
def test_each_form_reads_its_passages(make, scripted, knowledge, form, settings, scores, expected, s_ret) -> None:
    reader, retriever = scripted.reader(), scripted.retriever(scores)
    pipeline = naive(reader, retriever, knowledge, form, **settings)
    (trace,) = pipeline.run([make.question(0, text="What does the owl eat?")], scripted.images(1))
    assert reader.contexts == [expected]
    assert [hit.entry_id for hit in trace.hits] == [*scores][: settings.get("top_n", 5)]
    assert [p.s_ret for p in trace.passages] == s_ret
    assert trace.pipeline == f"naive_rag_{form}"


def test_passages_without_a_reranker_are_an_error(make, scripted, knowledge) -> None:
    contexts = ContextBuilder(knowledge, None, lead="none")
    pipeline = naive_rag("naive_rag_passages", scripted.reader(), scripted.retriever({"a": 0.6}), contexts, "passages")
    with pytest.raises(ValueError, match="needs a reranker"):
        pipeline.run([make.question(0)], scripted.images(1))


def test_the_oracle_among_others_reads_gold_and_the_nearest_others_in_a_drawn_order(make, scripted, build) -> None:
    reader, retriever = scripted.reader(), scripted.retriever(NEAR)
    pipeline = build("oracle_articles", reader, retriever, top_n=2)
    questions = [make.question(number, entity_ids=("c",)) for number in range(12)]
    traces = pipeline.run(questions, scripted.images(12))
    orders = [tuple(dict.fromkeys(passage.split("#")[0] for passage in context)) for context in reader.contexts]
    assert {frozenset(order) for order in orders} == {frozenset(("b", "c"))}  # the gold one, and the best of the others
    assert len(set(orders)) == 2  # first here, second there
    assert orders == [tuple(dict.fromkeys(p.passage.entry_id for p in trace.passages)) for trace in traces]
    pipeline.run(questions, scripted.images(12))
    assert reader.contexts[12:] == reader.contexts[:12]


def test_what_an_oracle_reads_among_others_depends_on_no_other_question(make, scripted, build) -> None:
    """An approximate search finds others when more are asked for; a question with two gold entries asks for more."""

    class Approximate:
        def search(self, queries: Any, top_n: int) -> list[list[Any]]:
            order = "abc" if top_n < 4 else "cba"
            return [[make.hit(name, rank) for rank, name in enumerate(order, 1)] for _ in queries]

    def read(*questions: Any) -> list[list[str]]:
        reader = scripted.reader()
        build("oracle_articles", reader, Approximate(), top_n=2).run(questions, scripted.images(len(questions)))
        return reader.contexts

    one = make.question(0, entity_ids=("b",))
    two = make.question(1, evidence=(*make.evidence("a"), *make.evidence("c")))
    assert read(one, two) == [*read(one), *read(two)]
    assert {passage.split("#")[0] for passage in read(one)[0]} == {"a", "b"}


def test_mr2ag_with_oracle_entries_is_given_the_gold_ones(make, scripted, build) -> None:
    questions = [make.question(0, evidence=make.evidence("a", 1)), make.question(1, entity_ids=("c",))]
    reader = scripted.reader(gates={question.id: 0.9 for question in questions})
    traces = build("mr2ag_oracle", reader).run(questions, scripted.images(2))
    assert [[(hit.entry_id, hit.score) for hit in trace.hits] for trace in traces] == [[("a", 1.0)], [("c", 1.0)]]
    assert {trace.pipeline for trace in traces} == {"mr2ag_oracle"}


def test_the_filter_with_oracle_entries_reads_the_best_passage_of_the_gold_one(make, scripted, build) -> None:
    reader = scripted.reader()
    question = make.question(0, text="What does the owl eat?", entity_ids=("c",))
    (trace,) = build("oracle_passages_tuned", reader, passages=1).run([question], scripted.images(1))
    assert reader.contexts == [["c#1.0"]]
    assert (trace.pipeline, [hit.entry_id for hit in trace.hits]) == ("oracle_passages_tuned", ["c"])


def test_what_does_not_fit_is_left_out_and_counted(make, scripted, knowledge) -> None:
    reader, retriever = scripted.reader(room=1), scripted.retriever({"a": 0.6})
    shown: list[Trace] = []
    with observed_by(shown.append):
        (trace,) = naive(reader, retriever, knowledge, "article").run([make.question(0)], scripted.images(1))
    assert [[*partial.hits] for partial in shown] == [[*trace.hits]]
    assert set(shown[0].passages) <= {*trace.passages}
    assert reader.contexts == [["a#0.0"]]
    assert len(trace.passages) == trace.tokens["passages_read"] == trace.tokens["passages_left_out"] == 1


@pytest.mark.parametrize(
    ("given", "evidence", "expected"),
    [("article", True, ["a#0.0", "a#1.0"]), ("passage", True, ["a#1.0"]), ("article", False, ["a#0.0", "a#1.0"])],
    ids=["article", "passage", "entry where there is no evidence"],
)
def test_the_oracle_reads_gold(make, scripted, build, given, evidence: bool, expected: list[str]) -> None:
    reader = scripted.reader()
    question = make.question(0, evidence=make.evidence("a", 1) if evidence else (), entity_ids=("a",))
    (trace,) = build(f"oracle_{given}", reader).run([question], scripted.images(1))
    assert reader.contexts == [expected]
    assert trace.pipeline == f"oracle_{given}"
    assert trace.hits == ()
