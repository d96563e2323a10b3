"""The program `reflectune`: run a command by its name, or list the commands."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

GROUPS: Final[dict[str, dict[str, str]]] = {
    "data": {
        "data_builders.convert": "Convert a data set or a knowledge base to a data set folder.",
    },
    "index": {
        "inference.caption": "Caption the first image of each entry of a knowledge base.",
        "retrieval.build_index": "Index the images and titles of a knowledge base, or its sections, or its passages.",
        "inference.recall": "Measure how often retrieval finds the right entries and passages.",
    },
    "build": {
        "data_builders.build_mr2ag": "Build mR²AG-IT: questions with evidence passages and distractors.",
        "data_builders.build_plain": "Build training data without reflection tokens, for the papers' baselines.",
        "data_builders.probe": "Record a model's answers to questions, without and with each retrieved document.",
        "data_builders.derive_labels": "Derive MMKB-RAG's training data from probes.",
    },
    "train": {
        "train.sft": "Fine-tune a model on reflection data: fully, by LoRA or by QLoRA.",
        "train.grpo": "Train the gates of a fine-tuned checkpoint by reward.",
        "train.reag_grpo": "Train the answers of a fine-tuned checkpoint by TRL's GRPO.",
        "train.promsa_grpo": "Train the trajectories of ProMSA's agent by TN-GSPO or GSPO.",
        "train.merge": "Merge an adapter, join the parts of a LLaVA, or rewrite one in transformers' layout.",
        "train.export": "Write a checkpoint for vLLM or SGLang, or reflection data for other trainers.",
        "train.estimate": "Estimate the memory of a training on each device.",
    },
    "infer": {
        "inference.answer": "Answer one question about an image, or show how an evaluation answered it.",
        "inference.evaluate": "Run pipelines over a data set's questions, score them, and write a report.",
        "inference.serve": "Serve answers, their traces and searches over HTTP.",
        "inference.agreement": "Compare a checkpoint behind a server with the local engine: gates, answers, speed.",
        "inference.sweep": "Evaluate a grid of settings, reusing forward passes between its points.",
    },
    "score": {
        "metrics.score": "Score a prediction file, or write it for an official program.",
        "inference.compare": "Compare finished evaluations in one table of scores and costs.",
    },
}
"""The commands by module, with the first line of their docstrings, in the order of the work."""

_MODULES: Final = {module.partition(".")[2]: module for modules in GROUPS.values() for module in modules}


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command.

    Exit status: the command's; 2 for an unknown command, 130 for Ctrl-C.

    Args:
        argv: The words after `reflectune`; `sys.argv[1:]` if None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["--version"], ["-V"]):
        from importlib.metadata import version

        print(f"reflectune {version('reflectune')}")
        return
    if not words or words[0] in ("--help", "-h", "help"):
        from reflectune.core.entry_point import entry_point

        entry_point(lambda: print(overview()))()
        sys.exit(0 if words else 2)
    name, rest = _split(words)
    if name not in _MODULES:
        _refuse(words)
    try:
        module = importlib.import_module(f"reflectune.{_MODULES[name]}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    getattr(module, name).main(rest, f"reflectune {name}")


def overview() -> str:
    """Return the list of commands, grouped as the work goes."""
    lines = [
        "usage: reflectune COMMAND [--config FILE.yaml] [--key value ...]",
        "       reflectune COMMAND --help",
        "       reflectune --version",
    ]
    width = max(map(len, _MODULES))
    for group, modules in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {module.partition('.')[2]:{width}}  {line}" for module, line in modules.items()]
    return "\n".join(lines)


def _split(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command's name and its arguments. `train sft` is `sft`, and `build-index` is `build_index`."""
    group = words[0]
    second = words[1].replace("-", "_") if len(words) > 1 else ""
    if any(module.partition(".")[2] == second for module in GROUPS.get(group, ())):
        return second, list(words[2:])
    return group.replace("-", "_"), list(words[1:])


def _refuse(words: Sequence[str]) -> NoReturn:
    group, word = (words[0], words[1]) if words[0] in GROUPS and len(words) > 1 else ("", words[0])
    if word in GROUPS:
        names = ", ".join(module.partition(".")[2] for module in GROUPS[word])
        problem = f"`{word}` is a group of commands; name one of {names}"
    else:
        near = difflib.get_close_matches(word.replace("-", "_"), _MODULES, n=1, cutoff=0.5)
        advice = f"did you mean `{near[0]}`? " if near else ""
        problem = f"unknown command `{f'{group} {word}'.strip()[:100]}`; {advice}`reflectune --help` lists all"
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(2)
