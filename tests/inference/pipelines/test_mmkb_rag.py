import pytest

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.data_builders.probing.config import DocumentSettings
from reflectune.data_builders.probing.documents import DocumentSource
from reflectune.formats.hits import describe_ranks
from reflectune.inference.pipelines.documents import DocumentFinder, DocumentFinderSettings
from reflectune.inference.pipelines.mmkb_rag import MMKBRAG, MmkbRagSettings
from reflectune.retrieval.rerankers.base import ScoredPassage

# The question's words are in all four documents alike, so the retriever's order is that of the entries.
ORDER = ["a#0.0", "a#1.0", "b#0.0", "b#1.0"]
RELEVANCE = {"a#0.0": 0.2, "a#1.0": 0.7, "b#0.0": 0.9, "b#1.0": 0.6}


def build(scripted, knowledge, reader, base=None, documents=10, **settings):
    retriever = scripted.retriever({"a": 0.8, "b": 0.4})
    settings = MmkbRagSettings(top_n=2, documents=documents, lead="none", **settings)
    return MMKBRAG(reader, DocumentFinder(retriever, knowledge, settings), settings, base), retriever


@pytest.fixture
def ask(make, scripted, knowledge):
    """Return a function that asks a scripted model, or one that is given, a question with everything looked up."""

    def run(reader=None, *, relevance=RELEVANCE, reply="", room=100, **settings):
        reader = reader or scripted.prompted(relevance=relevance, reply=reply, room=room)
        pipeline, _ = build(scripted, knowledge, reader, **{"ret": False, **settings})
        (trace,) = pipeline.run([make.question(0)], scripted.images(1))
        return trace, reader

    return run


def read(trace) -> list[str]:
    """Ids of what the answer was read from."""
    return [trace.passages[place].passage.id for place in trace.used]


@pytest.mark.parametrize(("gate", "retrieves"), [(0.49, False), (0.5, False), (0.51, True)])
def test_ret_retrieves_above_gamma_and_else_answers_closed_book(make, scripted, knowledge, gate, retrieves) -> None:
    reader = scripted.prompted(gates={"q000": gate}, relevance=RELEVANCE)
    pipeline, retriever = build(scripted, knowledge, reader, gamma=0.5, mct="none")
    (trace,) = pipeline.run([make.question(0)], scripted.images(1))
    assert trace.retrieved is retrieves
    assert retriever.searched == int(retrieves)
    assert bool(trace.hits) is bool(trace.passages) is bool(trace.kept) is retrieves
    assert bool(reader.contexts["q000"]) is retrieves
    assert (trace.gate, trace.fallback) == (gate, "")


def test_only_questions_that_need_it_go_on_and_traces_keep_their_order(make, scripted, knowledge) -> None:
    reader = scripted.prompted(gates={"q000": 0.1, "q001": 0.9, "q002": 0.2}, relevance=RELEVANCE, reply="1.")
    pipeline, retriever = build(scripted, knowledge, reader)
    traces = pipeline.run([make.question(i) for i in range(3)], scripted.images(3))
    assert [trace.question_id for trace in traces] == ["q000", "q001", "q002"]
    assert retriever.searched == 1
    assert reader.judged == [ORDER]
    assert reader.agreed == [["b#0.0", "a#1.0", "b#1.0"]]
    assert reader.contexts == {"q000": [], "q001": ["Founded by b."], "q002": []}
    assert [trace.answer for trace in traces] == ["tuned from 0", "tuned from 1", "tuned from 0"]


