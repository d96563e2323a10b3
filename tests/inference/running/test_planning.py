import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.inference.running import experiment, planning
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.facts import minutes
from reflectune.inference.running.parts import hash_server
from reflectune.models.schemes.examples import ReflectionExample

ENTRIES = {"e1", "e7"}
SPLITS = ["val_unseen_question", "val_unseen_entity"]


@pytest.fixture
def dataset(make) -> SimpleNamespace:
    questions = {SPLITS[0]: range(20), SPLITS[1]: range(20, 25)}
    splits = {split: [make.question(i, split) for i in numbers] for split, numbers in questions.items()}
    return SimpleNamespace(root=Path("world"), questions=lambda split: splits.get(split, []))


def test_machines_that_do_not_share_the_output_are_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(shared: str) -> None:
        raise UserError(f"{shared} is not the same folder")

    monkeypatch.setattr(experiment, "launch_processes", refused)
    with pytest.raises(UserError, match="out is not the same folder"):
        experiment.run(EvaluateConfig(dataset="missing", output="out"))


def test_a_limit_is_per_split_and_drawn_by_seed(dataset) -> None:
    chosen = planning.select(dataset, SPLITS, 10, seed=1)
    assert [[q.split for q in chosen].count(split) for split in SPLITS] == [10, 5]
    assert chosen == planning.select(dataset, SPLITS, 10, seed=1)
    assert chosen != planning.select(dataset, SPLITS, 10, seed=2)
    assert len(planning.select(dataset, SPLITS, None, seed=1)) == 25


def test_questions_of_training_are_left_out_before_the_draw(dataset, tmp_path) -> None:
    examples = [ReflectionExample(f"q{i:03}", "a.png", "Which colour?", False, answer="red") for i in range(5, 25)]
    write_examples(tmp_path / "train.parquet", examples)
    write_manifest(tmp_path, Manifest("mr2ag", tmp_path, {"train": "0"}))
    chosen = planning.select(dataset, SPLITS, 5, 0, str(tmp_path))
    assert sorted(q.id for q in chosen) == [f"q{i:03}" for i in range(5)]
    write_examples(tmp_path / "train.parquet", [dataclasses.replace(it, id="x") for it in examples])
    with pytest.raises(UserError, match="has no question of val_unseen_question, val_unseen_entity"):
        planning.select(dataset, SPLITS, 5, 0, str(tmp_path))


@pytest.mark.parametrize(("keys", "count"), [({"calibrated": True}, 1), ({"model": "owner/name"}, 1), ({}, 0)])
def test_a_calibration_is_fitted_to_a_folders_gates_as_they_speak(keys: dict[str, Any], count: int) -> None:
    problems = find_problems(EvaluateConfig, {"fit_calibration": True, "model": ".", **keys})
    assert sum("`fit_calibration` needs a `model` that is a folder" in problem for problem in problems) == count


def taken(planned) -> dict[str, str]:
    """Return the numbers of each pipeline's questions."""
    return {name: "".join(q.id.removeprefix("q00") for q in pipeline.questions) for name, pipeline in planned.items()}


def test_each_pipeline_takes_the_questions_that_it_can_answer(make) -> None:
    known = make.question(0, evidence=make.evidence(), entity_ids=("e1",))
    no_evidence, bare = make.question(1, entity_ids=("e1",)), make.question(2)
    visual = make.question(3, requires_retrieval=False, evidence=make.evidence())
    config = EvaluateConfig(pipelines=["mr2ag", "oracle", "naive_rag", "closed_book"])
    planned = planning.plan(config, [known, no_evidence, bare, visual], ENTRIES)
    forms = ("article", "articles", "passage", "passages")
    naive = dict.fromkeys((f"naive_rag_{form}" for form in forms), "012")
    oracles = {"retrieval": "01", "oracle_article": "01", "oracle_articles": "01", "oracle_passage": "0"}
    assert taken(planned) == {**naive, **oracles, "closed_book": "0123", "mr2ag": "0123", "relevance": "0"}


def test_questions_without_an_image_are_not_searched_by_one(make) -> None:
    questions = [make.question(number, entity_ids=("e1",), image=image) for number, image in enumerate(("a.png", ""))]
    config = EvaluateConfig(pipelines=["mi_rag"], index="entries", text_index="texts")
    assert taken(planning.plan(config, questions, ENTRIES)) == {"mi_rag": "01", "retrieval": "0"}


