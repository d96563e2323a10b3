"""Reinforcing answers from a config: load the checkpoint, check its prompts, train, save."""

from __future__ import annotations

import functools
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging
from trl import GRPOConfig

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.paths import Roots
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.metrics.scoring.registry import Worth
from reflectune.models.attention.positions import Positions
from reflectune.models.loading import Loaded
from reflectune.models.schemes.examples import PromptedExample
from reflectune.train.data.examples import load_examples
from reflectune.train.estimates.preview import parameter_table
from reflectune.train.rewards.answer_config import AnswerGrpoConfig
from reflectune.train.rewards.answer_prompts import PromptProcessor, PromptRenderer, rows_of
from reflectune.train.rewards.answer_rewards import reward_functions
from reflectune.train.rewards.answer_trainer import AnswerRun, AnswerTrainer
from reflectune.train.runs.failures import advising
from reflectune.train.runs.fine_tune import (
    argument_values,
    check_processes,
    global_batch,
    is_trained_already,
    prepare_model,
    save_model,
    say,
    train,
)
from reflectune.train.runs.launch import keep_to_one_gpu, refuse_bad_launch, sharding
from reflectune.train.runs.model_card import publish, write_card
from reflectune.train.runs.starting import load_start

_WHY_FIXED = "replies are sampled, and each process draws random numbers of its own"


def reinforce(
    config: AnswerGrpoConfig,
    dataset: Dataset,
    hashes: Mapping[str, str],
    correctness: Worth,
    read_answer: Callable[[str], str],
) -> None:
    """Train as the config says, and write the checkpoint into `output_dir`; go on from the last one if there is one.

    Args:
        config: The settings.
        dataset: Whose questions the prompts are about.
        hashes: Of what rewards depend on beside the settings.
        correctness: What an answer is worth, by the metric.
        read_answer: Reads a reply's answer, as the pipeline does.
    """
    refuse_bad_launch(config, os.environ)
    if (kind := sharding(os.environ)) in ("zero3", "fsdp"):
        raise UserError(
            f"replies are sampled with the whole model, which {kind} divides among processes; launch with "
            "configs/accelerate/zero2.yaml or multi_gpu.yaml"
        )
    examples, roots, questions = load_prompts(config, dataset)
    torch.set_float32_matmul_precision(config.matmul_precision)
    logging.disable_progress_bar()  # of loading and saving; the trainer's own is shown
    args = grpo_arguments(config)
    check_processes(config, args)
    refuse_too_few(len(examples), args)
    loaded, adapted = load_start(config, args)
    batch = global_batch(args)
    settings = {
        **config.run_settings(),
        **hashes,
        "data_fingerprint": file_fingerprint(config.part.file),
        "questions_fingerprint": dataset.fingerprint,
        "model_fingerprint": loaded.fingerprint,
        **batch.settings(_WHY_FIXED),
        **({"sharding": kind} if kind else {}),
    }
    if config.dry_run:
        say(args, describe(config, examples, adapted or prepare_model(loaded, config), args))
        return
    if is_trained_already(config, args, batch, _WHY_FIXED, settings):
        return
    model = adapted.train() if adapted else prepare_model(loaded, config)
    say(args, parameter_table(model))
    run = AnswerRun(
        model,
        args,
        rows_of(examples),
        prompt_processor(config, examples, roots, loaded),
        reward_functions(questions, correctness, read_answer),
        functools.partial(save_model, loaded=loaded, settings=settings),
        settings,
    )
    data = f"{len(examples):,} prompts of {config.split}, {config.generations} replies each, by TRL's GRPO"
    card = functools.partial(write_card, config=config, loaded=loaded, data=data, settings=settings)
    with advising(config, model, args, _WHY_FIXED):
        train(AnswerTrainer(run), card)
    publish(config, args)


