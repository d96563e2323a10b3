"""Pipelines by name: the `RECIPES` of each module of this folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence

from reflectune.core.errors import UserError
from reflectune.inference import pipelines
from reflectune.inference.config import ModelRole
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe

ROLES: tuple[ModelRole | None, ...] = (None, "base_model", "plain_model", "model")
"""The order of running: without a model, with the base model, with tuned ones."""


@functools.cache
def all_recipes() -> Mapping[str, Recipe]:
    """Every pipeline and stage, by name, in the order of running."""
    names = [module.name for module in pkgutil.iter_modules(pipelines.__path__)]
    modules = [importlib.import_module(f"{pipelines.__name__}.{name}") for name in names]
    recipes: dict[str, Recipe] = {}
    for module in modules:
        recipes.update(getattr(module, "RECIPES", {}))
    return {name: recipe for role in ROLES for name, recipe in recipes.items() if recipe.model == role}


def find_recipe(name: str) -> Recipe:
    """The recipe of a pipeline or stage.

    Raises:
        UserError: There is none of this name.
    """
    if name not in all_recipes():
        raise UserError(f"unknown pipeline `{name}`; one of {', '.join(all_recipes())}")
    return all_recipes()[name]


def build_pipeline(name: str, parts: PipelineParts) -> Pipeline:
    """Put a pipeline or stage together from its parts."""
    return find_recipe(name).make(name, parts)


@functools.cache
def all_forms() -> Mapping[str, tuple[str, ...]]:
    """The names that a config may ask for, and the pipelines that each stands for."""
    forms: dict[str, list[str]] = {}
    for name, recipe in all_recipes().items():
        if recipe.form:
            forms.setdefault(recipe.form, []).append(name)
    return {form: tuple(names) for form, names in forms.items()}


def reflecting(measured_by: str = "") -> tuple[str, ...]:
    """The pipelines that are called as the scheme of their checkpoint.

    Args:
        measured_by: Those whose decisions this stage measures; all if "".
    """
    reflecting_recipes = {name: recipe for name, recipe in all_recipes().items() if recipe.scheme == name}
    return tuple(name for name, recipe in reflecting_recipes.items() if measured_by in ("", recipe.measured_by))


def sweepable() -> tuple[str, ...]:
    """The pipelines that have settings to sweep over."""
    return tuple(name for name, recipe in all_recipes().items() if recipe.varied)


def iterative() -> tuple[str, ...]:
    """The pipelines that search several times."""
    return tuple(name for name, recipe in all_recipes().items() if recipe.is_iterative)


def stages_for(names: Sequence[str]) -> list[str]:
    """The pipelines and the stages that measure their parts, in the order of running."""
    wanted = {*names, *(find_recipe(name).measured_by for name in names)}
    if any(find_recipe(name).retrieves for name in names):
        wanted.add("retrieval")
    return [name for name in all_recipes() if name in wanted]
