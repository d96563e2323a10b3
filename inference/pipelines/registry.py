"""Pipelines by name: the `RECIPES` of each module of this folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reflectune.core.config import Settings, union
from reflectune.core.errors import UserError
from reflectune.inference import pipelines
from reflectune.inference.config import ModelRole
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe
from reflectune.inference.pipelines.requirements import Requirement

ROLES: tuple[ModelRole | None, ...] = (None, "base_model", "plain_model", "model")
"""The order of running: without a model, with the base model, with tuned ones."""


@functools.cache
def all_recipes() -> Mapping[str, Recipe[Any]]:
    """Return every pipeline and stage, by name, in the order of running.

    Raises:
        TypeError: Two modules have a pipeline of the same name.
    """
    names = [module.name for module in pkgutil.iter_modules(pipelines.__path__)]
    modules = [importlib.import_module(f"{pipelines.__name__}.{name}") for name in names]
    recipes: dict[str, Recipe[Any]] = {}
    for module in modules:
        own: Mapping[str, Recipe[Any]] = getattr(module, "RECIPES", {})
        if twice := recipes.keys() & own.keys():
            raise TypeError(f"{module.__file__}: another module has the pipeline {', '.join(sorted(twice))}; rename it")
        recipes.update(own)
    return {name: recipe for role in ROLES for name, recipe in recipes.items() if recipe.model == role}


def find_recipe(name: str) -> Recipe[Any]:
    """Return the recipe of a pipeline or stage.

    Raises:
        UserError: No pipeline has this name.
    """
    if name not in all_recipes():
        raise UserError(f"unknown pipeline `{name}`; one of {', '.join(all_recipes())}")
    return all_recipes()[name]


def build_pipeline(name: str, config: Settings, parts: PipelineParts) -> Pipeline:
    """Build a pipeline or stage from its settings, or a config that has them, and its parts."""
    recipe = find_recipe(name)
    return recipe.make(name, recipe.settings_of(config), parts)


def pipeline_settings(names: Iterable[str], without: Sequence[Requirement] = ()) -> type[Settings]:
    """Return a class with the settings of pipelines and of the parts that they require.

    Args:
        names: The pipelines.
        without: Parts whose settings are left out.
    """
    recipes = [find_recipe(name) for name in names]
    parts = dict.fromkeys(part for recipe in recipes for part in recipe.requires if part not in without)
    of_parts = [kind for part in parts for kind in part.settings]
    return union("PipelineSettings", *dict.fromkeys([*(recipe.settings for recipe in recipes), *of_parts]))


def missing_parts(config: Settings, names: Iterable[str]) -> list[str]:
    """Return the problems of a config that lacks parts which pipelines require."""
    users: dict[Requirement, list[str]] = {}
    for name in names:
        for requirement in find_recipe(name).required(config):
            users.setdefault(requirement, []).append(name)
    return [problem for part, used_by in users.items() for problem in part.missing(config, ", ".join(used_by))]


@functools.cache
def all_forms() -> Mapping[str, tuple[str, ...]]:
    """Return the names that a config may use, and the pipelines that each selects."""
    forms: dict[str, list[str]] = {}
    for name, recipe in all_recipes().items():
        if recipe.form:
            forms.setdefault(recipe.form, []).append(name)
    return {form: tuple(names) for form, names in forms.items()}


def reflecting(measured_by: str = "") -> tuple[str, ...]:
    """Return the pipelines that are named like the scheme of their checkpoint.

    Args:
        measured_by: Select those whose decisions this stage measures; all if "".
    """
    reflecting_recipes = {name: recipe for name, recipe in all_recipes().items() if recipe.scheme == name}
    return tuple(name for name, recipe in reflecting_recipes.items() if measured_by in ("", recipe.measured_by))


def sweepable() -> tuple[str, ...]:
    """Return the pipelines that a sweep can vary."""
    return tuple(name for name, recipe in all_recipes().items() if recipe.choices)


def iterative() -> tuple[str, ...]:
    """Return the pipelines that search several times."""
    return tuple(name for name, recipe in all_recipes().items() if recipe.is_iterative)


def stages_for(names: Sequence[str], *, diagnose: bool = True) -> list[str]:
    """Return the pipelines and the stages that measure their parts, in the order of running.

    Args:
        names: Names of the pipelines.
        diagnose: Include the stages that measure gates.
    """
    selected = {*names, *(find_recipe(name).measured_by for name in names if diagnose)}
    if any(find_recipe(name).needs("entries") for name in names):
        selected.add("retrieval")
    return [name for name in all_recipes() if name in selected]
