"""Schemes by name: each module of this folder that has a `SCHEME` is one."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.models import schemes
from reflectune.models.schemes.base import SCHEME_FILE, Scheme


@functools.cache
def all_schemes() -> Mapping[str, Scheme]:
    """Return every scheme, by name.

    Raises:
        UserError: A scheme is named unlike its module, two of its roles share a token, or one has no description.
    """
    names = [module.name for module in pkgutil.iter_modules(schemes.__path__)]
    modules = {name: importlib.import_module(f"{schemes.__name__}.{name}") for name in names}
    known_schemes: dict[str, Scheme] = {n: module.SCHEME for n, module in modules.items() if hasattr(module, "SCHEME")}
    for name, scheme in known_schemes.items():
        if scheme.name != name:
            raise UserError(
                f"{modules[name].__file__}: the scheme is named `{scheme.name}`; name it `{name}`, as its file"
            )
        if len({*scheme.tokens.values()}) < len(scheme.tokens) or {*scheme.descriptions} != {*scheme.tokens}:
            raise UserError(f"{modules[name].__file__}: each role needs a token of its own and a description")
    return known_schemes


def find_scheme(name: str, variant: str = "") -> Scheme:
    """Return a scheme by its name, with the prompts of a variant if one is named.

    Raises:
        UserError: No scheme has this name, or it has no such variant.
    """
    if name not in all_schemes():
        raise UserError(f"unknown scheme `{name}`; choose one of {', '.join(all_schemes())}")
    scheme = all_schemes()[name]
    if variant and variant not in scheme.variants:
        raise UserError(f"`prompts: {variant}` is unknown; {name} has {', '.join(scheme.variants) or 'no variant'}")
    return dataclasses.replace(scheme, prompts={**scheme.prompts, **scheme.variants[variant]}) if variant else scheme


def reflecting_schemes() -> list[str]:
    """Return the names of the schemes that have gates."""
    return [name for name, scheme in all_schemes().items() if scheme.gates]


def load_scheme(folder: str | Path) -> Scheme:
    """Read a checkpoint's scheme.

    Raises:
        UserError: There is none, it lacks a field, a role or a prompt, or it was changed by hand since it was written.
    """
    path = Path(folder) / SCHEME_FILE
    saved = read_json(path, "the checkpoint's scheme")
    names = [field.name for field in dataclasses.fields(Scheme)]
    missing = [name for name in names if name not in saved] if isinstance(saved, dict) else names
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; take the file that was saved with the checkpoint")
    known = find_scheme(str(saved["name"]))
    scheme = dataclasses.replace(known, **{name: saved[name] for name in names})
    if saved.get("fingerprint") != scheme.fingerprint:
        raise UserError(
            f"{path} was changed after it was saved (its fingerprint is {saved.get('fingerprint')}, its content's "
            f"{scheme.fingerprint}); the weights were trained with the saved one: restore it"
        )
    absent = [role for role in known.tokens if role not in scheme.tokens]
    if absent:
        raise UserError(
            f"{path} has no token for {', '.join(absent)}; take the file that was saved with the checkpoint"
        )
    missing_prompts = [prompt for prompt in known.prompts if prompt not in scheme.prompts]
    if missing_prompts:
        raise UserError(
            f"{path} has no prompt {', '.join(missing_prompts)}: the checkpoint was trained by an earlier version, "
            "with other prompts; train it again"
        )
    return scheme
