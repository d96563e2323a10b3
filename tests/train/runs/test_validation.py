"""Validation reads gates from the training trees: the numbers, the best checkpoint, early stop, and exact resume."""

import dataclasses
import functools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import FollowUp
from reflectune.examples.miniature.models.architecture import Family
from reflectune.formats.reflection_data import read_examples, write_examples
from reflectune.models.attention.collation import loss_terms
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.examples import PromptedExample, ReflectionExample
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.passages import PassageScheme
from reflectune.train.data.examples import Collator, EncodedExamples
from reflectune.train.runs import trainer as trainer_module
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.runs.validation import GateReader, GateReading, WeightedLoss, check_metric, gate_metrics
from reflectune.train.settings.sft import SftConfig
from reflectune.train.settings.validation import greater_is_better, metric_names
from reflectune.train.weights.checkpoints import BEST, checkpoint_folders, is_patience_exhausted


@pytest.fixture
def config(config, data_folder: Path) -> Callable[..., SftConfig]:
    """Short runs that are validated every other step."""
    examples = read_examples(data_folder / "train.parquet", ReflectionExample)
    write_examples(data_folder / "val.parquet", examples[:7] + examples[18:22])
    return functools.partial(config, eval_data=str(data_folder), eval_steps=2)


def validations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name.startswith("eval_") or name == "step"}
        for row in rows
        if "eval_loss" in row
    ]


def reader(loaded: Any, examples: Any, root: Path, *, batch_size: int = 3, share_prefix: bool = True) -> GateReader:
    data = EncodedExamples(examples, loaded.renderer, root, share_prefix=share_prefix, max_tokens=4096)
    return GateReader(data, Collator(loaded.model), loaded.renderer, batch_size)


def read(made: GateReader, model: Any, rank: int = 0, processes: int = 1) -> tuple[list[GateReading], WeightedLoss]:
    return made.read(model.eval(), lambda batch: batch, rank, processes)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_gate_is_what_the_engine_reads_at_inference(family: Family, base_model, data_folder, examples) -> None:
    loaded = load(str(base_model(family)), scheme="mr2ag")
    readings, _ = read(reader(loaded, examples, data_folder / "images"), loaded.model)
    engine = PrefixEngine(loaded)
    retrieve, relevant = [], []
    for example in examples:
        image = load_image(example.image, root=data_folder / "images")
        prefixes = engine.read([loaded.renderer.prefix(example.question, image)])
        ids = [loaded.renderer.token_id(role) for role in ("retrieve", "no_retrieve", "relevant", "irrelevant")]
        gate = prefixes.probabilities(ids[:2])[0]
        retrieve.append((float(gate[0] / gate.sum()), example.retrieve))
        if example.branches:
            scheme = PassageScheme.of(loaded.renderer)
            branches = [scheme.passage_branch(loaded.renderer, b.passage) for b in example.branches]
            pairs = engine.branch(prefixes, [branches]).probabilities(ids[2:])[0]
            relevant += [(float(p[0] / p.sum()), b.relevant) for p, b in zip(pairs, example.branches, strict=True)]

    for name, expected in (("retrieve", retrieve), ("relevance", relevant)):
        gate_readings = [(reading.probability, reading.positive) for reading in readings if reading.gate == name]
        assert len(gate_readings) == len(expected)
        assert [truth for _, truth in sorted(gate_readings)] == [truth for _, truth in sorted(expected)]
        assert sorted(p for p, _ in gate_readings) == pytest.approx(sorted(p for p, _ in expected), abs=1e-5)


def test_batches_processes_and_trees_read_the_same(base_model, data_folder, examples) -> None:
    loaded = load(str(base_model("llava")), scheme="mr2ag")
    root = data_folder / "images"
    whole, sums = read(reader(loaded, examples, root, batch_size=24), loaded.model)
    expected = gate_metrics(whole, sums)
    parts = [read(reader(loaded, examples[:23], root), loaded.model, rank, 5) for rank in range(5)]
    fewer = gate_metrics(*read(reader(loaded, examples[:23], root), loaded.model))
    joined = WeightedLoss(sum(part.loss for _, part in parts), sum(part.weight for _, part in parts))

    assert gate_metrics([r for readings, _ in parts for r in readings], joined) == pytest.approx(fewer, abs=1e-5)
    rows = read(reader(loaded, examples, root, share_prefix=False), loaded.model)
    assert gate_metrics(*rows) == pytest.approx(expected, abs=1e-5)
    batch = Collator(loaded.model)([reader(loaded, examples, root).dataset[i] for i in range(len(examples))])
    with torch.no_grad():
        loss, weight = loss_terms(loaded.model, {k: v for k, v in batch.items() if k not in ("sample_ids", "tokens")})
    assert expected["loss"] == pytest.approx(float(loss / weight), abs=1e-5)


