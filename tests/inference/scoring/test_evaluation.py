import dataclasses
from collections import defaultdict

import numpy as np
import pytest

from reflectune.inference.reading.ranking import RANKINGS
from reflectune.inference.report import tables, trajectories
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import FoundPassage, Step, by_question

UQ, UE = "val_unseen_question", "val_unseen_entity"


def run(questions, traces, gamma=0.5, metric="infoseek"):
    by_id = {name: by_question(each) for name, each in traces.items()}
    return evaluate(questions, by_id, measure=TraceScorer(metric), gamma=gamma, seed=0)


def test_a_question_without_truth_is_not_scored(make) -> None:
    unknown = [make.question(1, answer_type="numerical"), dataclasses.replace(make.question(2), answers=())]
    known = [make.question(0), make.question(3, answer_type="numerical", range=(1.0, 2.0))]
    assert TraceScorer("infoseek").official([*known, *unknown]) == known


def test_visual_and_two_hop_questions_stand_outside_the_official_score(make) -> None:
    known, visual = make.question(0), make.question(1, requires_retrieval=False)
    questions = [known, visual, make.question(2, meta={"two_hop": "yes"})]
    assert TraceScorer("infoseek").official(questions) == questions[:1]
    traces = [make.trace(0, "closed_book", "pine"), make.trace(1, "closed_book"), make.trace(2, "closed_book")]
    metrics = run(questions, {"closed_book": traces})
    assert metrics["pipelines"]["closed_book"]["unseen_entity"] == {"value": 0.0, "low": 0.0, "high": 0.0, "n": 1}
    assert metrics["visual"]["base"]["value"] == 1.0
    assert metrics["two_hop"]["closed_book"]["value"] == 1.0


def test_a_failed_question_counts_as_wrong_and_uncovered(make) -> None:
    traces = [make.trace(0, "closed_book"), make.trace(1, "closed_book", error="image not found")]
    metrics = run([make.question(0), make.question(1)], {"closed_book": traces})
    assert metrics["pipelines"]["closed_book"]["unseen_entity"]["value"] == 0.5
    assert metrics["coverage"]["closed_book"] == 0.5


def test_a_score_is_broken_down_by_answer_type(make) -> None:
    questions = [make.question(0), make.question(1, answer="1900", answer_type="time")]
    metrics = run(questions, {"closed_book": [make.trace(0, "closed_book"), make.trace(1, "closed_book", "1901")]})
    by_type = metrics["pipelines"]["closed_book"]["by_type"]
    assert {kind: score["value"] for kind, score in by_type.items()} == {"string": 1.0, "time": 0.0}


def test_the_gate_is_measured_over_knowledge_and_visual_questions_at_gamma(make) -> None:
    questions = [
        make.question(i, requires_retrieval=looked_up) for i, looked_up in enumerate((True, True, False, None))
    ]
    traces = [make.trace(0, gate=0.9), make.trace(1, gate=0.6), make.trace(2, gate=0.7), make.trace(3, gate=0.1)]
    assert run(questions, {"mr2ag": traces})["gate"]["accuracy"]["value"] == pytest.approx(2 / 3)
    strict = run(questions, {"mr2ag": traces}, gamma=0.8)["gate"]
    assert strict["accuracy"]["value"] == pytest.approx(2 / 3)
    assert strict["auroc"]["value"] == pytest.approx(1 / 2)  # of the pairs (0.9, 0.7) and (0.6, 0.7), one is in order
    assert strict["accuracy"]["n"] == 3


def test_costs_are_those_of_scored_questions(make) -> None:
    """A gate closes on visual questions, which baselines aren't asked."""
    questions = [make.question(0), make.question(1, requires_retrieval=False)]
    traces = [make.trace(0, tokens={"read": 90}), make.trace(1, tokens={"read": 10})]
    assert run(questions, {"mr2ag": traces})["costs"]["mr2ag"]["read"] == 90.0
    assert run(questions[1:], {"mr2ag": traces[1:]})["costs"]["mr2ag"]["read"] == 10.0


