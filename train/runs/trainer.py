"""The trainer of fine-tuning: transformers' own with the reflection loss and a reproducible order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from reflectune.core.partials import partial_path
from reflectune.models.attention.collation import GateBrier, loss_terms
from reflectune.models.attention.packed import in_blocks
from reflectune.models.attention.tree import IGNORE
from reflectune.train.data.order import FollowEpochs, TrainingOrder
from reflectune.train.runs.answers import AnswerReader
from reflectune.train.runs.checkpointed_trainer import CheckpointedTrainer, Run, checkpoint_bytes
from reflectune.train.runs.failures import FailingBatch, naming, plain_worker_errors
from reflectune.train.runs.logs import LogFile
from reflectune.train.runs.utilization import needed_operations, product_rate
from reflectune.train.runs.validation import GateReader, WeightedLoss, gate_metrics
from reflectune.train.settings.validation import ANSWERS
from reflectune.train.weights.checkpoints import BEST, is_patience_exhausted, put_in_place, refuse_full_disk
from reflectune.train.weights.parameters import adapters_of, give_projector_a_rate, under_autocast


class ReflectionTrainer(CheckpointedTrainer):
    """Trains on batches of `reflectune.train.data.examples.Collator`.

    Six things differ from the stock Trainer: the loss, the order of the data, the device of waiting batches, errors
    that name examples, a learning rate of the projector's own, and checkpoints (`CheckpointedTrainer`).

    Args:
        run: The model, the arguments, and how checkpoints are written.
        dataset: Examples for the collator.
        collator: Makes a batch of them.
        order: The order in which to read them.
        projector_learning_rate: Peak learning rate of the projector; None for that of all other weights.
        gates: Reads gates for validation, if there is any.
        answers: Reads answers for validation, if any are asked for.
        brier: Brier term of the loss at gates; None for none.
        packs: Read trees by FlexAttention (`packs_trees`).
        patience: Validations without a better `args.metric_for_best_model` before training stops; None for any number.
    """

    loss_is_scaled_for_ga = True  # `compute_loss` divides by the weight of the whole accumulated batch

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        collator: Callable[[list[Any]], dict[str, Any]],
        order: TrainingOrder,
        *,
        projector_learning_rate: float | None = None,
        gates: GateReader | None = None,
        answers: AnswerReader | None = None,
        brier: GateBrier | None = None,
        packs: bool = False,
        patience: int | None = None,
    ) -> None:
        validated, callbacks = gates.dataset if gates else None, [FollowEpochs(order), LogFile()]
        super().__init__(run.model, run.args, collator, dataset, validated, callbacks=callbacks)
        self.keep_checkpoints(run)
        self._order, self._gates, self._answers, self.patience = order, gates, answers, patience
        self._projector_rate, self._adapters = projector_learning_rate, adapters_of(run.model)
        self._brier, self.packs = brier, packs
        model: Any = run.model
        self._operations = needed_operations(model.get_decoder().layers)
        self._rate: float | None = None
        self._tokens, self._tokens_since, self._left_out = 0, time.monotonic(), 0

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the stock optimiser, with the projector's own learning rate if there is one."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new and self._projector_rate is not None:
            give_projector_a_rate(optimizer, model or self._bare_model, self._projector_rate)
        return optimizer

    def get_train_dataloader(self) -> DataLoader:
        """Make the stock loader, but keep batches on the CPU: all of an optimiser step are taken at its beginning."""
        loader: Any = super().get_train_dataloader()
        loader.device = None  # `_prepare_inputs` moves a batch when its turn comes
        return loader

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], Tensor]:
        """Return the batches of an optimiser step, and the weight of their supervised tokens over all processes."""
        with plain_worker_errors():
            batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._left_out += sum(batch.pop("left_out") for batch in batches)
        tokens = sum(batch.pop("tokens") for batch in batches)
        self._tokens += tokens
        read = self.accelerator.gather(torch.tensor(tokens, device=device)).sum()
        self.state.num_input_tokens_seen += int(read)  # in trainer_state.json, so that a resumed run continues it
        weight = torch.stack([supervised_weight(batch) for batch in batches]).sum()
        return batches, self.accelerator.gather(weight.to(device)).sum()

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Add the gradients of a batch, and return its loss. An error names the batch's examples."""
        casting = under_autocast(self._adapters) if self.accelerator.native_amp else nullcontext()
        with naming(FailingBatch(self.state.global_step + 1, dict(inputs))), casting:
            return super().training_step(model, inputs, num_items_in_batch)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Move a batch to the device, with its weights in float32.

        Under DeepSpeed the stock trainer casts all floats, which is meant for a model's inputs: a weight of a third
        would be off by 0.2 % in bfloat16.
        """
        if self.packs:
            inputs = in_blocks(inputs, self.args.device, backward=self._bare_model.training)
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
        """Compute equations 8 and 9 of mR²AG: the weighted mean of -log p over the global batch's supervised tokens.

        A Brier term of the gates, if there is one, is part of their tokens' losses.

        Only the positions that predict a supervised token are projected to the vocabulary.

        Args:
            model: The model, perhaps wrapped.
            inputs: The model's inputs, `labels`, `weights` and `sample_ids`, from the collator.
            return_outputs: Must be False.
            num_items_in_batch: The weight of the supervised tokens of the global batch.
        """
        assert num_items_in_batch is not None  # `get_batch_samples` counts it
        sample_ids = inputs.pop("sample_ids")
        summed = self.summed_loss(model, inputs, sample_ids)
        # gradients are averaged over the processes, so that their number cancels
        loss = summed / num_items_in_batch * self.accelerator.num_processes
        self.step_losses.append((loss.detach(), sample_ids))
        return loss

    def summed_loss(self, model: nn.Module, inputs: dict[str, Any], sample_ids: Sequence[str]) -> Tensor:
        """Return the summed loss of a batch, not divided by the global batch's weight. Other objectives override it."""
        return loss_terms(model, inputs, self._brier)[0]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Read the gates of the validation data, and answers of a sample, over all processes; log `eval_<metric>`.

        Training isn't affected: no random number is drawn. See `gate_metrics` for the metrics.
        """
        assert self._gates is not None  # validation is only on if there is one
        began = time.monotonic()
        model = self.model_wrapped
        model.eval()  # DeepSpeed's returns nothing
        gate_results = self._gates.read(model, self._prepare_inputs, self.args.process_index, self.args.world_size)
        right: list[bool] = []
        if self._answers is not None:
            with self.accelerator.autocast():
                right = self._answers.read(self.args.process_index, self.args.world_size)
        model.train()
        parts = gather_object([(*gate_results, right)])
        readings = [reading for process_readings, _, _ in parts for reading in process_readings]
        sums = WeightedLoss(sum(part.loss for _, part, _ in parts), sum(part.weight for _, part, _ in parts))
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
            self.processes.wait()
        elif name and is_patience_exhausted(
            self.state.log_history, name, self.state.best_global_step or 0, self.patience
        ):
            self.control.should_training_stop = True
        return is_better

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with tokens/s and branches left out of all processes since the last row, MFU, and the peak memory."""
        if "loss" in logs:
            now = time.monotonic()
            counts = torch.tensor([self._tokens, self._left_out], device=self.args.device)
            tokens, left_out = self.accelerator.reduce(counts, "sum").tolist()
            logs["tokens_per_second"] = round(tokens / max(now - self._tokens_since, 1e-9))
            if rate := self.operations_per_second():
                per_device = logs["tokens_per_second"] / self.args.world_size
                logs["mfu"] = round(per_device * self._operations / rate, 3)
            self._tokens, self._tokens_since, self._left_out = 0, now, 0
            if left_out:
                logs["branches_left_out"] = left_out
        if "loss" in logs and self.args.device.type != "cpu":
            logs["peak_memory_gib"] = round(torch.accelerator.max_memory_allocated(self.args.device) / 2**30, 2)
        super().log(logs, start_time)

    def operations_per_second(self) -> float:
        """Return the rate of a large product on this device, measured once; 0 on a CPU."""
        if self._rate is None:
            dtype = torch.bfloat16 if self.args.bf16 else torch.float32
            self._rate = product_rate(self.args.device, dtype) if self.args.device.type == "cuda" else 0.0
        return self._rate

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int]:
        return self._order


def supervised_weight(batch: Mapping[str, Tensor]) -> Tensor:
    """Sum the weights of a batch's supervised tokens, shape (). The first token of a row is never predicted."""
    return batch["weights"][:, 1:][batch["labels"][:, 1:] != IGNORE].sum()
