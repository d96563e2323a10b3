"""Train and evaluate both papers' methods on pocket, stage by stage, each the command that a user would type.

    python -m reflectune.examples.pocket.run --output pocket.md
    python -m reflectune.examples.pocket.run --quick
    python -m reflectune.examples.pocket.run --fresh --run runs/fresh

Independent stages run side by side, with a core each. Their output is in `runs/pocket/STAGE.log`. A finished stage is
not run again; an interrupted one resumes. `--quick` trains nothing, and evaluates the shipped models. `--fresh` takes
the shipped models, trains two more readers and MMKB-RAG, and evaluates the test questions that were never used. Give
each of the three its own folder (`--run`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from reflectune.core.devices import computes_bfloat16
from reflectune.core.durable import read_json, write_atomically
from reflectune.core.entry_point import entry_point
from reflectune.examples.pocket.marks import marks, minutes_table, report
from reflectune.examples.staging import cores, finished, module, program, run_in_lanes, run_stages
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
"""Test questions that no earlier evaluation asked. Those drew 40, 60, 100 or 150 questions of each split."""
MMKB_ONE = "--k 1 --s_ret_temperature 0.02 --answer_model base --mct none"
"""MMKB-RAG that answers from one document by SRT times S_ret: the best of a grid on the second set."""
MMKB_READS = "--title_weight 0 --max_reply_tokens 64"
"""MMKB-RAG's search, by images alone, and the length of its replies."""
SEEDS = (1, 2)
"""Further training seeds of mR²AG on the fresh test; their folders end in them."""
MMKB_SEEDS = (1,)
"""Further training seeds of MMKB-RAG."""
BY_IMAGES = (
    *("fresh_by_images", "fit_by_images", "fit_by_images_text", "fresh_retrieved", "fresh_retrieved_one"),
    *(f"{stage}_by_images_{seed}" for seed in SEEDS for stage in ("fresh", "fit")),
    *("fresh_mmkb", *(f"fresh_mmkb_{seed}" for seed in MMKB_SEEDS)),
)
"""Folders that the fresh test by images alone compares: mR²AG and baselines, fitted exponents, and MMKB-RAG."""
FITTED = {"": "mr2ag", "_text": "mr2ag_text_scored"}
"""Pipelines of the fresh test whose exponents are fitted, by the endings of their folders."""
BEST_READER = "naive_rag_article_tuned"
"""The best baseline of the fresh test, which its leads are over."""
MMKB_EPOCHS = ("--epochs", "1.5")
EVERY = 1000
"""More questions than a test split has."""
QUESTIONS = 40
"""Questions of each split that the shipped models are evaluated on."""
NEEDS = {
    "assemble": ("parts",),
    "gallery": ("parts",),
    "captions": ("gallery",),
    "caption_prompts": ("captions",),
    "stage1": ("assemble", "caption_prompts"),
    "visual": ("stage1",),  # shares a folder with stage 1's data: stage 1 would also read it
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
    "reader": ("gold_tuned",),
    "probe": ("reader",),
    "labels": ("probe",),
    "mmkb": ("labels",),
    "evaluate_mmkb": ("mmkb", "index", "plain_tuned", *(f"{name}_tuned" for name in READERS)),
    **{f"fit{search}{kind}": (f"fresh{search}",) for search in ("", "_by_images") for kind in FITTED},
    "retrieved_probes": ("reader", "index"),
    "retrieved_labels": ("retrieved_probes",),
    "retrieved_tuned": ("retrieved_labels",),
    **dict.fromkeys(["fresh_retrieved", "fresh_retrieved_one"], ("retrieved_tuned",)),
    **{f"mr2ag_{seed}": ("reflection",) for seed in SEEDS},
    **{f"fresh_by_images_{seed}": (f"mr2ag_{seed}", "index") for seed in SEEDS},
    **{f"fit_by_images_{seed}": (f"fresh_by_images_{seed}",) for seed in SEEDS},
    **{f"mmkb_{seed}": ("labels",) for seed in MMKB_SEEDS},
    "fresh_mmkb": ("mmkb", "index"),
    **{f"fresh_mmkb_{seed}": (f"mmkb_{seed}", "index") for seed in MMKB_SEEDS},
    "leads": ("fresh", "fit", "fit_text"),
    "leads_by_images": BY_IMAGES,
    "quick": ("index",),
}
"""Stages that must be finished before a stage starts."""


def recipe(name: str, config: str) -> list[str]:
    """Return the command that runs a module with a recipe of `configs/examples/pocket`, in float32 if that is faster.

    The recipes say bfloat16.
    """
    command = module(name, f"examples/pocket/{config}.yaml")
    if computes_bfloat16() or "dtype" not in yaml.safe_load(Path(command[-1]).read_text(encoding="utf-8")):
        return command
    return [*command, "--dtype", "float32"]


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


def label(probes: str, output: str) -> list[str]:
    """Return the command that labels a folder of probes."""
    settings = f"--probes {RUN}/{probes} --dataset {RUN}/gallery --rule outcome --srt_balance 4 --answer_model shared"
    return [*program("data_builders.derive_labels"), *f"{settings} --output {RUN}/{output}".split()]


