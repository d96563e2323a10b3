"""The papers' numbers stand in one place, and the page of them says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reflectune.inference.scoring.paper_numbers import MMKB_4, MR2AG_1, MR2AG_6, TABLES, page, ranks
from reflectune.metrics.official import infoseek

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "paper_numbers.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_module_prints() -> None:
    assert page() == PAGE


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.source)
def test_the_page_has_every_number_under_its_source(table) -> None:
    (part,) = [part for part in PAGE.split("\n## ") if part.startswith(table.title)]
    assert table.source in part
    assert re.match(r"arXiv \d{4}\.\d{5}, Table \d", table.source)
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")][2:]
    assert [line[0] for line in lines] == list(table.rows)
    for line, numbers in zip(lines, table.rows.values(), strict=True):
        printed = [cell.strip() for cell in line[1:-1]]
        assert [float(cell) if cell else None for cell in printed] == list(numbers)
        assert int(line[-1]) == table.ranks()[line[0]]


HALVED = [table for table in TABLES if table.columns[0].endswith("unseen question")]


@pytest.mark.parametrize("table", HALVED, ids=lambda table: table.source)
def test_an_overall_number_is_a_mean_of_its_two_splits(table) -> None:
    """A slip of the pen would break it. k = 20 of MMKB-RAG's Table 3 breaks it in the paper itself."""
    for name, (question, entity, overall, *_) in table.rows.items():
        if None in (question, entity) or (table.source.endswith("2504.10074, Table 3") and name == "20"):
            continue
        assert infoseek.overall(question, entity) == pytest.approx(overall, abs=0.1), name


def test_the_order_is_the_papers() -> None:
    assert MR2AG_6.ranks() == {"1": 4, "3": 3, "5": 2, "10": 1}
    assert MR2AG_1.ranks()["LLaVA-mR²AG, oracle"] == 1
    assert MR2AG_1.ranks()["LLaVA-SFR"] > MR2AG_1.ranks()["LLaVA-FT, without knowledge"]
    assert min(MMKB_4.ranks(), key=MMKB_4.ranks().__getitem__) == "merge, auto"


def test_equal_numbers_share_a_rank() -> None:
    assert ranks({"a": 39.2, "b": 40.2, "c": 39.2, "d": 36.7}) == {"a": 2, "b": 1, "c": 2, "d": 4}
    assert ranks({}) == {}