def load_prompts(
    config: AnswerGrpoConfig, dataset: Dataset
) -> tuple[list[PromptedExample], Roots, dict[str, Question]]:
    """The prompts, in an order drawn by seed, the folders of their images, and their questions by id.

    Raises:
        UserError: A row is no prompt of a pipeline, or is about a question that the data set doesn't have.
    """
    examples, roots = load_examples(config.part, config.scheme)
    questions = {question.id: question for question in dataset.stream(config.split)}
    prompts = [example for example in examples if isinstance(example, PromptedExample)]
    if bare := [example.id for example in prompts if not example.template or example.branch_documents]:
        raise UserError(
            f"`train_data`: {config.part.file} has rows that are no prompt for an answer, the first one {bare[0]}; "
            "write it with inference.write_lessons and `stage: grpo`"
        )
    if unknown := [example.id for example in prompts if example.id not in questions]:
        raise UserError(
            f"`train_data`: {config.part.file} has {len(unknown)} prompts about no question of {config.split} in "
            f"{config.dataset}, the first one {unknown[0]}; name their data set, and `split`"
        )
    drawn = random.Random(config.seed).sample(prompts, len(prompts))[: config.limit]
    return drawn, roots, {example.id: questions[example.id] for example in drawn}


def grpo_arguments(config: AnswerGrpoConfig) -> GRPOConfig:
    """TRL's arguments; this also joins the processes of a distributed launch. One process has one GPU.

    Raises:
        UserError: The replies of an optimiser step are no whole groups.
    """
    try:
        args = GRPOConfig(
            **argument_values(config),
            beta=0.0,  # no KL term, as published
            disable_dropout=True,  # what is scored is what sampled
            num_generations=config.generations,
            max_completion_length=config.max_new_tokens,
            temperature=config.temperature,
            loss_type=config.policy_loss,
            reward_weights=[config.accuracy_reward, config.format_reward],
        )
    except ValueError as error:
        raise UserError(
            f"TRL refuses the batch: {error}. The replies of a step, `per_device_train_batch_size` x "
            f"`gradient_accumulation_steps` x processes, are a multiple of `generations`, {config.generations}"
        ) from error
    keep_to_one_gpu(args)
    return args


def prompts_of_a_step(args: GRPOConfig) -> int:
    """Prompts that an optimiser step reads over all processes, each with all its replies."""
    # TRL fills the first in, and refuses what is no whole groups
    assert args.generation_batch_size is not None
    assert args.num_generations is not None
    return args.generation_batch_size // args.num_generations


def refuse_too_few(prompts: int, args: GRPOConfig) -> None:
    """Raise a `UserError` if there are fewer prompts than one optimiser step reads.

    TRL's sampler drops what fills no step at the end of an epoch: a run would take none, and be called trained.
    """
    if prompts < (needed := prompts_of_a_step(args)):
        raise UserError(
            f"{prompts} prompts, and a step reads {needed}: `per_device_train_batch_size` "
            f"{args.per_device_train_batch_size} x `gradient_accumulation_steps` {args.gradient_accumulation_steps} x "
            f"{args.world_size} process(es) / `generations` {args.num_generations}. Lower the batch, or give more "
            "prompts"
        )


def steps_of(config: AnswerGrpoConfig, prompts: int, args: GRPOConfig) -> int:
    """Optimiser steps of the whole run; an epoch leaves out the prompts at its end that fill no step."""
    if config.max_steps is not None:
        return config.max_steps
    return math.ceil(config.epochs * (prompts // prompts_of_a_step(args)))


def prompt_processor(
    config: AnswerGrpoConfig, examples: Sequence[PromptedExample], roots: Roots, loaded: Loaded
) -> PromptProcessor:
    """What TRL renders prompts with."""
    most = loaded.model.config.get_text_config().max_position_embeddings
    room = min(config.max_tokens or most, most) - config.max_new_tokens
    prompts = PromptRenderer(examples, loaded.renderer, roots, room)
    return PromptProcessor(loaded.renderer, prompts.rendered, is_typed=Positions(loaded.model).is_3d)


def describe(
    config: AnswerGrpoConfig,
    examples: Sequence[PromptedExample],
    model: PreTrainedModel | PeftModel | nn.Module,
    args: GRPOConfig,
) -> str:
    """What a run would do."""
    steps = steps_of(config, len(examples), args)
    return "\n".join(
        [
            f"{len(examples):,} prompts of {config.split}, {config.generations} replies each, of at most "
            f"{config.max_new_tokens} tokens",
            f"reward: {config.accuracy_reward:g} x right by {config.metric} + {config.format_reward:g} x in the format",
            parameter_table(model),
            f"steps: {steps:,}, a checkpoint every {config.save_steps:,}, into {config.output_dir}",
        ]
    )
