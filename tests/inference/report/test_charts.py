import dataclasses

import pytest

from reflectune.inference.report.charts import charts, confidence
from reflectune.inference.scoring.scores import TraceScorer


def test_confidence_is_the_chosen_passages_product_else_the_answers_own(make) -> None:
    chosen = make.read(ret=0.5, rel=0.8, answer="oak", ans=0.5)
    assert confidence(make.trace(0, passages=(chosen,), chosen=0)) == pytest.approx(0.2)
    assert confidence(make.trace(0, confidence=0.7)) == 0.7
    assert confidence(make.trace(0)) is None


def test_every_chart_that_the_traces_allow_is_drawn(make) -> None:
    questions = [make.question(0), make.question(1, requires_retrieval=False)]
    read = make.read(ret=0.5, rel=0.8, answer="oak", ans=0.5)
    probed = (make.read(rel=0.9, source="gold"), make.read(section=1, rel=0.1, source="same_article"))
    gated = {"q000": make.trace(0, gate=0.9, passages=(read,), chosen=0), "q001": make.trace(1, gate=0.1)}
    traces = {"mr2ag": gated, "relevance": {"q000": make.trace(0, "relevance", passages=probed)}}
    drawn = charts(questions, traces, gamma=0.5, measure=TraceScorer("infoseek"))
    assert drawn.count("<figure") == 4
    for title in ("The gate against its threshold γ", "Relevance against", "Risk against coverage", "Calibration"):
        assert title in drawn


def test_mmkb_rags_charts_are_drawn_from_its_stage(make) -> None:
    questions = [make.question(i, entity_ids=("e1",)) for i in range(2)]
    passages = (make.read(rel=0.9, source="stating"), make.read(section=1, rel=0.1))
    traces = {
        "closed_book": {"q000": make.trace(0, "closed_book", "fir"), "q001": make.trace(1, "closed_book")},
        "mmkb_rag": {f"q00{i}": make.trace(i, "mmkb_rag", confidence=0.5) for i in range(2)},
        "reflection": {
            f"q00{i}": make.trace(i, "reflection", "", gate=0.9 - 0.8 * i, passages=passages) for i in range(2)
        },
    }
    drawn = charts(questions, traces, gamma=0.5, measure=TraceScorer("infoseek"))
    assert drawn.count("<figure") == 3
    assert "RET against its threshold" in drawn
    assert "RET 0.100, SRT 0.100" in drawn  # calibration errors: every probability is 0.1 from its outcome


def test_ret_should_look_up_what_its_labels_call_wrong(make) -> None:
    """By VQA's accuracy the answers are worth 0.6 and 0.3: drawn as if they were worth 1 and 0."""

    def drawn(*answers: str) -> str:
        accepted = ("oak",) * 5 + ("fir",) * 2 + ("elm",) * 1
        questions = [dataclasses.replace(make.question(i), answers=accepted) for i in range(2)]
        traces = {
            "closed_book": {f"q00{i}": make.trace(i, "closed_book", answer) for i, answer in enumerate(answers)},
            "reflection": {f"q00{i}": make.trace(i, "reflection", "", gate=0.1 + 0.8 * i) for i in range(2)},
        }
        drawn_charts = charts(questions, traces, gamma=0.5, measure=TraceScorer("vqa")).split("</figure>")
        return next(figure for figure in drawn_charts if "RET against" in figure)

    assert drawn("fir", "elm") == drawn("oak", "ash") != drawn("ash", "ash")


def test_without_traces_there_are_no_charts(make) -> None:
    assert charts([make.question(0)], {}, gamma=0.5, measure=TraceScorer("infoseek")) == ""
