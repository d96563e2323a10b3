"""mRAG's pipeline and its agent, replayed: what is asked and searched, in order, on every way through."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UnusableInput
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.operators.requests import SearchRequest
from reflectune.inference.operators.searching import ENTRIES, EntryDocuments, KnowledgeBases
from reflectune.inference.operators.trajectory import TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps
from reflectune.inference.pipelines.mrag import Mrag, MragSettings, documents_shown, entry_weights
from reflectune.inference.pipelines.mrag_agent import FAILS, MragAgent, MragAgentSettings
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.trace import Trace, from_row, to_row
from reflectune.retrieval.rerankers.words import WordReranker
from reflectune.retrieval.retrievers.joint import JointSearch
from reflectune.retrieval.retrievers.queries import Query, Weights, modality_weights

ASKED = Question("q", "image.png", "Who built it?")
INSTRUCTION = "Based on the retrieved document, answer the question with a single word or phrase."


def find(query: str, base: str) -> list[str]:
    return ["one", "two", "three", "four"]


def run(script: Any, trajectory: Callable[[Question], Steps[TrajectoryResult]]) -> Trace:
    (trace,) = TrajectoryPipeline("mrag", trajectory, script.tools).run([ASKED], [Image.new("RGB", (8, 8))])
    assert from_row(to_row(trace)) == trace
    return trace


def mrag(**settings: Any) -> Mrag:
    keys = {"top_n": 3, "rerank": "none", "answer_documents": 1, "max_new_tokens": 8, **settings}
    return Mrag(MragSettings(**keys), lambda question: (Passage("gold", 0, 0, "gold", "", "", "gold"),))


def agent(**settings: Any) -> MragAgent:
    return MragAgent(MragAgentSettings(top_n=3, max_new_tokens=8, **settings))


def kind(asked: tuple[Any, ...]) -> str:
    """A step in a word: what was asked, and about which documents."""
    if asked[0] == "search":
        return "search"
    prompt = asked[1]
    about = "+".join(name for name in ("one", "two", "three") if f"{name}: {name}" in prompt)
    if asked[0] == "judge":
        return f"{'valid' if 'Response:' in prompt else 'relevant'} {about}"
    names = {"RELATED DOCUMENTS": "answer", "ranking": "rank", "image caption": "caption"}
    return f"{next(name for words, name in names.items() if words in prompt)} {about}".strip()


# The pipeline.


def test_the_recipe_of_the_paper_step_by_step(scripting: type[Any]) -> None:
    script = scripting(say=lambda p: "[Document 2] > [Document 1]" if "ranking" in p else "Ann Kirk", find=find)
    trace = run(script, mrag(query_modality="I", rerank="listwise"))
    assert list(map(kind, script.asked)) == ["search", "rank one+two+three", "answer two"]
    assert script.asked[0] == ("search", "", "entries", 3)
    assert script.asked[-1] == (
        "write",
        "Read the provided documents under RELATED DOCUMENTS section and answer the question according to what is "
        "provided. Do not use your own knowledge!\n\nRELATED DOCUMENTS:\ntwo: two\n\nNow given the image and the "
        "following question, answer the question with the image by referring to the RELATED DOCUMENTS.\n\n"
        "Who built it?\n\n" + INSTRUCTION,
    )
    assert (trace.answer, trace.ended) == ("Ann Kirk", "answered from 1 of 3 documents")
    assert [read.passage.entry_id for read in trace.passages] == ["two", "one", "three"]
    assert (trace.chosen, trace.used, trace.tokens["replies_unread"]) == (0, (0,), 0)
    assert [hit.entry_id for hit in trace.hits] == ["one", "two", "three"]  # as retrieved


def test_more_documents_are_read_in_their_order(scripting: type[Any]) -> None:
    script = scripting(say=lambda prompt: "Ann Kirk", find=find)
    trace = run(script, mrag(answer_documents=2))
    assert "RELATED DOCUMENTS:\none: one\ntwo: two\n\n" in script.asked[-1][1]
    assert (trace.chosen, trace.used) == (None, (0, 1))


def test_documents_that_the_context_did_not_hold_are_not_counted(scripting: type[Any]) -> None:
    long = ["one: a\nand more", "two: b\nand more", "three: c"]
    script = scripting(say=lambda prompt: "Ann Kirk", find=lambda query, base: long, room=3)
    trace = run(script, mrag(answer_documents=3))
    assert (trace.ended, trace.used, trace.chosen) == ("answered from 1 of 3 documents", (0,), 0)
    assert documents_shown([], 0) == 0


def test_the_bounds_answer_without_search_from_nothing_and_from_the_gold_article(scripting: type[Any]) -> None:
    script = scripting(say=lambda prompt: "Ann Kirk", find=find)
    lower, upper = (run(script, mrag(answer_from=source, few_words=True)) for source in ("nothing", "gold"))
    alone, with_gold = (prompt for _, prompt in script.asked)
    assert alone == (
        "Given the image and the following question, answer the question with the image in a few words.\n\n"
        "Who built it?"
    )
    assert with_gold.endswith(
        "RELATED DOCUMENTS:\ngold: gold\n\nNow given the image and the following question, answer the question with "
        "the image by referring to the RELATED DOCUMENTS in a few words.\n\nWho built it?"
    )
    assert (lower.ended, lower.used, lower.retrieved) == ("answered from 0 of 0 documents", (), False)
    assert (upper.ended, upper.used, upper.retrieved) == ("answered from 1 of 1 documents", (0,), False)
    run(script, mrag(answer_from="nothing"))
    assert script.asked[-1][1].endswith("Who built it?\n\nAnswer the question with a single word or phrase.")


def test_the_gold_document_is_the_article_or_its_passage(knowledge: KnowledgeBase) -> None:
    parts = PipelineParts(knowledge, reranker=WordReranker())
    question = Question("q", "image.png", "What does the owl eat?", entity_ids=("b", "a"))
    for unit, found in (("article", "b#-2.0"), ("passage", "b#1.0")):
        settings = MragSettings(unit=unit, answer_from="gold")
        built = find_recipe("mrag").trajectory(settings, parts)
        assert [document.id for document in built.gold(question)] == [found]
        for entity_ids in ((), ("absent",)):
            with pytest.raises(UnusableInput, match="has no entry of its own in the knowledge base"):
                built.gold(dataclasses.replace(question, entity_ids=entity_ids))


def test_documents_are_ordered_by_the_runs_reranker(scripting: type[Any]) -> None:
    scores = {"one": 0.2, "two": 0.1, "three": 0.7}
    script = scripting(say=lambda prompt: "Ann Kirk", find=find, score=scores.__getitem__)
    trace = run(script, mrag(query_modality="IC", rerank="reranker"))
    assert [asked for asked in script.asked if asked[0] == "rerank"] == [
        ("rerank", "Who built it?", it) for it in scores
    ]
    assert [read.passage.entry_id for read in trace.passages] == ["three", "one", "two"]
    assert kind(script.asked[-1]) == "answer three"


MODALITIES = {"I": "", "IQ": "Who built it?", "IC": "A red bridge.", "C": "A red bridge."}


@pytest.mark.parametrize(("modality", "text"), MODALITIES.items(), ids=MODALITIES)
def test_the_search_query_follows_the_modality(scripting: type[Any], modality: Any, text: str) -> None:
    script = scripting(say=lambda p: "A red bridge." if "image caption" in p else "Ann Kirk", find=find)
    run(script, mrag(query_modality=modality))
    *before, search, _ = script.asked
    assert search == ("search", text, "entries", 3)
    assert [asked[1] for asked in before] == (
        [
            "Given the image and question: Who built it?\n\nTo answer the question, generate an image caption that "
            "provides the essential clues within three sentences."
        ]
        if "C" in modality
        else []
    )


@pytest.mark.parametrize(("modality", "fusion"), [("C", "scores"), ("IC", "features")])
def test_a_caption_alone_is_not_read_together_with_the_image(modality: Any, fusion: str) -> None:
    assert entry_weights(MragSettings(query_modality=modality, fusion="features")).fusion == fusion


def test_without_a_caption_the_question_is_searched_with(scripting: type[Any]) -> None:
    script = scripting(say=lambda prompt: " ", find=find)
    run(script, mrag(query_modality="C"))
    assert script.asked[1] == ("search", "Who built it?", "entries", 3)


# The agent.


def likely(**yes: float) -> Callable[[str], float]:
    """P(Yes) by the step in a word, `relevant_one` or `valid_one`; 0.1 if not listed."""
    return lambda prompt: yes.get(kind(("judge", prompt)).replace(" ", "_"), 0.1)


def answers(prompt: str) -> str:
    return f"from {next(name for name in ('one', 'two', 'three') if f'{name}: {name}' in prompt)}"


FIRST, SECOND = ["relevant one", "answer one", "valid one"], ["relevant two", "answer two", "valid two"]
AS_LIKELY_AS_NOT = {"relevant_one": 0.5, "relevant_two": 0.5, "relevant_three": 0.5}
THIRD = ["relevant two", "relevant three", "answer three", "valid three"]
BY_SECOND = ("from two", "valid answer from document 2 of 3", 1)
WAYS: Mapping[str, tuple[Mapping[str, float], list[str], tuple[str, str, int | None]]] = {
    "valid at the first document": (
        {"relevant_one": 0.9, "valid_one": 0.8},
        FIRST,
        ("from one", "valid answer from document 1 of 3", 0),
    ),
    "not relevant, so the next": ({"relevant_two": 0.9, "valid_two": 0.8}, [FIRST[0], *SECOND], BY_SECOND),
    "relevant, but an invalid answer, so the next": (
        {"relevant_one": 0.9, "relevant_two": 0.9, "valid_two": 0.8},
        [*FIRST, *SECOND],
        BY_SECOND,
    ),
    "none valid": ({"relevant_one": 0.9, "relevant_three": 0.9}, [*FIRST, *THIRD], ("", FAILS, None)),
    "as likely as not is no": (AS_LIKELY_AS_NOT, [FIRST[0], *THIRD[:2]], ("", FAILS, None)),
}


@pytest.mark.parametrize(("yes", "steps", "end"), WAYS.values(), ids=WAYS)
def test_the_agent_stops_at_a_valid_answer(scripting, yes: Mapping[str, float], steps: list[str], end: tuple) -> None:
    script = scripting(say=answers, find=find, probability=likely(**yes))
    trace = run(script, agent())
    assert list(map(kind, script.asked)) == ["search", *steps]
    assert (trace.answer, trace.ended, trace.chosen) == end
    assert trace.fallback == ("" if trace.ended != FAILS else "abstain")


def test_the_agent_verifies_by_figure_11(scripting: type[Any]) -> None:
    script = scripting(say=answers, find=find, probability=lambda prompt: 0.9)
    run(script, agent())
    assert script.asked[-1] == (
        "judge",
        "Given the following reference document, image, question, and response, please evaluate whether the response "
        "correctly answers the question by referring to the document. Do not use your own knowledge.\n\n"
        "RELATED DOCUMENT:\none: one\n\nNow given the image, and the following question and response again, assess "
        "whether the response correctly answers the question by referring to the above reference document.\n\n"
        "Question: Who built it?\nResponse: from one\n\nReturn one of these labels: 'Yes' or 'No'. Please directly "
        "return your label, do not include the reasoning process!\nYour evaluation is:",
    )


FALLBACKS = {
    "the first document's answer is there": ({"relevant_one": 0.9}, FIRST, []),
    "the first document was not answered from": ({}, ["relevant one"], ["answer one"]),
}


@pytest.mark.parametrize(("yes", "first", "last"), FALLBACKS.values(), ids=FALLBACKS)
def test_the_agent_falls_back_to_the_first_document(scripting, yes: Mapping[str, float], first, last) -> None:
    script = scripting(say=answers, find=find, probability=likely(**yes))
    trace = run(script, agent(agent_fallback="first"))
    assert list(map(kind, script.asked)) == ["search", *first, "relevant two", "relevant three", *last]
    assert (trace.answer, trace.ended, trace.fallback, trace.chosen) == ("from one", FAILS, "first", 0)


UNANSWERED = [*FIRST[:2], *SECOND[:2], "relevant three", "answer three"]
BAD_REPLIES = {
    "spaces": (" \n", UNANSWERED, ""),
    "reflection tokens": ("[Relevant] [Yes]", FIRST, "[Relevant] [Yes]"),
}


@pytest.mark.parametrize(("reply", "steps", "answer"), BAD_REPLIES.values(), ids=BAD_REPLIES)
def test_an_empty_answer_is_never_valid_and_others_are_unchanged(scripting, reply: str, steps, answer) -> None:
    script = scripting(say=lambda prompt: reply, find=find, probability=lambda prompt: 0.9)
    trace = run(script, agent())
    assert list(map(kind, script.asked)) == ["search", *steps]
    assert trace.answer == answer


def test_a_document_of_which_nothing_fits_is_not_relevant(scripting: type[Any]) -> None:
    script = scripting(say=answers, find=find, probability=lambda prompt: 0.9, room=0)
    assert run(script, agent()).ended == FAILS


def test_the_agent_without_documents_fails(scripting: type[Any]) -> None:
    for fallback in ("abstain", "first"):
        trace = run(scripting(say=answers), agent(agent_fallback=fallback))
        assert (trace.answer, trace.ended) == ("", FAILS)


# Entries as documents.


class Entries:
    """A retriever that finds the same entries for everything, and keeps what it was asked."""

    def __init__(self, *found: str) -> None:
        self._found = found
        self.asked: list[tuple[list[tuple[bool, str]], int, Weights | None]] = []

    def search(self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None) -> list[list[Hit]]:
        self.asked.append(([(query.image is not None, query.text) for query in queries], top_n, weights))
        hits = [Hit(name, 1.0 - rank / 10, rank, "query", "kb") for rank, name in enumerate(self._found, start=1)]
        return [hits[:top_n] for _ in queries]


def searched(documents: EntryDocuments, *requests: SearchRequest) -> list[list[Passage]]:
    bases = KnowledgeBases(JointSearch([documents]), embed=lambda texts: texts)
    found = bases.search([(Image.new("RGB", (8, 8)), request) for request in requests])
    return [[hit.passage for hit in row[ENTRIES]] for retrieved in found for row in retrieved.hits]


def test_an_entry_is_one_document_its_article(knowledge: KnowledgeBase) -> None:
    weights, entries = modality_weights("IQ", "IT"), Entries("b", "empty", "a")
    documents = EntryDocuments(entries, knowledge, weights)
    found = searched(
        documents, SearchRequest(0, ("Who?",), {ENTRIES: (3,)}), SearchRequest(0, ("", "What?"), {ENTRIES: (1, 3)})
    )
    both = ["b#-2.0", "a#-2.0"]
    assert [[passage.id for passage in row] for row in found] == [both, both[:1], both]
    assert found[0][0].text == "History. Founded by b.\nDiet. The owl eats b."
    assert entries.asked == [([(True, "Who?"), (True, "What?")], 3, weights), ([(True, "")], 1, weights)]


def test_with_a_reranker_an_entry_is_its_best_passage_for_the_question(knowledge: KnowledgeBase) -> None:
    documents = EntryDocuments(Entries("b", "empty", "a"), knowledge, modality_weights("IC", "I"), WordReranker())
    request = SearchRequest(0, ("Founded long ago.",), {ENTRIES: (3,)}, question="What does the owl eat?")
    assert [[passage.id for passage in row] for row in searched(documents, request)] == [["b#1.0", "a#1.0"]]
    (row,) = searched(documents, SearchRequest(0, ("Founded long ago.",), {ENTRIES: (3,)}))
    assert [passage.id for passage in row] == ["b#0.0", "a#0.0"]
