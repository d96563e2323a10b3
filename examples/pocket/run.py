"""Train and evaluate both papers' methods on pocket, stage by stage, each the command that a user would type.

    python -m reflectune.examples.pocket.run --output pocket.md
    python -m reflectune.examples.pocket.run --shipped
    python -m reflectune.examples.pocket.run --quick
    python -m reflectune.examples.pocket.run --fresh --run runs/fresh

Stages that don't need each other run side by side, with a core each; their output is in `runs/pocket/STAGE.log`. A
finished stage is not run again; one that was interrupted is resumed. `--shipped` takes the shipped models and trains
MMKB-RAG alone; `--quick` trains nothing and evaluates the shipped models; `--fresh` tunes two more readers and
MMKB-RAG, and asks the test questions that were never asked. Each of these needs a folder of its own (`--run`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.entry_point import entry_point
from reflectune.examples.pocket.marks import marks, minutes_table, pipeline_table, report
from reflectune.examples.staging import cores, finished, forecast, module, program, run_in_lanes, run_stages
from reflectune.retrieval.contexts import CONTEXT_FORMS

RUN = Path("runs/pocket")
"""Folder that the recipes in `configs/examples/pocket` write to."""
TUNED = tuple(f"{name}_tuned" for name in ("closed_book", *(f"naive_rag_{form}" for form in CONTEXT_FORMS)))
"""mR²AG's baselines, tuned on the same questions."""
READERS = {"gold": ("gold",), "article": ("article",)}
"""Contexts that each further reader is tuned on; `plain_tuned` is tuned on `passages`.

Two contexts have no reader of their own: none at all, and five whole articles, which would take longer than all others.
"""
FRESH = "--splits test_unseen_question test_unseen_entity --skip 40 60 100 150"
"""Test questions that no earlier evaluation asked: each drew one of these numbers of a test split's questions."""
FRESH_RUNS = ("fresh", "fresh_by_images", "fresh_mmkb", "fresh_mmkb_one", "fresh_mmkb_own")
"""Folders of the fresh test's evaluations: with equation 3's search; with one by images alone; MMKB-RAG's three."""
OWN_SEEDS = (1,)
"""Further training seeds of MMKB-RAG's third; their folders end in them."""
MMKB_ONE = "--k 1 --s_ret_temperature 0.02 --answer_model base --mct none"
"""MMKB-RAG that answers from one document by SRT times S_ret: the best of a grid on the second set."""
EVERY = 1000
"""More questions than a test split has."""
QUESTIONS = 40
"""Questions of each split that the shipped models are evaluated on."""
MINUTES = {
    "parts": 1,
    "assemble": 1,
    "gallery": 2,
    "captions": 1,
    "stage1": 80,
    "visual": 1,
    "stage2": 70,
    "look": 6,
    "index": 6,
    "reflection": 2,
    "baseline": 4,
    "mr2ag": 50,
    "plain_tuned": 55,
    **{f"{name}_data": 3 for name in READERS},
    "gold_tuned": 30,
    "article_tuned": 45,
    "evaluate": 160,
    "fresh_mr2ag": 120,
    "fresh": 60,
    "fresh_by_images": 180,
    "fresh_reader": 1,
    "fresh_probes": 45,
    "fresh_labels": 1,
    "fresh_mmkb_tuned": 60,
    "own_probes": 40,
    "own_labels": 1,
    "own_tuned": 130,
    **{f"own_tuned_{seed}": 130 for seed in OWN_SEEDS},
    **dict.fromkeys([*FRESH_RUNS[2:], *(f"fresh_mmkb_own_{seed}" for seed in OWN_SEEDS)], 30),
    "reader": 1,
    "probe": 75,
    "labels": 1,
    "mmkb": 110,
    "evaluate_mmkb": 40,
    "quick": 20,
}
"""Minutes of each stage with one thread of an idle core, roughly."""
NEEDS = {
    "assemble": ("parts",),
    "gallery": ("parts",),
    "captions": ("gallery",),
    "caption_prompts": ("captions",),
    "stage1": ("assemble", "caption_prompts"),
    "visual": ("stage1",),  # in the same folder as stage 1's data, which stage 1 would read as well
    "visual_prompts": ("visual",),
    "stage2": ("visual_prompts",),
    "look": ("stage2",),
    "index": ("gallery",),
    "reflection": ("gallery",),
    "baseline": ("reflection", "index"),
    "mr2ag": ("reflection",),
    "plain_tuned": ("baseline",),
    **{f"{name}_data": ("reflection", "index") for name in READERS},
    **{f"{name}_tuned": (f"{name}_data",) for name in READERS},
    "evaluate": ("mr2ag", "plain_tuned", *(f"{name}_tuned" for name in READERS)),
    "fresh_mr2ag": ("index",),
    "fresh": ("fresh_mr2ag", *(f"{name}_tuned" for name in READERS)),
    "fresh_by_images": ("index", *(f"{name}_tuned" for name in READERS)),
    "fresh_reader": ("gold_tuned",),
    "fresh_probes": ("fresh_reader", "index"),
    "fresh_labels": ("fresh_probes",),
    "fresh_mmkb_tuned": ("fresh_labels",),
    "own_probes": ("fresh_reader",),
    "own_labels": ("own_probes",),
    "own_tuned": ("own_labels",),
    **dict.fromkeys(FRESH_RUNS[2:4], ("fresh_mmkb_tuned",)),
    "fresh_mmkb_own": ("own_tuned",),
    **{f"own_tuned_{seed}": ("own_labels",) for seed in OWN_SEEDS},
    **{f"fresh_mmkb_own_{seed}": (f"own_tuned_{seed}",) for seed in OWN_SEEDS},
    "reader": ("plain_tuned",),
    "probe": ("reader",),
    "labels": ("probe",),
    "mmkb": ("labels",),
    "evaluate_mmkb": ("mmkb",),
    "quick": ("index",),
}
"""Stages that must be finished before a stage starts."""


