"""Settings of groups of pipelines, as base classes of commands' configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reflectune.core.config import Settings
from reflectune.inference.pipelines.registry import all_recipes, pipeline_settings, reflecting

# Type checkers see no keys here: only the pipelines' own files may read them.
if TYPE_CHECKING:
    AllPipelines = Settings
    ReflectingPipelines = Settings
    SinglePassPipelines = Settings
else:
    AllPipelines = pipeline_settings(all_recipes())
    """Settings of all registered pipelines."""
    ReflectingPipelines = pipeline_settings(reflecting())
    """Settings of pipelines that are named like the scheme of their checkpoint."""
    SinglePassPipelines = pipeline_settings(name for name, it in all_recipes().items() if not it.is_iterative)
    """Settings of pipelines that retrieve at most once."""
