"""Compare a relevance gate with cosine rules as stop and as filter of MI-RAG and PMSR, on two-hop questions.

    python benchmarks/two_hop.py --train_seeds 1 2 --test_seeds 101 102 103 104 --run runs/gates
    python benchmarks/gates.py --run runs/gates

The reader is the scripted teacher of lessons. It writes what the prompt's documents allow, so that only the rules make
mistakes. Searches and the gate are real. The gate is a miniature tuned by mR²AG on two-hop questions of the train
seeds, and on one-hop questions of the first seed. All trajectories run to their end, with an answer and a judged record
in each iteration. From these it is computed where each rule would have stopped. Thresholds are chosen in the worlds of
`--validation`, and applied in those of `--test`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import Benchmark, score_cells, table
from two_hop import SPLITS

from reflectune.core.config import Settings
from reflectune.core.images import load_image
from reflectune.core.types import Question
from reflectune.examples.lessons.teacher import TrajectoryTeacher, teacher_of
from reflectune.examples.staging import flags, launch, module, run_stages
from reflectune.formats.dataset import Dataset
from reflectune.inference.operators.requests import SimilarityRequest, WriteReply, WriteRequest
from reflectune.inference.operators.trajectory import Embed, TrajectoryPipeline, TrajectoryResult, similarities
from reflectune.inference.operators.vocabulary import Steps, relayed
from reflectune.inference.pipelines.mi_rag import MiRagSettings
from reflectune.inference.pipelines.pmsr import PmsrFixedSettings
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline
from reflectune.inference.trace import Step, Trace
from reflectune.metrics.reporting.breakdown import mean
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.retrievers.entry_retriever import open_retriever
from reflectune.retrieval.retrievers.text_retriever import open_text_retriever

QUERY_FORMS = ("{title}: {heading}", "{heading} of {title}")
"""As in `lessons.yaml`."""
ITERATIONS, BATCH = 3, 32
READING: dict[str, Any] = {
    "iterations": ITERATIONS,
    "text_passages": 4,
    "pair_passages": 3,
    "text_weight": 0.3,
    "answer_each": True,
    "gate_stop": 1.0,
}
"""A gate that stops at 1 judges each record, and stops nothing."""
PIPELINES: dict[str, type[Settings]] = {"mi_rag": MiRagSettings, "pmsr_fixed": PmsrFixedSettings}
FILTERED = "pmsr_fixed"
"""The pipeline that filters are compared in."""
WIDTHS = {"the 4 best by cosine": (2, 2), "the 2 best by cosine": (1, 1)}
"""Text passages and pairs of an iteration: the cut by similarity."""
FILTERS = (0.05, 0.2, 0.5)
TAUS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 2.0)
THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
"""τ of 2 and a threshold of 1 never stop."""
SHOWN = {
    "cosine": ("τ = 0.8", "τ = 0.9", "τ = 0.95", "τ = 0.999"),
    "gate": ("p = 0.2", "p = 0.5", "p = 0.8", "p = 0.95", "p = 0.98"),
    "fixed": (),
}
"""Thresholds of the page's table of both curves, on test."""
GATE = {"train": 1, "two_hop_train": 3}
"""Weights of the splits that the gate is tuned on; `train` is of the first train seed alone."""


def stages(run: Path, train: Sequence[int]) -> dict[str, list[str]]:
    """Return the commands that tune the gate."""
    made: dict[str, list[str]] = {}
    data: dict[str, Any] = {}
    for seed in train:
        for split, weight in GATE.items():
            if split == "train" and seed != train[0]:
                continue
            folder = str(run / f"reflection_{split}_{seed}")
            data[folder] = {"weight": weight, "split": split}
            where = ["--dataset", str(run / f"world_{seed}"), "--index", str(run / f"index_{seed}")]
            command = [*module("data_builders.build_mr2ag", "examples/miniature/mr2ag_data.yaml"), *where]
            made[f"reflection {split} {seed}"] = [*command, "--split", split, "--output", folder]
    keys = {"epochs": 2, "train_data": json.dumps(data), "output_dir": str(run / "gate")}
    made["gate"] = [*launch("train.sft", "examples/miniature/sft.yaml"), *flags(keys)]
    return made


