"""Pipelines over a memory are the pipelines: same traces at every point, from fewer forward passes."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline
from reflectune.inference.running.loading import (
    open_engine,
    open_entries,
    open_model,
    open_plain,
    open_tuned,
)
from reflectune.inference.sweeps.points import START, GridSettings, Point
from reflectune.inference.sweeps.runner import GridRunner
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.rerankers.loading import open_reranker

MR2AG = [
    Point("start", {"gamma": 0.0}),
    Point("one entry", {"gamma": 0.0, "top_n": 1}),
    Point("closed gate", {"gamma": 1.0}),
    Point("closed book", {"gamma": 0.0, "fallback": "closed_book"}),
    Point("naive", {"pipeline": "naive_rag_article"}),
    Point("naive passages", {"pipeline": "naive_rag_passages"}),
    Point("naive, whole", {"pipeline": "naive_rag_articles", "top_n": 3}),
    Point("naive, tuned", {"pipeline": "naive_rag_passages_tuned", "top_n": 2}),
    Point("closed book, tuned", {"pipeline": "closed_book_tuned"}),
]
MMKB = [
    Point(f"{mct} {k}", {"gamma": 0.0, "mct": mct, "k": k, "answer_model": answer})
    for mct, k, answer in [
        ("none", 1, "base"),
        ("none", 3, "base"),
        ("merge", 3, "base"),
        ("rerank", "auto", "tuned"),
        ("filter", 3, "tuned"),
    ]
]
MMKB += [
    Point("without SRT", {"ret": False, "srt": False, "k": 2}),
    Point("closed gate", {"gamma": 1.0}),
    Point("reflection", {"pipeline": "reflection"}),
]


@pytest.fixture
def setting(small_world, encoder, request) -> SimpleNamespace:
    """Config and data set for one pipeline's checkpoints."""

    def make(pipeline: str, models: SimpleNamespace) -> SimpleNamespace:
        config = GridSettings(
            dataset=str(small_world),
            index=str(small_world / "index"),
            encoder=encoder,
            model=models.tuned,
            base_model=models.base,
            plain_model=models.plain,
            scheme=pipeline,
            max_new_tokens=4,
            max_reply_tokens=6,
            device="cpu",
        )
        dataset = Dataset(small_world)
        questions = [q for split in ("val_unseen_question", "val_unseen_entity") for q in dataset.questions(split)]
        images = [load_image(q.image, root=small_world) for q in questions]
        return SimpleNamespace(config=config, dataset=dataset, questions=questions, images=images, pipeline=pipeline)

    return make


def plainly(case: SimpleNamespace, point: Point) -> dict[str, Any]:
    """What a point's pipeline says without a memory, built as `evaluate.py` builds it."""
    name, config = str(point.settings.get("pipeline", case.pipeline)), point.config(case.config)
    parts = PipelineParts(
        case.dataset.knowledge,
        retriever=open_entries(RetrieverConfig.of(config), case.dataset, "cpu"),
        reranker=open_reranker(RerankerConfig.of(config)),
    )
    base = open_engine(config, open_plain(config, config.base_model))
    if name == "mr2ag":
        parts = dataclasses.replace(parts, engine=open_engine(config, open_tuned(config)))
    elif name in ("mmkb_rag", "reflection"):
        parts = dataclasses.replace(parts, engine=open_engine(config, open_tuned(config)), base=base)
    elif name.endswith("_tuned"):
        parts = dataclasses.replace(parts, engine=open_engine(config, open_model(config, "plain_model")))
    else:
        parts = dataclasses.replace(parts, engine=base)
    taken = [
        (q, image)
        for q, image in zip(case.questions, case.images, strict=True)
        if not name.startswith("naive") or q.requires_retrieval
    ]
    traces = build_pipeline(name, config, parts).run([q for q, _ in taken], [image for _, image in taken])
    return {trace.question_id: comparable(trace) for trace in traces}


def comparable(trace: Any) -> Any:
    return dataclasses.asdict(dataclasses.replace(trace, seconds={}))