def test_an_oracle_leaves_out_questions_whose_entry_the_knowledge_base_lacks(make) -> None:
    questions = [make.question(number, entity_ids=(name,)) for number, name in enumerate(("e1", "e404", "e7"))]
    planned = planning.plan(EvaluateConfig(pipelines=["oracle", "naive_rag_article"]), questions, ENTRIES)
    oracles = ("oracle_article", "oracle_articles")  # without evidence there is nothing for oracle_passage
    assert taken(planned) == {"retrieval": "012", "naive_rag_article": "012", **dict.fromkeys(oracles, "02")}
    absent = {name: pipeline.absent for name, pipeline in planned.items() if pipeline.absent}
    assert absent == dict.fromkeys(oracles, 1)


def test_minutes_add_up_over_questions_and_steps(make) -> None:
    gated = ({"gate": 30.0, "judge": 30.0}, {"gate": 60.0})
    timed = {f"q00{i}": make.trace(i, seconds=seconds) for i, seconds in enumerate(gated)}
    traces = {"mr2ag": timed, "closed_book": {"q000": make.trace(0, seconds={"answer": 6.0})}}
    assert minutes(traces) == {"evaluate": 2.1, "evaluate/mr2ag": 2.0, "evaluate/closed_book": 0.1}


@pytest.mark.parametrize("way", [experiment.run, planning.describe])
def test_the_second_pipelines_model_is_looked_for_before_the_first_answers(
    way, small_set, tmp_path, monkeypatch
) -> None:
    def answer(*_: object) -> None:
        raise AssertionError("answered")

    monkeypatch.setattr(experiment, "open_model", answer)
    models = {"base_model": "miniature/llava", "plain_model": "nobody/has-this", "output": str(tmp_path / "out")}
    pipelines = ["closed_book", "tuned_baselines"]
    config = EvaluateConfig(dataset=small_set, splits=["val"], pipelines=pipelines, **models)
    with pytest.raises(UserError, match="nobody/has-this"):
        way(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("way", [experiment.run, planning.describe])
def test_an_untuned_model_is_found_before_a_model_is_loaded(way, small_set, tmp_path, monkeypatch) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(experiment, "open_parts", opened)
    keys = {"dataset": small_set, "splits": ["val"], "pipelines": ["mr2ag"], "output": str(tmp_path / "out")}
    with pytest.raises(UserError, match="`model`: miniature/llava is not fine-tuned"):
        way(EvaluateConfig(**keys, model="miniature/llava"))


@pytest.mark.parametrize("way", [experiment.run, planning.describe])
def test_a_question_that_cannot_be_scored_is_found_before_a_model_is_loaded(way, make, tmp_path) -> None:
    question = make.question(
        0, "val", "the", image="a.png", requires_retrieval=None, meta={"question_type": "templated"}
    )
    make.data_set(tmp_path / "data", [make.entry(0)], [question], metric="evqa_exact", image_root=str(tmp_path))
    keys = {"dataset": str(tmp_path / "data"), "splits": ["val"], "pipelines": ["closed_book"]}
    with pytest.raises(UserError, match="question q000 can't be scored"):
        way(EvaluateConfig(**keys, base_model="miniature/llava", output=str(tmp_path / "out")))


@pytest.mark.parametrize("pipeline", ["pmsr", "mrag"])
def test_a_second_model_is_required_and_described_if_a_pipeline_has_one(pipeline: str, small_set) -> None:
    def config(answerer: str, name: str) -> EvaluateConfig:
        made = EvaluateConfig(dataset=small_set, splits=["val"], pipelines=[name], base_model="miniature/llava")
        return made.model_copy(update={"answerer": answerer})

    with pytest.raises(UserError, match="nobody/has-this"):
        planning.describe(config("nobody/has-this", pipeline))
    assert "answers by answerer miniature/qwen2_vl" in planning.describe(config("miniature/qwen2_vl", pipeline))
    assert "answerer" not in planning.describe(config("", pipeline))
    assert "answerer" not in planning.describe(config("nobody/has-this", "closed_book"))


def test_a_split_that_the_data_set_lacks_is_found_at_once(small_set) -> None:
    issues = find_problems(EvaluateConfig, {"dataset": small_set, "splits": ["val", "vall"], "output": "out"})
    assert f"`splits`: {small_set} has no split vall; it has val" in issues


def test_an_evaluation_without_a_pipeline_is_refused(make) -> None:
    with pytest.raises(UserError, match="no pipeline of oracle_pairs can answer any of these 1 questions"):
        planning.plan(EvaluateConfig(pipelines=["oracle_pairs"]), [make.question(0, evidence=())], ENTRIES)


def test_replies_in_a_form_are_another_servers_and_those_of_another_host_are_not() -> None:
    keys = {"llm_model": "m", "llm_url": "http://localhost:1/v1"}
    plain, guided, moved = (
        EvaluateConfig(**{**keys, **changes})
        for changes in ({}, {"llm_guided": True}, {"llm_url": "http://node7:2/v1"})
    )
    assert hash_server(plain) != hash_server(guided)
    assert hash_server(plain) == hash_server(moved)
