"""Pipelines over a memory are the pipelines: same traces at every point, from fewer forward passes."""

import dataclasses
import functools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from reflectune.core.images import load_image
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelRole
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline, find_recipe
from reflectune.inference.running.loading import open_engine, open_entries, open_model
from reflectune.inference.sweeps.points import START, GridSettings, Point
from reflectune.inference.sweeps.runner import GridRunner
from reflectune.inference.trace import Trace
from reflectune.models.prefix.interface import Engine
from reflectune.models.prefix.packed import PackedReader
from reflectune.models.prefix.packed_rows import OpenedTrees
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.rerankers.loading import open_reranker
from reflectune.retrieval.retrievers.queries import image_queries
from tests.inference.alike import assert_alike
from tests.inference.families import ONE_FAMILY

pytestmark = ONE_FAMILY  # each family's memory: test_caching.py

MR2AG = [
    Point("start", {"gamma": 0.0}),
    Point("one entry", {"gamma": 0.0, "top_n": 1}),
    Point("closed gate", {"gamma": 1.0}),
    Point("closed book", {"gamma": 0.0, "fallback": "closed_book"}),
]
MMKB = [
    Point(f"{mct} {k}", {"gamma": 0.0, "mct": mct, "k": k, "answer_model": answer})
    for mct, k, answer in [
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
def setting(world, make, checkpoints, prompted) -> Callable[[str], SimpleNamespace]:
    """Config and data set for one pipeline's checkpoints, and what a point's traces are."""

    def build(pipeline: str = "mr2ag", **more: Any) -> SimpleNamespace:
        models = checkpoints if pipeline == "mr2ag" else prompted
        keys = {"scheme": pipeline, "max_reply_tokens": 6, **more}
        config, dataset = GridSettings(**make.keys(world, models, **keys)), Dataset(world)
        questions = [q for split in ("val_unseen_question", "val_unseen_entity") for q in dataset.questions(split)]
        images = [load_image(q.image, root=world) for q in questions]
        runner = GridRunner(config, dataset, pipeline)

        def run(name: str, **settings: Any) -> dict[str, Trace]:
            return runner.run(Point(name, settings), questions, images)

        made = {"config": config, "dataset": dataset, "questions": questions, "images": images, "pipeline": pipeline}
        return SimpleNamespace(**made, runner=runner, stats=runner.stats, run=run)

    return build


def plainly(case: SimpleNamespace) -> Callable[[Point], dict[str, Any]]:
    """Return a function: what a point's pipeline says without a memory, built as `evaluate.py` builds it."""
    parts = PipelineParts(
        case.dataset.knowledge,
        retriever=open_entries(RetrieverConfig.of(case.config), case.dataset, "cpu"),
        reranker=open_reranker(RerankerConfig.of(case.config)),
    )

    @functools.cache
    def engine(role: ModelRole) -> Engine:
        return open_engine(case.config, open_model(case.config, role))

    def run(point: Point) -> dict[str, Any]:
        name = str(point.settings.get("pipeline", case.pipeline))
        role = find_recipe(name).model
        assert role is not None
        base = engine("base_model") if name in ("mmkb_rag", "reflection") else None
        pipeline = build_pipeline(
            name, point.config(case.config), dataclasses.replace(parts, engine=engine(role), base=base)
        )
        return {trace.question_id: comparable(trace) for trace in pipeline.run(case.questions, case.images)}

    return run


def comparable(trace: Any) -> Any:
    return dataclasses.asdict(dataclasses.replace(trace, seconds={}))


@pytest.mark.slow
@pytest.mark.parametrize(("pipeline", "points"), [("mr2ag", MR2AG), ("mmkb_rag", MMKB)])
def test_a_memory_changes_no_trace(setting, pipeline, points) -> None:
    case = setting(pipeline)
    expected = plainly(case)
    for point in points:
        traces = {key: comparable(trace) for key, trace in case.run(point.name, **point.settings).items()}
        assert_alike(traces, expected(point), point.name)
    assert 0 < case.stats().done < case.stats().requested


def test_a_point_asked_again_costs_nothing_until_it_is_forgotten(setting) -> None:
    case, point = setting("mmkb_rag"), MMKB[1]
    first = case.run(point.name, **point.settings)
    cost = case.stats().done
    again = case.run(point.name, **point.settings)
    assert case.stats().done == cost
    assert list(map(comparable, again.values())) == list(map(comparable, first.values()))
    case.runner.forget()
    case.run(point.name, **point.settings)
    assert case.stats().done == 2 * cost


def test_a_gate_only_re_reads_its_score(setting) -> None:
    case = setting("mmkb_rag")
    for gamma in (0.0, 1.0):
        case.run("ends", gamma=gamma)
    cost = case.stats().done
    for gamma in (0.2, 0.4, 0.5, 0.6, 0.8):
        case.run(f"{gamma}", gamma=gamma)
    assert case.stats().done == cost


def test_without_relevance_every_passage_is_answered_from(setting) -> None:
    for trace in setting().run("off", gamma=0.0, relevance=False).values():
        assert len(trace.passages) == 6
        assert all(passage.answer is not None and 0.0 < passage.s_rel < 1.0 for passage in trace.passages)


def test_an_oracle_finds_the_questions_own_entry(setting) -> None:
    case = setting()
    traces = case.run("gold", gamma=0.0, entries="gold")
    for question in case.questions:
        assert [hit.entry_id for hit in traces[question.id].hits] == list(question.entity_ids)


def test_gold_retrieval_leaves_out_a_question_whose_entry_the_base_lacks(setting) -> None:
    case = setting()
    absent = dataclasses.replace(case.questions[0], id="absent", entity_ids=("e404",), evidence=())
    traces = case.runner.run(
        Point("gold", {"gamma": 0.0, "entries": "gold"}), [absent, case.questions[1]], case.images[:2]
    )
    assert list(traces) == [case.questions[1].id]


def test_the_contexts_that_the_base_model_answers_from_are_not_kept(setting, monkeypatch) -> None:
    """As on a GPU, on packed rows; those of all points together would fill the memory."""
    opened: list[tuple[PackedReader, OpenedTrees]] = []

    class Reader(PackedReader):
        def open(self, prefixes):
            opened.append((self, super().open(prefixes)))
            return opened[-1][1]

    monkeypatch.setattr("reflectune.models.prefix.engine.packed_for", lambda *known, **_: Reader(*known, None))
    case, point = setting("mmkb_rag"), MMKB[0]
    answers = []
    for most in (2, 2, 4):
        answers.append([trace.answer for trace in case.run("", **point.settings, max_new_tokens=most).values()])
        answering = case.runner.engine("base_model").reader
        assert {bool(trees.sequences) for reader, trees in opened if reader is answering} == {False}
        assert {bool(trees.sequences) for reader, trees in opened if reader is not answering} == {True}
    assert answers[0] == answers[1]
    case.runner.forget()
    again = case.run("", **point.settings, max_new_tokens=4)
    assert [trace.answer for trace in again.values()] == answers[2]


def test_the_reranker_is_part_of_decisive_settings(setting) -> None:
    runner = setting().runner
    assert set(runner.fingerprints(["model"], [Point("start")])) == {"model"}
    points = [Point("reranked", {"pipeline": "mmkb_rag"})]
    assert set(runner.fingerprints(["model"], points)) == {"model", "reranker"}


def test_a_point_retrieves_by_its_own_weights(setting) -> None:
    case, point = setting(), Point("titles", {"title_weight": 1.0})
    start, other, again = case.run(START), case.run(point.name, **point.settings), case.run("again")
    retriever = open_entries(RetrieverConfig.of(point.config(case.config)), case.dataset, "cpu")
    ranked = retriever.search(image_queries(case.questions, case.images), 5)
    for question, hits in zip(case.questions, ranked, strict=True):
        if found := other[question.id].hits:
            assert [hit.entry_id for hit in found] == [hit.entry_id for hit in hits]
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert any(start[q.id].hits and start[q.id].hits != other[q.id].hits for q in case.questions)
    assert list(map(comparable, again.values())) == list(map(comparable, start.values()))


def test_a_point_scores_ranked_entities_by_its_own_rule(setting, tmp_path) -> None:
    case = setting()
    names = [entry.id for entry, _ in zip(case.dataset.knowledge, range(3), strict=False)]
    rows = [json.dumps({"image": question.image, "entities": names}) for question in case.questions]
    (tmp_path / "ranked.jsonl").write_text("\n".join(rows))
    config = case.config.model_copy(update={"index": "", "ranked_entities": str(tmp_path / "ranked.jsonl")})
    runner = GridRunner(config, case.dataset, "mr2ag")
    for rule, scores in (("reciprocal_rank", [1, 1 / 2, 1 / 3]), ("constant", [1, 1, 1])):
        traces = runner.run(Point(rule, {"ranked_scores": rule, "gamma": 0.0}), case.questions, case.images)
        assert [hit.score for hit in next(iter(traces.values())).hits] == scores