def tune_mmkb(labels: str, output: str, *more: str) -> list[str]:
    """Return the command that tunes the reader on a folder of labels."""
    settings = f"--scheme mmkb_rag --model {RUN}/reader --train_data {RUN}/{labels} --output_dir {RUN}/{output}"
    return [*recipe("train.sft", "lora"), *settings.split(), *more]


def stages() -> dict[str, list[str]]:
    """Return the command of every stage, in order."""
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
        **{stage: command for name, forms in READERS.items() for stage, command in reader(name, forms).items()},
        "evaluate": recipe("inference.evaluate", "evaluate"),
        "reader": [*program("train.merge"), *f"--checkpoint {RUN}/gold_tuned --output {RUN}/reader".split()],
        "probe": recipe("data_builders.probe", "probe"),
        "labels": label("probes", "labels"),
        "mmkb": tune_mmkb("labels", "mmkb", *MMKB_EPOCHS),
        "evaluate_mmkb": [
            *recipe("inference.evaluate", "evaluate"),
            *f"{MMKB_READS} {MMKB_ONE} --documents 40 --splits test_unseen_question test_unseen_entity".split(),
            *f"--model {RUN}/mmkb --base_model {RUN}/reader --output {RUN}/evaluation_mmkb".split(),
            *f"--pipelines closed_book {BEST_READER} naive_rag_passage_tuned naive_rag_passages_tuned mmkb_rag".split(),
        ],
    }


TUNE_READERS = tuple(f"{name}_{stage}" for name in READERS for stage in ("data", "tuned"))
"""Stages of the further readers."""


def tuned_readers() -> dict[str, str]:
    """Return the readers by the context that they were tuned on; that of passages is the shipped one."""
    return {"article": f"{RUN}/article_tuned", "passage": f"{RUN}/gold_tuned", "passages": "pocket/plain"}


def quick_stages(limit: int = QUESTIONS) -> dict[str, list[str]]:
    """Return the commands without training: the shipped models on `limit` questions of each split.

    Of the untuned baselines only the best is evaluated, since pocket/llava can't read. The shipped reader reads all
    contexts.
    """
    settings = f"--model pocket/mr2ag --plain_model pocket/plain --limit {limit} --output {RUN}/quick --pipelines"
    pipelines = ["closed_book", "naive_rag_passages", *TUNED, "mr2ag"]
    return {
        **{name: command for name, command in stages().items() if name in ("parts", "gallery", "index")},
        "quick": [*recipe("inference.evaluate", "evaluate"), *settings.split(), *pipelines],
    }


def fresh_stages() -> dict[str, list[str]]:
    """Return the commands of the fresh test, by the shipped models and by a reader tuned on each further context.

    mR²AG's answers don't wait for the readers; its second evaluation takes them from the first. It is also trained with
    `SEEDS`. MMKB-RAG is taught as in `stages`, and also on retrieved documents, by its recipe and by `MMKB_ONE`.
    """
    kept = ("parts", "gallery", "index", "reflection", *TUNE_READERS, "reader", "probe", "labels", "mmkb")
    readers, systems = json.dumps(tuned_readers()), "tuned_baselines mr2ag controls"

    def ask(output: str, pipelines: str, settings: str, plain: str = "") -> list[str]:
        asked = f"{FRESH} --limit {EVERY} --diagnose false --output {RUN}/{output} --pipelines {pipelines} {settings}"
        return [*recipe("inference.evaluate", "evaluate"), *asked.split(), "--plain_model", plain]

    def ask_mmkb(output: str, model: str, settings: str) -> list[str]:
        return ask(output, "mmkb_rag", f"--model {RUN}/{model} --base_model {RUN}/reader {MMKB_READS} {settings}")

    def fit(evaluation: str, pipeline: str, output: str, model: str = "pocket/mr2ag") -> list[str]:
        splits = f"--model {model} --splits test_unseen_question test_unseen_entity --fit true --grid"
        traces = f"--traces {RUN}/{evaluation}/traces/{pipeline}.jsonl --output {RUN}/{output}"
        return [*recipe("inference.sweep", "sweep"), *splits.split(), "{}", *traces.split()]

    def by_seed(seed: int) -> dict[str, list[str]]:
        trained, asked, fitted = f"mr2ag_{seed}", f"fresh_by_images_{seed}", f"fit_by_images_{seed}"
        return {
            trained: [*recipe("train.sft", "lora"), "--output_dir", f"{RUN}/{trained}", "--seed", str(seed)],
            asked: ask(asked, "mr2ag", f"--model {RUN}/{trained} --title_weight 0"),
            fitted: fit(asked, "mr2ag", fitted, f"{RUN}/{trained}"),
        }

    def leads(output: str, folders: Sequence[str]) -> list[str]:
        evaluations = [f"{RUN}/{folder}" for folder in folders]
        chosen = ["--against", BEST_READER, "--output", f"{RUN}/{output}"]
        return [*program("inference.compare"), "--evaluations", *evaluations, *chosen]

    retrieved = f"--documents_of retrieved --documents 10 --index {RUN}/index --title_weight 0"
    return {
        **{name: command for name, command in stages().items() if name in kept},
        "fresh_mr2ag": ask("fresh", "mr2ag controls", "--model pocket/mr2ag"),
        "fresh": ask("fresh", systems, "--model pocket/mr2ag", readers),
        "fresh_by_images": ask("fresh_by_images", systems, "--model pocket/mr2ag --title_weight 0", readers),
        **{
            f"fit{search}{kind}": fit(f"fresh{search}", pipeline, f"fit{search}{kind}")
            for search in ("", "_by_images")
            for kind, pipeline in FITTED.items()
        },
        **{stage: command for seed in SEEDS for stage, command in by_seed(seed).items()},
        "retrieved_probes": [
            *recipe("data_builders.probe", "probe"),
            *f"--limit 800 {retrieved} --output {RUN}/retrieved_probes".split(),
        ],
        "retrieved_labels": label("retrieved_probes", "retrieved_labels"),
        "retrieved_tuned": tune_mmkb("retrieved_labels", "retrieved_tuned"),
        "fresh_retrieved": ask_mmkb("fresh_retrieved", "retrieved_tuned", "--answer_model tuned"),
        "fresh_retrieved_one": ask_mmkb("fresh_retrieved_one", "retrieved_tuned", MMKB_ONE),
        "fresh_mmkb": ask_mmkb("fresh_mmkb", "mmkb", f"{MMKB_ONE} --documents 40"),
        **{f"mmkb_{n}": tune_mmkb("labels", f"mmkb_{n}", *MMKB_EPOCHS, "--seed", str(n)) for n in MMKB_SEEDS},
        **{
            f"fresh_mmkb_{n}": ask_mmkb(f"fresh_mmkb_{n}", f"mmkb_{n}", f"{MMKB_ONE} --documents 40")
            for n in MMKB_SEEDS
        },
        "leads": leads("leads", ("fresh", "fit", "fit_text")),
        "leads_by_images": leads("leads_by_images", BY_IMAGES),
    }


