from reflectune.core.types import Evidence, Passage, Question
from reflectune.data_builders.annotators.string import by_gold


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
