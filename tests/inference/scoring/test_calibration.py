"""The calibration of gates in metrics.json: which gates have an entry, over which questions, and what it says."""

import dataclasses
import json

import numpy as np
import pytest

from reflectune.inference.report.tables import GATE_TITLES
from reflectune.inference.report.tables import calibration as table
from reflectune.inference.scoring.calibration import calibration, gate_predictions
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import by_question
from reflectune.metrics.reporting import gates
from reflectune.models.schemes.calibration import GateScaling

TOO_SURE = 3.0


def run(questions, traces):
    return calibration(questions, by_id(traces), measure=TraceScorer("exact_match"), seed=0)


def scaling_of(entry):
    return GateScaling(*(entry[key] for key in ("scale_no", "scale_yes", "bias")))


def by_id(traces):
    return {name: by_question(each) for name, each in traces.items()}


@pytest.fixture(scope="module")
def said() -> list[tuple[float, bool]]:
    """Return a gate's probabilities for 600 questions, their log-odds three times too large, and the truth."""
    generator = np.random.default_rng(0)
    log_odds = generator.normal(scale=1.5, size=600)
    so = generator.random(600) < 1 / (1 + np.exp(-log_odds))
    return list(zip((1 / (1 + np.exp(-TOO_SURE * log_odds))).tolist(), so.tolist(), strict=True))


@pytest.fixture(scope="module")
def gated(make, said):
    """A run of mr2ag with these gates, three questions an entity."""
    questions = [make.question(i, requires_retrieval=so, entity_ids=(f"e{i // 3}",)) for i, (_, so) in enumerate(said)]
    return questions, {"mr2ag": [make.trace(i, gate=probability) for i, (probability, _) in enumerate(said)]}


def test_a_gate_that_is_too_sure_is_mended(gated) -> None:
    gate = run(*gated)["gate"]
    keys = {"ece", "ece_scaled", "reduction", "scale_no", "scale_yes", "bias", "temperature", "n"}
    assert set(gate) == keys
    assert gate["temperature"] == pytest.approx(TOO_SURE, rel=0.2)
    assert scaling_of(gate).scale_no == pytest.approx(1 / TOO_SURE, rel=0.3)
    assert scaling_of(gate).scale_yes == pytest.approx(1 / TOO_SURE, rel=0.3)
    assert gate["ece"]["value"] > 0.1 > 0.06 > gate["ece_scaled"]["value"]
    assert gate["reduction"]["value"] == pytest.approx(gate["ece"]["value"] - gate["ece_scaled"]["value"])
    assert 0 < gate["reduction"]["low"] < gate["reduction"]["value"]
    assert gate["n"] == gate["ece"]["n"] == gate["ece_scaled"]["n"] == gate["reduction"]["n"] == 600


def test_a_run_with_a_saved_scaling_has_the_error_without_it(make, gated, said) -> None:
    questions, _ = gated
    probabilities = np.array([p for p, _ in said])
    scaling = GateScaling(1 / TOO_SURE, 1 / TOO_SURE, -0.1)
    traces = by_id({"mr2ag": [make.trace(i, gate=float(p)) for i, p in enumerate(scaling.apply(probabilities))]})
    measured = calibration(
        questions, traces, measure=TraceScorer("exact_match"), seed=0, scalings={"retrieve": scaling}
    )
    gate = measured["gate"]
    assert gate["ece_uncalibrated"] == pytest.approx(run(*gated)["gate"]["ece"])
    assert gate["ece"]["value"] < 0.06 < 0.1 < gate["ece_uncalibrated"]["value"]
    assert f"<td>{100 * gate['ece_uncalibrated']['value']:.1f}<span" in table({"calibration": measured})


def test_questions_without_an_entity_are_parted_by_their_ids(gated, said) -> None:
    questions, traces = gated
    nameless = [dataclasses.replace(q, entity_ids=()) for q in questions]
    probabilities, labels = map(np.array, zip(*said, strict=True))
    scaled = gates.cross_fit(probabilities, labels, gates.halves([q.id for q in nameless]))
    wanted = gates.expected_calibration_error(scaled, labels)
    assert run(nameless, traces)["gate"]["ece_scaled"]["value"] == wanted