def assert_alike(actual: Any, expected: Any, where: str = "") -> None:
    """Equal but for what the company in a batch does to the last digits of a float."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            assert_alike(actual[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_alike(one, other, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert math.isclose(actual, expected, abs_tol=2e-5), where
    else:
        assert actual == expected, where


@pytest.mark.slow
@pytest.mark.parametrize(("pipeline", "points"), [("mr2ag", MR2AG), ("mmkb_rag", MMKB)])
def test_a_memory_changes_no_trace(setting, checkpoints, prompted, pipeline, points) -> None:
    case = setting(pipeline, checkpoints if pipeline == "mr2ag" else prompted)
    runner = GridRunner(case.config, case.dataset, pipeline)
    for point in points:
        traces = {key: comparable(trace) for key, trace in runner.run(point, case.questions, case.images).items()}
        assert_alike(traces, plainly(case, point), point.name)
    assert 0 < runner.stats().done < runner.stats().requested


def test_a_point_asked_again_costs_nothing_until_it_is_forgotten(setting, prompted) -> None:
    case = setting("mmkb_rag", prompted)
    runner = GridRunner(case.config, case.dataset, "mmkb_rag")
    first = runner.run(MMKB[2], case.questions, case.images)
    cost = runner.stats().done
    again = runner.run(MMKB[2], case.questions, case.images)
    assert runner.stats().done == cost
    assert {key: comparable(trace) for key, trace in again.items()} == {
        key: comparable(trace) for key, trace in first.items()
    }
    runner.forget()
    runner.run(MMKB[2], case.questions, case.images)
    assert runner.stats().done == 2 * cost


def test_a_gate_only_re_reads_its_score(setting, prompted) -> None:
    case = setting("mmkb_rag", prompted)
    runner = GridRunner(case.config, case.dataset, "mmkb_rag")
    for gamma in (0.0, 1.0):
        runner.run(Point("ends", {"gamma": gamma}), case.questions, case.images)
    cost = runner.stats().done
    for gamma in (0.2, 0.4, 0.5, 0.6, 0.8):
        runner.run(Point(f"{gamma}", {"gamma": gamma}), case.questions, case.images)
    assert runner.stats().done == cost


def test_without_relevance_every_passage_is_answered_from(setting, checkpoints) -> None:
    case = setting("mr2ag", checkpoints)
    runner = GridRunner(case.config, case.dataset, "mr2ag")
    traces = runner.run(Point("off", {"gamma": 0.0, "relevance": False}), case.questions, case.images)
    for trace in traces.values():
        assert len(trace.passages) == 9
        assert all(passage.answer is not None and passage.s_rel == 1.0 for passage in trace.passages)


def test_an_oracle_finds_the_questions_own_entry(setting, checkpoints) -> None:
    case = setting("mr2ag", checkpoints)
    runner = GridRunner(case.config, case.dataset, "mr2ag")
    traces = runner.run(Point("gold", {"gamma": 0.0, "entries": "gold"}), case.questions, case.images)
    for question in case.questions:
        assert [hit.entry_id for hit in traces[question.id].hits] == list(question.entity_ids)


def test_the_tuned_baselines_model_must_have_been_tuned_plainly(setting, checkpoints) -> None:
    case = setting("mr2ag", checkpoints)
    config = case.config.model_copy(update={"plain_model": checkpoints.base})
    runner = GridRunner(config, case.dataset, "mr2ag")
    with pytest.raises(UserError, match="was not fine-tuned with scheme plain"):
        runner.run(Point("tuned", {"pipeline": "closed_book_tuned"}), case.questions, case.images)


def test_a_baselines_contexts_are_not_kept(setting, checkpoints) -> None:
    """Each is read at one point alone; those of all depths together would fill the memory."""
    case = setting("mr2ag", checkpoints)
    runner = GridRunner(case.config, case.dataset, "mr2ag")
    for point, model, is_kept in (
        (Point("naive", {"pipeline": "naive_rag_articles"}), "base_model", False),
        (Point("start", {"gamma": 0.0}), "model", True),
    ):
        done = []
        for _ in range(2):
            runner.run(point, case.questions, case.images)
            done.append(runner.engine(model).stats.done)
        assert (done[0] == done[1]) is is_kept


def test_oracle_passages_are_of_the_questions_own_entry(setting, checkpoints) -> None:
    case = setting("mr2ag", checkpoints)
    runner = GridRunner(case.config, case.dataset, "mr2ag")
    point = Point("gold", {"pipeline": "naive_rag_passages", "entries": "gold"})
    traces = runner.run(point, case.questions, case.images)
    knowledge_based = [question for question in case.questions if question.requires_retrieval]
    assert set(traces) == {question.id for question in knowledge_based}
    for question in knowledge_based:
        assert {p.passage.entry_id for p in traces[question.id].passages} == set(question.entity_ids)


def test_the_reranker_is_part_of_decisive_settings(setting, checkpoints) -> None:
    case = setting("mr2ag", checkpoints)
    runner = GridRunner(case.config, case.dataset, "mr2ag")
    assert set(runner.fingerprints(["model"], [Point("start")])) == {"model"}
    points = [Point("naive", {"pipeline": "naive_rag_passages"})]
    assert set(runner.fingerprints(["model", "plain_model"], points)) == {"model", "plain_model", "reranker"}


@pytest.mark.parametrize("title_weight", [0.0, 1.0], ids=["images", "titles"])
def test_a_point_retrieves_by_its_own_weights(setting, checkpoints, title_weight) -> None:
    case = setting("mr2ag", checkpoints)
    runner = GridRunner(case.config, case.dataset, "mr2ag")
    points = [Point(START), Point("other", {"title_weight": title_weight}), Point("again", {})]
    start, other, again = (runner.run(point, case.questions, case.images) for point in points)
    expected = open_entries(RetrieverConfig.of(points[1].config(case.config)), case.dataset, "cpu").search(
        case.images, 5
    )
    for question, hits in zip(case.questions, expected, strict=True):
        if other[question.id].hits:
            assert [hit.entry_id for hit in other[question.id].hits] == [hit.entry_id for hit in hits]
            assert [hit.score for hit in other[question.id].hits] == pytest.approx(
                [hit.score for hit in hits], abs=1e-5
            )
    assert any(start[q.id].hits and start[q.id].hits != other[q.id].hits for q in case.questions)
    assert {key: comparable(trace) for key, trace in again.items()} == {
        key: comparable(trace) for key, trace in start.items()
    }
