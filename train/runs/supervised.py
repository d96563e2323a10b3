"""Supervised fine-tuning on reflection data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from transformers import TrainingArguments

from reflectune.core.hashing import file_fingerprint
from reflectune.core.launching import launch_processes
from reflectune.core.paths import Roots
from reflectune.formats.reflection_data import read_statistics
from reflectune.models.attention.collation import GateBrier
from reflectune.models.attention.positions import longest_sequence
from reflectune.models.loading import Loaded
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import TrainingExample
from reflectune.train.data.examples import Collator, EncodedExamples, load_training_data
from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.data.micro_batches import token_counter
from reflectune.train.data.mixture import DataSource, mixture_lines
from reflectune.train.data.order import TrainingOrder, training_order
from reflectune.train.estimates.forecast import recomputation_line
from reflectune.train.runs.answers import AnswerReader
from reflectune.train.runs.arguments import validation_arguments
from reflectune.train.runs.checkpointed_trainer import Run
from reflectune.train.runs.packing import packs_trees
from reflectune.train.runs.preview import describe, forecast_of, row_update_line, sample_of
from reflectune.train.runs.skeleton import Method, run, say
from reflectune.train.runs.trainer import ReflectionTrainer
from reflectune.train.runs.validation import GateReader, load_validation
from reflectune.train.settings.sft import SftConfig
from reflectune.train.settings.training import CACHE_BYTES, OptimisationConfig
from reflectune.train.settings.validation import ValidationConfig
from reflectune.train.weights.features import cache_features
from reflectune.train.weights.model_card import data_in_words


def fine_tune(config: SftConfig) -> None:
    """Fine-tune a model, and write the checkpoint into `output_dir`; resume from the last checkpoint there."""
    run(config, SupervisedFineTuning(config))


class SupervisedFineTuning(Method):
    """Fine-tuning on reflection data."""

    def __init__(self, config: SftConfig) -> None:
        self._config = config
        self.reads_whole_model = bool(config.cache_features)

    def arguments(self, common: Mapping[str, Any]) -> TrainingArguments:
        """Return transformers' arguments. With `tokens_per_device`, a batch holds all questions of a step."""
        if self._config.tokens_per_device:
            questions = common["per_device_train_batch_size"] * common["gradient_accumulation_steps"]
            common = {**common, "per_device_train_batch_size": questions, "gradient_accumulation_steps": 1}
        return TrainingArguments(**common, **validation_arguments(ValidationConfig.of(self._config)))

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes of the training data, and of the validation data if it selects the weights."""
        config = self._config
        return {
            "data_fingerprint": [[file_fingerprint(source.file), source.weight] for source in config.sources()],
            "eval_fingerprint": file_fingerprint(config.eval_source().file) if config.best_metric else "",
            **_evidence(config.sources()),
        }

    def load_data(self, args: TrainingArguments) -> None:
        """Read the training and validation data; the first process checks every row."""
        config, processes = self._config, launch_processes()
        self._data = load_training_data(config.sources(), config.scheme, config.prompts, processes)
        self._validation = load_validation(
            ValidationConfig.of(config), config.eval_source(), config.scheme, config.prompts, processes
        )

    def before_training(self, loaded: Loaded, args: TrainingArguments) -> None:
        """Cache the features of the data's images, if the config says so."""
        config, data = self._config, self._data
        if config.cache_features:
            cache_features(
                config.cache_features,
                loaded,
                [(data.examples, data.image_roots), *([self._validation] if self._validation else [])],
                args,
                trained_towers=config.trained_towers,
                autocast=config.precision,
                dry_run=config.dry_run,
            )

    def preview(self, model: nn.Module, loaded: Loaded, args: TrainingArguments, batch: GlobalBatch) -> str:
        """Describe data, memory, time and an example of each kind."""
        config, data = self._config, self._data
        examples = self._order(batch, loaded).examples
        steps = config.max_steps or batch.steps(examples, config.epochs)
        dataset = encoded_examples(data.examples, data.image_roots, loaded, config)
        mixture = mixture_lines(config.sources(), [count for count, _ in data.parts])
        epochs = steps / batch.steps(examples, 1)
        return "\n".join([*mixture, describe(config, model, dataset, loaded.renderer, steps, epochs, args)])

    def recomputed(self, model: nn.Module, loaded: Loaded, args: TrainingArguments) -> int:
        """See `Method.recomputed`. With `auto`, a memory forecast from a sample of examples decides."""
        config, data = self._config, self._data
        if config.gradient_checkpointing != "auto":
            return 1
        sample = sample_of(encoded_examples(data.examples, data.image_roots, loaded, config))
        memory = forecast_of(config, model, sample, args)
        say(args, recomputation_line(memory))
        return memory.forward.recomputed

    def trainer(self, run: Run, loaded: Loaded, batch: GlobalBatch) -> ReflectionTrainer:
        """Make the trainer, with validation."""
        config, data = self._config, self._data
        collator, batch_size = Collator(loaded.model), config.per_device_train_batch_size
        gates = answers = None
        if self._validation:
            held_out = encoded_examples(*self._validation, loaded, config, CACHE_BYTES)
            at_once = 1 if config.tokens_per_device else batch_size  # several might exceed the budget
            gates = GateReader(held_out, collator, loaded.renderer, at_once)
        if self._validation and config.eval_answers:
            answers = AnswerReader(
                loaded,
                *self._validation,
                count=config.eval_answers,
                seed=config.seed,
                batch_size=batch_size,
                compiling=config.compile == "auto",
            )
        token_id = loaded.renderer.token_id
        gate_ids = [(token_id(gate.positive), token_id(gate.negative)) for gate in Scheme.of(loaded.renderer).gates]
        order = self._order(batch, loaded)
        if config.method != "full" and Scheme.of(loaded.renderer).tokens:
            steps = config.max_steps or batch.steps(order.examples, config.epochs)
            line, is_warning = row_update_line(OptimisationConfig.of(config), run.model, steps, adapters=True)
            if is_warning:
                say(run.args, line)
        cache_bytes = config.cache_bytes(read_again=any(weight > 1 for _, weight in data.parts))
        return ReflectionTrainer(
            run,
            encoded_examples(data.examples, data.image_roots, loaded, config, cache_bytes),
            collator,
            order,
            projector_learning_rate=config.projector_learning_rate,
            gates=gates,
            answers=answers,
            packs=packs_trees(loaded.model, config, run.args),
            brier=GateBrier(config.gate_brier, gate_ids) if config.gate_brier else None,
            patience=config.early_stopping_patience,
            tokens_per_device=config.tokens_per_device,
        )

    def data_summary(self) -> str:
        """Count the questions by kind, and their branches."""
        return data_in_words(self._data.kinds, self._data.branches)

    def _order(self, batch: GlobalBatch, loaded: Loaded) -> TrainingOrder:
        config, data = self._config, self._data
        counter = token_counter(data, loaded.renderer, share_prefix=config.tree) if config.tokens_per_device else None
        return training_order(data, batch, seed=config.seed, tokens=counter)


def _evidence(sources: Sequence[DataSource]) -> dict[str, list[str]]:
    """Return the evidence that a baseline is tuned on, as recorded by build_plain; {} for other data."""
    forms: dict[str, None] = {}
    for source in sources:
        recorded = read_statistics(source.folder).get(source.file.stem, {})
        forms |= dict.fromkeys(recorded.get("evidence", ()))
    return {"evidence": [*forms]} if forms else {}


def encoded_examples(
    examples: Sequence[TrainingExample], roots: Roots, loaded: Loaded, config: SftConfig, cache_bytes: int = 0
) -> EncodedExamples:
    """Return the examples as token trees, encoded on first use."""
    return EncodedExamples(
        examples,
        loaded.renderer,
        roots,
        share_prefix=config.tree,
        max_tokens=longest_sequence(loaded.model, config.max_tokens),
        cache_bytes=cache_bytes,
        answer_weight=config.answer_weight,
    )
