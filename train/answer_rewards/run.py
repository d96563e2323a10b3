"""Train the answers of a checkpoint by GRPO: read prompts, sample replies, and reward correct ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainingArguments
from trl import GRPOConfig

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.launching import launch_processes
from reflectune.core.paths import Roots
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.metrics.scoring.registry import AnswerMetric
from reflectune.models.attention.positions import Positions, longest_sequence
from reflectune.models.loading import Loaded
from reflectune.models.prefix.engine import end_tokens
from reflectune.models.remote.token_server import TokenServer
from reflectune.models.schemes.examples import PromptedExample
from reflectune.train.answer_rewards.config import AnswerGrpoConfig, ReplyGrpoConfig
from reflectune.train.answer_rewards.prompts import PromptProcessor, PromptRenderer, rows_of
from reflectune.train.answer_rewards.rewards import reward_functions
from reflectune.train.answer_rewards.rollout_server import ROLLOUT_WEIGHTS, RolloutServer
from reflectune.train.answer_rewards.trainer import AnswerTrainer
from reflectune.train.data.examples import load_examples
from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.runs.checkpointed_trainer import Run
from reflectune.train.runs.skeleton import Method, say
from reflectune.train.weights.parameters import parameter_table


class ReplyTraining(Method):
    """Training of a model's replies by GRPO; `load_data` reads the prompts.

    Args:
        config: The settings.
        dataset: The data set with the prompts' questions.
        hashes: Hashes of the inputs of rewards, next to the settings.
        correctness: Scores an answer by the data set's metric.
    """

    needs_tuned = True
    sampled, algorithm = "replies", "TRL's GRPO"
    whole_model_for = "replies are sampled"
    quantizes = False
    fixes_processes = "each process samples replies with its own random numbers"
    _examples: Sequence[PromptedExample]
    _roots: Roots
    _questions: Mapping[str, Question]

    def __init__(
        self, config: ReplyGrpoConfig, dataset: Dataset, hashes: Mapping[str, str], correctness: AnswerMetric
    ) -> None:
        self._config, self._dataset, self._hashes, self._correctness = config, dataset, hashes, correctness

    def arguments(self, common: Mapping[str, Any]) -> GRPOConfig:
        """Return TRL's arguments."""
        return grpo_arguments(self._config, common)

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes of the data set, of its questions as they are now, and of the inputs of rewards."""
        questions = [self._dataset.fingerprint, self._dataset.split_fingerprint(self._config.split)]
        return {**self._hashes, "questions_fingerprint": questions}

    def before_training(self, loaded: Loaded, args: TrainingArguments) -> None:
        """Leave out prompts that are too long."""
        assert isinstance(args, GRPOConfig)  # from `arguments`
        renderer = prompt_renderer(self._config, self._examples, self._roots, loaded)
        fitting = renderer.fitting(self._examples)
        if left_out := len(self._examples) - len(fitting):
            say(args, f"{left_out:,} prompts leave no room for a reply in `max_tokens` and are left out")
        self._examples = fitting
        refuse_too_few(len(fitting), args)

    def preview(self, model: nn.Module, loaded: Loaded, args: TrainingArguments, batch: GlobalBatch) -> str:
        """Describe the prompts, the rewards and the steps."""
        config, prompts = self._config, len(self._examples)
        assert isinstance(args, GRPOConfig)  # from `arguments`
        return "\n".join(
            [
                f"{prompts:,} prompts of {config.split}, {config.generations} {self.sampled} each, of at most "
                f"{config.max_new_tokens} tokens a reply",
                f"reward: {self.reward_text()}",
                parameter_table(model),
                f"steps: {steps_of(config, prompts, args):,}, a checkpoint every {config.save_steps:,}, into "
                f"{config.output_dir}",
            ]
        )

    def reward_text(self) -> str:
        """Return the sum of weighted rewards as text."""
        config = self._config
        return f"{config.accuracy_reward:g} x right by {config.metric} + {config.format_reward:g} x in the format"

    def server(self, loaded: Loaded) -> RolloutServer | None:
        """Return the server that samples the replies; None to sample with transformers.

        Raises:
            UserError: It doesn't serve the model.
        """
        config = self._config
        if not config.server:
            return None
        server = TokenServer(config.connect(config.server, loaded.name, "server"))
        server.find(loaded.name)
        return RolloutServer(
            server,
            Path(config.output_dir, ROLLOUT_WEIGHTS),
            loaded.renderer,
            end_tokens(loaded),
            temperature=config.temperature,
            reply_tokens=config.max_new_tokens,
        )

    def data_summary(self) -> str:
        """Describe the number of prompts and of samples per prompt."""
        config = self._config
        sampled = f"{config.generations} {self.sampled} each, by {self.algorithm}"
        return f"{len(self._examples):,} prompts of {config.split}, {sampled}"


class AnswerTraining(ReplyTraining):
    """Training of answers to prepared prompts.

    Args:
        config: The settings.
        dataset: The data set with the prompts' questions.
        hashes: Hashes of the inputs of rewards, next to the settings.
        correctness: Scores an answer by the data set's metric.
        read_answer: Reads the answer from a reply, as the pipeline does.
    """

    _config: AnswerGrpoConfig

    def __init__(
        self,
        config: AnswerGrpoConfig,
        dataset: Dataset,
        hashes: Mapping[str, str],
        correctness: AnswerMetric,
        read_answer: Callable[[str], str],
    ) -> None:
        super().__init__(config, dataset, hashes, correctness)
        self._read_answer = read_answer

    def arguments(self, common: Mapping[str, Any]) -> GRPOConfig:
        """Make TRL's arguments."""
        args = super().arguments(common)
        args.loss_type = self._config.policy_loss
        return args

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes of prompts, questions and the inputs of rewards."""
        return {**super().fingerprints(), "data_fingerprint": file_fingerprint(self._config.source.file)}

    def load_data(self, args: TrainingArguments) -> None:
        """Read the prompts and their questions."""
        assert isinstance(args, GRPOConfig)  # from `arguments`
        self._examples, self._roots, self._questions = load_prompts(self._config, self._dataset)
        refuse_too_few(len(self._examples), args)

    def trainer(self, run: Run, loaded: Loaded, batch: GlobalBatch) -> AnswerTrainer:
        """Make TRL's trainer with our prompts, rewards and checkpoints."""
        return AnswerTrainer(
            run,
            rows_of(self._examples),
            prompt_processor(self._config, self._examples, self._roots, loaded),
            reward_functions(self._questions, self._correctness, self._read_answer),
            server=self.server(loaded),
        )