def run_courses(run: Path, seed: int, engine: PrefixEngine, name: str, settings: Mapping[str, Any]) -> Pairs:
    """Run a pipeline on a world's questions, with the teacher as its reader and `engine` as its gate."""
    dataset = Dataset(run / f"world_{seed}")
    questions = [question for split in SPLITS for question in dataset.questions(split)]
    teachers = {it.id: teacher_of(it, dataset.knowledge, QUERY_FORMS) for it in questions}
    questions = [question for question in questions if teachers[question.id]]
    index = RetrieverConfig(index=str(run / f"index_{seed}"))
    parts = PipelineParts(
        dataset.knowledge,
        dataset.root,
        engine=engine,  # the teacher replies in its place
        gate=engine,
        retriever=open_retriever(index, dataset.knowledge, image_roots=dataset.image_roots, device="cpu"),
        texts=open_text_retriever(run / f"texts_{seed}", dataset.knowledge, device="cpu"),
    )
    pipeline = build_pipeline(name, PIPELINES[name](**{**READING, **settings}), parts)
    assert isinstance(pipeline, TrajectoryPipeline)
    written: dict[str, list[Step]] = {question.id: [] for question in questions}
    taught = pipeline.guided(lambda it, steps: replied(teachers[it.id], steps, written[it.id]))
    made: list[tuple[Question, Course]] = []
    for start in range(0, len(questions), BATCH):
        asked = questions[start : start + BATCH]
        images = [load_image(it.image, root=dataset.image_roots, needed_by=it.id) for it in asked]
        for question, trace in zip(asked, taught.run(asked, images), strict=True):
            whole = dataclasses.replace(trace, steps=(*written[question.id], *trace.steps))
            filtered = bool(settings.get("gate_filter"))
            made.append((question, Course.of(whole, pipeline.tools.embed, filtered=filtered)))
    return made


def replied(
    teacher: TrajectoryTeacher | None, steps: Steps[TrajectoryResult], written: list[Step]
) -> Steps[TrajectoryResult]:
    """Follow a trajectory whose texts the teacher writes; its steps are added to `written`."""
    assert teacher is not None

    def relay(request: Any) -> Steps[Any]:
        if not isinstance(request, WriteRequest):
            return (yield request)
        shown = len(request.prompt.documents)
        text = teacher.reply(request, shown)
        written.append(Step(request.operator, request.iteration, text, shown=shown))
        return WriteReply(text, shown)

    return (yield from relayed(steps, relay))


@dataclass(frozen=True)
class Course:
    """A trajectory that ran all iterations.

    Attributes:
        right: Of each iteration 1 if its answer is the accepted one.
        written: Of each iteration the replies that the reader had written by then, answers left out.
        asked: Of each iteration the replies with queries that it had written before the iteration's search.
        alike: Of each iteration the highest similarity of its queries to earlier ones.
        record: Of each iteration but the last p([Relevant]) of its record.
        judged: Number of judged passages.
        documents: Number of passages that records were written from.
    """

    right: list[float]
    written: list[int]
    asked: list[int]
    alike: list[float]
    record: list[float]
    judged: int
    documents: int

    @classmethod
    def of(cls, trace: Trace, embed: Embed, *, filtered: bool) -> Course:
        """Read a trajectory from its steps."""
        made, turns = trace.steps, range(ITERATIONS + 1)
        answers = {step.iteration: step.text for step in made if step.operator == "answer"}
        writing = [step for step in made if step.operator in ("caption", "rewrite", "reason")]
        queries = [step.queries for step in made if step.operator == "search"]
        requests = [SimilarityRequest(n, queries[n], sum(queries[:n], ())) for n in turns[1:]]
        judgements = [step.each for step in made if step.operator == "judge"]
        reasons = [step for step in writing if step.operator == "reason"]
        return cls(
            [float(bool(answers[n])) for n in turns],  # the teacher gives the accepted answer or none
            [sum(step.iteration <= n for step in writing) for n in turns],
            [sum(step.iteration == n and step.operator == "rewrite" for step in writing) for n in turns],
            [-1.0, *(max(reply.highest) for reply in similarities(requests, embed))],
            [] if filtered else [each for (each,) in judgements],
            sum(map(len, judgements)) if filtered else 0,
            sum(step.shown for step in reasons) - 1,  # the first one reads the description, too
        )

    def fixed(self, last: int) -> tuple[float, int]:
        """Return the score and the calls of a trajectory of `last` + 1 searches."""
        return self.right[last], self.written[last] + self.judged + 1

    def by_cosine(self, tau: float) -> tuple[float, int]:
        """Return both if it ends before a search whose queries repeat: equations 9 and 10 of PMSR."""
        stop = next((n for n, alike in enumerate(self.alike) if alike >= tau), None)
        if stop is None:
            return self.fixed(ITERATIONS)
        return self.right[stop - 1], self.written[stop - 1] + self.asked[stop] + 1

    def by_gate(self, least: float) -> tuple[float, int]:
        """Return both if it ends after a record that the gate judges as evidence. A judgement is a call."""
        stop = next((n for n, p in enumerate(self.record) if p >= least), ITERATIONS)
        return self.right[stop], self.written[stop] + min(stop + 1, ITERATIONS) + 1


