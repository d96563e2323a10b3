"""The papers' columns that tables rank by are those of docs/paper_numbers.md; overall is a mean of two splits."""

import re
from pathlib import Path

import pytest

from reflectune.examples.miniature.tables.claims import paper_column, ranks
from reflectune.metrics.official import infoseek

PAGE = (Path(__file__).parents[4] / "docs/paper_numbers.md").read_text(encoding="utf-8")
SOURCES = {"mr2ag": "arXiv 2411.15041", "mmkb_rag": "arXiv 2504.10074"}
TABLES = [("mr2ag", number) for number in "156"] + [("mmkb_rag", number) for number in "2345"]


def rows(part: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the heads and the rows of a Markdown table."""
    head, _, *lines = (
        [cell.strip() for cell in line[1:-1].split("|")] for line in part.splitlines() if line[:1] == "|"
    )
    return head, {cells[0]: cells for cells in lines}


@pytest.mark.parametrize(("paper", "number"), TABLES)
def test_a_column_is_the_one_that_the_page_ranks_by(paper: str, number: str) -> None:
    (part,) = (part for part in PAGE.split("\n## ") if f"{SOURCES[paper]}, Table {number}" in part)
    head, by_name = rows(part)
    (ranked_by,) = (position for position, title in enumerate(head) if title.startswith("*"))
    column = paper_column(paper, number)
    assert {name: float(cells[ranked_by]) for name, cells in by_name.items() if cells[ranked_by]} == column
    assert {name: int(cells[-1]) for name, cells in by_name.items()} == ranks(column)


HALVED = [part for part in PAGE.split("\n## ") if "| unseen question | unseen entity | *overall*" in part]


@pytest.mark.parametrize("part", HALVED, ids=lambda part: part.splitlines()[0])
def test_an_overall_number_is_a_mean_of_its_two_splits(part: str) -> None:
    """A slip of the pen would break it. k = 20 of MMKB-RAG's Table 3 breaks it in the paper itself."""
    for name, (_, question, entity, overall, *_) in rows(part)[1].items():
        if question and not (re.search(r"2504.10074, Table 3", part) and name == "20"):
            assert infoseek.harmonic_mean(float(question), float(entity)) == pytest.approx(float(overall), abs=0.1), (
                name
            )


def test_equal_numbers_share_a_rank() -> None:
    assert ranks({"a": 39.2, "b": 40.2, "c": 39.2, "d": 36.7}) == {"a": 2, "b": 1, "c": 2, "d": 4}
    assert ranks({}) == {}