def written(name: str) -> dict[str, Any]:
    """Read the JSON file of a stage; return {} if the stage did not run."""
    path = RUN / name
    return read_json(path, "the result of a stage") if path.is_file() else {}


@entry_point
def main() -> None:
    """Run the unfinished stages, and print the table of marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="Markdown file of the tables that are printed at the end")
    parser.add_argument("--run", type=Path, default=Path(), help="folder that the recipes' `runs/pocket` is below")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="train nothing: evaluate the shipped models")
    mode.add_argument("--fresh", action="store_true", help="evaluate the test questions that were never used")
    parser.add_argument("--lanes", type=int, default=min(2, cores()), help="stages at a time; they share the cores")
    arguments = parser.parse_args()
    if arguments.lanes < 1:
        parser.error(f"--lanes must be at least 1, found {arguments.lanes}")
    output = arguments.output.resolve() if arguments.output else None
    arguments.run.mkdir(parents=True, exist_ok=True)
    os.chdir(arguments.run)  # the recipes' folders are relative
    RUN.mkdir(parents=True, exist_ok=True)
    if arguments.quick:
        commands = quick_stages()
    elif arguments.fresh:
        commands = fresh_stages()
    else:
        commands = stages()
    unfinished = commands.keys() - finished(RUN, commands).keys()
    print(f"{len(unfinished)} of {len(commands)} stages to do")
    if arguments.quick:  # each of its stages needs the one before, and has all cores
        minutes = run_stages(RUN, commands)
    else:
        minutes = run_in_lanes(RUN, commands, NEEDS, arguments.lanes)
    minutes = {name: minutes[name] for name in commands if name in minutes}
    text, reports = fresh_text(minutes) if arguments.fresh else marks_text(minutes, quick=arguments.quick)
    print(text)
    print("reports:", *(RUN / folder / "report.html" for folder in reports))
    if output:
        write_atomically(output, text)


def marks_text(minutes: Mapping[str, float], *, quick: bool) -> tuple[str, Sequence[str]]:
    """Return the tables of marks as Markdown, and the folders of the evaluations."""
    folders = ("quick",) if quick else ("evaluation", "evaluation_mmkb")
    looked, mr2ag = written("looked.json"), written(f"{folders[0]}/metrics.json")
    mmkb = {} if quick else written("evaluation_mmkb/metrics.json")
    return report(marks(looked, mr2ag, mmkb), mr2ag, mmkb, minutes), folders


def fresh_text(minutes: Mapping[str, float]) -> tuple[str, Sequence[str]]:
    """Return the comparisons of the fresh test as Markdown, and the folders of the evaluations."""
    pages = [RUN / folder / "compare.md" for folder in ("leads", "leads_by_images")]
    lines = [page.read_text(encoding="utf-8") for page in pages if page.is_file()]
    return "\n".join([*lines, *minutes_table(minutes)]), ("fresh", "fresh_by_images", "fresh_mmkb")


if __name__ == "__main__":
    main()
