"""A pipeline is one file: its settings become keys of `evaluate`, and part of what its traces depend on."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.config import find_problems
from reflectune.core.types import Question
from reflectune.inference import pipelines
from reflectune.inference.pipelines.iterative import TrajectorySettings, iterative_recipe
from reflectune.inference.pipelines.registry import all_forms, all_recipes, find_recipe, missing_parts
from reflectune.inference.pipelines.requirements import MODELS
from reflectune.inference.running import config, planning
from reflectune.inference.running.config import EvaluateConfig

PIPELINE = '''
from reflectune.core.config import setting
from reflectune.inference.pipelines.base import ContextPipeline
from reflectune.inference.pipelines.recipe import Recipe, every, needed
from reflectune.inference.pipelines.settings import AnswerSettings
from reflectune.inference.reading.reader import Reader


class ShoutingSettings(AnswerSettings):
    """Settings of a pipeline that shouts."""

    loudness: int = setting(3, "exclamation marks", ge=1)


def make(name, settings, parts):
    def nothing(questions, images, clock):
        return [()] * len(questions), [()] * len(questions)

    reader = Reader(needed(parts.engine), settings.max_new_tokens)
    return ContextPipeline(name * settings.loudness, reader, nothing)


RECIPES = {"shouting": Recipe(make, ShoutingSettings, "base_model", every, form="shouting")}
'''


@pytest.fixture
def config_with_shouting(tmp_path: Path) -> Iterator[type[Any]]:
    """The config of `evaluate`, imported again while the file of a pipeline lies in the folder of the others."""
    (tmp_path / "shouting.py").write_text(PIPELINE)
    spec = importlib.util.spec_from_file_location("config_with_shouting", config.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "__path__", [*pipelines.__path__, str(tmp_path)])
        patch.setitem(sys.modules, spec.name, module)
        forget_pipelines()
        spec.loader.exec_module(module)
        yield module.EvaluateConfig
    del sys.modules[f"{pipelines.__name__}.shouting"]
    forget_pipelines()


def forget_pipelines() -> None:
    for known in (all_recipes, all_forms):
        known.cache_clear()


def test_a_file_adds_a_pipeline_with_a_setting_of_its_own(config_with_shouting: type[Any]) -> None:
    problems = find_problems(config_with_shouting, {"pipelines": ["shouting"], "loudness": 0})
    assert "`loudness` must be at least 1, found 0" in problems
    assert "`base_model` is needed by shouting" in problems
    made = config_with_shouting(pipelines=["shouting"], loudness=5)
    planned = planning.plan(made, [Question("q", "", "What?")], ())["shouting"]
    assert planned.settings.model_dump() == {"loudness": 5, "max_new_tokens": 32}


def test_two_pipelines_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zweite.py").write_text("from reflectune.inference.pipelines.pmsr import RECIPES")
    monkeypatch.setattr(pipelines, "__path__", [*pipelines.__path__, str(tmp_path)])
    forget_pipelines()
    with pytest.raises(TypeError, match=r"zweite\.py: another module has the pipeline pmsr, pmsr_fixed; rename it"):
        all_recipes()
    monkeypatch.undo()
    del sys.modules[f"{pipelines.__name__}.zweite"]
    forget_pipelines()


def test_an_iterative_pipeline_that_reads_the_first_entries_has_their_number() -> None:
    with pytest.raises(TypeError, match="mine: derive TrajectorySettings from DepthSettings, whose `top_n` entries"):
        iterative_recipe("mine", "Mine", TrajectorySettings, lambda settings, parts: pytest.fail("not built"))


def test_a_part_that_settings_make_needless_is_not_required() -> None:
    config = EvaluateConfig(answer_model="tuned", reader="server")
    assert MODELS["base_model"] not in find_recipe("mmkb_rag").required(config)
    assert MODELS["base_model"] not in find_recipe("pmsr").required(config)
    assert MODELS["base_model"] in find_recipe("mmkb_rag").required(EvaluateConfig())
    near = EvaluateConfig(web_url="http://localhost:9/search")
    assert not any("`text_index`" in problem for problem in missing_parts(near, ["pmsr_web"]))


def test_every_key_of_a_pipeline_is_a_key_of_evaluate_with_one_help() -> None:
    for name, recipe in all_recipes().items():
        for key, field in recipe.settings.model_fields.items():
            assert EvaluateConfig.model_fields[key].description == field.description, (name, key)
    assert find_problems(EvaluateConfig, {"saturation": 3.0})[0].startswith("`saturation` must be between -1 and 2")


def test_pipelines_have_plain_names_of_their_own_and_stages_none() -> None:
    config = EvaluateConfig(top_n=5, passages=1)
    names = {
        name: recipe.plain_name(recipe.settings_of(config)) for name, recipe in all_recipes().items() if recipe.form
    }
    assert len(set(names.values())) == len(names)
    assert not any("{" in name or "_" in name or not name for name in names.values())
    assert names["naive_rag_articles_tuned"] == "Naive RAG, five articles, tuned"
    assert names["naive_rag_passages"] == "Naive RAG, one passage"
    assert not any(recipe.title for recipe in all_recipes().values() if not recipe.form)