def test_a_question_that_names_entities_is_the_gates_to_decide_on_without_saying_so(make) -> None:
    questions = [make.question(i, requires_retrieval=None) for i in range(3)]
    questions[0] = dataclasses.replace(questions[0], entity_ids=("e1",))
    questions[1] = dataclasses.replace(questions[1], requires_retrieval=False)
    gate = run(questions, {"mr2ag": [make.trace(i, gate=0.9 - 0.4 * i) for i in range(3)]})["gate"]
    assert (gate["accuracy"]["n"], gate["auroc"]["value"]) == (2, 1.0)


def relevance(make, *passages):
    traces = [make.trace(0, "relevance", passages=passages)]
    return run([make.question(0, evidence=make.evidence())], {"relevance": traces})["relevance"]


def test_relevance_is_balanced_between_gold_and_negatives(make) -> None:
    rejected = [make.read(section=section, rel=0.1, source="same_article") for section in (1, 2, 3)]
    measured = relevance(
        make,
        make.read(rel=0.9, source="gold"),
        *rejected,
        make.read(section=4, rel=0.8, source="same_article"),
        make.read("e2", rel=0.8, source="look_alike:colour"),
        make.read("e3", rel=0.2, source="look_alike:kind"),
        make.read("e4", rel=0.8, source="look_alike:several"),
    )
    assert measured["within_article"]["value"] == pytest.approx((1 + 3 / 4) / 2)
    assert measured["look_alikes"]["value"] == pytest.approx((1 + 1 / 3) / 2)
    assert {name: s["value"] for name, s in measured["by_attribute"].items()} == {"colour": 0.0, "kind": 1.0}
    gold_rejected = relevance(make, make.read(rel=0.2, source="gold"), rejected[0])
    assert gold_rejected["within_article"]["value"] == 0.5
    assert (gold_rejected["look_alikes"], gold_rejected["by_attribute"]) == (None, {})


def test_recall_looks_at_the_first_k_entries(make) -> None:
    questions = [make.question(i, entity_ids=("e1",)) for i in range(3)]
    traces = [
        make.trace(0, "retrieval", hits=(make.hit("e1", 0), make.hit("e2", 1))),
        make.trace(1, "retrieval", hits=(make.hit("e2", 0), make.hit("e1", 1))),
        make.trace(2, "retrieval", hits=(make.hit("e2", 0), make.hit("e3", 1))),
    ]
    recalls = run(questions, {"retrieval": traces})["retrieval"]
    assert recalls["article_recall@1"]["value"] == pytest.approx(1 / 3)
    assert recalls["article_recall@5"]["value"] == pytest.approx(2 / 3)


def test_rankings_choose_among_the_same_candidates(make) -> None:
    # S_ret prefers pine, S_rel and the products prefer oak, S_ans prefers fir; random is right one time in three.
    candidates = (
        make.read("e1", ret=0.9, rel=0.51, answer="pine", ans=0.5),
        make.read("e2", ret=0.8, rel=0.99, answer="oak", ans=0.6),
        make.read("e3", ret=0.3, rel=0.55, answer="fir", ans=0.7),
    )
    metrics = run([make.question(0)], {"mr2ag": [make.trace(0, passages=candidates, chosen=1)]})["rankings"]
    values = {name: table["unseen_entity"]["value"] for name, table in metrics["scores"].items()}
    by_products = dict.fromkeys(("rel", "ret*ans", "rel*ans", "ret*rel", "full"), 1.0)
    assert values == {"random": pytest.approx(1 / 3), "ans": 0.0, "ret": 0.0, **by_products}
    assert list(values) == list(RANKINGS)
    leads = metrics["full_product_leads"]["unseen_entity"]
    assert list(leads) == [name for name in RANKINGS if name != "full"]
    assert [leads[name]["value"] for name in ("random", "ans", "rel")] == [pytest.approx(2 / 3), 1.0, 0.0]