def talk(number: int, image: str) -> ReflectionExample:
    """A conversation of one to three rounds."""
    later = (FollowUp("Is it old?", "Yes, it is."), FollowUp("Who built it?", "Nobody knows."))[: number % 3]
    return ReflectionExample(
        f"t{number}", image, "Which colour is it?", False, "It is red.", style="free", follow_ups=later
    )


def talks(examples: list[ReflectionExample]) -> list[ReflectionExample]:
    return [talk(number, example.image) for number, example in enumerate(examples[:6])]


@pytest.mark.parametrize("share_prefix", [True, False])
def test_the_gate_of_a_conversation_counts_once_and_all_its_replies_are_in_the_loss(
    base_model, data_folder, examples, share_prefix: bool
) -> None:
    loaded = load(str(base_model("llava")), scheme="mr2ag")
    root, mixed = data_folder / "images", [*examples[:4], *talks(examples), *examples[18:20]]
    first = [dataclasses.replace(example, follow_ups=()) for example in mixed]

    readings, sums = read(reader(loaded, mixed, root, share_prefix=share_prefix), loaded.model)
    alone, fewer = read(reader(loaded, first, root, share_prefix=share_prefix), loaded.model)

    gates = [
        [(r.probability, r.positive) for r in run_readings if r.gate == "retrieve"]
        for run_readings in (readings, alone)
    ]
    assert len(gates[0]) == len(mixed)
    assert [truth for _, truth in gates[0]] == [truth for _, truth in gates[1]]
    assert [p for p, _ in gates[0]] == pytest.approx([p for p, _ in gates[1]], abs=1e-5)
    assert len([r for r in readings if r.gate == "relevance"]) == len([r for r in alone if r.gate == "relevance"])
    assert sums.weight > fewer.weight


def test_both_schemes_name_their_gates(base_model, prompted_folder: Path) -> None:
    loaded = load(str(base_model("qwen2_vl")), scheme="mmkb_rag")
    examples = read_examples(prompted_folder / "train.parquet", PromptedExample)
    readings, sums = read(reader(loaded, examples, prompted_folder.parent / "data" / "images"), loaded.model)

    assert {name: sum(r.gate == name for r in readings) for name in ("ret", "srt")} == {
        "ret": sum(branch.prompt == "ret" for example in examples for branch in example.branches),
        "srt": sum(branch.prompt == "srt" for example in examples for branch in example.branches),
    }
    assert {*gate_metrics(readings, sums), "answer_exact_match"} == set(metric_names("mmkb_rag"))


def test_metrics_have_their_closed_forms() -> None:
    readings = [
        GateReading("relevance", p, truth) for p, truth in ((0.9, True), (0.6, False), (0.4, True), (0.1, False))
    ]
    metrics = gate_metrics([*readings, GateReading("retrieve", 0.75, True)], WeightedLoss(loss=3.0, weight=2.0))

    assert metrics["loss"] == 1.5
    assert metrics["relevance_accuracy"] == 0.5
    assert metrics["relevance_auroc"] == 0.75
    assert metrics["relevance_calibration_error"] == pytest.approx((0.1 + 0.6 + 0.6 + 0.1) / 4)
    assert "retrieve_auroc" not in metrics  # one label alone has none
    assert metrics["retrieve_calibration_error"] == pytest.approx(0.25)
    assert [greater_is_better(name) for name in ("loss", "ret_auroc", "srt_calibration_error")] == [False, True, False]


@pytest.mark.slow
def test_the_best_weights_are_the_result_in_a_resumed_run_too(
    config, assert_equal_weights, interrupted, history
) -> None:
    changes: dict[str, Any] = {"best_metric": "relevance_accuracy", "eval_steps": 1, "learning_rate": 3e-2}
    changes |= {"max_steps": 5}
    straight, resumed = config("straight", **changes), config("resumed", **changes)
    fine_tune(straight)
    interrupted(resumed, 4)
    fine_tune(resumed)

    rows = validations(history(straight.output_dir))
    best = max(rows, key=lambda row: row["eval_relevance_accuracy"])  # the first of equals
    state = json.loads(Path(straight.output_dir, "trainer_state.json").read_text())
    assert (state["best_global_step"], state["best_metric"]) == (best["step"], best["eval_relevance_accuracy"])
    assert_equal_weights(straight.output_dir, Path(straight.output_dir, BEST))
    assert_equal_weights(straight.output_dir, resumed.output_dir)
    loaded = load(straight.output_dir)
    validated = read_examples(straight.eval_source().file, ReflectionExample)
    metrics = gate_metrics(*read(reader(loaded, validated, Path(straight.eval_data, "images")), loaded.model))
    assert metrics["relevance_accuracy"] == pytest.approx(best["eval_relevance_accuracy"])
    assert metrics["loss"] == pytest.approx(best["eval_loss"], abs=1e-5)


