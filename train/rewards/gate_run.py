"""Refining gates from a config: load the checkpoint, have its rewards measured, train, save."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.probing.questions import select_questions
from reflectune.formats.dataset import Dataset
from reflectune.models.loading import Loaded
from reflectune.models.schemes.gate_outcomes import GateOutcome, Measure
from reflectune.train.data.examples import Collator
from reflectune.train.data.global_batch import GlobalBatch, why_fixed
from reflectune.train.data.order import TrainingOrder
from reflectune.train.estimates.preview import parameter_table
from reflectune.train.rewards.gate_config import GateConfig
from reflectune.train.rewards.gate_trainer import GateTrainer, Objective
from reflectune.train.rewards.gate_trees import Costs, GateExample, GateExamples, rewards_of
from reflectune.train.runs.failures import advising
from reflectune.train.runs.fine_tune import (
    check_processes,
    global_batch,
    is_trained_already,
    prepare_model,
    save_model,
    say,
    total_steps,
    train,
    training_arguments,
)
from reflectune.train.runs.launch import refuse_bad_launch, sharding
from reflectune.train.runs.model_card import publish, write_card
from reflectune.train.runs.starting import load_start
from reflectune.train.runs.trainer import TrainingRun

Measuring = Callable[[Loaded, Dataset, Sequence[Question]], Measure]
"""Makes what answers the questions with a model."""


def refine(config: GateConfig, dataset: Dataset, hashes: dict[str, str], measuring: Measuring) -> None:
    """Train as the config says, and write the checkpoint into `output_dir`; go on from the last one if there is one.

    Args:
        config: The settings.
        dataset: Whose questions to learn from.
        hashes: Of what rewards depend on beside the settings and the checkpoint.
        measuring: Has the questions answered both ways.
    """
    refuse_bad_launch(config, os.environ)
    if (kind := sharding(os.environ)) in ("zero3", "fsdp"):
        raise UserError(
            f"rewards are measured with the whole model, which {kind} divides among processes; launch with "
            "configs/accelerate/zero2.yaml or multi_gpu.yaml"
        )
    questions = chosen(config, dataset)
    torch.set_float32_matmul_precision(config.matmul_precision)
    logging.disable_progress_bar()  # of loading and saving; the trainer's own is shown
    args = training_arguments(config)
    check_processes(config, args)
    loaded, adapted = load_start(config, args)
    batch = global_batch(args)
    fixed = why_fixed(loaded.model, config.adapters_dropout, kind)
    settings = {
        **config.run_settings(),
        **hashes,
        "data_fingerprint": dataset.fingerprint,
        "model_fingerprint": loaded.fingerprint,
        **batch.settings(fixed),
        **({"sharding": kind} if kind else {}),
    }
    if config.dry_run:
        model = adapted or prepare_model(loaded, config)
        say(args, describe(config, questions, model, total_steps(config, len(questions), args.world_size)))
        return
    if is_trained_already(config, args, batch, fixed, settings):
        return
    if config.method != "qlora":
        whole: nn.Module = loaded.model
        whole.to(args.device)
    measure = measuring(loaded, dataset, questions)
    first = measure(0)
    say(args, summary(first, config))
    model = adapted.train() if adapted else prepare_model(loaded, config)
    say(args, parameter_table(model))
    examples = [
        GateExample(
            question,
            tuple(passage_outcome.passage for passage_outcome in outcome.passages),
            outcome.anchor,
            config.hold,
        )
        for question, outcome in zip(questions, first, strict=True)
    ]
    most = loaded.model.config.get_text_config().max_position_embeddings
    encoded = GateExamples(
        examples,
        loaded.renderer,
        dataset.image_roots,
        max_tokens=min(config.max_tokens or most, most),
        cache_bytes=config.cache_mib * 2**20,
    )
    data = f"{len(questions):,} questions ({_kinds(questions)}), each answered without and with retrieval"
    save = functools.partial(save_model, loaded=loaded, settings=settings)
    card = functools.partial(write_card, config=config, loaded=loaded, data=data, settings=settings)
    with advising(config, model, args, fixed):
        trainer = GateTrainer(
            TrainingRun(
                model,
                args,
                encoded,
                Collator(loaded.model),
                _order(examples, config, batch),
                save,
                settings,
                config.projector_learning_rate,
            ),
            objective=objective(config, loaded),
            first=first,
            measure=measure,
            refresh_steps=config.refresh_steps,
        )
        train(trainer, card)
    publish(config, args)


def chosen(config: GateConfig, dataset: Dataset) -> list[Question]:
    """The questions to learn from, in an order drawn by seed."""
    drawn = select_questions(dataset, config.split, limit=config.limit, seed=config.seed)
    visual = [question.id for question in drawn if question.is_knowledge_based is False]
    left_out = set(visual[config.visual_limit :]) if config.visual_limit is not None else set()
    return [question for question in drawn if question.id not in left_out]


def objective(config: GateConfig, loaded: Loaded) -> Objective:
    """What is trained for, by the config."""
    ids = loaded.renderer.token_ids
    pairs = (ids["retrieve"], ids["no_retrieve"]), (ids["relevant"], ids["irrelevant"])
    costs = Costs(config.retrieval_cost, config.keeping_cost)
    return Objective(costs, config.beta, config.hold, config.policy_loss, pairs)


def summary(outcomes: Sequence[GateOutcome], config: GateConfig) -> str:
    """Mean rewards before training: of always retrieving, of never retrieving, and of each question's better way."""
    costs = Costs(config.retrieval_cost, config.keeping_cost)
    both = [rewards_of(outcome, costs).rewards[0] for outcome in outcomes]
    retrieved, direct = (sum(rewards[side] for rewards in both) / len(both) for side in (0, 1))
    best = sum(map(max, both)) / len(both)
    better = sum(yes > no for yes, no in both)
    return (
        f"rewards of {len(both):,} questions at λ = {config.retrieval_cost:g}: always retrieving {retrieved:.3f}, "
        f"never {direct:.3f}, the better each time {best:.3f} (retrieving for {better:,})"
    )


def describe(config: GateConfig, questions: Sequence[Question], model: PreTrainedModel | PeftModel, steps: int) -> str:
    """What a run would do."""
    rounds = 1 + (steps - 1) // config.refresh_steps if config.refresh_steps else 1
    return "\n".join(
        [
            f"{len(questions):,} questions of {config.split} ({_kinds(questions)})",
            f"each answered without and with retrieval, {rounds} time(s), kept in {config.rewards_folder()}",
            parameter_table(model),
            f"steps: {steps:,}, a checkpoint every {config.save_steps:,}, into {config.output_dir}",
        ]
    )


def _kinds(questions: Sequence[Question]) -> str:
    kinds = Counter(GateExample(question).kind for question in questions)
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def _order(examples: Sequence[GateExample], config: GateConfig, batch: GlobalBatch) -> TrainingOrder:
    return TrainingOrder(
        [example.length for example in examples],
        [example.kind for example in examples],
        batch_size=batch.size,
        seed=config.seed,
        group_by_length=config.group_by_length,
        multiple_of=batch.at_a_time,
    )
