"""Compare MMKB-RAG's labels with the truth, and the model that is tuned on them with its baselines, on the miniature.

    python benchmarks/mmkb.py --families llava

For each family: the quick start's world, index and tuned baseline, probes, labels by each rule, fine-tuning and
evaluation, each by its command. A finished stage is not run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from results import Benchmark, table

from reflectune.core.durable import read_json
from reflectune.examples.miniature import quickstart
from reflectune.examples.scores import at
from reflectune.examples.staging import MMKB, flags, launch, module, run_stages
from reflectune.metrics.reporting.breakdown import in_per_cent

RECIPES = "examples/miniature"
FAMILIES = {"llava": "LLaVA", "qwen2_vl": "Qwen2-VL"}
PIPELINES = ("closed_book", "naive_rag", "tuned_baselines", "mmkb_rag")
RULES = {
    "rule: paper": ("--rule", "paper"),
    "rule: outcome": ("--rule", "outcome"),
    "rule: margin, 1 nat": ("--rule", "margin", "--margin", "1"),
    "rule: margin, 8 nats": ("--rule", "margin", "--margin", "8"),
    "labeller: string": ("--labeller", "string"),
}
LEAD = "mmkb_rag - best_baseline"
TRUTH = ("precision", "recall", "recall_of_probed")


def stages(run: Path, family: str, seed: int) -> dict[str, list[str]]:
    """Return the command of each stage."""
    model, shared = f"miniature/{family}", quickstart.stages(run, family, "full", seed)
    world, index, probes, labels, tuned = (str(run / name) for name in ("world", "index", "probes", "labels", "mmkb"))
    seeded = ("--seed", str(seed))

    def derive(output: str, *options: str) -> list[str]:
        command = module("data_builders.derive_labels", f"{RECIPES}/derive_labels.yaml")
        return [*command, "--dataset", world, "--probes", probes, "--output", output, *options]

    return {
        **{name: shared[name] for name in ("world", "index", "data", "plain_data", "plain_train")},
        "probe": [
            *launch("data_builders.probe", f"{RECIPES}/probe.yaml"),
            *("--dataset", world, "--index", index, "--output", probes, "--model", model),
        ],
        **{f"labels, {name}": derive(str(run / _folder(name)), *options) for name, options in RULES.items()},
        "labels": derive(labels),
        "train": [
            *(*launch("train.sft", f"{RECIPES}/sft.yaml"), *flags(MMKB)),
            *("--train_data", labels, "--output_dir", tuned, "--model", model, *seeded),
        ],
        "evaluate": [
            *launch("inference.evaluate", f"{RECIPES}/evaluate.yaml"),
            *("--dataset", world, "--index", index, "--model", tuned, "--base_model", model, *seeded),
            *("--plain_model", str(run / "plain_checkpoint"), "--output", str(run / "evaluation")),
            *("--pipelines", *PIPELINES, "--max_reply_tokens", "64"),
        ],
    }


def _folder(rule: str) -> str:
    return "labels-" + "-".join(RULES[rule][1::2])


def measure(run: Path, family: str, seed: int) -> dict[str, Any]:
    """Run the unfinished stages; return the labels' agreement with the truth, and the evaluation's scores."""
    run.mkdir(parents=True, exist_ok=True)
    run_stages(run, stages(run, family, seed))
    metrics = read_json(run / "evaluation/metrics.json", "the scores")
    truth = {}
    for name in RULES:
        statistics = read_json(run / _folder(name) / "statistics.json", "the labels' statistics")["train"]
        truth[name] = {key: statistics["truth"][key] for key in TRUTH}
    reflection = metrics["reflection"]
    return {
        "labels": truth,
        "RET against a wrong base model, unseen entities, AUROC": at(reflection, "ret", "unseen_entity", "auroc"),
        "SRT: a stating document first": at(reflection, "srt", "overall", "stating_first"),
        "the same in the retriever's order": at(reflection, "srt", "overall", "stating_first_retriever"),
        "malformed MCT replies": {"value": reflection["mct"]["malformed"] / max(1, reflection["mct"]["replies"])},
        "scores": {name: found["overall"] for name, found in metrics["pipelines"].items()},
        "leads": {LEAD: metrics["comparisons"][LEAD]},
    }


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's tables."""
    lines: list[str] = []
    for family, found in figures.items():
        rows = [
            (f"`{name}`", *(in_per_cent({"value": row[key]}) for key in TRUTH)) for name, row in found["labels"].items()
        ]
        head = (f"{FAMILIES[family]}, labels", "`[Rel]` precision", "recall of labelled documents", "of all probed")
        lines += [*table(head, rows), ""]
    columns = list(figures.values())
    single = [name for name, value in columns[0].items() if name not in ("labels", "scores", "leads")]
    rows = [(name, *(in_per_cent(found[name]) for found in columns)) for name in single]
    for group in ("scores", "leads"):
        names = dict.fromkeys(name for found in columns for name in found[group])
        rows += [(f"`{name}`", *(in_per_cent(found[group].get(name)) for found in columns)) for name in names]
    return [*lines, *table(("", *(FAMILIES[family] for family in figures)), rows)]


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    return [
        (f"miniature {FAMILIES[family]}: MMKB-RAG's lead", in_per_cent(lead), "best baseline, untuned or tuned")
        for family, found in figures.items()
        if (lead := found["leads"].get(LEAD))
    ]


BENCHMARK = Benchmark(
    "mmkb",
    "MMKB-RAG on the miniature",
    """
Per cent, with 95 % intervals over questions.

- *Training*: every training question is probed alone and with 10 documents.
- *Evaluation*: all questions of both validation splits, in phrasings that are not in the training data.
- *Labels*: `[Rel]` is right if the document is about the question's entity and states an accepted answer.
- *Baselines* ending in `_tuned` are the same base, tuned without reflection on mR²AG-IT's questions of the world.
""",
    tables,
    claims,
)


def main() -> None:
    """Measure every family, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, default=Path("runs/mmkb_benchmark"))
    arguments = BENCHMARK.parse(parser)
    run, seed = arguments.run, arguments.seed
    figures = {family: measure(run / f"{family}-{seed}", family, seed) for family in arguments.families}
    return BENCHMARK.finish(figures, arguments)


if __name__ == "__main__":
    main()