def recipe(name: str, config: str) -> list[str]:
    """Return the command that runs a module with a recipe of `configs/examples/pocket`."""
    return module(name, f"examples/pocket/{config}.yaml")


def captions(split: str) -> list[list[str]]:
    """Return the commands that build the training data of stage 1 or 2 from one split of the captions."""
    visual = f"--dataset {RUN}/captions --output {RUN}/visual --split {split} --visual_ratio 1 --negatives_retrieved 0"
    plain = f"--dataset {RUN}/captions --reflection {RUN}/visual --output {RUN}/plain --split {split} --evidence none"
    return [
        [*program("data_builders.build_mr2ag"), *visual.split()],
        [*program("data_builders.build_plain"), *plain.split()],
    ]


def reader(name: str, contexts: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands that build a reader's data and tune it."""
    data, tuned = f"{RUN}/baseline_{name}", f"{RUN}/{name}_tuned"
    return {
        f"{name}_data": [*recipe("data_builders.build_plain", "plain_data"), "--output", data, "--evidence", *contexts],
        f"{name}_tuned": recipe("train.sft", "lora")
        + f"--scheme plain --train_data {data} --output_dir {tuned}".split(),
    }


def teach_mmkb(tuned: str, reader: str, probes: str, labels: str, output: str) -> list[list[str]]:
    """Return the commands that merge the reader to probe, label its probes, and tune MMKB-RAG.

    Args:
        tuned: Folder of the reader's adapter, in the run's folder as all others.
        reader: Folder of the merged reader.
        probes: Folder of its probes.
        labels: Folder of the labels.
        output: Folder of the tuned model.
    """
    of_labels = f"--probes {RUN}/{probes} --dataset {RUN}/gallery --rule outcome --srt_balance 4 --answer_model shared"
    of_model = f"--scheme mmkb_rag --model {RUN}/{reader} --train_data {RUN}/{labels} --output_dir {RUN}/{output}"
    return [
        [*program("train.merge"), *f"--checkpoint {RUN}/{tuned} --output {RUN}/{reader}".split()],
        [*program("data_builders.derive_labels"), *f"{of_labels} --output {RUN}/{labels}".split()],
        [*recipe("train.sft", "lora"), *of_model.split()],
    ]


def stages() -> dict[str, list[str]]:
    """Return the command of every stage, in order."""
    merge, label, tune = teach_mmkb("plain_tuned", "reader", "probes", "labels", "mmkb")
    python = [sys.executable, "-m"]
    assemble = "--language pocket/language --vision pocket/vision --image_size 112 --dtype float32"
    (train_rows, train_prompts), (visual_rows, visual_prompts) = captions("train"), captions("visual")
    return {
        "parts": [*python, "reflectune.examples.pocket.fetch"],
        "assemble": [*program("train.merge"), *assemble.split(), "--output", str(RUN / "stage0")],
        "gallery": [
            *program("examples.pocket.build_gallery"),
            *f"--output {RUN}/gallery --captions {RUN}/captions".split(),
        ],
        "captions": train_rows,
        "caption_prompts": train_prompts,
        "stage1": recipe("train.sft", "stage1"),
        "visual": visual_rows,
        "visual_prompts": visual_prompts,
        "stage2": recipe("train.sft", "stage2"),
        "look": [
            *(*python, "reflectune.examples.pocket.look", "--model", str(RUN / "stage2")),
            *("--json", str(RUN / "looked.json"), "--output", str(RUN / "looked.md")),
        ],
        "index": [
            *program("retrieval.build_index"),
            *f"--knowledge {RUN}/gallery/knowledge --encoder pocket/clip --output {RUN}/index".split(),
        ],
        "reflection": recipe("data_builders.build_mr2ag", "mr2ag_data")
        + f"--visual_dataset {RUN}/captions --visual_split visual".split(),
        "baseline": recipe("data_builders.build_plain", "plain_data"),
        "mr2ag": recipe("train.sft", "lora"),
        "plain_tuned": recipe("train.sft", "lora")
        + f"--scheme plain --train_data {RUN}/baseline --output_dir {RUN}/plain_tuned".split(),
        **{stage: it for name, contexts in READERS.items() for stage, it in reader(name, contexts).items()},
        "evaluate": recipe("inference.evaluate", "evaluate"),
        "reader": merge,
        "probe": recipe("data_builders.probe", "probe"),
        "labels": label,
        "mmkb": tune,
        "evaluate_mmkb": [
            *(*recipe("inference.evaluate", "evaluate"), "--plain_model", ""),
            *f"--model {RUN}/mmkb --base_model {RUN}/reader --limit 100 --answer_model tuned --title_weight 0".split(),
            *f"--max_reply_tokens 64 --output {RUN}/evaluation_mmkb --pipelines closed_book naive_rag mmkb_rag".split(),
        ],
    }


MAKE_SHIPPED = (
    *("assemble", "captions", "caption_prompts", "stage1", "visual", "visual_prompts", "stage2"),
    *("baseline", "mr2ag", "plain_tuned"),
)
"""Stages whose only product is shipped."""
TUNE_READERS = tuple(f"{name}_{stage}" for name in READERS for stage in ("data", "tuned"))
"""Stages of the further readers. The shipped reader of passages reads every context."""


def shipped_stages() -> dict[str, list[str]]:
    """Return the commands with the shipped models; MMKB-RAG is trained."""
    shipped = {str(RUN / "stage2"): "pocket/llava", str(RUN / "plain_tuned"): "pocket/plain"}
    commands = {
        name: [shipped.get(part, part) for part in command]
        for name, command in stages().items()
        if name not in (*MAKE_SHIPPED, *TUNE_READERS)
    }
    return {**commands, "evaluate": evaluate_shipped("evaluation")}


def quick_stages(limit: int = QUESTIONS) -> dict[str, list[str]]:
    """Return the commands without training: the shipped models on `limit` questions of each split."""
    return {
        **{name: command for name, command in stages().items() if name in ("parts", "gallery", "index")},
        "quick": evaluate_shipped("quick", limit),
    }


def evaluate_shipped(output: str, limit: int = QUESTIONS) -> list[str]:
    """Return the command that evaluates the shipped models on `limit` questions of each split.

    Of the untuned baselines it has the best: pocket/llava can't read.
    """
    pipelines = " ".join(["closed_book", "naive_rag_passages", *TUNED, "mr2ag"])
    settings = f"--model pocket/mr2ag --plain_model pocket/plain --pipelines {pipelines} --limit {limit}"
    return [*recipe("inference.evaluate", "evaluate"), *f"{settings} --output {RUN / output}".split()]


def fresh_stages() -> dict[str, list[str]]:
    """Return the commands of the fresh test, by the shipped models and by a reader tuned on each further context.

    mR²AG's answers don't wait for the readers; its second evaluation takes them from the first. MMKB-RAG is taught on
    probes of the stating passage's reader.
    """
    kept = ("parts", "gallery", "index", "reflection", *TUNE_READERS)
    commands = {name: command for name, command in stages().items() if name in kept}
    readers = {"article": f"{RUN}/article_tuned", "passage": f"{RUN}/gold_tuned", "passages": "pocket/plain"}
    ask = [*recipe("inference.evaluate", "evaluate"), *f"{FRESH} --limit {EVERY} --plain_model".split()]
    shipped, tuned = "--model pocket/mr2ag", json.dumps(readers)
    merge, label, tune = teach_mmkb("gold_tuned", "fresh_reader", "fresh_probes", "fresh_labels", "fresh_mmkb_tuned")
    of_own = "gold_tuned", "fresh_reader", "own_probes", "own_labels"
    _, label_own, tune_own = teach_mmkb(*of_own, "own_tuned")
    fresh, by_images, mmkb, one, own = (f"--output {RUN / folder} --pipelines" for folder in FRESH_RUNS)
    read = f"--base_model {RUN}/fresh_reader --title_weight 0 --max_reply_tokens 64"
    taught, own_read = f"--model {RUN}/fresh_mmkb_tuned {read}", f"{read} --documents 40 {MMKB_ONE}"
    probe = [*recipe("data_builders.probe", "probe"), "--trained_on", "", "--model", f"{RUN}/fresh_reader"]
    again: dict[str, list[str]] = {}
    for seed in OWN_SEEDS:
        *_, tune_again = teach_mmkb(*of_own, f"own_tuned_{seed}")
        again[f"own_tuned_{seed}"] = [*tune_again, "--epochs", "1.5", "--seed", str(seed)]
        asked = f"--model {RUN}/own_tuned_{seed} {own_read} --output {RUN}/fresh_mmkb_own_{seed} --pipelines mmkb_rag"
        again[f"fresh_mmkb_own_{seed}"] = [*ask, "", *asked.split()]
    return {
        **commands,
        "fresh_mr2ag": [*ask, "", *f"{shipped} {fresh} mr2ag controls".split()],
        "fresh": [*ask, tuned, *f"{shipped} {fresh} tuned_baselines mr2ag controls".split()],
        "fresh_by_images": [
            *ask,
            tuned,
            *f"{shipped} {by_images} tuned_baselines mr2ag controls --title_weight 0".split(),
        ],
        "fresh_reader": merge,
        "fresh_probes": [
            *(*probe, *"--limit 800 --documents_of retrieved --documents 10 --documents_random 0".split()),
            *f"--index {RUN}/index --encoder pocket/clip --title_weight 0 --output {RUN}/fresh_probes".split(),
        ],
        "fresh_labels": label,
        "fresh_mmkb_tuned": tune,
        "fresh_mmkb": [*ask, "", *f"{taught} --answer_model tuned {mmkb} mmkb_rag".split()],
        "fresh_mmkb_one": [*ask, "", *f"{taught} {MMKB_ONE} {one} mmkb_rag".split()],
        "own_probes": [
            *probe,
            *f"--limit 1600 --documents_of own --documents 40 --documents_random 0 --output {RUN}/own_probes".split(),
        ],
        "own_labels": label_own,
        "own_tuned": [*tune_own, "--epochs", "1.5"],
        "fresh_mmkb_own": [*ask, "", *f"--model {RUN}/own_tuned {own_read} {own} mmkb_rag".split()],
        **again,
    }


def written(name: str) -> dict[str, Any]:
    """Read the JSON file of a stage; return {} if the stage did not run."""
    path = RUN / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@entry_point
def main() -> None:
    """Run the unfinished stages, and print the table of marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="Markdown file of the tables that are printed at the end")
    parser.add_argument("--run", type=Path, default=Path(), help="folder that the recipes' `runs/pocket` is below")
    less = parser.add_mutually_exclusive_group()
    less.add_argument("--shipped", action="store_true", help="train MMKB-RAG alone, from the shipped models")
    less.add_argument("--quick", action="store_true", help="train nothing: evaluate the shipped models")
    less.add_argument("--fresh", action="store_true", help="ask the test questions that were never asked")
    parser.add_argument("--collect", action="store_true", help="run nothing: print the tables of the finished stages")
    parser.add_argument("--lanes", type=int, default=min(2, cores()), help="stages at a time; they share the cores")
    arguments = parser.parse_args()
    if arguments.lanes < 1:
        parser.error(f"--lanes must be at least 1, found {arguments.lanes}")
    output = arguments.output.resolve() if arguments.output else None
    arguments.run.mkdir(parents=True, exist_ok=True)
    os.chdir(arguments.run)  # the recipes' folders are relative
    RUN.mkdir(parents=True, exist_ok=True)
    modes = {"shipped": shipped_stages, "quick": quick_stages, "fresh": fresh_stages}
    commands = next((modes[mode] for mode in modes if getattr(arguments, mode)), stages)()
    minutes = finished(RUN, commands)
    if not arguments.collect:
        left = [name for name in commands if name not in minutes]
        estimates = {**MINUTES, **({"evaluate": MINUTES["quick"]} if arguments.shipped else {})}
        to_do = f"{len(left)} of {len(commands)} stages to do"
        if arguments.quick:  # each of its stages needs the one before, and has all cores
            print(f"{to_do}: about {sum(estimates[name] for name in left) / 2:.0f} minutes on two idle cores")
            minutes = run_stages(RUN, commands)
        else:
            least = forecast(left, NEEDS, estimates, arguments.lanes)
            print(f"{to_do}: at least {least:.0f} minutes in {arguments.lanes} lanes with an idle core each")
            minutes = run_in_lanes(RUN, commands, NEEDS, arguments.lanes, estimates)
    minutes = {name: minutes[name] for name in commands if name in minutes}
    text, reports = fresh_text(minutes) if arguments.fresh else marks_text(minutes, quick=arguments.quick)
    print(text)
    print("reports:", *(RUN / folder / "report.html" for folder in reports))
    if output:
        output.write_text(text, encoding="utf-8")


def marks_text(minutes: Mapping[str, float], *, quick: bool) -> tuple[str, Sequence[str]]:
    """Return the tables of marks as Markdown, and the folders of the evaluations."""
    folders = ("quick",) if quick else ("evaluation", "evaluation_mmkb")
    looked, mr2ag = written("looked.json"), written(f"{folders[0]}/metrics.json")
    mmkb = {} if quick else written("evaluation_mmkb/metrics.json")
    return report(marks(looked, mr2ag, mmkb), mr2ag, mmkb, minutes), folders


def fresh_text(minutes: Mapping[str, float]) -> tuple[str, Sequence[str]]:
    """Return the tables of the fresh test as Markdown, and the folders of the evaluations."""
    lines = []
    for folder in FRESH_RUNS:
        if metrics := written(f"{folder}/metrics.json"):
            lines += [f"## {folder}", "", f"In brackets: 95 % intervals over {metrics['resampled']}.", ""]
            lines += [*pipeline_table(metrics), ""]
    return "\n".join([*lines, *minutes_table(minutes)]), FRESH_RUNS


if __name__ == "__main__":
    main()
