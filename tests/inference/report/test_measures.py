"""Evaluations by each data set's own metric: values, columns, differences, and what the report says they are."""

from typing import Any

import numpy as np
import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.inference.evaluate import summary
from reflectune.inference.report import tables as report_tables
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.notices import notices
from reflectune.inference.scoring.scores import TraceScorer, check_scorable
from reflectune.inference.trace import by_question


def run(measure: TraceScorer, questions: list[Question], traces: dict[str, list[Any]]) -> dict[str, Any]:
    by_id = {name: by_question(each) for name, each in traces.items()}
    metrics = evaluate(questions, by_id, measure=measure, gamma=0.5, seed=0)
    return {**metrics, "names": {name: name for name in by_id}, "readers": {}}


def values(table: dict[str, Any]) -> dict[str, float | None]:
    return {name: score and score["value"] for name, score in table.items() if name != "by_type"}


@pytest.fixture
def evqa(make) -> list[Question]:
    """One question of each of E-VQA's types, in its split `test`."""
    kinds = ("templated", "automatic", "multi_answer", "2_hop")
    answers = ("oak", "elm", "red&&blue", "Rome")
    types, hops = ("string", "string", "multi_answer", "string"), ({}, {}, {}, {"two_hop": "yes"})
    return [
        make.question(number, "test", answer, answer_type=answer_type, meta={"question_type": kind, **hop})
        for number, (kind, answer, answer_type, hop) in enumerate(zip(kinds, answers, types, hops, strict=True))
    ]


def test_evqa_has_its_question_types_and_reads_the_lists_that_we_ask_for(make, evqa: list[Question]) -> None:
    said = ("the oak", "fir", "blue&&red", "Rome")
    metrics = run(TraceScorer("evqa_exact"), evqa, {"closed_book": [make.trace(i, "c", a) for i, a in enumerate(said)]})
    by_type = {"templated": 1.0, "automatic": 0.0, "multi_answer": 1.0, "2_hop": 1.0}
    single_hop = pytest.approx(2 / 3)
    assert values(metrics["pipelines"]["closed_book"]) == {"overall": 0.75, "single_hop": single_hop, **by_type}
    heads = ["overall", "single-hop", "templated", "automatic", "multi-answer", "two-hop"]
    assert list(metrics["metric"]["columns"].values()) == heads
    page, printed = report_tables.scores(metrics), summary(metrics)
    assert "unseen" not in page + printed
    assert "InfoSeek" not in page + printed
    for head in heads:
        assert f">{head}</th>" in page
        assert head in printed
    assert page.count(">templated</th>") == 1  # not once more as a kind


def test_bem_is_asked_once_for_all_and_what_it_cannot_read_is_wrong_and_told(make, evqa: list[Question]) -> None:
    class Alike:
        """Finds everything equivalent, and reads 40 letters."""

        name, fingerprint, calls = "alike", "f", 0

        def length(self, triple: tuple[str, str, str]) -> int:
            return 600 if sum(map(len, triple)) > 40 else 10

        def logits(self, triples: list[tuple[str, str, str]]) -> np.ndarray:
            self.calls += 1
            return np.array([[0.0, 1.0]] * len(triples))

    bem: Any = Alike()
    measure = TraceScorer("evqa", bem)
    traces = {
        "closed_book": [make.trace(i, "closed_book", "x" * (60 if i == 1 else 3)) for i in range(4)],
        "mr2ag": [make.trace(i, "mr2ag", "wood") for i in range(4)],
    }
    metrics = run(measure, evqa, traces)
    assert bem.calls == 1
    assert values(metrics["pipelines"]["closed_book"])["overall"] == 0.75
    assert metrics["comparisons"]["mr2ag - closed_book"]["value"] == pytest.approx(0.25)
    assert metrics["too_long_for_bem"] == ["q001"]
    by_id = {name: by_question(each) for name, each in traces.items()}
    assert "1 questions had an answer too long" in " ".join(notices(evqa, by_id, metrics, {}, [], measure))


def test_a_difference_says_which_score_it_is_of(make) -> None:
    def evaluated(metric: Metric, *splits: str) -> tuple[dict[str, Any], str]:
        questions = [make.question(i, split) for i, split in enumerate(splits)]
        traces = {
            "mr2ag": [make.trace(i) for i in range(len(splits))],
            "closed_book": [make.trace(i, "closed_book", "oak" if i else "fir") for i in range(len(splits))],
        }
        metrics = run(TraceScorer(metric), questions, traces)
        return metrics["comparisons"]["mr2ag - closed_book"], report_tables.scores(metrics).split("Difference")[1]

    one, page = evaluated("infoseek", "val_unseen_entity", "val_unseen_entity")
    assert (one["of"], one["value"]) == ("unseen_entity", 0.5)
    assert "<td>unseen entity</td>" in page
    assert "overall" not in page
    both, page = evaluated("infoseek", "val_unseen_entity", "val_unseen_entity", "val_unseen_question")
    assert (both["of"], both["value"]) == ("overall", pytest.approx(1 - 2 * 0.5 / 1.5))
    assert "<td>overall</td>" in page
    mean, _ = evaluated("exact_match", "val_unseen_entity", "val_unseen_question", "val_unseen_question")
    assert (mean["of"], mean["value"]) == ("overall", pytest.approx(1 / 3))


def test_two_pipelines_without_a_common_question_have_no_difference_instead_of_none_at_all(make) -> None:
    questions = [make.question(0), make.question(1, "val_unseen_question")]
    traces = {"mr2ag": [make.trace(0)], "closed_book": [make.trace(1, "closed_book")]}
    metrics = run(TraceScorer("infoseek"), questions, traces)
    assert metrics["comparisons"]["mr2ag - closed_book"] is None
    assert "+0.0" not in report_tables.scores(metrics)


def test_the_papers_rankings_stand_beside_infoseeks_alone(make, evqa: list[Question]) -> None:
    read = make.read(ret=0.5, rel=0.8, answer="oak", ans=0.5)
    traces = {"mr2ag": [make.trace(i, passages=(read,), chosen=0) for i in range(4)]}
    metrics = run(TraceScorer("evqa_exact"), evqa, traces)
    table = report_tables.rankings(metrics)
    assert "paper" not in table.lower()
    assert "Single-hop: the full product ties with" in table


def test_a_question_that_cannot_be_scored_is_an_error_before_anything_is_answered(make) -> None:
    with pytest.raises(UserError, match="question q000 can't be scored: Reference answer is empty"):
        check_scorable([make.question(0, answer="the")], "evqa")
    check_scorable([make.question(0, answer="the")], "vqa")