def test_where_nothing_is_ranked_all_rankings_agree(make) -> None:
    metrics = run([make.question(0)], {"mr2ag": [make.trace(0, answer="oak", gate=0.1)]})["rankings"]
    assert {table["unseen_entity"]["value"] for table in metrics["scores"].values()} == {1.0}


def compared(make, **right: int):
    """Measure pipelines that answer the first of four questions, in order."""
    answers = {name: ["oak"] * count + ["fir"] * (4 - count) for name, count in right.items()}
    traces = {name: [make.trace(i, name, said) for i, said in enumerate(each)] for name, each in answers.items()}
    return run([make.question(i) for i in range(4)], traces)


def test_the_best_baseline_is_reported_and_compared(make) -> None:
    naive = {"naive_rag_article": 1, "naive_rag_articles_tuned": 3, "naive_rag_passages": 2}
    metrics = compared(make, **naive, oracle_article_tuned=4, mr2ag=4)
    assert metrics["best_baseline"] == "naive_rag_articles_tuned"  # an oracle is given the entry: no baseline
    assert metrics["pipelines"]["best_baseline"] == metrics["pipelines"]["naive_rag_articles_tuned"]
    assert metrics["comparisons"]["mr2ag - best_baseline"]["value"] == pytest.approx(0.25)
    assert metrics["comparisons"]["mr2ag - naive_rag_article"]["value"] == pytest.approx(0.75)
    assert "mr2ag - closed_book" not in metrics["comparisons"]
    assert metrics["best_of_all"] is None  # no control was run


def test_the_best_of_all_is_of_baselines_and_controls(make) -> None:
    metrics = compared(make, naive_rag_article=1, mr2ag_unjudged=3, mr2ag_first_passage=2, mr2ag=4)
    assert (metrics["best_baseline"], metrics["best_of_all"]) == ("naive_rag_article", "mr2ag_unjudged")
    leads = {name: lead["value"] for name, lead in metrics["comparisons"].items()}
    rivals = {"best_baseline": 0.75, "best_of_all": 0.25, "naive_rag_article": 0.75}
    assert leads == {
        f"mr2ag - {name}": lead for name, lead in {**rivals, "mr2ag_unjudged": 0.25, "mr2ag_first_passage": 0.5}.items()
    }
    named = {**metrics, "names": {name: name for name in metrics["pipelines"]}, "readers": {}}
    assert "best of all baselines and controls (mr2ag_unjudged)" in tables.scores(named)
    assert "best_of_all" not in trajectories.costs(named)


@pytest.mark.parametrize("tuned", ["mr2ag", "mmkb_rag"])
def test_each_tuned_pipeline_is_compared_with_the_baselines_question_by_question(make, tuned: str) -> None:
    comparisons = compared(make, closed_book=0, naive_rag_article=1, **{tuned: 3})["comparisons"]
    assert list(comparisons) == [f"{tuned} - {name}" for name in ("best_baseline", "closed_book", "naive_rag_article")]
    assert [score["value"] for score in comparisons.values()] == pytest.approx([0.5, 0.75, 0.5])
    assert comparisons[f"{tuned} - best_baseline"]["low"] <= 0.5 <= comparisons[f"{tuned} - best_baseline"]["high"]


def test_mmkb_rags_stage_is_no_pipeline(make) -> None:
    questions = [make.question(0), make.question(1, requires_retrieval=False)]
    answered = [make.trace(0, "mmkb_rag", gate=0.9), make.trace(1, "mmkb_rag", gate=0.1)]
    metrics = run(questions, {"mmkb_rag": answered, "reflection": [make.trace(0, "reflection", "", gate=0.9)]})
    assert list(metrics["pipelines"]) == ["mmkb_rag"]
    assert metrics["visual"]["tuned"]["value"] == 1.0
    assert metrics["rankings"] is None
    assert metrics["gate"] == {"accuracy": None, "auroc": None}  # RET's label is another one
    assert metrics["reflection"]["mct"]["replies"] == 0


