"""Files by which stock transformers reads a checkpoint's gates: `decision.json` and `decision_template.jinja`.

`pipeline("decision")` and `transformers serve` read them, from transformers 5.23 on; docs/serving.md shows a request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, get_args

from reflectune.core.durable import read_record, write_json
from reflectune.core.types import AnswerStyle
from reflectune.models.rendering.renderer import Chunks, Renderer
from reflectune.models.rendering.turns import Slot
from reflectune.models.schemes.base import Gate, Scheme

DECISION_FILE: Final = "decision.json"
_HEAD: Final = """
{%- macro text(value) %}{{ value | default("", true) | string | trim }}{% endmacro -%}
{%- set given = {"text": state.passage} if state.passage is string else state.passage | default({}, true) -%}
{%- set title, lead, heading = text(given.title), text(given.lead), text(given.heading) -%}
{%- set parts = [title ~ ":" if title, lead, heading ~ "." if heading, text(given.text)] -%}
{%- set style, passage = state.answer_style | default("short", true), parts | select | join(" ") -%}
{%- if state.image is not defined or state.image is string -%}
{{ raise_exception("`image` in `state` must be the name of an image in `assets`") }}"""
_TAIL: Final = """
{%- else -%}
{{ raise_exception("ask a `noul` question of a `state` with FIRST, or a `choice` question with the `criteria` \
relevant and irrelevant, in this order, of a `state` with SECOND") }}
{%- endif -%}
"""


def write_decision(folder: Path, renderer: Renderer) -> None:
    """Write both files for the gates of a checkpoint's scheme, at temperature 1; nothing for a scheme without gates."""
    from transformers import DecisionConfig  # slow to import

    scheme = Scheme.of(renderer)
    labels = {kind: [scheme.tokens[gate.positive], scheme.tokens[gate.negative]] for kind, gate in _types(scheme)}
    if labels:
        template = decision_template(scheme, renderer)
        DecisionConfig(labels, dict.fromkeys(labels, 1.0), template).save_pretrained(folder)


def set_temperatures(folder: Path, scheme: Scheme, temperatures: Mapping[str, float]) -> None:
    """Set the temperatures of gates, by their names, in a checkpoint's `decision.json` if it has one."""
    path = folder / DECISION_FILE
    if path.is_file():
        record = read_record(path, "the checkpoint's decision config")
        chosen = {kind: temperatures.get(gate.name, 1.0) for kind, gate in _types(scheme)}
        write_json(path, record | {"temperature": chosen})


def decision_template(scheme: Scheme, renderer: Renderer) -> str:
    """Return the Jinja template that renders each gate's prompt as the engine reads it, up to the gate's token."""
    shown, cases = _HEAD, list(_cases(scheme, renderer))
    for condition, chunks in cases:
        needed = [name for part in chunks if isinstance(part, Slot) for name in [_value(part)]]
        printed = "".join(f"{{{{ {_value(part) if isinstance(part, Slot) else _quoted(part)} }}}}" for part in chunks)
        shown += f"\n{{%- elif {' and '.join([condition, *needed])} -%}}\n{printed}"
    names = [", ".join(["image", *(part.name for part in cases[row][1] if isinstance(part, Slot))]) for row in (0, -1)]
    return shown + _TAIL.replace("FIRST", names[0]).replace("SECOND", names[1])


def _types(scheme: Scheme) -> list[tuple[str, Gate]]:
    """Return the question types of the first two gates: labels and temperatures are one set a type."""
    return list(zip(("noul", "choice"), scheme.gates, strict=False))


def _cases(scheme: Scheme, renderer: Renderer) -> Iterator[tuple[str, Chunks]]:
    """Yield the prompts of `_types`: the condition under which a request asks one, and its text with slots."""
    (_, first), *others = _types(scheme)
    yield "question.type == 'noul'", renderer.template(scheme.gate_turns(first, "short"))
    for _, second in others:
        evidence = f"question.type == 'choice' and question.options == {[second.positive, second.negative]}"
        prompts = {style: renderer.template(scheme.gate_turns(second, style)) for style in get_args(AnswerStyle)}
        for style, chunks in prompts.items():
            yield f"{evidence} and style == '{style}'", chunks


def _value(slot: Slot) -> str:
    return "passage" if slot.name == "passage" else f"text(state.{slot.name})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
