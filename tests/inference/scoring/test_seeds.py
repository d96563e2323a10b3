"""Scores by group and over seeds, and draws that leave questions out, on answers that are counted by hand."""

import json
from dataclasses import replace

import pytest

from reflectune.core.errors import UserError
from reflectune.formats.dataset import Dataset
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.inference.evaluate import summary
from reflectune.inference.report.comparison_page import seeds_table
from reflectune.inference.report.tables import scores as tables
from reflectune.inference.running.planning import select
from reflectune.inference.scoring.evaluation import baselines, evaluate
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.scoring.seeds import labels_of, parts_over_seeds, record_of
from reflectune.inference.trace import by_question
from reflectune.metrics.reporting import intervals
from reflectune.models.schemes.examples import ReflectionExample

MEASURE = TraceScorer("exact_match")


@pytest.fixture
def asked(make) -> list:
    """40 questions on 20 entities, half of them flags."""
    styles = ("flag", "drawing", "flag", "photograph")
    return [make.question(i, entity_ids=(f"e{i // 2}",), meta={"style": styles[i // 2 % 4]}) for i in range(40)]


def answered(make, **right: int) -> dict:
    """Traces of pipelines that answer the first questions of 40."""
    rows = {name: ["oak"] * count + ["fir"] * (40 - count) for name, count in right.items()}
    return {name: by_question(make.trace(i, name, text) for i, text in enumerate(row)) for name, row in rows.items()}


def score_table(metrics: dict) -> str:
    """Return the report's table of an evaluation whose pipelines have no plain names and one reader."""
    return str(tables({**metrics, "names": {name: name for name in metrics["pipelines"]}, "readers": {}}))


def test_a_group_is_a_field_a_value_against_the_rest_or_the_type(asked) -> None:
    some = asked[:8:2]
    assert labels_of(some, "style=flag", "exact_match") == ["flag", "not flag", "flag", "not flag"]
    assert labels_of(some, "style", "exact_match") == ["flag", "drawing", "flag", "photograph"]
    assert labels_of(some, "type", "exact_match") == ["string"] * 4
    for wrong, known in (("colour", "style, type"), ("style=red", "drawing, flag, photograph")):
        with pytest.raises(UserError, match=f"no question has `{wrong}`; one of {known}"):
            labels_of(some, wrong, "exact_match")


def test_scores_and_leads_by_group_are_those_of_its_questions_alone(make, asked) -> None:
    traces = answered(make, mr2ag=30, naive_rag_article=10, closed_book=0)
    metrics = evaluate(asked, traces, measure=MEASURE, gamma=0.5, seed=0, groups=["style=flag", "style"])
    assert [*metrics["groups"]] == ["overall", "style flag", "style not flag", "style drawing", "style photograph"]
    own = [question for question in asked if question.meta["style"] == "flag"]
    alone = evaluate(own, traces, measure=MEASURE, gamma=0.5, seed=0)
    row = metrics["groups"]["style flag"]["mr2ag"]
    assert row["score"] == alone["pipelines"]["mr2ag"]["overall"]
    assert {**row["lead"], "of": "overall"} == alone["comparisons"]["mr2ag - best_baseline"]
    assert row["lead"]["value"] == pytest.approx((16 - 6) / 20)
    shown = f"50.0 [{100 * row['lead']['low']:.1f}, {100 * row['lead']['high']:.1f}], n = 20"
    assert shown in summary(metrics)
    assert "flag, 20" in (page := score_table(metrics))
    assert "leads over the best baseline (naive_rag_article) in points" in page
    assert alone["groups"] == {}


def test_values_of_two_fields_are_groups_of_their_own(make, asked) -> None:
    marked = [replace(q, meta={"new": "yes" if n < 9 else "no", "rare": "yes"}) for n, q in enumerate(asked)]
    record = record_of(marked, answered(make, mr2ag=30), ["new=yes", "rare=yes"], MEASURE)
    assert [*parts_over_seeds({"a": record}, "")["parts"]] == ["overall", "new not yes", "new yes", "rare yes"]


def test_without_a_baseline_groups_have_scores_alone(make, asked) -> None:
    metrics = evaluate(asked, answered(make, mr2ag=30), measure=MEASURE, gamma=0.5, seed=0, groups=["style=flag"])
    assert "flag, 20" in (page := score_table(metrics))
    assert "By group, with the number of questions." in page
    assert "lead" not in summary(metrics)


def test_scores_over_seeds_draw_seeds_and_entities(make, asked) -> None:
    counts = {"mr2ag": (30, 20), "naive_rag_article": (10, 10), "closed_book": (0, 19)}
    runs = [answered(make, **{name: its[seed] for name, its in counts.items()}) for seed in (0, 1)]
    records = [json.loads(json.dumps(record_of(asked, run, ["style=flag"], MEASURE))) for run in runs]
    table = parts_over_seeds(dict(zip("ab", records, strict=True)), "", baselines())
    assert (table["seeds"], table["resampled"], table["against"]) == (2, "20 entities", "naive_rag_article")
    row = table["parts"]["overall"]["mr2ag"]
    assert (row["score"]["value"], row["lead"]["value"]) == (pytest.approx(25 / 40), pytest.approx(15 / 40))
    first, second = (records[0]["correct"][name] for name in ("mr2ag", "naive_rag_article"))
    one = intervals.over_seeds([first], against=[second], seed=0, clusters=[q.entity_ids[0] for q in asked])
    assert row["lead"]["high"] - row["lead"]["low"] > one.high - one.low
    same = parts_over_seeds(dict.fromkeys("ab", records[0]), "naive_rag_article")["parts"]["overall"]["mr2ag"]["lead"]
    assert (same["low"], same["high"]) == pytest.approx((one.low, one.high))
    assert "| mr2ag | 62.5 (" in "\n".join(seeds_table(table))
    for other, against, problem in (
        (asked[1:], "", "different questions"),
        (asked, "pmsr", "not one of the pipelines"),
    ):
        with pytest.raises(UserError, match=problem):
            parts_over_seeds({"a": records[0], "b": record_of(other, runs[1], ["style=flag"], MEASURE)}, against)


def test_a_question_that_a_pipeline_was_not_asked_is_in_neither_score_nor_lead(make, asked) -> None:
    run = answered(make, mr2ag=40, closed_book=20)
    del run["mr2ag"]["q000"]
    row = parts_over_seeds({"a": record_of(asked, run, [], MEASURE)}, "closed_book")["parts"]["overall"]["mr2ag"]
    assert row["score"]["n"] == row["lead"]["n"] == 39
    assert row["lead"]["value"] == pytest.approx(1 - 19 / 39)


def test_a_draw_leaves_out_what_draws_of_other_sizes_would_ask(make, tmp_path) -> None:
    make.data_set(tmp_path, [make.entry(1)], [make.question(i) for i in range(300)])
    dataset, splits = Dataset(tmp_path), ["val_unseen_entity"]
    drawn = {q.id for size in (40, 150) for q in select(dataset, splits, size, 3)}
    fresh = {q.id for q in select(dataset, splits, None, 3, skip=[40, 150])}
    assert fresh == {f"q{i:03d}" for i in range(300)} - drawn
    assert len({q.id for q in select(dataset, splits, 20, 3, skip=[40, 150])} & fresh) == 20
    with pytest.raises(UserError, match="no questions"):
        select(dataset, splits, None, 3, skip=[300])
    examples = [ReflectionExample(f"q{i:03d}", "a.png", "?", False, answer="red") for i in range(3)]
    write_examples(tmp_path / "trained/train.parquet", examples)
    write_manifest(tmp_path / "trained", Manifest("mr2ag", tmp_path, {"train": "0"}))
    kept = {q.id for q in select(dataset, splits, None, 3, str(tmp_path / "trained"), [40, 150])}
    assert kept <= fresh - {f"q{i:03d}" for i in range(3)}
