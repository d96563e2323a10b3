"""Train the gates of a checkpoint by reward: measure the rewards of both outcomes, then train on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.probing.questions import select_questions
from reflectune.formats.dataset import Dataset
from reflectune.models.attention.positions import longest_sequence
from reflectune.models.loading import Loaded
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.gate_outcomes import GateOutcome, Measure
from reflectune.models.schemes.prompts import PromptScheme
from reflectune.train.data.examples import Collator
from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.data.order import TrainingOrder
from reflectune.train.gate_rewards.config import GateConfig
from reflectune.train.gate_rewards.trainer import GateTrainer, Objective
from reflectune.train.gate_rewards.trees import Costs, GateExample, GateExamples, rewards_of
from reflectune.train.runs.checkpointed_trainer import Run
from reflectune.train.runs.packing import packs_trees
from reflectune.train.runs.skeleton import Method, say
from reflectune.train.weights.parameters import parameter_table

Measuring = Callable[[Loaded, Dataset, Sequence[Question]], Measure]
"""Returns the function that measures the outcomes of questions with a model."""


class GateTraining(Method):
    """Training of gates by reward.

    Args:
        config: The settings.
        dataset: The data set with the questions.
        hashes: Hashes of the inputs of rewards, next to the settings and the checkpoint.
        measuring: Returns the function that answers the questions without and with retrieval.
    """

    needs_tuned = True
    whole_model_for = "rewards are measured"

    def __init__(self, config: GateConfig, dataset: Dataset, hashes: Mapping[str, str], measuring: Measuring) -> None:
        self._config, self._dataset, self._hashes, self._measuring = config, dataset, hashes, measuring

    def arguments(self, common: Mapping[str, Any]) -> TrainingArguments:
        """Make transformers' arguments."""
        return TrainingArguments(**common)

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes of the data set, of its questions as they are now, and of the inputs of rewards."""
        questions = self._dataset.split_fingerprint(self._config.split)
        return {**self._hashes, "data_fingerprint": self._dataset.fingerprint, "questions_fingerprint": questions}

    def load_data(self, args: TrainingArguments) -> None:
        """Draw the questions."""
        self._questions = chosen_questions(self._config, self._dataset)

    def before_training(self, loaded: Loaded, args: TrainingArguments) -> None:
        """Measure the first round of rewards.

        Raises:
            UserError: The scheme's relevance prompt needs a passage's rank, which is not available here.
        """
        scheme = Scheme.of(loaded.renderer)
        if isinstance(scheme, PromptScheme) and scheme.reads_place("srt"):
            raise UserError(
                f"`model`: {self._config.model} was trained with `prompts: search_result`, whose prompt has the "
                "passage's rank; training by reward doesn't support that: start from a checkpoint without it"
            )
        if self._config.dry_run:
            return
        if self._config.method != "qlora":
            module: nn.Module = loaded.model
            module.to(args.device)
        self._measure = self._measuring(loaded, self._dataset, self._questions)
        with torch.autocast(args.device.type, torch.bfloat16, enabled=self._config.precision == "bfloat16"):
            self._outcomes = self._measure(0)
        self._objective = objective(self._config, loaded)
        say(args, reward_summary(self._outcomes, self._objective.costs))

    def preview(self, model: nn.Module, loaded: Loaded, args: TrainingArguments, batch: GlobalBatch) -> str:
        """Describe the questions, the rounds of measuring and the steps."""
        config, questions = self._config, self._questions
        steps = config.max_steps or batch.steps(len(questions), config.epochs)
        rounds = 1 + (steps - 1) // config.refresh_steps if config.refresh_steps else 1
        return "\n".join(
            [
                f"{len(questions):,} questions of {config.split} ({_kinds(questions)})",
                f"each answered without and with retrieval, {rounds} time(s), kept in {config.rewards_folder()}",
                parameter_table(model),
                f"steps: {steps:,}, a checkpoint every {config.save_steps:,}, into {config.output_dir}",
            ]
        )

    def trainer(self, run: Run, loaded: Loaded, batch: GlobalBatch) -> GateTrainer:
        """Make the trainer of gates."""
        config = self._config
        examples: list[Any] = [  # they have an id and an image, as training examples do
            GateExample(question, tuple(gate.passage for gate in outcome.passages), outcome.anchor, config.hold)
            for question, outcome in zip(self._questions, self._outcomes, strict=True)
        ]
        encoded = GateExamples(
            examples,
            loaded.renderer,
            self._dataset.image_roots,
            max_tokens=longest_sequence(loaded.model, config.max_tokens),
            cache_bytes=config.cache_bytes(),
        )
        order = TrainingOrder(
            [example.length for example in examples],
            [example.kind for example in examples],
            batch_size=batch.size,
            seed=config.seed,
            multiple_of=batch.at_a_time,
        )
        return GateTrainer(
            run,
            encoded,
            Collator(loaded.model),
            order,
            projector_learning_rate=config.projector_learning_rate,
            objective=self._objective,
            first=self._outcomes,
            measure=self._measure,
            refresh_steps=config.refresh_steps,
            packs=packs_trees(loaded.model, config, run.args),
        )

    def data_summary(self) -> str:
        """Count the questions by kind."""
        questions = self._questions
        return f"{len(questions):,} questions ({_kinds(questions)}), each answered without and with retrieval"


def chosen_questions(config: GateConfig, dataset: Dataset) -> list[Question]:
    """Return the questions to train on, in an order drawn by seed."""
    drawn = select_questions(dataset, config.split, limit=config.limit, seed=config.seed)
    visual = [question.id for question in drawn if question.is_knowledge_based is False]
    left_out = set(visual[config.visual_limit :]) if config.visual_limit is not None else set()
    return [question for question in drawn if question.id not in left_out]


def objective(config: GateConfig, loaded: Loaded) -> Objective:
    """Return the objective of the settings, with the model's token ids."""
    ids = loaded.renderer.token_ids
    pairs = (ids["retrieve"], ids["no_retrieve"]), (ids["relevant"], ids["irrelevant"])
    costs = Costs(config.retrieval_cost, config.keeping_cost)
    return Objective(costs, config.beta, config.hold, config.policy_loss, pairs)


def reward_summary(outcomes: Sequence[GateOutcome], costs: Costs) -> str:
    """Describe the mean rewards of always retrieving, of never retrieving, and of the better outcome each time."""
    pairs = [rewards_of(outcome, costs).rewards[0] for outcome in outcomes]
    retrieved, direct = (sum(rewards[side] for rewards in pairs) / len(pairs) for side in (0, 1))
    best = sum(map(max, pairs)) / len(pairs)
    better = sum(yes > no for yes, no in pairs)
    return (
        f"rewards of {len(pairs):,} questions at λ = {costs.retrieval:g}: always retrieving {retrieved:.3f}, "
        f"never {direct:.3f}, the better each time {best:.3f} (retrieving for {better:,})"
    )


def _kinds(questions: Sequence[Question]) -> str:
    kinds = Counter(GateExample(question).kind for question in questions)
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