def load_prompts(
    config: AnswerGrpoConfig, dataset: Dataset
) -> tuple[list[PromptedExample], Roots, dict[str, Question]]:
    """Return the prompts in random order, the folders of their images, and their questions by id.

    Raises:
        UserError: A row isn't a prompt of a pipeline, or its question isn't in the data set.
    """
    examples, roots = load_examples(config.source, config.scheme, processes=launch_processes())
    questions = {question.id: question for question in dataset.stream(config.split)}
    prompts = [example for example in examples if isinstance(example, PromptedExample)]
    if bare := [example.id for example in prompts if not example.template or example.branch_documents]:
        raise UserError(
            f"`train_data`: {config.source.file} has rows that are not prompts for an answer, the first one {bare[0]}; "
            "write it with write_lessons and `stage: grpo`"
        )
    if unknown := [example.id for example in prompts if example.id not in questions]:
        raise UserError(
            f"`train_data`: {config.source.file} has {len(unknown)} prompts about no question of {config.split} in "
            f"{config.dataset}, the first one {unknown[0]}; name their data set, and `split`"
        )
    drawn = random.Random(config.seed).sample(prompts, len(prompts))[: config.limit]
    return drawn, roots, {example.id: questions[example.id] for example in drawn}


def grpo_arguments(config: ReplyGrpoConfig, common: Mapping[str, Any]) -> GRPOConfig:
    """Return TRL's arguments, given those that all trainings share.

    Raises:
        UserError: The replies of an optimiser step are not whole groups.
    """
    try:
        return GRPOConfig(
            **common,
            beta=0.0,  # no KL term, as published
            activation_checkpointing=False,  # TRL's default is True; `gradient_checkpointing` decides here
            disable_dropout=True,  # so that replies are scored by the model that sampled them
            num_generations=config.generations,
            max_completion_length=config.max_new_tokens,
            temperature=config.temperature,
            loss_type="grpo",
            reward_weights=[config.accuracy_reward, config.format_reward],
        )
    except ValueError as error:
        raise UserError(
            f"TRL refuses the batch: {error}. The replies per step, `per_device_train_batch_size` x "
            f"`gradient_accumulation_steps` x processes, must be a multiple of `generations`, {config.generations}"
        ) from error


def prompts_of_a_step(args: GRPOConfig) -> int:
    """Return the number of prompts per optimiser step over all processes; each has all of its replies."""
    # TRL computes the first, and refuses incomplete groups
    assert args.generation_batch_size is not None
    assert args.num_generations is not None
    return args.generation_batch_size // args.num_generations


def refuse_too_few(prompts: int, args: GRPOConfig) -> None:
    """Raise a `UserError` if there are fewer prompts than an optimiser step reads.

    TRL's sampler drops an incomplete step at the end of an epoch, so such a run would take no step.
    """
    if prompts < (needed := prompts_of_a_step(args)):
        raise UserError(
            f"found {prompts} prompts, but a step reads {needed}: `per_device_train_batch_size` "
            f"{args.per_device_train_batch_size} x `gradient_accumulation_steps` {args.gradient_accumulation_steps} x "
            f"{args.world_size} process(es) / `generations` {args.num_generations}. Lower the batch, or give more "
            "prompts"
        )


def steps_of(config: ReplyGrpoConfig, prompts: int, args: GRPOConfig) -> int:
    """Return the optimiser steps of the whole run. An epoch drops an incomplete last step."""
    if config.max_steps is not None:
        return config.max_steps
    return math.ceil(config.epochs * (prompts // prompts_of_a_step(args)))


def prompt_renderer(
    config: ReplyGrpoConfig, examples: Sequence[PromptedExample], roots: Roots, loaded: Loaded
) -> PromptRenderer:
    """Make the renderer of prompts that leave room for a reply."""
    return PromptRenderer(
        examples, loaded.renderer, roots, longest_sequence(loaded.model, config.max_tokens) - config.max_new_tokens
    )


def prompt_processor(
    config: ReplyGrpoConfig, examples: Sequence[PromptedExample], roots: Roots, loaded: Loaded
) -> PromptProcessor:
    """Make the processor that renders prompts for TRL."""
    prompts = prompt_renderer(config, examples, roots, loaded)
    return PromptProcessor(loaded.renderer, prompts.rendered, types_key=Positions(loaded.model).types_key)
