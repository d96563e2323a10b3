"""Settings of one's own that a list of steps is run with: other models, fewer questions, another launcher."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reflectune.core.errors import UserError


@dataclass(frozen=True)
class Changes:
    """What differs from a list of steps.

    Attributes:
        settings: By a step's name or its module's, settings of its command; those by name count more.
        instead: Values of any setting, and what stands in their place: a folder for a model of the Hub, say. What lies
            in a folder moves with it.
        launch: Launch configs, and those in their place; "" for a plain process.
        without: Steps that are left out.
        room: The share of each step's gigabytes that these data take, e.g. 0.01 for a pilot of a hundredth.
        pilot: Whether what comes of it is a rehearsal, beside which the paper's numbers are not to be printed.
    """

    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    instead: Mapping[str, Any] = field(default_factory=dict)
    launch: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    room: float = 1.0
    pilot: bool = False


_MAPPINGS: Final = ("settings", "instead", "launch")
_FORM: Final = "settings, instead and launch are mappings, without a list, room a number of at least 0, pilot a truth"


def read_changes(values: Any, where: str) -> Changes:
    """Changes as a YAML file has them.

    Raises:
        UserError: A key is unknown, or a value of another type.
    """
    known = [item.name for item in dataclasses.fields(Changes)]
    if not isinstance(values, dict) or not set(values) <= set(known):
        raise UserError(f"{where}: changes are a mapping with the keys {', '.join(known)}")
    mappings = {name: values.get(name) or {} for name in _MAPPINGS}
    without, room, pilot = values.get("without") or [], values.get("room", 1.0), values.get("pilot", False)
    fits = all(isinstance(value, dict) for value in mappings.values())
    fits = fits and all(isinstance(value, dict) for value in mappings["settings"].values())
    fits = fits and isinstance(without, list) and isinstance(pilot, bool)
    if not (fits and isinstance(room, (int, float)) and not isinstance(room, bool) and room >= 0):
        raise UserError(f"{where}: {_FORM}")
    return Changes(**mappings, without=tuple(map(str, without)), room=float(room), pilot=pilot)


def merged(several: Iterable[Changes]) -> Changes:
    """Several changes as one; of two for one key the later one counts."""
    result = Changes()
    for one in several:
        names = {**result.settings, **one.settings}
        result = Changes(
            settings={name: {**result.settings.get(name, {}), **one.settings.get(name, {})} for name in names},
            instead={**result.instead, **one.instead},
            launch={**result.launch, **one.launch},
            without=(*result.without, *one.without),
            room=result.room * one.room,
            pilot=result.pilot or one.pilot,
        )
    return result


def replaced(value: Any, instead: Mapping[str, Any]) -> Any:
    """A setting's value with what stands in the place of others: of itself, of items of a list, of a mapping's.

    Example:
        >>> replaced({"a/b": ["c", "a"]}, {"a": "x"})
        {'x/b': ['c', 'x']}
    """
    if isinstance(value, list):
        return [replaced(item, instead) for item in value]
    if isinstance(value, dict):
        return {replaced(key, instead): replaced(item, instead) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    named = [name for name in instead if value == name or value.startswith(f"{name}/")]
    if not named:
        return value
    name = max(named, key=len)
    return instead[name] if name == value else f"{instead[name]}{value.removeprefix(name)}"
