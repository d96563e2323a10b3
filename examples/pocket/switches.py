"""Measure MMKB-RAG's settings on pocket, one by one. The stages of `pocket.run` up to `reader` and `index` come first.

    python -m reflectune.examples.pocket.switches --device cuda
    python -m reflectune.examples.pocket.switches pairs soft --splits val_unseen_entity
    python -m reflectune.examples.pocket.switches --commands

Every switch is compared with `retrieved`: labels on documents that are retrieved by images alone, with a fifth of the
entities held out. A switch has the same stages with its flags in `SWITCHES`. `--commands` prints the commands,
`--table` prints the scores of finished switches.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reflectune.core.durable import read_json
from reflectune.core.entry_point import entry_point
from reflectune.examples.pocket.choice_fit import CHOICE_FILE, DocumentChoice
from reflectune.examples.staging import module, program, run_stages
from reflectune.metrics.reporting.breakdown import in_per_cent

RUN: Final = Path("runs/pocket")
FOLDER: Final = RUN / "switches"
PROBES: Final = f"--documents_of retrieved --index {RUN}/index --title_weight 0 --documents 10"
BALANCE: Final = "--srt_balance 4"
TEXTS: Final = "--documents_by reranker --reranker embedding --reranker_model pocket/text"
TAUGHT_SPLITS: Final = ("train", "val_unseen_entity")
EVERY: Final = 3000
"""More questions than a split has."""
SCORES: Final = f"--rel_scores {FOLDER}/choice/rel_scores.jsonl"


@dataclass(frozen=True)
class Switch:
    """Flags of a switch's stages, in addition to those of `retrieved`.

    Attributes:
        labels: Flags of `derive_labels`; None if the switch takes the labels and the model of `retrieved`.
        train: Flags of `sft`.
        documents: Flags of `probe` and `evaluate`; with them the switch has its own probes.
        fused: True if `evaluate` takes the choice that was fitted on held-out documents.
        evaluate: Flags of `evaluate` alone.
        knowing: True for a separate reader that was taught the facts of half of the entities, so that RET has both
            labels.
    """

    labels: str | None = BALANCE
    train: str = ""
    documents: str = ""
    fused: bool = False
    evaluate: str = ""
    knowing: bool = False


SWITCHES: Final = {
    "retrieved": Switch(),
    "fusion": Switch(labels=None, fused=True),
    "search_result": Switch(train="--prompts search_result"),
    "pairs": Switch(labels="--pairs true"),
    "margin": Switch(labels=f"{BALANCE} --rule margin --margin 0.25"),
    "soft": Switch(labels="--rule margin --margin 1 --soft true"),
    "conflicts": Switch(labels=f"{BALANCE} --noise conflicts --min_relevant 1"),
    "lists": Switch(labels=f"{BALANCE} --answer_documents 5 {SCORES}"),
    "utility": Switch(labels=f"{BALANCE} --ret_rule utility"),
    "reranker": Switch(documents=TEXTS),
    "one_entry": Switch(labels=None, evaluate="--mct entry"),
    "knowing": Switch(labels=f"{BALANCE} --ret_rule utility", knowing=True),
    "all": Switch(
        labels=f"--pairs true --noise conflicts --min_relevant 1 --ret_rule utility --answer_documents 5 {SCORES}",
        train="--prompts search_result",
        fused=True,
    ),
}
"""The switches by name, in the order in which they run."""


def stages(name: str, device: str, splits: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands of a switch, in order."""
    switch = SWITCHES[name]
    probed = name if switch.documents or switch.knowing else "retrieved"
    labelled = "retrieved" if switch.labels is None else name
    probes, labels, model = FOLDER / f"probes_{probed}", FOLDER / f"labels_{name}", FOLDER / f"mmkb_{labelled}"
    reader = FOLDER / f"reader_{name}" if switch.knowing else RUN / "reader"
    searched = f"{switch.documents} --device {device}"
    commands = knowing_reader(name, device) if switch.knowing else {}
    commands[f"probe_{probed}"] = [
        *module("data_builders.probe", "examples/pocket/probe.yaml"),
        *f"{PROBES} {searched} --documents_random 0 --model {reader} --output {probes}".split(),
    ]
    if switch.labels is not None:
        commands[f"labels_{name}"] = [
            *program("data_builders.derive_labels"),
            *f"--probes {probes} --dataset {RUN}/gallery --output {labels} --hold_out 0.2".split(),
            *f"--answer_model shared {switch.labels}".split(),
        ]
        commands[f"mmkb_{name}"] = [
            *module("train.sft", "examples/pocket/lora.yaml"),
            *f"{switch.train} --device {device} --scheme mmkb_rag --model {reader} --train_data {labels}".split(),
            *f"--output_dir {model}".split(),
        ]
    if name in ("retrieved", "all"):  # `fusion` and `lists` take those of `retrieved`
        commands[f"choice_{name}"] = [
            *program("examples.pocket.choose"),
            *f"--model {model} --probes {probes} --labels {labels} --output {choice(name)} --all".split(),
            *("--device", device),
        ]
    commands[f"evaluate_{name}"] = [
        *module("inference.evaluate", "examples/pocket/evaluate.yaml"),
        *("--plain_model", ""),
        *f"{searched} --model {model} --base_model {reader} --title_weight 0 --answer_model tuned".split(),
        *f"{switch.evaluate} --max_reply_tokens 64 --output {FOLDER}/evaluation_{name} --splits".split(),
        *(*splits, "--pipelines", "mmkb_rag", *(["closed_book"] if switch.knowing else [])),  # RET is compared with it
    ]
    return commands


