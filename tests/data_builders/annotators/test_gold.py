from pathlib import Path

from reflectune.core.types import Evidence, Passage, Question
from reflectune.data_builders.annotators.string import by_gold, by_string
from reflectune.examples.miniature.world.build import build_world
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages


def passage(section: int, text: str, entry: str = "e1") -> Passage:
    return Passage(entry, section, 0, "Gold Tower", "", "History", text)


def question(*evidence: Evidence) -> Question:
    return Question("q1", "i.png", "When?", ("1872", "the year 1872"), evidence=evidence)


def test_the_named_sections_are_evidence_whatever_they_say() -> None:
    named = question(Evidence("e1", 1), Evidence("e2", 0))
    passages = [
        passage(1, "Founded in 1872."),
        passage(1, "It burnt."),
        passage(0, "Founded in 1872."),
        passage(0, "It burnt.", "e2"),
    ]
    judgements = by_gold([(named, one) for one in passages])
    assert [one.label for one in judgements] == ["relevant", "relevant", "irrelevant", "relevant"]


def test_the_answer_is_the_one_that_occurs_else_the_first() -> None:
    judgements = by_gold(
        [(question(Evidence("e1", 0)), passage(0, text)) for text in ("In the year 1872.", "It burnt.")]
    )
    assert [one.answer for one in judgements] == ["1872", "1872"]
    late = Question("q1", "i.png", "When?", ("UK", "Britain"), evidence=(Evidence("e1", 0),))
    assert by_gold([(late, passage(0, "In Britain."))])[0].answer == "Britain"


def test_without_named_evidence_nothing_is_known() -> None:
    (judgement,) = by_gold([(question(), passage(0, "Founded in 1872."))])
    assert judgement.label == "unclear"


def test_in_the_world_the_string_annotator_finds_the_evidence(tmp_path: Path) -> None:
    """The world names the sections that hold an answer; others hold it by chance, if at all."""
    build_world(tmp_path / "world", size="tiny", seed=0)
    dataset = Dataset(tmp_path / "world")
    cases = [
        (asked, part)
        for asked in dataset.stream("train")
        if asked.is_knowledge_based
        for entry_id in asked.entity_ids
        for part in split_passages(dataset.knowledge.get(entry_id))
    ]
    found = {position for position, judgement in enumerate(by_string(cases)) if judgement.relevant}
    evidence = {position for position, judgement in enumerate(by_gold(cases)) if judgement.relevant}
    assert evidence
    assert found >= evidence
    assert len(evidence) / len(found) > 0.95
