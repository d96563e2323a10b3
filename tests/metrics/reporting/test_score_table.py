from dataclasses import replace

import numpy as np
import pytest

from reflectune.core.types import Question
from reflectune.metrics.official import infoseek
from reflectune.metrics.reporting.score_table import compare, retrieval_table, table
from reflectune.metrics.scoring.predictions import Prediction, PredictionFile
from reflectune.metrics.scoring.scoring import Scored, join, score
from tests.metrics.official.report import official_report

DRAW = np.random.default_rng(0)
KINDS = ("string", "time", "numerical")
QUESTIONS = tuple(
    Question(
        f"q{n}",
        "",
        "?",
        answers=("yes",),
        range=(0.5, 1.5),
        answer_type=KINDS[n % 3],  # type: ignore[arg-type]
        split="val_unseen_question" if n % 4 == 0 else "val_unseen_entity",
    )
    for n in range(400)
)


def scored(share: float, questions: tuple[Question, ...] = QUESTIONS) -> Scored:
    values = (np.random.default_rng(int(share * 1000)).random(len(questions)) < share).astype(float)
    return Scored("infoseek", questions, values)


def test_the_official_report_is_that_of_the_official_rows() -> None:
    rows = [{"data_id": q.id, "prediction": DRAW.choice(["yes", "1", "no"])} for q in QUESTIONS]
    references = [
        {
            "data_id": q.id,
            "data_split": q.split,
            "answer_eval": [{"range": list(q.range or ())}] if q.answer_type == "numerical" else list(q.answers),
        }
        for q in QUESTIONS
    ]
    types = [{"data_id": q.id, "question_type": q.answer_type} for q in QUESTIONS]
    predictions = [Prediction("p:1", (row["data_id"],), str(row["prediction"])) for row in [*rows, rows[0]]]
    scores = table(score(join(predictions, QUESTIONS, "official"), "infoseek", "official"), seed=0)
    assert scores["official_report"] == official_report([*rows, rows[0]], references, types)


def test_overall_is_the_harmonic_mean_with_its_interval() -> None:
    run = scored(0.4)
    scores = table(run, seed=0)
    half = np.array([q.split.endswith("unseen_question") for q in QUESTIONS])
    expected = infoseek.harmonic_mean(run.values[half].mean(), run.values[~half].mean())
    assert scores["overall"]["value"] == pytest.approx(expected)
    assert scores["overall"]["low"] < expected < scores["overall"]["high"]
    assert scores["by_split"]["val_unseen_question"]["n"] == 100
    assert sum(scores["by_type"][kind]["n"] for kind in KINDS) == 400


def test_overall_needs_both_halves_and_other_metrics_do_not() -> None:
    entity = tuple(q for q in QUESTIONS if q.split == "val_unseen_entity")
    assert table(scored(0.4, entity), seed=0)["overall"] is None
    mean = table(replace(scored(0.4, entity), metric="exact_match"), seed=0)
    assert mean["overall"]["value"] == scored(0.4, entity).values.mean()
    assert "official_report" not in mean
    assert table(scored(0.4, ()), seed=0)["overall"] is None


def test_evqas_single_hop_leaves_two_hop_out() -> None:
    questions = (Question("a", "", "?"), Question("b", "", "?", meta={"two_hop": "yes"}))
    scores = table(Scored("evqa", questions, np.array([1.0, 0.0]), too_long=("b",)), seed=0)
    assert (scores["overall"]["value"], scores["single_hop"]["value"]) == (0.5, 1.0)
    assert set(scores["by_type"]) == {"templated", "2_hop"}
    assert scores["too_long_for_bem"] == ["b"]


def test_a_run_does_not_differ_from_itself() -> None:
    delta = compare(scored(0.4), scored(0.4), seed=0)
    assert (delta["value"], delta["p"], delta["better"], delta["worse"], delta["n"]) == (0.0, 1.0, 0, 0, 400)


