import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.probing.config import DocumentSettings, ProbeConfig
from reflectune.data_builders.probing.documents import DocumentSource
from reflectune.data_builders.probing.run import run
from reflectune.data_builders.probing.store import stream_probes
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.retrieval.contexts import Document

Make = Callable[..., ProbeConfig]


def questions(world: Path) -> list[Question]:
    return [q for q in Dataset(world).stream("train") if q.entity_ids][:8]


def found(world: Path, config: ProbeConfig) -> dict[str, list[Document]]:
    asked = questions(world)
    return {q.id: row for q, row in zip(asked, own(world, config).find(asked, []), strict=True)}


def own(world: Path, config: ProbeConfig) -> DocumentSource:
    return DocumentSource(Dataset(world).knowledge, None, DocumentSettings.of(config), config.seed)


def test_own_documents_need_no_index_and_are_of_the_question_s_entry(world: Path, config: Make) -> None:
    documents = found(world, config(index="", documents_of="own"))
    for question in questions(world):
        mine = documents[question.id]
        assert mine
        assert {document.passage.entry_id for document in mine} <= set(question.entity_ids)
        assert {(document.score, document.found) for document in mine} == {(1.0, "")}


def test_an_entry_that_a_question_names_twice_is_read_once(world: Path, config: Make) -> None:
    source, question = own(world, config(index="", documents_of="own")), questions(world)[0]
    twice = dataclasses.replace(question, entity_ids=question.entity_ids * 2)
    assert source.find([twice], []) == source.find([question], [])


def test_random_documents_come_last_each_of_another_entry(world: Path, config: Make) -> None:
    documents = found(world, config(index="", documents_of="own", documents_random=2))
    for question in questions(world):
        *mine, first, second = documents[question.id]
        others = {first.passage.entry_id, second.passage.entry_id}
        assert len(others) == 2
        assert not others & set(question.entity_ids)
        assert [document.rank for document in documents[question.id]] == list(range(1, len(mine) + 3))
        assert (first.score, second.score) == (0.0, 0.0)


def test_random_documents_are_drawn_by_seed(world: Path, config: Make) -> None:
    def drawn(seed: int) -> list[str]:
        documents = found(world, config(index="", documents_of="own", documents_random=2, seed=seed))
        return [document.passage.id for row in documents.values() for document in row[-2:]]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


def test_a_question_without_an_entry_has_random_documents_alone(world: Path, config: Make) -> None:
    source = own(world, config(index="", documents_of="own", documents_random=1))
    question = Question("alone", "what is it?", "", ("a cat",), (), "train")
    (documents,) = source.find([question], [])
    assert [(document.rank, document.score) for document in documents] == [(1, 0.0)]


def test_a_question_whose_own_entry_is_missing_is_a_bad_row(config: Make, world: Path, tmp_path: Path) -> None:
    here = {"image_root": str(world), "knowledge_root": str(world / "knowledge")}
    write_json(tmp_path / "some" / "dataset.json", {**Dataset(world).manifest, **here, "counts": {}})
    known, lost = questions(world)[:2]
    write_questions(tmp_path / "some", "train", [known, dataclasses.replace(lost, entity_ids=("Q404",))])
    settings = config("own", dataset=str(tmp_path / "some"), index="", documents_of="own")
    with pytest.raises(UserError, match=f"question {lost.id} of .*: its entry Q404 is not in the knowledge base"):
        run(settings)
    run(settings.model_copy(update={"on_error": "skip"}))
    problems = {probe.question_id: probe.problem for probe in stream_probes(settings.output)}
    assert problems.keys() == {known.id, lost.id}
    assert not problems[known.id]
    assert "Q404" in problems[lost.id]


def test_probes_hold_the_documents_that_were_asked_for(config: Make, world: Path) -> None:
    settings = config("own", index="", documents_of="own", documents_random=1, visual=False)
    run(settings)
    entities = {q.id: set(q.entity_ids) for q in Dataset(world).stream("train")}
    probes = list(stream_probes(settings.output))
    assert len(probes) == 12
    for probe in probes:
        *mine, drawn = (document.passage.entry_id for document in probe.documents)
        assert set(mine) <= entities[probe.question_id]
        assert drawn not in entities[probe.question_id]
