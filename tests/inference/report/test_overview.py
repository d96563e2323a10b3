"""The report's first screen: the finding, the order and marks of rows, and numbers as text."""

import re
from typing import Any

import pytest

from reflectune.inference.report import overview


def score(value: float, spread: float = 0.04) -> dict[str, float]:
    return {"value": value, "low": value - spread, "high": value + spread, "n": 100}


def metrics(lead: float = 0.1, **more: Any) -> dict[str, Any]:
    values = {"closed_book": 0.05, "naive_rag_article": 0.5, "oracle_article": 0.9, "mr2ag": 0.5 + lead}
    counts = {"mr2ag": {"right": 60, "gate": 1, "misread": 39}, "closed_book": {"right": 5, "unread": 95}}
    return {
        "pipelines": {name: {"overall": score(value)} for name, value in [*values.items(), ("best_baseline", 0.5)]},
        "names": {**{name: name for name in values}, "mr2ag": "mR²AG", "naive_rag_article": "Naive RAG, first article"},
        "best_baseline": "naive_rag_article",
        "best_of_all": None,
        "comparisons": {"mr2ag - best_baseline": score(lead)},
        "losses": counts,
        **more,
    }


@pytest.mark.parametrize(("lead", "verdict"), [(0.1, "a lead: +10.0"), (0.01, "a tie: +1.0"), (-0.1, "behind: −10.0")])
def test_the_finding_calls_an_interval_with_zero_a_tie(lead: float, verdict: str) -> None:
    sentence = overview.finding(metrics(lead))
    assert sentence.startswith(f"mR²AG scores {50 + 100 * lead:.1f} %, 95 % interval ")
    assert f"the best baseline is Naive RAG, first article. The difference is {verdict} points, " in sentence


def test_rows_are_sorted_and_oracles_stand_below_a_line() -> None:
    page = overview.scores(metrics())
    rows = re.findall(r'<tr class="(\S*)">\s*<th scope="row" title="(\w+)"', page)
    marked = [
        ("method", "mr2ag"),
        ("best-baseline", "naive_rag_article"),
        ("", "closed_book"),
        ("oracle", "oracle_article"),
    ]
    assert rows == marked
    assert page.index("closed_book") < page.index("Upper bounds") < page.index("oracle_article")
    assert re.findall(r"<b>([\d.]+)</b> <span class=\"interval\">([^<]+)", page)[0] == ("60.0", "56.0 to 64.0")


def test_an_oracle_alone_has_a_chart_without_that_line() -> None:
    of_oracle = {"pipelines": {"oracle_article": {"overall": score(0.9)}}, "losses": {"oracle_article": {"right": 9}}}
    alone = metrics(**of_oracle, best_baseline=None, comparisons={})
    for page in (overview.scores(alone), overview.losses(alone)):
        assert 'title="oracle_article"' in page
        assert "Upper bounds" not in page


def test_the_axis_ends_above_the_highest_interval() -> None:
    low = {**metrics(), "pipelines": {"mr2ag": {"overall": score(0.3)}}, "best_baseline": None, "comparisons": {}}
    assert 'width="75.00%"' in overview.scores(low)  # 0.3 of 0.4
    assert '<line class="guide"' not in overview.scores(low)
    assert overview.finding(low) == "mR²AG scores 30.0 %, 95 % interval 26.0 to 34.0."


def test_lost_answers_have_their_numbers_as_text_and_only_the_steps_that_happened() -> None:
    page = overview.losses(metrics())
    assert "misread" in page
    assert "entry not found" not in page
    assert '<a href="#pipeline=mr2ag&amp;outcome=misread">39</a><span class="interval">39.0 %</span>' in page
    assert page.count("<td>–</td>") == 3  # closed_book has no gate, and mr2ag looks things up
    widths = [float(width) for width in re.findall(r'part \w+" x="[\d.]+%" width="([\d.]+)%"', page)]
    assert sum(widths) == pytest.approx(200)
    assert overview.lost(metrics()) == "mR²AG loses 40 answers: 39 misread, 1 gate said no."
    assert overview.lost(metrics(losses={})) == ""


def test_a_pipelines_name_is_text() -> None:
    evil = '<img src=x onerror="alert(1)">'
    names = {**metrics()["names"], "mr2ag": evil}
    for page in (overview.scores(metrics(names=names)), overview.losses(metrics(names=names))):
        assert "<img" not in page
        assert "&lt;img" in page