def test_without_ret_everything_is_looked_up_and_there_is_no_gate_and_mct_off_is_not_asked(ask) -> None:
    trace, reader = ask(reply="1.", mct="none")
    assert trace.retrieved
    assert trace.gate is None
    assert (trace.mct, reader.agreed) == (None, [])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"k": "auto", "threshold": 0.5}, ["b#0.0", "a#1.0", "b#1.0"]),
        ({"k": "auto", "threshold": 0.7}, ["b#0.0", "a#1.0"]),
        ({"k": 2}, ["b#0.0", "a#1.0"]),
        ({"k": 4}, ["b#0.0", "a#1.0", "b#1.0", "a#0.0"]),
        ({"srt": False, "k": 3}, ORDER[:3]),
        ({"srt": False, "k": "auto"}, ORDER),
    ],
)
def test_srt_orders_and_k_keeps(ask, settings: dict, expected: list[str]) -> None:
    trace, reader = ask(mct="none", **settings)
    assert [p.passage.id for p in trace.passages] == ORDER
    assert read(trace) == expected
    assert [p.s_ret for p in trace.passages] == [0.8, 0.8, 0.4, 0.4]
    judged = settings.get("srt", True)
    assert [p.s_rel for p in trace.passages] == ([0.2, 0.7, 0.9, 0.6] if judged else [None] * 4)
    assert bool(reader.judged) is judged


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"k": "auto"}, ["a#1.0", "b#0.0", "b#1.0"]), ({"k": 2}, ["a#1.0", "a#0.0"]), ({"threshold": 0.95}, ["a#1.0"])],
)
def test_a_temperature_lets_the_nearest_entry_come_first(ask, settings: dict, expected: list[str]) -> None:
    trace, _ = ask(mct="none", s_ret_temperature=0.1, **settings)
    assert read(trace) == expected  # of those that reach the threshold by SRT alone
    assert [round(p.s_ret, 3) for p in trace.passages] == [0.982, 0.982, 0.018, 0.018]
    assert [p.s_rel for p in trace.passages] == [0.2, 0.7, 0.9, 0.6]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"srt_fusion": [1, 0, 0]}, ["b#0.0", "a#1.0", "b#1.0"]),
        ({"srt_fusion": [1, 1, 0]}, ["a#1.0"]),
        ({"srt_fusion": [0, 1, 5], "threshold": 0.99}, ["a#0.0", "a#1.0"]),
    ],
)
def test_fused_probabilities_choose_and_the_trace_keeps_srt(ask, settings: dict, expected: list[str]) -> None:
    trace, _ = ask(mct="none", s_ret_temperature=0.1, **settings)
    assert read(trace) == expected
    assert [p.s_rel for p in trace.passages] == [0.2, 0.7, 0.9, 0.6]


def test_fusion_needs_three_numbers_and_a_temperature() -> None:
    assert find_problems(MmkbRagSettings, {"srt_fusion": [1, 1, 0]})
    assert find_problems(MmkbRagSettings, {"srt_fusion": [1, 2], "s_ret_temperature": 0.1})


def test_the_best_document_is_kept_though_none_reaches_the_threshold(ask) -> None:
    trace, _ = ask(relevance={"b#1.0": 0.4})
    assert read(trace) == ["b#1.0"]
    assert trace.fallback == "best_relevance"
    assert trace.mct is None  # one document cannot agree with another


@pytest.mark.parametrize(
    ("mct", "reply", "expected"),
    [
        ("filter", "3, 1. It eats b.", ["b#1.0", "b#0.0"]),
        ("filter", "3, 1.", ["b#1.0", "b#0.0"]),
        ("rerank", "3. It eats b.", ["b#1.0", "b#0.0", "a#1.0"]),
        ("merge", "3, 1. It eats b.", []),
    ],
)
def test_mct_filters_reranks_or_merges_what_srt_kept(ask, mct: str, reply: str, expected: list[str]) -> None:
    trace, reader = ask(reply=reply, mct=mct)
    assert reader.agreed == [["b#0.0", "a#1.0", "b#1.0"]]
    assert read(trace) == expected
    assert trace.kept == (2, 1, 3)
    assert (trace.mct.reply, trace.mct.problem) == (f"{reply} [Rel]", "")
    assert trace.mct.summary == ("It eats b." if "eats" in reply else "")
    assert trace.mct.merged is (mct == "merge")
    assert len(reader.contexts["q000"]) == max(1, len(expected))
    if mct == "merge":
        assert reader.contexts["q000"] == ["It eats b."]
    assert trace.tokens["mct_generated"] == 7


@pytest.mark.parametrize(
    ("score", "temperature", "expected"),
    [(0.75, 0, ["b#0.0", "b#1.0"]), (0.75, 0.2, ["a#1.0"]), (0.95, 1, ["b#0.0", "b#1.0"])],
)
def test_one_entry_is_kept_by_its_scores_times_s_ret_if_a_share(ask, score, temperature, expected) -> None:
    trace, reader = ask(relevance={**RELEVANCE, "b#0.0": score}, mct="entry", s_ret_temperature=temperature)
    assert (reader.agreed, trace.mct) == ([], None)
    assert set(trace.kept) == {1, 2, 3}
    assert read(trace) == expected


