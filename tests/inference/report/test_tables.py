import pytest

from reflectune.inference.report import tables as report_tables
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.scores import TraceScorer


@pytest.fixture
def metrics(make) -> dict:
    questions = [make.question(i, split) for i, split in enumerate(("val_unseen_question", "val_unseen_entity"))]
    scores = ({"ret": 0.5, "rel": 0.8, "answer": "oak"}, {"ret": 0.4, "rel": 0.7, "answer": "fir"})
    candidates = tuple(make.read(**each, ans=0.5) for each in scores)
    traces = {
        "mr2ag": {f"q00{i}": make.trace(i, gate=0.9, passages=candidates, chosen=0) for i in range(2)},
        "naive_rag_article": {f"q00{i}": make.trace(i, "naive_rag_article", "fir") for i in range(2)},
    }
    measured = evaluate(questions, traces, measure=TraceScorer("infoseek"), gamma=0.5, seed=0)
    return {**measured, "names": {name: name for name in traces}, "readers": {}}


def test_scores_are_in_percent_with_their_intervals(metrics) -> None:
    table = report_tables.scores(metrics)
    assert "mr2ag</th><td>100.0<span" in table
    assert "naive_rag_article</th><td>0.0<span" in table
    assert "mr2ag − best baseline (naive_rag_article)</th>" in table
    assert "+100.0<span" in table  # the difference


def test_every_ranking_has_its_scores(metrics) -> None:
    table = report_tables.rankings(metrics)
    assert "ret·rel·ans (the full product)</th><td>100.0<span" in table
    assert "random</th><td>50.0<span" in table


def test_the_verdict_on_the_full_product_is_a_sentence() -> None:
    beaten, tied, ahead = ({"low": low, "high": high} for low, high in ((-0.2, -0.1), (0.0, 0.1), (0.1, 0.2)))
    leads = {"overall": {"rel": beaten}, "unseen_entity": {"rel": ahead}, "unseen_question": {"rel*ans": tied}}
    rankings = {"full_product_leads": {column: {**lead, "ans": ahead} for column, lead in leads.items()}}
    heads = {column: column.replace("_", " ") for column in leads}
    first, second, third = report_tables.ranking_sentences(rankings, heads)
    assert first.startswith("Overall: the full product is behind rel, by")
    assert second.startswith("Unseen entity: the full product is the best, by")
    assert "the full product ties with rel·ans, by" in third
    assert "best" not in third


def test_what_was_not_measured_is_a_dash(metrics) -> None:
    assert "Relevance within the article</th><td>–</td><td>–</td>" in report_tables.parts(metrics)


def test_facts_are_escaped() -> None:
    assert "&lt;b&gt;" in report_tables.facts({"data set": "<b>"})
    assert "<b>" not in report_tables.facts({"data set": "<b>"})


def test_mmkb_rags_decisions_stand_in_the_table(make) -> None:
    questions = [make.question(i, entity_ids=("e1",)) for i in range(2)]
    passages = (make.read(rel=0.2), make.read(section=1, rel=0.9, source="stating"))
    traces = {
        "closed_book": {"q000": make.trace(0, "closed_book", "fir"), "q001": make.trace(1, "closed_book")},
        "reflection": {
            "q000": make.trace(0, "reflection", "", gate=0.9, passages=passages),
            "q001": make.trace(1, "reflection", "", gate=0.1),
        },
        "mmkb_rag": {f"q00{i}": make.trace(i, "mmkb_rag") for i in range(2)},
    }
    table = report_tables.parts(evaluate(questions, traces, measure=TraceScorer("infoseek"), gamma=0.5, seed=0))
    assert "RET, AUROC, unseen entity</th><td>100.0<span" in table
    assert "RET, AUROC, unseen question</th><td>–</td>" in table
    assert "SRT, first document states an answer, all questions</th><td>100.0<span" in table
    assert "Retriever&#39;s order, the same, all questions</th><td>0.0<span" in table


def test_without_mmkb_rag_its_decisions_are_not_listed(metrics) -> None:
    assert "RET, AUROC" not in report_tables.parts(metrics)