def test_a_better_run_is_found_and_the_sides_are_opposite() -> None:
    forth, back = compare(scored(0.6), scored(0.3), seed=0), compare(scored(0.3), scored(0.6), seed=0)
    values = [table(scored(share), seed=0)["overall"]["value"] for share in (0.6, 0.3)]
    assert forth["value"] == pytest.approx(values[0] - values[1])
    assert back["value"] == pytest.approx(-forth["value"])
    assert 0 < forth["low"] < forth["high"]
    assert forth["p"] == pytest.approx(1 / 1001)
    assert forth["better"] == back["worse"] > forth["worse"]


def test_questions_of_one_entity_are_one_piece_of_evidence() -> None:
    alone = [replace(question, entity_ids=(f"e{place:03d}",)) for place, question in enumerate(QUESTIONS)]
    again = tuple(replace(q, id=f"{q.id} {n}") for q in alone for n in range(3))
    once = [replace(scored(share), questions=tuple(alone)) for share in (0.4, 0.34)]
    thrice = [replace(one, questions=again, values=one.values.repeat(3)) for one in once]
    single, triple = compare(*once, seed=0), compare(*thrice, seed=0)
    assert {**triple, "n": 400, "better": single["better"], "worse": single["worse"]} == pytest.approx(single)


def test_only_questions_of_both_are_compared_by_their_first_answers() -> None:
    first = Scored("infoseek", (QUESTIONS[0], QUESTIONS[0], QUESTIONS[1]), np.array([1.0, 0.0, 1.0]))
    second = Scored("infoseek", (QUESTIONS[2], QUESTIONS[0]), np.array([1.0, 0.0]))
    difference = compare(first, second, seed=0)
    assert (difference["n"], difference["value"]) == (1, 1.0)
    nothing = compare(first, Scored("infoseek", (), np.zeros(0)), seed=0)
    assert (nothing["n"], nothing["value"]) == (0, None)


def test_retrieval_where_the_file_says_what_was_found() -> None:
    questions = [Question("a", "", "?", entity_ids=("u1",)), Question("b", "", "?", entity_ids=("u9",))]
    rows = tuple(Prediction("r:1", (key,), retrieved=("u0", "u1")) for key in ("a", "b"))
    file = PredictionFile("echosight_retrieval", rows)
    scores = retrieval_table(file, join(rows, questions, "official"), "official")
    assert (scores["article_recall@1"], scores["article_recall@5"], scores["mrr"], scores["n"]) == (0.0, 0.5, 0.25, 2)
    assert retrieval_table(file, join((), questions, "official"), "official") == {}


def test_an_article_that_two_knowledge_bases_hold_takes_one_rank() -> None:
    question = Question("a", "", "?", entity_ids=("u2",))
    rows = (Prediction("r:1", ("a",), retrieved=("u1", "u1", "u2", "u2")),)
    scores = retrieval_table(PredictionFile("traces", rows), join(rows, [question], "official"), "official")
    assert (scores["article_recall@1"], scores["mrr"]) == (0.0, 0.5)


def test_a_question_for_which_nothing_was_retrieved_is_not_found() -> None:
    """Left out, it would raise the recall of a system that retrieves for easy questions alone."""
    questions = [Question("a", "", "?", entity_ids=("u1",)), Question("b", "", "?", entity_ids=("u2",))]
    rows = (Prediction("r:1", ("a",), retrieved=("u1",)), Prediction("r:2", ("b",), retrieved=()))
    scores = retrieval_table(PredictionFile("traces", rows), join(rows, questions, "official"), "official")
    assert (scores["article_recall@1"], scores["mrr"], scores["n"]) == (0.5, 0.5, 2)
    strict = retrieval_table(PredictionFile("traces", rows[:1]), join(rows[:1], questions, "strict"), "strict")
    assert (strict["article_recall@1"], strict["n"]) == (0.5, 2)
    closed_book = rows[1:]
    file = PredictionFile("traces", closed_book)
    assert retrieval_table(file, join(closed_book, questions, "official"), "official") == {}
