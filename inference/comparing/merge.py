"""Evaluations of the same questions as one: pipelines that need different checkpoints are compared pair by pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectune.core.devices import find_device
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines.naive_rag import RERANKING
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.experiment import select
from reflectune.inference.scoring.evaluation import BEST_BASELINE, evaluate
from reflectune.inference.scoring.scores import Measure
from reflectune.inference.trace import Trace
from reflectune.inference.trace_files.opening import trace_files, traces_of

Metrics = Mapping[str, Any]


@dataclass
class _Group:
    """Evaluations that ask the same questions at one depth, of which no two run one pipeline."""

    names: list[str] = field(default_factory=list)
    members: list[EvaluateConfig] = field(default_factory=list)
    pipelines: dict[str, Path] = field(default_factory=dict)
    reading: dict[str, object] = field(default_factory=dict)

    def takes(self, pipelines: Mapping[str, Path], reading: Mapping[str, object]) -> bool:
        """Whether an evaluation of these pipelines is of this group, too."""
        agrees = all(self.reading.get(name, value) == value for name, value in reading.items())
        return agrees and not self.pipelines.keys() & pipelines.keys()


def merged(evaluations: Mapping[str, EvaluateConfig], metrics: Mapping[str, Metrics]) -> dict[str, Metrics]:
    """Metrics with those evaluations scored together that ask the same questions by different pipelines.

    Their traces are scored as if one evaluation had run all: each pipeline has its lead, paired by question, over the
    best baseline of all, though a checkpoint's pipelines are run apart from another's. Those that search otherwise, or
    read more or fewer entries, stay apart.

    Args:
        evaluations: Configs that were run, by name.
        metrics: By name the content of metrics.json, of finished evaluations, too.

    Returns:
        The metrics by name; of several evaluations joined by ` + `.
    """
    groups: dict[tuple[object, ...], list[_Group]] = {}
    for name, config in evaluations.items():
        pipelines = {
            each: Path(config.output, "traces") for each in metrics[name]["pipelines"] if each != BEST_BASELINE
        }
        alike, reading = groups.setdefault(_asked(config), []), what_is_read(config, pipelines)
        group = next((group for group in alike if group.takes(pipelines, reading)), None)
        if group is None:
            alike.append(group := _Group())
        group.names.append(name)
        group.members.append(config)
        group.pipelines |= pipelines
        group.reading |= reading
    together = [group for alike in groups.values() for group in alike]
    apart = {name: content for name, content in metrics.items() if name not in evaluations}
    return {
        **apart,
        **{" + ".join(group.names): _scored(group, metrics) for group in together},
    }


def _asked(config: EvaluateConfig) -> tuple[object, ...]:
    """What decides which questions are asked, and how they are scored."""
    return config.dataset, tuple(config.splits), config.limit, config.seed, config.scored_by(config.dataset), config.bem


def what_is_read(config: EvaluateConfig, names: Iterable[str]) -> dict[str, object]:
    """What decides where an evaluation's pipelines search and how much of it they read, by key.

    Keys that none of them reads are left out, and so are those of pipelines with a depth of their own.
    """
    recipes = [find_recipe(name) for name in names]
    searching = [recipe for recipe in recipes if recipe.retrieves and config.finds_entries]
    read = {name for recipe in recipes if not recipe.has_own_depth for name in recipe.settings} & {"top_n", *RERANKING}
    read |= {"summary_share", "lead"} if searching else set()
    read |= {"title_weight"} if not all(recipe.has_own_depth for recipe in searching) else set()
    entries = {"entries": config.finder_fingerprint()} if searching else {}
    return {**entries, **config.as_used({name: getattr(config, name) for name in sorted(read)})}


def _scored(group: _Group, metrics: Mapping[str, Metrics]) -> Metrics:
    if len(group.names) == 1:
        return metrics[group.names[0]]
    first = group.members[0]
    dataset = Dataset(Path(first.dataset))
    questions = select(dataset, first.splits, first.limit, first.seed)
    traces = {name: _traces(folder, name, questions) for name, folder in group.pipelines.items()}
    device = str(find_device(first.device))
    measure = Measure(first.scored_by(first.dataset), first.open_bem(device))
    budgets = {name: values for each in group.names for name, values in metrics[each].get("budgets", {}).items()}
    return {**evaluate(questions, traces, measure=measure, gamma=first.gamma, seed=first.seed), "budgets": budgets}


def _traces(folder: Path, name: str, questions: Sequence[Question]) -> Mapping[str, Trace]:
    """The traces of a pipeline of those questions that it takes."""
    recipe = find_recipe(name)
    return traces_of(trace_files(folder)[name], [question.id for question in questions if recipe.takes(question)])
