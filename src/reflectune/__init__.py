"""Train and serve multimodal models that decide by reflection tokens when to retrieve and what to believe.

The names below are the public face; they are imported at first use. Commands: `reflectune --help`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from reflectune.api import answer, build_index, evaluate
    from reflectune.core.errors import UserError
    from reflectune.core.types import Question
    from reflectune.formats.dataset import Dataset
    from reflectune.formats.knowledge_base import KnowledgeBase
    from reflectune.inference.pipelines.base import Pipeline
    from reflectune.inference.report.words import explain
    from reflectune.inference.trace import Trace
    from reflectune.models.loading import load

__all__ = [
    "Dataset",
    "KnowledgeBase",
    "Pipeline",
    "Question",
    "Trace",
    "UserError",
    "answer",
    "build_index",
    "evaluate",
    "explain",
    "load",
]

_HOMES: Final = {
    "Dataset": "formats.dataset",
    "KnowledgeBase": "formats.knowledge_base",
    "Pipeline": "inference.pipelines.base",
    "Question": "core.types",
    "Trace": "inference.trace",
    "UserError": "core.errors",
    "answer": "api",
    "build_index": "api",
    "evaluate": "api",
    "explain": "inference.report.words",
    "load": "models.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
