"""The card of derived training data, as `datasets` and the hub read it: what it was made from, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def card(
    scheme: str,
    split: str,
    probed: Mapping[str, Any],
    decided: Mapping[str, Any],
    statistics: Mapping[str, Mapping[str, Any]],
) -> str:
    """The text of README.md, with its YAML front matter.

    Args:
        scheme: Whose training data it is.
        split: The one that was derived last, whose settings and numbers are shown.
        probed: Settings of its probes, and what is remembered `about` them.
        decided: Settings of its derivation.
        statistics: Of each split, each a Parquet file.
    """
    about, numbers = probed["about"], statistics[split]
    examples = sum(int(each["examples"]) for each in statistics.values())
    files = [{"split": name, "path": f"{name}.parquet"} for name in statistics]
    size = next((name for most, name in _SIZES if examples < most), "n>1M")
    made = {
        "scheme": scheme,
        "split": split,
        "target_model": about.get("model", ""),
        "target_model_fingerprint": probed["model"],
        "prompts_fingerprint": probed["prompts"],
        "knowledge_base_fingerprint": probed["knowledge"],
        "dataset": about.get("dataset", ""),
        "dataset_fingerprint": probed["dataset"],
        "metric": probed["metric"],
        "probing_seed": probed["seed"],
        "seed": decided["seed"],
        "rule": decided["rule"],
        "labeller": decided["labeller"],
        "answer_model": decided["answer_model"],
    }
    front = {
        "pretty_name": f"MMKB-RAG labels of {about.get('model', 'a model')} on {about.get('dataset', 'a data set')}",
        "task_categories": ["visual-question-answering"],
        "tags": ["reflection-tokens", "retrieval-augmented-generation", "reflectune"],
        "size_categories": [size],
        "configs": [{"config_name": "default", "data_files": files}],
        "reflectune": made,
    }
    rows = [f"| {name.replace('_', ' ')} | {value} |" for name, value in made.items() if value != ""]
    settings = [f"| {name} | {value} |" for name, value in decided.items() if value not in (None, "")]
    return "\n".join(
        [
            "---",
            yaml.safe_dump(front, sort_keys=False, allow_unicode=True).rstrip(),
            "---",
            "",
            f"# {front['pretty_name']}",
            "",
            "Training data of MMKB-RAG ([2504.10074](https://arxiv.org/abs/2504.10074)): does the target model need a "
            "document (RET), does this document help it (SRT), which of these documents agree (MCT). The labels are "
            "the target model's own: what it answered without and with each document, judged by the metric below. For "
            "another model they mean little. One row is a question, with its prompts and replies as `branches`.",
            "",
            "| made from | |",
            "|---|---|",
            *rows,
            "",
            "| setting | |",
            "|---|---|",
            *settings,
            "",
            "| task | taken | derived |",
            "|---|---|---|",
            *(
                f"| {task} | {_counts(numbers['taken'][task])} | {_counts(counts)} |"
                for task, counts in _tasks(numbers)
            ),
            "",
        ]
    )


def _tasks(numbers: Mapping[str, Any]) -> list[tuple[str, Mapping[str, int]]]:
    return list(numbers["derived"].items())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