def test_training_stops_when_patience_is_out_and_stays_stopped(
    config, monkeypatch, assert_equal_weights, history
) -> None:
    """A rate that wrecks the model: the first validation stays the best one."""
    changes: dict[str, Any] = {"best_metric": "loss", "early_stopping_patience": 2, "eval_steps": 1, "save_steps": 1}
    changes |= {"learning_rate": 1.0, "warmup": 0.0, "max_steps": 40}
    straight, killed = config("straight", **changes), config("killed", **changes)
    fine_tune(straight)
    steps = [row["step"] for row in validations(history(straight.output_dir))]
    best = json.loads(Path(straight.output_dir, "trainer_state.json").read_text())["best_global_step"]
    assert steps[-1] == best + 2 < 40

    original = trainer_module.ReflectionTrainer.train

    def train(self: Any, **kwargs: Any) -> Any:
        original(self, **kwargs)
        raise KeyboardInterrupt  # after the last checkpoint, before the result is written

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.ReflectionTrainer, "train", train)
        with pytest.raises(KeyboardInterrupt):
            fine_tune(killed)
    assert checkpoint_folders(killed.output_dir)[-1].name == f"checkpoint-{steps[-1]}"
    fine_tune(killed)

    assert_equal_weights(straight.output_dir, killed.output_dir)
    assert validations(history(straight.output_dir)) == validations(history(killed.output_dir))


def test_patience_counts_validations_since_the_best() -> None:
    rows = [{"step": step, "eval_loss": 1.0} for step in (2, 4, 6)] + [{"step": 7, "loss": 1.0}]

    assert not is_patience_exhausted(rows, "loss", 2, None)
    assert not is_patience_exhausted(rows, "loss", 2, 3)
    assert is_patience_exhausted(rows, "loss", 2, 2)


def test_an_example_that_does_not_fit_counts_nowhere(base_model, data_folder, examples) -> None:
    loaded, root = load(str(base_model("llava")), scheme="mr2ag"), data_folder / "images"
    long = dataclasses.replace(examples[0], id="long", question="which " * 400)
    alone, sums = read(reader(loaded, examples[:2], root), loaded.model)
    for place in range(3):
        data = EncodedExamples([*examples[:place], long, *examples[place:2]], loaded.renderer, root, max_tokens=600)
        readings, others = read(GateReader(data, Collator(loaded.model), loaded.renderer, 3), loaded.model)
        assert gate_metrics(readings, others) == pytest.approx(gate_metrics(alone, sums), abs=1e-5)


def test_a_metric_that_the_data_loses_by_its_length_is_a_sentence(config, examples) -> None:
    example = next(it for it in examples if {branch.relevant for branch in it.branches} == {True, False})
    branches = tuple(
        dataclasses.replace(branch, passage=dataclasses.replace(branch.passage, text="long " * 400 * branch.relevant))
        for branch in example.branches
    )
    run = config(best_metric="relevance_auroc", max_tokens=500, eval_steps=1)
    write_examples(run.eval_source().file, [dataclasses.replace(example, branches=branches)])
    message = "`best_metric: relevance_auroc` cannot be computed: the validation data that fit"
    with pytest.raises(UserError, match=message):
        fine_tune(run)


def test_a_metric_that_the_data_cannot_give_is_refused_before_training(config, examples) -> None:
    run = config(best_metric="retrieve_auroc")
    write_examples(run.eval_source().file, examples[:5])  # all with retrieval

    with pytest.raises(UserError, match=r"`best_metric: retrieve_auroc` cannot be computed: .* only True labels"):
        fine_tune(run)
    assert not Path(run.output_dir).exists()
    check_metric("relevance_auroc", examples, MR2AG, Path("x"))
    check_metric("loss", examples, MR2AG, Path("x"))


def test_prompted_examples_are_checked_too(prompted_folder: Path) -> None:
    examples: list[PromptedExample] = list(read_examples(prompted_folder / "train.parquet", PromptedExample))
    rng = random.Random(0)
    rng.shuffle(examples)
    check_metric("srt_auroc", examples, MMKB_RAG, Path("x"))
    bare = [
        PromptedExample(e.id, e.image, e.question, tuple(b for b in e.branches if b.prompt == "ret")) for e in examples
    ]

    with pytest.raises(UserError, match="has no label for the gate `srt`"):
        check_metric("srt_accuracy", bare, MMKB_RAG, Path("x"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"eval_data": "nowhere"}, r"`eval_data`: nowhere/val\.parquet does not exist"),
        ({"best_metric": "srt_auroc"}, "`best_metric` must be one of loss, retrieve_accuracy"),
        ({"eval_data": "", "best_metric": "loss"}, "`best_metric` needs `eval_data`"),
        ({"early_stopping_patience": 2}, "`early_stopping_patience` needs a `best_metric`"),
        ({"eval_data": "", "eval_answers": 5}, "`eval_answers` needs `eval_data`"),
        ({"best_metric": "answer_exact_match"}, "`best_metric: answer_exact_match` needs `eval_answers`"),
    ],
)
def test_settings_that_do_not_go_together_are_problems(config, changes: dict[str, Any], says: str) -> None:
    assert any(re.search(says, problem) for problem in find_problems(SftConfig, {**config().model_dump(), **changes}))
    assert config().problems() == []
