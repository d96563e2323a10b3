"""Break-downs by group, the recorded correctness, and scores over seeds, on answers that are counted by hand."""

import json

import pytest

from reflectune.core.errors import UserError
from reflectune.formats.dataset import Dataset
from reflectune.inference.evaluate import summary
from reflectune.inference.report.comparison_page import seeds_table
from reflectune.inference.report.tables import scores as tables
from reflectune.inference.running.experiment import select
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.groups import labels_of
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.scoring.seeds import over_seeds, record_of
from reflectune.inference.trace import by_question
from reflectune.metrics.reporting import intervals

MEASURE = TraceScorer("exact_match")
GROUPS = ["style=flag", "style"]


@pytest.fixture
def asked(make) -> list:
    """40 questions on 20 entities, half of them flags."""
    styles = ("flag", "drawing", "flag", "photograph")
    return [make.question(i, entity_ids=(f"e{i // 2}",), meta={"style": styles[i // 2 % 4]}) for i in range(40)]


def answered(make, questions, **right: int) -> dict:
    """Traces of pipelines that answer the first entities' questions."""
    rows = {name: ["oak"] * count + ["fir"] * (len(questions) - count) for name, count in right.items()}
    return {name: by_question(make.trace(i, name, text) for i, text in enumerate(row)) for name, row in rows.items()}


@pytest.mark.parametrize(
    ("group", "labels"),
    [
        ("style=flag", ["flag", "not flag", "flag", "not flag"]),
        ("style", ["flag", "drawing", "flag", "photograph"]),
        ("type", ["string"] * 4),
    ],
)
def test_a_group_is_a_field_a_value_against_the_rest_or_the_type(asked, group: str, labels: list[str]) -> None:
    assert labels_of(asked[:8:2], group, "exact_match") == labels
    for wrong in ("colour", "style=red"):
        with pytest.raises(UserError, match=r"no question has .*(drawing|one of type, style)"):
            labels_of(asked, wrong, "exact_match")


def test_scores_and_leads_by_group_are_those_of_its_questions_alone(make, asked) -> None:
    traces = answered(make, asked, mr2ag=30, naive_rag_article=10, closed_book=0)
    metrics = evaluate(asked, traces, measure=MEASURE, gamma=0.5, seed=0, groups=GROUPS)
    assert list(metrics["groups"]["style"]) == ["drawing", "flag", "photograph"]
    for label, part in metrics["groups"]["style=flag"].items():
        own = [q for q in asked if (q.meta["style"] == "flag") == (label == "flag")]
        alone = evaluate(own, traces, measure=MEASURE, gamma=0.5, seed=0)
        assert part["comparisons"] == alone["comparisons"]
        assert part["scores"]["mr2ag"] == {**alone["pipelines"]["mr2ag"]["overall"], "of": "overall"}
    lead = metrics["groups"]["style=flag"]["flag"]["comparisons"]["mr2ag - best_baseline"]
    assert lead["value"] == pytest.approx((16 - 6) / 20)
    shown = f"{100 * lead['value']:.1f} [{100 * lead['low']:.1f}, {100 * lead['high']:.1f}], n = 20"
    assert shown in summary(metrics)
    page = str(tables(metrics))
    assert "<th>flag, 20</th><th>not flag, 20</th>" in page.replace(' scope="col"', "")
    assert "By style=flag" in page


def test_scores_over_seeds_draw_seeds_and_entities(make, asked) -> None:
    counts = {"mr2ag": (30, 20), "naive_rag_article": (10, 10), "closed_book": (0, 20)}
    runs = [answered(make, asked, **{name: its[seed] for name, its in counts.items()}) for seed in (0, 1)]
    records = {str(n): json.loads(json.dumps(record_of(asked, run, GROUPS[:1], MEASURE))) for n, run in enumerate(runs)}
    table = over_seeds(records, "")
    assert (table["seeds"], table["resampled"], table["against"]) == (2, "20 entities", "naive_rag_article")
    assert list(table["parts"]) == ["overall", "flag", "not flag"]
    row = table["parts"]["overall"]["mr2ag"]
    assert (row["score"]["value"], row["lead"]["value"]) == (pytest.approx(25 / 40), pytest.approx(15 / 40))
    first, second = (records["0"]["correct"][name] for name in ("mr2ag", "naive_rag_article"))
    one = intervals.over_seeds([first], against=[second], seed=0, clusters=[q.entity_ids[0] for q in asked])
    assert row["lead"]["high"] - row["lead"]["low"] > one.high - one.low
    same = over_seeds({"0": records["0"], "1": records["0"]}, "naive_rag_article")["parts"]["overall"]["mr2ag"]["lead"]
    assert (same["low"], same["high"]) == pytest.approx((one.low, one.high))
    assert "| mr2ag | 62.5 (" in "\n".join(seeds_table(table))
    for wrong, against, problem in ((asked[1:], "", "other questions"), (asked, "pmsr", "not run in all")):
        with pytest.raises(UserError, match=problem):
            over_seeds({"0": records["0"], "1": record_of(wrong, runs[1], GROUPS[:1], MEASURE)}, against)


def test_a_question_that_a_pipeline_was_not_asked_is_in_neither_score_nor_lead(make, asked) -> None:
    run = answered(make, asked, mr2ag=40, closed_book=20)
    run["mr2ag"] = {key: trace for key, trace in run["mr2ag"].items() if key != "q000"}
    table = over_seeds(dict.fromkeys("ab", record_of(asked, run, [], MEASURE)), "closed_book")["parts"]["overall"]
    assert (table["mr2ag"]["score"]["n"], table["mr2ag"]["lead"]["n"], table["closed_book"]["score"]["n"]) == (
        39,
        39,
        40,
    )
    assert table["mr2ag"]["lead"]["value"] == pytest.approx(1 - 19 / 39)


def test_skipped_draws_and_what_is_left_are_the_split(make, tmp_path) -> None:
    make.data_set(tmp_path, [make.entry(1)], [make.question(i) for i in range(300)])
    dataset, splits = Dataset(tmp_path), ["val_unseen_entity"]
    draws = [{q.id for q in select(dataset, splits, size, 3)} for size in (40, 150)]
    fresh = select(dataset, splits, None, 3, skip=[40, 150])
    assert {q.id for q in fresh} == {f"q{i:03d}" for i in range(300)} - draws[0] - draws[1]
    some = select(dataset, splits, 20, 3, skip=[40, 150])
    assert len(some) == 20
    assert {q.id for q in some} <= {q.id for q in fresh}
    with pytest.raises(UserError, match="no questions"):
        select(dataset, splits, None, 3, skip=[300])
