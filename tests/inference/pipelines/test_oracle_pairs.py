"""The gold section is read first and whole, then the pairs that were found; other questions are left out."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.operators.searching import KnowledgeBases
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.pipelines.extraction import shortener
from reflectune.inference.pipelines.oracle_pairs import OraclePairs, OraclePairsSettings
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.trace import Trace
from reflectune.retrieval.retrievers.joint import JointSearch
from reflectune.retrieval.retrievers.two_stage import SectionPairs

ASKED = Question("q", "image.png", "Who built it?", entity_ids=("e1",), evidence=(Evidence("e1", 1),))


@pytest.fixture
def knowledge(tmp_path: Path) -> KnowledgeBase:
    sections = (Section("Use", "It is a bridge."), Section("Builder", "Ann built it.\n\nIn 1872."))
    entry = Entry("e1", "Kirk Bridge", sections=sections)
    return write_knowledge_base(tmp_path, [entry], name="kb")


def run(script: Any, knowledge: KnowledgeBase, pairs: int, **settings: Any) -> Trace:
    asked_for = OraclePairsSettings(pair_passages=pairs, max_new_tokens=8, **settings)
    pipeline = TrajectoryPipeline("oracle_pairs", OraclePairs(asked_for, knowledge), script.tools)
    (trace,) = pipeline.run([ASKED], [Image.new("RGB", (8, 8))])
    return trace


def test_pairs_stand_behind_the_gold_section(scripting: type[Any], knowledge: KnowledgeBase) -> None:
    script = scripting(say=lambda prompt: "Ann", find=lambda query, base: [f"{base} {n}" for n in range(9)])
    trace = run(script, knowledge, 2, detailed_answer=True)
    searched, (kind, prompt) = script.asked
    assert searched == ("search", "Who built it?", "pairs", 2)
    assert (kind, trace.answer, trace.ended) == ("write", "Ann", "with 2 pairs")
    assert prompt == (
        "Please answer the following question using the provided information and image.\n\n"
        "Question: Who built it?\nRelevant Knowledge: Kirk Bridge: Builder. Ann built it. In 1872.\n"
        "pairs 0: pairs 0\npairs 1: pairs 1\n\n"
        "Based on the information, provide a detailed answer to the question."
    )
    assert trace.passages[0].passage.text == "Ann built it. In 1872."


def test_a_pair_of_the_gold_section_is_left_out(scripting: type[Any], knowledge: KnowledgeBase) -> None:
    found = [(Hit("e1", 0.9 - section, rank, "", "kb"), section) for rank, section in enumerate((1, 0), start=1)]
    sections = SimpleNamespace(search_sections=lambda queries, top, weights: [found for _ in queries])
    pairs = JointSearch([SectionPairs("pairs", sections, knowledge, is_summary=True)])
    script = scripting(say=lambda prompt: "Ann")
    tools = dataclasses.replace(script.tools, search=KnowledgeBases(pairs, script.tools.embed).search)
    steps = OraclePairs(OraclePairsSettings(pair_passages=2, max_new_tokens=8), knowledge)
    (trace,) = TrajectoryPipeline("oracle_pairs", steps, tools).run([ASKED], [Image.new("RGB", (8, 8))])
    assert [read.passage.section for read in trace.passages] == [1, 0]
    assert trace.ended == "with 1 pairs"


def test_without_pairs_nothing_is_searched(scripting: type[Any], knowledge: KnowledgeBase) -> None:
    script = scripting(say=lambda prompt: "Ann")
    trace = run(script, knowledge, 0)
    assert [entry[0] for entry in script.asked] == ["write"]
    assert trace.ended == "with 0 pairs"


def test_a_detailed_answer_is_shortened(scripting: type[Any], knowledge: KnowledgeBase) -> None:
    script = scripting(say=lambda prompt: "##Best Answer: Ann" if "##Best Answer:" in prompt else "It was Ann.")
    settings = OraclePairsSettings(pair_passages=0, max_new_tokens=8, detailed_answer=True)
    steps = OraclePairs(settings, knowledge, shortener(lambda _: (), 8))
    (trace,) = TrajectoryPipeline("oracle_pairs", steps, script.tools).run([ASKED], [Image.new("RGB", (8, 8))])
    assert [step.operator for step in trace.steps] == ["answer", "extract"]
    assert trace.answer == "Ann"


def test_it_answers_questions_whose_section_is_known() -> None:
    takes = find_recipe("oracle_pairs").takes
    assert takes(ASKED)
    assert not takes(Question("q", "image.png", "Who built it?", entity_ids=("e1",)))
