"""JSON schemas of replies, for a server that constrains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reflectune.inference.operators.parsing import STATE_FIELDS
from reflectune.inference.operators.requests import Form

_TEXT: Final = {"type": "string"}


def _object(**properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


SCHEMAS: Final[Mapping[Form, Mapping[str, Any]]] = {
    "queries": _object(analysis=_TEXT, queries={"type": "array", "items": _TEXT}),
    "order": _object(ranking={"type": "array", "items": {"type": "integer"}}),
    "preferred": _object(document={"type": "string", "enum": ["A", "B"]}),
    "state": _object(**dict.fromkeys(STATE_FIELDS, _TEXT)),
}
"""Schema of each form that is more than a text; `parsing` reads them."""


def response_format(form: Form) -> dict[str, Any]:
    """Return the fields of a request that constrain its reply to a form; {} for a free one."""
    if form not in SCHEMAS:
        return {}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": form, "schema": SCHEMAS[form]}}}
