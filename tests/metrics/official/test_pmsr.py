"""The expected values of the quirks were compared with PMSR's own evaluation on 20,000 random rows."""

from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.metrics.official import pmsr


def row(*texts: str, captions: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """A row with one record a text; captions belong to the records in order."""
    records = [
        {
            "text_results": [{"title": "", "text": text}],
            "image_results": [{"caption": captions[place]}] if place < len(captions) else [],
        }
        for place, text in enumerate(texts)
    ]
    return {"trajectory": {"records": records}, **fields}


@pytest.mark.parametrize(
    ("entity", "text", "is_mentioned"),
    [
        ("Rome", "Romeo and Juliet", True),
        ("Rome|Paris", "Paris and Rome", True),
        ("Rome|Paris", "Rome", False),
        (["Rome", "Paris"], "Paris", True),
        ("São Paulo", "Sao Paulo", False),
        (["São Paulo"], "Sao Paulo", True),
        (["São Paulo"], "São Paulo", True),
        ("['Rome', 'Oslo']", "oslo", True),
        ("The", "anything", True),
        ("[not a list", "it is [not a list]", True),
        ("{['Rome']}", "rome", True),  # Python can't evaluate it: no set holds a list
        ("St. Mary's", "st marys", True),
        ("ten", "10 men", True),
        ("Rome", "", False),
    ],
)
def test_a_name_is_a_substring_of_the_normalised_texts(entity: Any, text: str, is_mentioned: bool) -> None:
    assert pmsr.row_mentions(row(text, entity_text=entity)) is is_mentioned


def test_without_an_entity_the_answers_stand_in() -> None:
    assert pmsr.row_mentions(row("in Oslo", answer_eval=["Oslo"]))
    assert pmsr.row_mentions(row("in Oslo", gold_answer="Oslo", entity_text=""))
    assert not pmsr.row_mentions(row("in Oslo", answer_eval={"range": [1, 2]}))
    assert pmsr.row_mentions(row("in Oslo", input={"answer": "Oslo"}))


def test_what_the_run_put_together_goes_before_the_records() -> None:
    rome_row = row("Rome", entity_text="Rome")
    rome_row["trajectory"]["all_knowledge"] = "Paris"
    assert not pmsr.row_mentions(rome_row)


def test_recall_is_over_all_rows() -> None:
    rows = [row("Rome", entity_text="Rome"), row("Oslo", entity_text="Rome"), {"entity_text": "Rome"}]
    assert pmsr.entity_mention_recall(rows) == pytest.approx(1 / 3)
    assert pmsr.entity_mention_recall([]) == 0.0


def test_recall_by_iteration_never_falls_and_stopped_rows_keep_theirs() -> None:
    rows = [
        row("x", "Rome", entity_text="Rome", captions=("y",)),
        row("Oslo", entity_text="Oslo"),
        row("x", "y", "z", captions=("", "", "Paris"), entity_text="Paris"),
    ]
    steps = pmsr.recall_by_iteration(rows)
    assert [step.text for step in steps] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert [step.image for step in steps] == pytest.approx([0, 0, 1 / 3])
    assert [step.combined for step in steps] == pytest.approx([1 / 3, 2 / 3, 1])


def test_names_parted_between_iterations_are_put_together() -> None:
    steps = pmsr.recall_by_iteration([row("Rome", "Paris", entity_text="Rome|Paris")])
    assert [step.combined for step in steps] == [0.0, 1.0]


def test_rows_of_early_versions_are_refused_by_iteration() -> None:
    old = {"record_id": "7", "trajectory": {"records": [{"reasoning": "…"}], "all_knowledge": "Passage: Rome"}}
    with pytest.raises(UserError, match="row '7'"):
        pmsr.recall_by_iteration([old])