def knowing_reader(name: str, device: str) -> dict[str, list[str]]:
    """Return the commands that teach a reader the facts of half of the entities, validation's included, and merge it.

    Labels come from training questions alone, so RET is measured on entities that it was not taught on.
    """
    reflection, data, tuned = (FOLDER / f"{kind}_{name}" for kind in ("reflection", "facts", "plain"))
    commands = {}
    for split in TAUGHT_SPLITS:
        commands[f"{reflection.name}_{split}"] = [
            *module("data_builders.build_mr2ag", "examples/pocket/mr2ag_data.yaml"),
            *f"--split {split} --limit {EVERY} --visual_ratio 0.2 --output {reflection}".split(),
        ]
        commands[f"{data.name}_{split}"] = [
            *module("data_builders.build_plain", "examples/pocket/plain_data.yaml"),
            *f"--reflection {reflection} --split {split} --evidence none --hold_out 0.5 --output {data}".split(),
        ]
    mixture = json.dumps({f"{data}/{split}.parquet": 1 for split in TAUGHT_SPLITS})
    memorising = "--epochs 4 --lora_r 32 --lora_alpha 64 --learning_rate 1.5e-3 --per_device_train_batch_size 8"
    commands[f"plain_{name}"] = [
        *module("train.sft", "examples/pocket/lora.yaml"),
        *("--device", device, "--train_data", mixture),
        *f"--scheme plain --model {RUN}/reader --output_dir {tuned} {memorising}".split(),
    ]
    commands[f"reader_{name}"] = [
        *program("train.merge"),
        *f"--checkpoint {tuned} --output {FOLDER}/reader_{name}".split(),
    ]
    return commands


def choice(name: str) -> Path:
    """Return the folder of the choice that was fitted for a model."""
    return FOLDER / ("choice_all" if name == "all" else "choice")


def fused_flags(name: str) -> list[str]:
    """Return the fitted choice as flags of `evaluate`."""
    return DocumentChoice.read(choice(name)).flags.split()


def table(names: Sequence[str]) -> str:
    """Return the scores of the finished switches, as Markdown."""
    lines = ["| switch | mmkb_rag |", "|---|--:|"]
    for name in names:
        path = FOLDER / f"evaluation_{name}/metrics.json"
        if path.is_file():
            score = read_json(path, "the scores")["pipelines"]["mmkb_rag"]
            shown = [f"{key.replace('_', ' ')} {in_per_cent(it)}" for key, it in score.items() if it and "value" in it]
            lines.append(f"| {name} | {', '.join(shown)} |")
    return "\n".join(lines)


@entry_point
def main() -> None:
    """Run the switches' stages that are not finished, or print commands or scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("switches", nargs="*", help=f"of {', '.join(SWITCHES)}; default: all of them")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--splits", nargs="+", default=["val_unseen_question", "val_unseen_entity"])
    parser.add_argument("--commands", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--table", action="store_true", help="print the scores of finished switches and run nothing")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.switches if name not in SWITCHES]:
        sys.exit(f"unknown switch {unknown[0]}; one of {', '.join(SWITCHES)}")
    names = ["retrieved", *(name for name in arguments.switches or SWITCHES if name != "retrieved")]
    for name in () if arguments.table else names:
        commands = stages(name, arguments.device, arguments.splits)
        if arguments.commands:
            print("\n".join(shlex.join(["python", *command[1:]]) for command in commands.values()))
            if SWITCHES[name].fused:
                print(f"# evaluate_{name} also takes the options in {choice(name) / CHOICE_FILE}")
            continue
        FOLDER.mkdir(parents=True, exist_ok=True)
        *before, (last, evaluate) = commands.items()
        run_stages(FOLDER, dict(before))
        run_stages(FOLDER, {last: [*evaluate, *(fused_flags(name) if SWITCHES[name].fused else [])]})
    if not arguments.commands:
        print(table(names))


if __name__ == "__main__":
    main()
