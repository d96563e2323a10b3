"""Readers and answerers of iterative pipelines: the base, a second model here, or a server's."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

from reflectune.inference.config import ModelSettings
from reflectune.inference.operators.models import LocalModel, ServedModel
from reflectune.inference.pipelines import iterative
from reflectune.inference.pipelines.iterative import reading_models
from reflectune.inference.pipelines.recipe import ModelUse, PipelineParts
from reflectune.inference.pipelines.registry import all_recipes, find_recipe
from reflectune.inference.running import experiment, parts, planning
from reflectune.inference.running.config import EvaluateConfig
from tests.inference.families import ONE_FAMILY

BASE, SECOND = "miniature/llava", "miniature/qwen2_vl"


class Case(NamedTuple):
    """Values of two keys, the models that are loaded, and True for each that is served."""

    reader: Any
    answerer: str
    loaded: tuple[str, ...]
    kinds: tuple[type, type]
    same: bool = False

    @property
    def asks_server(self) -> bool:
        return ServedModel in self.kinds


CASES = {
    "the base does both": Case("base_model", "", (BASE,), (LocalModel, LocalModel), same=True),
    "the base by its name": Case("base_model", BASE, (BASE,), (LocalModel, LocalModel), same=True),
    "a second model answers": Case("base_model", SECOND, (BASE, SECOND), (LocalModel, LocalModel)),
    "the server answers": Case("base_model", "server", (BASE,), (LocalModel, ServedModel)),
    "the server does both": Case("server", "", (), (ServedModel, ServedModel), same=True),
    "the server by its name": Case("server", "server", (), (ServedModel, ServedModel), same=True),
    "a model answers for the server": Case("server", SECOND, (SECOND,), (ServedModel, LocalModel)),
}
ITERATIVE = [name for name, recipe in all_recipes().items() if recipe.is_iterative]


@pytest.fixture
def config(small_set: str) -> Callable[..., EvaluateConfig]:
    def make(case: Case, pipeline: str = "pmsr", **more: Any) -> EvaluateConfig:
        llm = ("http://localhost:9/v1", "stub") if case.asks_server else ("", "")
        models = {"reader": case.reader, "answerer": case.answerer, "base_model": BASE if BASE in case.loaded else ""}
        where: dict[str, Any] = {"dataset": small_set, "index": small_set, "output": f"{small_set}/out"}
        settings = {**models, **where, "llm_url": llm[0], "llm_model": llm[1], "splits": ["val"], "device": "cpu"}
        return EvaluateConfig(**{**settings, "pipelines": [pipeline], **more})

    return make


class Ran(Exception):
    """A pipeline was to be run."""

    def __init__(self, fingerprint: str, parts: PipelineParts) -> None:
        super().__init__(fingerprint)
        self.fingerprint, self.parts = fingerprint, parts


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Callable[[EvaluateConfig], tuple[list[str], Ran]]:
    """Runs an evaluation up to its iterative pipeline: the models that were loaded, and what would be run."""
    loaded: list[str] = []

    def load(models: ModelSettings, name: str) -> SimpleNamespace:
        loaded.append(name)
        return SimpleNamespace(name=name, fingerprint=f"hash of {name}", model=SimpleNamespace(num_parameters=int))

    def run(name: str, build: Any, *_: object, fingerprint: str, **__: object) -> dict[str, object]:
        if name in ITERATIVE:
            raise Ran(fingerprint, build.args[2])
        return {}

    engine = SimpleNamespace(renderer=None, image_prefixes=SimpleNamespace(keep=lambda least: None))
    monkeypatch.setattr(parts, "open_entries", lambda *_: None)
    monkeypatch.setattr(experiment, "open_model", lambda config, role, reads="": load(config, getattr(config, role)))
    monkeypatch.setattr(experiment, "open_plain", load)
    monkeypatch.setattr(experiment, "open_engine", lambda *_: engine)
    monkeypatch.setattr(experiment, "run_pipeline", run)
    number = itertools.count()

    def start(config: EvaluateConfig) -> tuple[list[str], Ran]:
        loaded.clear()
        config.output += f"/{next(number)}"
        with pytest.raises(Ran) as stopped:
            experiment.run(config)
        return list(loaded), stopped.value

    return start


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_reads_and_answers_where_two_keys_say(case: Case, config: Any, ran: Any) -> None:
    loaded, stopped = ran(config(case))
    assert tuple(loaded) == case.loaded
    assert (stopped.parts.remote is not None) is case.asks_server
    models = reading_models(stopped.parts)
    assert (type(models["reader"]), type(models["answerer"])) == case.kinds
    assert (models["reader"] is models["answerer"]) is case.same


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_server_that_does_everything_has_no_batches(case: Case, config: Any, ran: Any) -> None:
    sizes = [(4, 64), (4, 2), (8, 64)]
    ran_so = [ran(config(case, batch_questions=batch, llm_concurrency=most))[1] for batch, most in sizes]
    alone = case.kinds == (ServedModel, ServedModel)
    whole, of_few, of_more = (it.fingerprint for it in ran_so)
    assert whole == of_few  # fewer requests at a time resume the run
    assert (whole == of_more) is alone  # which then has no batches
    described = planning.describe(config(case, batch_questions=4, llm_concurrency=64))
    assert ("by 64 requests at a time" if alone else "in batches of 4") in described


@pytest.mark.parametrize("pipeline", ["pmsr", "mrag", "promsa"])
def test_traces_depend_on_who_reads_and_who_answers(pipeline: str, config: Any, ran: Any) -> None:
    found = {name: ran(config(case, pipeline))[1].fingerprint for name, case in CASES.items()}
    assert found["the base by its name"] == found.pop("the base does both")
    assert found["the server by its name"] == found.pop("the server does both")
    assert len(set(found.values())) == len(found)
    longer = {ran(config(case, pipeline, max_new_tokens=7))[1].fingerprint for case in CASES.values()}
    assert longer.isdisjoint(found.values())


@pytest.mark.parametrize("pipeline", ["pmsr", "mrag"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_config_needs_the_models_that_work_and_no_other(case: Case, pipeline: str, config: Any) -> None:
    assert config(case, pipeline).problems() == []
    without_base = config(case, pipeline, base_model="").problems()
    assert [issue.split(" by ")[0] for issue in without_base] == ["`base_model` is needed"] * (BASE in case.loaded[:1])
    assert bool(config(case, pipeline, llm_url="").problems()) is case.asks_server
    used = config(case, pipeline)
    use = find_recipe(pipeline).models(used)
    assert use.reader == ("base_model" if case.reader == "base_model" else None)
    assert use.is_served is case.asks_server
    assert use.second_model(ModelSettings.of(used)) == (SECOND if SECOND in case.loaded else "")


def test_models_by_step_are_of_a_server_that_reads_and_decide_the_traces(config: Any, ran: Any) -> None:
    steps: dict[str, Any] = {"step_models": {"rewrite": "small", "answer": "large"}}
    both = CASES["the server does both"]
    assert ran(config(both, **steps))[1].fingerprint != ran(config(both))[1].fingerprint
    (local,) = config(CASES["the base does both"], **steps).problems()
    assert local == "`step_models` needs `reader: server`"
    second = next(case for case in CASES.values() if case.reader == "server" and case.answerer not in ("", "server"))
    (twice,) = config(second, **steps).problems()
    assert twice.startswith("`step_models` and `answerer: ")
    with pytest.raises(ValidationError, match="step_models"):
        config(both, step_models={"read": "small"})


def test_an_answerer_that_cannot_be_a_model_is_a_config_problem(config: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    case = Case("base_model", str(tmp_path / "empty"), (BASE,), (LocalModel, LocalModel))
    with pytest.raises(ValidationError, match="holds no model"):
        config(case)


def test_a_folder_called_server_is_not_in_the_servers_way(config, tmp_path, monkeypatch) -> None:
    (tmp_path / "server").mkdir()
    monkeypatch.chdir(tmp_path)
    assert config(CASES["the server answers"]).problems() == []


GATES: dict[str, Any] = {"gate_filter": 0.5, "gate_stop": 0.5}


@ONE_FAMILY
@pytest.mark.parametrize("name", ["the base does both", "the server does both", "a model answers for the server"])
def test_a_gate_loads_the_tuned_model_in_addition(name: str, checkpoints, config, ran, monkeypatch) -> None:
    case = CASES[name]
    monkeypatch.setattr(iterative, "GateModel", lambda engine, images: engine)
    gated = {"model": checkpoints.tuned, **GATES}
    loaded, stopped = ran(config(case, **gated))
    assert tuple(loaded) == (*case.loaded, checkpoints.tuned)
    assert [*reading_models(stopped.parts)] == ["reader", "answerer", "gate"]
    described = planning.describe(config(case, **gated))
    assert f", judgements by model {checkpoints.tuned}" in described
    assert "in batches of" in described  # also where a server's models read and answer
    assert "judgements a question by `model`" in described
    (missing,) = config(case, **{**gated, "model": ""}).problems()
    assert missing == "`model` is needed by pmsr: a checkpoint that sft wrote"


@ONE_FAMILY
def test_traces_depend_on_the_gate_and_without_thresholds_there_is_none(checkpoints, config, ran) -> None:
    case = CASES["the base does both"]

    def hash_of(pipeline: str = "pmsr", **more: Any) -> str:
        return ran(config(case, pipeline, **more))[1].fingerprint

    assert hash_of(model=checkpoints.tuned) == hash_of()
    assert ran(config(case, model=checkpoints.tuned))[1].parts.gate is None
    found = {hash_of(model=model, **GATES) for model in (checkpoints.tuned, checkpoints.plain)}
    found |= {hash_of(model=checkpoints.tuned, gate_stop=0.5), hash_of(model=checkpoints.tuned, gate_filter=0.5)}
    assert len(found - {hash_of()}) == 4
    assert hash_of("reag", model=checkpoints.tuned, **GATES) == hash_of("reag")  # it has a critic of its own


def test_a_closed_book_has_the_reader_alone(config: Any) -> None:
    for case in CASES.values():
        is_served = case.reader == "server"
        expected = ModelUse(None if is_served else "base_model", is_served=is_served, reads="none")
        assert find_recipe("closed_book").models(config(case)) == expected
        assert find_recipe("closed_book_tuned").models(config(case)) == ModelUse("plain_model", reads="none")
