"""The trainer: transformers' own, with the reflection loss, a repeatable order, and checkpoints that resume exactly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import (
    PreTrainedModel,
    ProgressCallback,
    TrainingArguments,
)

from reflectune.core.errors import UserError
from reflectune.core.partials import partial_path
from reflectune.models.attention.collation import loss_terms
from reflectune.models.attention.tree import IGNORE
from reflectune.train.data.order import FollowEpochs, TrainingOrder
from reflectune.train.runs.answers import AnswerReader
from reflectune.train.runs.checkpointed import CheckpointedTrainer, Save, checkpoint_bytes
from reflectune.train.runs.failures import Reading, naming, plain_worker_errors
from reflectune.train.runs.logs import LogFile, Progress
from reflectune.train.runs.validation import GateReader, Sums, gate_metrics
from reflectune.train.estimates.memory import GIB
from reflectune.train.runs.checkpoints import (
    BEST,
    is_patience_exhausted,
    put_in_place,
    refuse_full_disk,
)
from reflectune.train.settings.validation import ANSWERS
from reflectune.train.runs.parameters import adapters_of, give_projector_a_rate, under_autocast


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """What a run trains, on what, and how it is kept.

    Attributes:
        model: The model, with whatever shall not train frozen.
        args: Stock arguments. `save_total_limit` is obeyed by our trainer, and only after a checkpoint is whole.
        dataset: Examples for the collator.
        collator: Makes a batch of them.
        order: The order in which to read them.
        save: Writes model, processor and scheme into a folder, from gathered weights if there are any.
        settings: What determines the run, recorded in each checkpoint.
        projector_learning_rate: Peak learning rate of the projector; None: that of all others.
    """

    model: PreTrainedModel | PeftModel
    args: TrainingArguments
    dataset: Dataset
    collator: Callable[[list[Any]], dict[str, Any]]
    order: TrainingOrder
    save: Save
    settings: Mapping[str, Any]
    projector_learning_rate: float | None = None


class ReflectionTrainer(CheckpointedTrainer):
    """Trains on batches from `reflectune.train.data.examples.Collator`.

    The stock Trainer is kept but for six things: the loss, the order of the data, where batches wait, what an error
    names, a learning rate of the projector's own, and its checkpoints (`CheckpointedTrainer`).

    Args:
        run: What trains, on what, and how it is kept.
        reader: Reads gates for validation, if there is any.
        patience: Validations without a better `args.metric_for_best_model` before training stops; None for any number.
        answers: Reads answers for validation, if any are to be read.
    """

    loss_is_scaled_for_ga = True  # `compute_loss` divides by the weight of the whole accumulated batch

    def __init__(
        self,
        run: TrainingRun,
        reader: GateReader | None = None,
        patience: int | None = None,
        answers: AnswerReader | None = None,
    ) -> None:
        validated, callbacks = reader.dataset if reader else None, [FollowEpochs(run.order), LogFile()]
        super().__init__(run.model, run.args, run.collator, run.dataset, validated, callbacks=callbacks)
        self.keep_checkpoints(run.model, run.save, run.settings)
        if self.pop_callback(ProgressCallback):  # there is none if tqdm is off
            self.add_callback(Progress())
        self._reader, self._answers, self.patience = reader, answers, patience
        self._order = run.order
        self._projector_rate, self._adapters = run.projector_learning_rate, adapters_of(run.model)
        self._tokens, self._tokens_since = 0, time.monotonic()

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The stock optimiser, in which the projector has a learning rate of its own if the run gives it one."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new and self._projector_rate is not None:
            give_projector_a_rate(optimizer, model or self._bare_model, self._projector_rate)
        return optimizer

    def get_train_dataloader(self) -> DataLoader:
        """The stock loader, whose batches wait on the CPU: all of an optimiser step are taken at its beginning."""
        loader: Any = super().get_train_dataloader()
        loader.device = None  # `_prepare_inputs` moves a batch when its turn comes
        return loader

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], Tensor]:
        """The batches of one optimiser step, and the weight of their supervised tokens over all processes."""
        with plain_worker_errors():
            batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        tokens = sum(batch.pop("tokens") for batch in batches)
        self._tokens += tokens
        read = self.accelerator.gather(torch.tensor(tokens, device=device)).sum()
        self.state.num_input_tokens_seen += int(read)  # kept in trainer_state.json, so a resumed run goes on counting
        weight = torch.stack([supervised_weight(batch) for batch in batches]).sum()
        return batches, self.accelerator.gather(weight.to(device)).sum()

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The loss of a batch, with its gradients added; an error names the batch's examples."""
        casting = under_autocast(self._adapters) if self.accelerator.native_amp else nullcontext()
        with naming(Reading(self.state.global_step + 1, dict(inputs))), casting:
            return super().training_step(model, inputs, num_items_in_batch)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The batch on the device. Weights stay in float32: under DeepSpeed the stock trainer casts what is no integer.

        That is meant for a model's inputs, and weights are none: in bfloat16 a third would be off by 0.2 %.
        """
        prepared: dict[str, Any] = super()._prepare_inputs(inputs)
        if "weights" in inputs:
            prepared["weights"] = inputs["weights"].to(self.args.device)
        return prepared

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Equations 8 and 9 of mR²AG: the weighted mean of -log p over the supervised tokens of the global batch.

        Only the positions that predict a supervised token are projected to the vocabulary.

        Args:
            model: The model, perhaps wrapped.
            inputs: The model's inputs, `labels`, `weights` and `sample_ids`, from the collator.
            return_outputs: Must be False.
            num_items_in_batch: The weight of the supervised tokens of the global batch.

        Raises:
            UserError: The loss is not finite.
        """
        assert num_items_in_batch is not None  # `get_batch_samples` counts it
        sample_ids = inputs.pop("sample_ids")
        summed = self.summed_loss(model, inputs, sample_ids)
        # The processes' gradients are averaged, so their number cancels.
        loss = summed / num_items_in_batch * self.accelerator.num_processes
        if not torch.isfinite(loss):
            raise UserError(
                f"the loss became {loss.item()} at step {self.state.global_step + 1}, on the examples "
                f"{', '.join(sample_ids)}; lower `learning_rate`, or look into these examples. "
                "The last checkpoint is kept"
            )
        return loss

    def summed_loss(self, model: nn.Module, inputs: dict[str, Any], sample_ids: Sequence[str]) -> Tensor:
        """The loss of a batch before it is divided by the weight of the global one; another objective goes here."""
        return loss_terms(model, inputs)[0]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Read the gates of the validation data, and answers of a sample, over all processes; log `eval_<metric>`.

        See `gate_metrics` for the gates' metrics. Training is not touched: no random number is drawn.
        """
        assert self._reader is not None  # validation is only on if there is one
        began = time.monotonic()
        model = self.model_wrapped
        model.eval()  # DeepSpeed's returns nothing
        gate_results = self._reader.read(model, self._prepare_inputs, self.args.process_index, self.args.world_size)
        right: list[bool] = []
        if self._answers is not None:
            with self.accelerator.autocast():
                right = self._answers.read(self.args.process_index, self.args.world_size)
        model.train()
        parts = gather_object([(*gate_results, right)])
        readings = [reading for process_readings, _, _ in parts for reading in process_readings]
        sums = Sums(sum(part.loss for _, part, _ in parts), sum(part.weight for _, part, _ in parts))
        measured = gate_metrics(readings, sums)
        if self._answers is not None:
            measured[ANSWERS] = sum(sum(process_right) for *_, process_right in parts) / len(self._answers.sample)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in measured.items()}
        self._tokens_since += time.monotonic() - began
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        is_better = super()._determine_best_metric(metrics, trial)
        name, step = self.args.metric_for_best_model, self.state.global_step
        if is_better:
            partial = partial_path(self._folder / BEST, common=True)
            if self.args.should_save:
                refuse_full_disk(self._folder, checkpoint_bytes(self._bare_model, deepspeed=False, fsdp=False))
            self.save_model(str(partial), _internal_call=True)
            if self.args.should_save:
                put_in_place(partial, self._folder, self.settings, step)
            self.accelerator.wait_for_everyone()
        elif name and is_patience_exhausted(
            self.state.log_history, name, self.state.best_global_step or 0, self.patience
        ):
            self.control.should_training_stop = True
        return is_better

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with the tokens per second of all processes since the last time, and the accelerator's peak of memory."""
        if "loss" in logs:
            now = time.monotonic()
            tokens = self.accelerator.gather(torch.tensor(self._tokens, device=self.args.device)).sum()
            logs["tokens_per_second"] = round(int(tokens) / max(now - self._tokens_since, 1e-9))
            self._tokens, self._tokens_since = 0, now
        if "loss" in logs and self.args.device.type != "cpu":
            logs["peak_memory_gib"] = round(torch.accelerator.max_memory_allocated(self.args.device) / GIB, 2)
        super().log(logs, start_time)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int]:
        return self._order


def supervised_weight(batch: Mapping[str, Tensor]) -> Tensor:
    """The summed weight of a batch's supervised tokens; the first token of a row is never predicted. Shape ()."""
    return batch["weights"][:, 1:][batch["labels"][:, 1:] != IGNORE].sum()