Pairs = Sequence[tuple[Question, Course]]
Rule = Callable[[Course], tuple[float, int]]


def scored(pairs: Pairs, rule: Rule) -> dict[str, Any]:
    """Return a rule's score with its interval, and its mean calls per question."""
    score = mean([question for question, _ in pairs], [rule(course)[0] for _, course in pairs], 0)
    assert score is not None
    return {**score, "calls": float(np.mean([rule(course)[1] for _, course in pairs]))}


def chosen(pairs: Pairs, rules: Mapping[str, Rule], max_calls: float = np.inf) -> str:
    """Return the rule with the highest score, then with the fewest calls, of those with at most `max_calls` calls.

    If every rule has more calls, return the one with the fewest.
    """
    figures = {name: scored(pairs, rule) for name, rule in rules.items()}
    allowed = [name for name, row in figures.items() if row["calls"] <= max_calls]
    if not allowed:
        return min(figures, key=lambda name: figures[name]["calls"])
    return max(allowed, key=lambda name: (figures[name]["value"], -figures[name]["calls"]))


def stop_figures(validation: Pairs, test: Pairs) -> dict[str, Any]:
    """Choose each stop's threshold on validation, and compare them on test."""
    cosine: dict[str, Rule] = {f"τ = {tau:g}": partial(Course.by_cosine, tau=tau) for tau in TAUS}
    gate: dict[str, Rule] = {f"p = {least:g}": partial(Course.by_gate, least=least) for least in THRESHOLDS}
    names = [f"{last + 1} searches" for last in range(ITERATIONS + 1)]
    fixed: dict[str, Rule] = {name: partial(Course.fixed, last=last) for last, name in enumerate(names)}
    ours = chosen(validation, cosine)
    max_calls = scored(validation, cosine[ours])["calls"]
    equal, best = chosen(validation, gate, max_calls), chosen(validation, gate)
    rows = {
        f"cosine, {ours}": cosine[ours],
        f"gate at no more calls, {equal}": gate[equal],
        f"gate at its best, {best}": gate[best],
        **{f"no rule, {name}": rule for name, rule in fixed.items()},
    }
    differences = [gate[equal](course)[0] - cosine[ours](course)[0] for _, course in test]
    difference = mean([question for question, _ in test], differences, 0)
    curves = {"cosine": cosine, "gate": gate, "fixed": fixed}
    return {
        "rows": {name: {"validation": scored(validation, rule), **scored(test, rule)} for name, rule in rows.items()},
        "difference": difference,
        "curves": {
            kind: {name: [scored(test, rule)[key] for key in ("value", "calls")] for name, rule in rules.items()}
            for kind, rules in curves.items()
        },
    }