@pytest.mark.parametrize(
    ("reply", "mct", "problem"),
    [
        ("the owl eats b", "filter", "no_numbers"),
        ("4, 1. It eats b.", "rerank", "out_of_range"),
        ("2, 1.", "merge", "empty_summary"),
    ],
)
def test_a_malformed_reply_leaves_srts_order_and_is_named(ask, reply: str, mct: str, problem: str) -> None:
    trace, reader = ask(reply=reply, mct=mct)
    assert trace.mct.problem == problem
    assert read(trace) == ["b#0.0", "a#1.0", "b#1.0"]
    assert not trace.mct.merged
    assert len(reader.contexts["q000"]) == 3


def test_the_base_model_answers_what_the_tuned_one_has_chosen(make, scripted, knowledge) -> None:
    reader = scripted.prompted(gates={"q000": 0.9, "q001": 0.1}, relevance=RELEVANCE, reply="2.")
    base = scripted.reader(answers={"plain": ("oak", 0.7)})
    pipeline, _ = build(scripted, knowledge, reader, base=base)
    looked_up, direct = pipeline.run([make.question(0), make.question(1)], scripted.images(2))
    assert base.contexts == [["a#1.0"], []]
    assert reader.contexts == {}
    assert (looked_up.answer, looked_up.confidence) == (direct.answer, direct.confidence) == ("oak", 0.7)
    assert looked_up.tokens["passages_read"] == 1


def test_what_the_answering_model_cannot_hold_is_not_reported_to_be_read(ask) -> None:
    trace, _ = ask(room=1, mct="none")
    assert read(trace) == ["b#0.0"]
    assert (trace.tokens["passages_read"], trace.tokens["passages_not_read"]) == (1, 2)
    nothing, _ = ask(room=0, mct="none")
    assert (nothing.used, nothing.fallback) == ((), "closed_book")


def test_a_document_that_is_too_long_to_judge_is_left_out_and_counted(ask) -> None:
    trace, _ = ask(relevance={**RELEVANCE, "b#0.0": None}, mct="none", k=4)
    assert read(trace) == ["a#1.0", "b#1.0", "a#0.0"]
    assert (trace.tokens["passages_judged"], trace.tokens["passages_left_out"]) == (3, 1)


def test_no_document_at_all_is_answered_closed_book_and_reported(make, scripted, knowledge) -> None:
    settings = MmkbRagSettings(ret=False)
    finder = DocumentFinder(scripted.retriever({"empty": 0.9}), knowledge, settings)
    reader = scripted.prompted()
    (trace,) = MMKBRAG(reader, finder, settings).run([make.question(0)], scripted.images(1))
    assert trace.retrieved
    assert (trace.passages, trace.kept, trace.used, trace.mct) == ((), (), (), None)
    assert trace.fallback == "closed_book"
    assert reader.contexts == {"q000": []}


# What finds the documents.


def test_documents_are_the_best_passages_by_words_of_the_best_entries(make, scripted, knowledge) -> None:
    settings = DocumentFinderSettings(top_n=2, documents=3)
    finder = DocumentFinder(scripted.retriever({"b": 0.8, "a": 0.4, "c": 0.3}), knowledge, settings)
    question = make.question(0, text="What does the owl eat?")
    (retrieved,) = finder.find([question], scripted.images(1))
    assert [hit.entry_id for hit in retrieved.hits] == ["b", "a"]
    assert [document.id for document in retrieved.documents] == ["b#1.0", "a#1.0", "b#0.0"]


class Backwards:
    """A reranker that puts the last passage first."""

    name = fingerprint = "backwards"

    def rank(self, questions, passages, top_k=None):
        return [[ScoredPassage(p, 0.0) for p in reversed(row)][:top_k] for row in passages]


def test_a_reranker_ranks_documents_in_probing_and_asking_alike(make, scripted, knowledge) -> None:
    settings = DocumentFinderSettings(top_n=2, documents=3, documents_by="reranker", lead="none")
    retriever, question = scripted.retriever({"b": 0.8, "a": 0.4}), make.question(0)
    (asked,) = DocumentFinder(retriever, knowledge, settings, Backwards()).find([question], scripted.images(1))
    probing = DocumentSettings(top_n=2, documents=3, documents_by="reranker", lead="none")
    (probed,) = DocumentSource(knowledge, retriever, probing, 0, Backwards()).find([question], scripted.images(1))
    assert [document.id for document in asked.documents] == ["a#1.0", "a#0.0", "b#1.0"]
    assert [document.passage for document in probed] == list(asked.documents)
    assert describe_ranks(asked.hits) == {document.passage.entry_id: document.found for document in probed}
    with pytest.raises(UserError, match="works in `probe`, `evaluate` and `sweep`"):
        DocumentFinder(retriever, knowledge, settings)