def test_answers_from_gold_come_from_the_tuned_and_the_base_model(make) -> None:
    questions = [make.question(i, evidence=make.evidence()) for i in range(2)]
    tuned = [make.trace(0, "relevance", "oak", chosen=0), make.trace(1, "relevance", "")]  # no passage of its evidence
    base = [make.trace(0, "oracle_article", "oak"), make.trace(1, "oracle_article", "fir")]
    answer = run(questions, {"relevance": tuned, "oracle_article": base})["answer"]
    assert {name: score["value"] for name, score in answer.items()} == {"gold_passage": 1.0, "gold_article": 0.5}
    assert answer["gold_passage"]["n"] == 1


def drawn(make, times: int):
    """A run of all that is measured, over 40 entities that are asked about so often with equal outcomes."""
    draw, questions, traces = np.random.default_rng(0), [], defaultdict(list)
    for place in range(40):
        entity, right, gate = f"e{place}", draw.integers(2, size=9).tolist(), draw.random()
        kinds = {"split": (UQ, UE)[place % 2], "requires_retrieval": place % 4 < 3, "entity_ids": (entity,)}
        sources = zip(draw.random(4), ("gold", "same_article", "look_alike:colour", "stating"), strict=True)
        passages = [
            make.read(entity, k, rel=p, answer=("oak", "fir")[k % 2], ans=0.5, source=source)
            for k, (p, source) in enumerate(sources)
        ]
        found = [FoundPassage("e#0.0", ("other", entity)[ok], "pairs", 0, 1, 0.5) for ok in right[:2]]
        texts = [("fir", "oak")[ok] for ok in right[2:4]]
        pairs = [
            (Step("search", i, queries=("?",), found=(found[i],)), Step("reason", i, text=texts[i])) for i in (0, 1)
        ]
        judged = {"gate": gate, "passages": tuple(passages)}
        run = {"relevance": judged, "retrieval": {"hits": (make.hit(("other", entity)[right[4]], 0),)}}
        run |= {"mr2ag": judged, "reflection": judged, "closed_book": {}, "naive_rag_article": {}, "oracle_article": {}}
        run |= {
            "pmsr": {"steps": (*pairs[0], *pairs[1][: 2 * right[5]])},
            "pmsr_fixed": {"steps": (*pairs[0], *pairs[1])},
        }
        for number in range(place, 40 * times, 40):
            questions.append(make.question(number, evidence=make.evidence(entity), **kinds))
            for (name, fields), ok in zip(run.items(), right, strict=True):
                traces[name].append(make.trace(number, name, ("fir", "oak")[ok], **fields))
    return questions, traces


def intervals_of(record, path=()):
    """Yield every value with its interval, by its place in a record."""
    if isinstance(record, dict) and "low" in record:
        yield path, [record[key] for key in ("value", "low", "high")]
    elif isinstance(record, dict | list):
        for key, value in record.items() if isinstance(record, dict) else enumerate(record):
            yield from intervals_of(value, (*path, key))


@pytest.mark.parametrize("metric", ["infoseek", "exact_match"])
def test_asking_about_an_entity_again_narrows_no_interval(make, metric: str) -> None:
    once, thrice = (run(*drawn(make, times), metric=metric) for times in (1, 3))
    assert once["resampled"] == thrice["resampled"] == "30 entities"
    found, again = dict(intervals_of(once)), dict(intervals_of(thrice))
    measured = "pipelines gate relevance answer visual retrieval rankings reflection calibration comparisons by_split"
    assert {path[0] for path in found} >= {*measured.split(), "trajectories", "stop_rule"}
    assert found.keys() == again.keys()
    different = {path[-1] for path in found if again[path] != pytest.approx(found[path])}
    assert different <= {"ece_scaled", "reduction"}  # scalings are fitted to more rows
    assert sum(low < high for _, low, high in found.values()) > 0.8 * len(found)