def measure(run: Path, validation: Sequence[int], test: Sequence[int]) -> dict[str, Any]:
    """Run all trajectories, and apply the rules."""
    engine = PrefixEngine(load(str(run / "gate"), scheme="mr2ag"), token_budget=16_384)

    def courses(seeds: Sequence[int], name: str, **settings: Any) -> Pairs:
        return [pair for seed in seeds for pair in run_courses(run, seed, engine, name, settings)]

    figures: dict[str, Any] = {}
    for name in PIPELINES:
        whole = {"validation": courses(validation, name), "test": courses(test, name)}
        figures[name] = {"stop": stop_figures(**whole), "filter": {}}
        if name == FILTERED:
            cuts: dict[str, dict[str, Any]] = {
                width: {"text_passages": texts, "pair_passages": pairs} for width, (texts, pairs) in WIDTHS.items()
            }
            cuts |= {f"gate, p = {least:g}": {"gate_filter": least, "gate_stop": 0.0} for least in FILTERS}
            filtered = {cut: read(courses(test, name, **settings)) for cut, settings in cuts.items()}
            figures[name]["filter"] = {"none": read(whole["test"]), **filtered}
    return figures


def read(pairs: Pairs) -> dict[str, Any]:
    """Return the score and the calls after all searches, and the passages that records were written from."""
    documents = float(np.mean([course.documents for _, course in pairs]))
    return {**scored(pairs, partial(Course.fixed, last=ITERATIONS)), "documents": documents}


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's tables."""
    lines = []
    for name, of_pipeline in figures.items():
        rows = [
            (
                rule.replace("1 searches", "1 search"),
                f"{100 * row['validation']['value']:.1f}",
                *score_cells(row),
                f"{row['calls']:.1f}",
            )
            for rule, row in of_pipeline["stop"]["rows"].items()
        ]
        head = ("stop", "validation", "test, % right", "95 %", "calls per question")
        low, value, high = (100 * of_pipeline["stop"]["difference"][key] for key in ("low", "value", "high"))
        lines += [f"## {name}", "", *table(head, rows), ""]
        lines += [f"Gate at no more calls minus cosine, on test: {value:+.1f} points ({low:+.1f} to {high:+.1f}).", ""]
        shown = [
            (f"{kind}, {rule}", f"{100 * points[rule][0]:.1f}", f"{points[rule][1]:.1f}")
            for kind, points in of_pipeline["stop"]["curves"].items()
            for rule in SHOWN[kind]
        ]
        lines += [*table(("other thresholds", "test, % right", "calls per question"), shown), ""]
        cuts = [
            (cut, *score_cells(row), f"{row['documents']:.1f}", f"{row['calls']:.1f}")
            for cut, row in of_pipeline["filter"].items()
        ]
        if not cuts:
            continue
        head = (f"filter, {ITERATIONS + 1} searches", "test, % right", "95 %", "passages read", "calls per question")
        lines += [*table(head, cuts), ""]
    return lines[:-1]


BENCHMARK = Benchmark(
    "gates",
    "A relevance gate against cosine rules",
    """
**The gate loses both comparisons.** As a stop it adds a call for each record, and ends trajectories whose record states
no answer. As a filter it removes the passage that names the second entity: in mR²AG's data only a passage that states
the answer is relevant. The reader is never distracted by other passages, so this can't show what a filter might gain.

- *Questions*: two-hop questions, at most four searches.
- *Reader*: the scripted teacher of lessons. It writes what the documents allow, so only the rules make mistakes.
- *Gate*: a miniature tuned by mR²AG. A judgement counts as a call.
- *Thresholds* of the stops were chosen in other worlds: the best score, then the fewest calls. τ = 2 never stops. All
  thresholds of the filter are shown, next to cuts by cosine similarity.
""",
    tables,
)


def main() -> None:
    """Tune the gate, run the trajectories, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/gates"), help="folder of two_hop.py's run")
    parser.add_argument("--train_seeds", type=int, nargs="+", default=[1, 2], help="worlds of the gate")
    parser.add_argument("--validation", type=int, nargs="+", default=[101, 102], help="worlds that choose thresholds")
    parser.add_argument("--test", type=int, nargs="+", default=[103, 104])
    arguments = BENCHMARK.parse(parser)
    torch.set_num_threads(1)
    run_stages(arguments.run, stages(arguments.run, arguments.train_seeds))
    return BENCHMARK.finish(measure(arguments.run, arguments.validation, arguments.test), arguments)


if __name__ == "__main__":
    main()
