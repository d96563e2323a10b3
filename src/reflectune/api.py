"""Answer, evaluate and index from Python, by the keys that the commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectune.core.config import make_config
from reflectune.inference.trace import Trace


def answer(*, image: str | Path, question: str, dataset: str | Path, model: str = "", **settings: Any) -> Trace:
    """Answer one question about an image with a pipeline by name, or with that of the checkpoint's scheme.

    Args:
        image: The image's path.
        question: The question.
        dataset: Data set folder, for its knowledge base.
        model: A checkpoint that `sft` wrote, or a shipped one; "" for a `pipeline` that reads with others.
        **settings: Other keys of `reflectune answer`. Without `pipeline`, `index` or `ranked_entities` is needed.

    Raises:
        UserError: Lists every problem of the settings, or says which model or index can't be read.

    Example:
        >>> trace = answer(model="runs/quickstart/checkpoint", dataset="runs/quickstart/world", image="owl.jpg",
        ...                question="What does it eat?", index="runs/quickstart/index")
        >>> print(explain(trace))
    """
    from reflectune.inference.running.config import AnswerConfig  # slow to import
    from reflectune.inference.running.single import answer as answer_config

    keys = {"image": str(image), "question": question, "model": model, "dataset": str(dataset)}
    return answer_config(make_config(AnswerConfig, **keys, **settings))


def evaluate(*, dataset: str | Path, output: str | Path, **settings: Any) -> dict[str, Any]:
    """Run pipelines over a data set's questions, and write traces, metrics.json and report.html.

    Args:
        dataset: Data set folder.
        output: Folder to write.
        **settings: Other keys of `reflectune evaluate`.

    Returns:
        The content of metrics.json; {} in a process of a launch that isn't its first.

    Raises:
        UserError: Lists every problem of the settings, or says which input can't be read.
    """
    from reflectune.inference.running import experiment  # slow to import
    from reflectune.inference.running.config import EvaluateConfig

    return experiment.run(make_config(EvaluateConfig, dataset=str(dataset), output=str(output), **settings))


def build_index(*, knowledge: str | Path, output: str | Path, **settings: Any) -> Path:
    """Index a knowledge base.

    Args:
        knowledge: Knowledge base folder.
        output: Folder of the index. An unfinished index is continued.
        **settings: Other keys of `reflectune build_index`.

    Returns:
        The index's folder.

    Raises:
        UserError: Lists every problem of the settings, or says which input can't be read.
    """
    from reflectune.retrieval.build_index import build_index as command  # slow to import

    command(make_config(command.kind, knowledge=str(knowledge), output=str(output), **settings))
    return Path(output)
