"""The fine-tuning trainer: transformers' Trainer with the reflection loss and a reproducible data order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from reflectune.core.errors import UserError
from reflectune.core.launching import any_process
from reflectune.core.partials import partial_path
from reflectune.models.attention.collation import GateBrier, loss_terms
from reflectune.models.attention.packed import pad_to_bucket, to_device
from reflectune.models.attention.tree import IGNORE
from reflectune.train.data.examples import EncodedExample
from reflectune.train.data.micro_batches import join_step, micro_batches, split_step, tokens_of
from reflectune.train.data.order import FollowEpochs, TrainingOrder
from reflectune.train.runs.answers import AnswerReader
from reflectune.train.runs.checkpointed_trainer import CheckpointedTrainer, Run, checkpoint_bytes
from reflectune.train.runs.failures import FailingBatch, StepOutOfMemoryError, naming, plain_worker_errors
from reflectune.train.runs.logs import LogFile
from reflectune.train.runs.utilization import needed_operations, product_rate
from reflectune.train.runs.validation import GateReader, WeightedLoss, gate_metrics
from reflectune.train.settings.validation import ANSWERS
from reflectune.train.weights.checkpoints import BEST, is_patience_exhausted, refuse_full_disk, replace_best
from reflectune.train.weights.parameters import adapters_of, set_projector_learning_rate, without_input_cast

_MIN_WEIGHT = 1e-6
"""Minimum divisor of the loss, for a batch without supervised tokens, whose loss is 0."""
FIRST_STEPS = 3
"""First steps in which several processes may retry together, since memory usually runs out there if at all."""


class ReflectionTrainer(CheckpointedTrainer):
    """Trains on batches of `reflectune.train.data.examples.Collator`.

    Seven things differ from the stock Trainer: the loss, the order of the data, the device of waiting batches,
    micro-batches by a budget of tokens, errors that name examples, a learning rate of the projector's own, and
    checkpoints (`CheckpointedTrainer`).

    Args:
        run: The model, the arguments, and the function that writes checkpoints.
        dataset: Examples for the collator.
        collator: Makes a batch of them.
        order: The order in which to read them.
        projector_learning_rate: Peak learning rate of the projector; None for that of all other weights.
        gates: Reads gates for validation; None without validation.
        answers: Scores answers for validation; None to score gates only.
        brier: Brier term of the loss at gates, or None.
        packs: Read trees by FlexAttention (`packs_trees`).
        patience: Validations without a better `args.metric_for_best_model` before training stops; None for any number.
        tokens_per_device: Maximum tokens of a micro-batch, with batches of the loader that are whole steps. With None
            the loader's batches are the micro-batches.
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
        tokens_per_device: int | None = None,
    ) -> None:
        eval_dataset = gates.dataset if gates else None
        callbacks = [FollowEpochs(order), LogFile()]
        collate = join_step if tokens_per_device else collator
        super().__init__(run.model, run.args, collate, dataset, eval_dataset, callbacks=callbacks)
        self._collate, self.budget = collator, tokens_per_device
        self._has_halved = self._has_warned = False
        self._first_step: int | None = None
        self.keep_checkpoints(run)
        self._order, self._gates, self._answers, self.patience = order, gates, answers, patience
        self._projector_rate, self._adapters = projector_learning_rate, adapters_of(run.model)
        self._brier, self.packs = brier, packs
        model: Any = run.model
        self._operations = needed_operations(model.get_decoder().layers)
        self._rate: float | None = None
        self._tokens, self._tokens_since, self._left_out = 0, time.monotonic(), 0

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the stock optimiser, with a separate learning rate for the projector if there is one."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new and self._projector_rate is not None:
            set_projector_learning_rate(optimizer, model or self._bare_model, self._projector_rate)
        return optimizer

    def get_train_dataloader(self) -> DataLoader:
        """Make the stock loader, but keep batches on the CPU: those of a step are all loaded at its beginning."""
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
        if self.budget is not None:
            batches = [{"examples": split_step(batch), "weight": batch["weight"]} for batch in batches]
        counts = [tokens] if self.budget is None else [tokens, len(self._divided(batches[0]["examples"]))]
        gathered = self.accelerator.gather(torch.tensor([counts], device=device))
        self.state.num_input_tokens_seen += int(gathered[:, 0].sum())  # saved in trainer_state.json
        if self.budget is None:
            weight = torch.stack([supervised_weight(batch) for batch in batches]).sum()
        else:
            weight = torch.tensor(batches[0].pop("weight"), dtype=torch.float32)
            batches[0]["at_least"] = int(
                gathered[:, 1].max()
            )  # all processes need the same number of passes if weights are sharded
        return batches, self.accelerator.gather(weight.to(device)).sum()

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Add the gradients of a batch or of a step's micro-batches, and return the loss. Errors name the examples."""
        if "examples" in inputs:
            return self._whole_step(model, inputs["examples"], inputs["at_least"], num_items_in_batch)
        casting = without_input_cast(self._adapters) if self.accelerator.native_amp else nullcontext()
        step, tokens = self.state.global_step + 1, inputs["input_ids"].numel()
        with naming(FailingBatch(step, inputs["sample_ids"], tokens, self.budget)), casting:
            return super().training_step(model, inputs, num_items_in_batch)

    def _whole_step(
        self, model: nn.Module, examples: list[EncodedExample], at_least: int, weight: Tensor | int | None
    ) -> Tensor:
        """Add the gradients of a step's micro-batches, and return its loss. If memory runs out, halve the budget once.

        Several processes decide together before the last (smallest) micro-batch, which averages their gradients. So
        they can't retry if memory runs out in the last micro-batch.
        """
        batches, losses = self._divided(examples, at_least), list[Tensor]()
        may_halve, alone = self._may_halve(len(examples)), self.args.world_size == 1
        is_full = False
        try:
            for number, batch in enumerate(batches if alone else batches[:-1], 1):
                losses.append(self._micro_batch(model, [examples[i] for i in batch], weight, number == len(batches)))
        except StepOutOfMemoryError:
            if not may_halve:
                raise
            is_full = True
        if may_halve and not alone:
            (is_full,) = any_process(is_full)
        if is_full:
            del losses
            self._halve_budget(model)
            return self._whole_step(model, examples, 1, weight)
        if not alone:
            losses.append(self._micro_batch(model, [examples[i] for i in batches[-1]], weight, is_last=True))
        return torch.stack(losses).sum()

    def _micro_batch(
        self, model: nn.Module, examples: list[EncodedExample], weight: Tensor | int | None, is_last: bool
    ) -> Tensor:
        """Add the gradients of a micro-batch; the last one averages gradients over processes."""
        state = self.accelerator.gradient_state
        state._set_sync_gradients(is_last)  # as transformers' own loop does
        synchronizes = is_last or self.is_deepspeed_enabled or state.plugin_kwargs.get("sync_each_batch", False)
        inputs = self._collate(examples)
        del inputs["tokens"], inputs["left_out"]
        with nullcontext() if synchronizes else self.accelerator.no_sync(model):
            return self.training_step(model, inputs, weight)

    def _may_halve(self, questions: int) -> bool:
        """Return True if a step may be retried. With sharded weights it can't: a pass takes all processes."""
        if self._has_halved or questions < 2 or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return False
        if self._first_step is None:
            self._first_step = self.state.global_step
        return self.args.world_size == 1 or self.state.global_step < self._first_step + FIRST_STEPS

    def _halve_budget(self, model: nn.Module) -> None:
        assert self.budget is not None
        self._has_halved, self.budget = True, max(self.budget // 2, 1)
        if self.args.process_index == 0:
            print(
                f"out of memory at step {self.state.global_step + 1}: from here on micro-batches have at most "
                f"{self.budget:,} tokens, half of `tokens_per_device`; the global batch stays as it is",
                flush=True,
            )
        model.zero_grad()
        self.step_losses = []
        if self.args.device.type != "cpu":
            torch.accelerator.empty_cache()

    def _divided(self, examples: Sequence[EncodedExample], at_least: int = 1) -> list[list[int]]:
        """Divide a step's examples by the budget; print the first example that is longer."""
        assert self.budget is not None
        lengths = [tokens_of(example) for example in examples]
        if max(lengths) > self.budget and not self._has_warned:
            longest = examples[lengths.index(max(lengths))]
            print(
                f"example {longest.id} has {max(lengths):,} tokens, and `tokens_per_device` is {self.budget:,}: such "
                "an example is read alone",
                flush=True,
            )
            self._has_warned = True
        return micro_batches(lengths, self.budget, at_least)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Copy a batch to the device without synchronizing, and keep loss weights in float32.

        Under DeepSpeed the stock trainer casts all floats of a batch: a weight of 1/3 would be off by 0.2 % in
        bfloat16.
        """
        if self.packs:
            inputs = pad_to_bucket(inputs, self.args.device, backward=self._bare_model.training)
        inputs = {name: to_device(v, self.args.device) if isinstance(v, Tensor) else v for name, v in inputs.items()}
        prepared: dict[str, Any] = super()._prepare_inputs(inputs)
        return prepared | {name: inputs[name] for name in ("weights",) if name in inputs}

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Compute equations 8 and 9 of mR²AG: the weighted mean of -log p over the global batch's supervised tokens.

        The loss of a gate token includes its Brier term, if there is one. Only positions that predict a supervised
        token are projected to the vocabulary.

        Args:
            model: The model, perhaps wrapped.
            inputs: The model's inputs, `labels`, `weights` and `sample_ids`, from the collator.
            return_outputs: Must be False.
            num_items_in_batch: The weight of the supervised tokens of the global batch.
        """
        assert num_items_in_batch is not None  # `get_batch_samples` counts it
        sample_ids = inputs.pop("sample_ids")
        summed = self.summed_loss(model, inputs, sample_ids)
        weight = torch.as_tensor(num_items_in_batch).clamp(min=_MIN_WEIGHT)
        # DDP averages gradients over processes; multiply by their number to get the sum
        loss = summed / weight * self.accelerator.num_processes
        self.step_losses.append((loss.detach(), sample_ids))
        return loss

    def summed_loss(self, model: nn.Module, inputs: dict[str, Any], sample_ids: Sequence[str]) -> Tensor:
        """Return the summed loss of a batch, not divided by the global batch's weight. Other objectives override it."""
        return loss_terms(model, inputs, self._brier)[0]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score the gates of the validation data and a sample of answers over all processes; log `eval_<metric>`.

        No random number is drawn, so training is not affected. See `gate_metrics` for the metrics.
        """
        assert self._gates is not None  # set if there is validation
        began = time.monotonic()
        model = self.model_wrapped
        model.eval()  # returns None under DeepSpeed
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
        name, step = self.args.metric_for_best_model, self.state.global_step
        if name and f"eval_{name}" not in metrics:
            raise UserError(
                f"`best_metric: {name}` cannot be computed: the validation data that fit into `max_tokens` lack one of "
                "its labels; raise `max_tokens`, or choose another metric"
            )
        is_better = super()._determine_best_metric(metrics, trial)
        if is_better:
            partial = partial_path(self._folder / BEST, common=True)
            if self.args.should_save:
                refuse_full_disk(self._folder, checkpoint_bytes(self._bare_model, deepspeed=False, fsdp=False))
            self.save_model(str(partial), _internal_call=True)
            if self.args.should_save:
                replace_best(partial, self._folder, self.settings, step)
            self.processes.wait()
        elif name and is_patience_exhausted(
            self.state.log_history, name, self.state.best_global_step or 0, self.patience
        ):
            self.control.should_training_stop = True
        return is_better

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with tokens/s and left-out branches since the last row, MFU, and the highest peak memory."""
        if "loss" in logs:
            now, device = time.monotonic(), self.args.device
            peak = 0 if device.type == "cpu" else torch.accelerator.max_memory_allocated(device)
            counts = self.accelerator.gather(torch.tensor([[self._tokens, self._left_out, peak]], device=device))
            tokens, left_out = counts[:, :2].sum(0).tolist()  # counts: (processes, 3)
            logs["tokens_per_second"] = round(tokens / max(now - self._tokens_since, 1e-9))
            if rate := self.operations_per_second():
                per_device = logs["tokens_per_second"] / self.args.world_size
                logs["mfu"] = round(per_device * self._operations / rate, 3)
            self._tokens, self._tokens_since, self._left_out = 0, now, 0
            if left_out:
                logs["branches_left_out"] = left_out
            if peak:
                logs["peak_memory_gib"] = round(int(counts[:, 2].max()) / 2**30, 2)
        super().log(logs, start_time)

    def operations_per_second(self) -> float:
        """Return the FLOP/s of a large matrix product on this device, measured once; 0 on a CPU."""
        if self._rate is None:
            dtype = torch.bfloat16 if self.args.bf16 else torch.float32
            self._rate = product_rate(self.args.device, dtype) if self.args.device.type == "cuda" else 0.0
        return self._rate

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int]:
        return self._order


def supervised_weight(batch: Mapping[str, Tensor]) -> Tensor:
    """Sum the weights of a batch's supervised tokens, shape (). The first token of a row is never predicted."""
    return batch["weights"][:, 1:][batch["labels"][:, 1:] != IGNORE].sum()