def test_passages_are_measured_together_and_resampled_by_question(make, said) -> None:
    counts = [0, 1, 2, 3] * 100
    starts = np.cumsum([0, *counts])
    passages = [
        tuple(
            make.read(section=k, rel=p, source="gold" if so else "same_article")
            for k, (p, so) in enumerate(said[start : start + count])
        )
        for start, count in zip(starts, counts, strict=False)
    ]
    questions = [make.question(i, entity_ids=(f"e{i}",)) for i in range(400)]
    traces = {"relevance": [make.trace(i, "relevance", passages=read) for i, read in enumerate(passages)]}
    measured = run(questions, traces)
    assert set(measured) == {"relevance"}
    assert measured["relevance"]["n"] == 300  # those with a passage
    probabilities, labels = zip(*said[: starts[-1]], strict=True)
    assert measured["relevance"]["ece"]["value"] == pytest.approx(
        gates.expected_calibration_error(probabilities, labels)
    )
    expected = dataclasses.astuple(gates.fit_scaling(probabilities, labels))
    assert dataclasses.astuple(scaling_of(measured["relevance"])) == pytest.approx(expected)


def test_ret_and_srt_have_entries_where_their_truths_are(make, said) -> None:
    questions = [make.question(i, entity_ids=(f"e{i}",)) for i in range(len(said))]
    reflected = [
        make.trace(i, "reflection", "", gate=p, passages=(make.read(rel=p, source="stating" if so else ""),))
        for i, (p, so) in enumerate(said)
    ]
    closed = [make.trace(i, "closed_book", "fir" if so else "oak") for i, (_, so) in enumerate(said)]
    both = run(questions, {"reflection": reflected, "closed_book": closed})
    assert set(both) == {"ret", "srt"}
    assert both["ret"] == both["srt"]  # the same probabilities with the same truths
    assert set(run(questions, {"reflection": reflected})) == {"srt"}


def test_worth_in_parts_is_an_outcome_too(make) -> None:
    """RET under VQA's soft accuracy: an answer that three of ten gave is 0.1 wrong, one that two gave is 0.4."""
    answers = [("oak",) * (3 - i % 2) + ("elm",) * (7 + i % 2) for i in range(40)]
    questions = [dataclasses.replace(make.question(i), answers=ten) for i, ten in enumerate(answers)]
    traces = {
        "reflection": [make.trace(i, "reflection", "", gate=0.2 + 0.01 * i) for i in range(40)],
        "closed_book": [make.trace(i, "closed_book") for i in range(40)],
    }
    measured = calibration(questions, by_id(traces), measure=TraceScorer("vqa"), seed=0)
    assert measured["ret"]["n"] == 40


@pytest.mark.parametrize("pipeline", ["mr2ag", "reflectiva", "closed_book"])
def test_traces_without_what_is_needed_have_no_entry(make, pipeline: str) -> None:
    alike = [make.question(i) for i in range(20)]
    unknown = [make.question(i, requires_retrieval=None) for i in range(20)]
    said = [make.trace(i, pipeline, gate=0.1 + 0.04 * i) for i in range(20)]
    silent = [make.trace(i, pipeline) for i in range(20)]
    for questions, traces in ((alike, said), (unknown, said), (alike, silent), (alike, [])):
        assert run(questions, {pipeline: traces}) == {}
    assert run([], {}) == {}


def test_a_half_with_one_kind_alone_has_no_entry(make) -> None:
    """Both kinds occur, but all questions of one of them are about one entity, so in one half."""
    questions = [
        make.question(i, requires_retrieval=i % 2 == 0, entity_ids=("e0" if i % 2 else f"e{i}",)) for i in range(40)
    ]
    assert run(questions, {"mr2ag": [make.trace(i, gate=0.4 + 0.01 * i) for i in range(40)]}) == {}


def test_metrics_and_report_show_it(gated) -> None:
    questions, traces = gated
    metrics = evaluate(questions, by_id(traces), measure=TraceScorer("exact_match"), gamma=0.5, seed=0)
    assert metrics["calibration"] == run(questions, traces)
    json.dumps(metrics)
    shown = table(metrics)
    gate = metrics["calibration"]["gate"]
    assert "gate: knowledge-based or visual</th>" in shown
    assert f"<td>{100 * gate['ece']['value']:.1f}<span" in shown
    assert f"<td>{100 * gate['ece_scaled']['value']:.1f}<span" in shown
    assert f"<td>{gate['bias']:.2f}</td><td>600</td>" in shown
    assert table({**metrics, "calibration": {}}) == ""


def test_every_gate_has_a_title(make) -> None:
    passages = (make.read(rel=0.5, source="gold"),)
    traces = {
        "mr2ag": [make.trace(0, gate=0.9)],
        "relevance": [make.trace(0, "relevance", passages=passages)],
        "reflection": [make.trace(0, "reflection", gate=0.9, passages=passages)],
        "closed_book": [make.trace(0, "closed_book")],
    }
    asked = [make.question(0, entity_ids=("e1",))]
    assert set(gate_predictions(asked, by_id(traces), TraceScorer("exact_match"))) == set(GATE_TITLES)
