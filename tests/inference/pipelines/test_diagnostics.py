import dataclasses
import json
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Evidence, Section
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.pipelines.diagnostics import DiagnosticPassages, gold_passages, is_stating

RELATIONS = {"gold": ["diet", "keeper"], "red_cat": ["diet", "keeper"], "blue_owl": ["keeper", "diet"]}


@pytest.fixture
def knowledge(tmp_path: Path) -> KnowledgeBase:
    entries = [
        Entry(name, name.title(), sections=tuple(Section(it.title(), f"About the {it} of {name}.") for it in relations))
        for name, relations in RELATIONS.items()
    ]
    return write_knowledge_base(tmp_path / "knowledge", entries, name="kb")


def builder(root: Path, knowledge: KnowledgeBase) -> DiagnosticPassages:
    return DiagnosticPassages(root, {}, knowledge, "none", seed=0)


def test_probes_of_the_data_set_go_before_listed_look_alikes(make, tmp_path, knowledge) -> None:
    passage = make.passage("made_up", 0)
    row = {"question_id": "q000", "attribute": "mark", "passage": dataclasses.asdict(passage)}
    (tmp_path / "probes.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "look_alikes.json").write_text('[["gold", "blue_owl"]]')
    probes = builder(tmp_path, knowledge).build(make.question(0, evidence=make.evidence("gold", 1)))
    assert [(p.source, p.passage.entry_id) for p in probes[2:]] == [("look_alike:mark", "made_up")]


def test_entries_that_a_list_calls_alike_are_shown_under_the_same_heading(make, tmp_path, knowledge) -> None:
    (tmp_path / "look_alikes.json").write_text('[["gold", "blue_owl"], ["red_cat", "gold"]]')
    found = builder(tmp_path, knowledge)
    probes = found.build(make.question(0, evidence=make.evidence("gold", 0)))
    assert [(p.source, p.passage.heading) for p in probes[2:]] == [("look_alike:several", "Diet")] * 2
    assert {p.passage.entry_id for p in probes[2:]} == {"blue_owl", "red_cat"}
    answering = make.question(0, answer="About the diet of red_cat.", evidence=make.evidence("gold", 0))
    assert "red_cat" not in {p.passage.entry_id for p in found.build(answering)}  # it would not be wrong to accept it


@pytest.mark.parametrize(("text", "said"), [('{"gold": ["a"]}', "expected a list"), ('[["gold", "nobody"]]', "nobody")])
def test_a_bad_list_of_look_alikes_is_reported(tmp_path, knowledge, text: str, said: str) -> None:
    (tmp_path / "look_alikes.json").write_text(text)
    with pytest.raises(UserError, match=said):
        builder(tmp_path, knowledge)


@pytest.mark.parametrize(
    ("sections", "sources"), [((), []), ((0,), ["gold", "same_article"]), ((0, 1), ["gold", "gold"])]
)
def test_without_look_alikes_probes_are_of_the_evidences_article(make, tmp_path, knowledge, sections, sources) -> None:
    question = make.question(0, evidence=tuple(Evidence("gold", section) for section in sections))
    assert [p.source for p in builder(tmp_path, knowledge).build(question)] == sources


def test_of_several_paragraphs_the_one_with_the_answer_is_gold(make) -> None:
    passages = [make.passage(text="Long ago.", index=0), make.passage(text="Made of OAK.", index=1)]
    assert gold_passages(make.question(0, evidence=make.evidence()), passages) == passages[1:]
    assert gold_passages(make.question(0, answer="pine", evidence=make.evidence()), passages) == passages


@pytest.mark.parametrize("line", ["not json", '{"question_id": "q", "attribute": "mark"}', '{"passage": {"a": 1}}'])
def test_a_bad_probe_is_named_with_its_line(tmp_path, knowledge, line: str) -> None:
    (tmp_path / "probes.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"probes\.jsonl, line 1"):
        builder(tmp_path, knowledge)


def test_a_document_states_the_answer_if_it_is_of_the_entity_and_holds_it(make) -> None:
    by_entity, other = make.question(0, entity_ids=("e1",)), make.question(1, evidence=make.evidence("e1"))
    for question in (by_entity, other):
        assert is_stating(question, make.passage("e1", text="It is made of oak."))
        assert not is_stating(question, make.passage("e1", text="It is made of pine."))
        assert not is_stating(question, make.passage("e2", text="It is made of oak."))
    assert not is_stating(make.question(2), make.passage("e1", text="It is made of oak."))  # whose entity is not known
