"""The trainer: transformers' own, with the reflection loss, a repeatable order, and checkpoints that resume exactly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel, set_peft_model_state_dict
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler
from transformers import (
    PreTrainedModel,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reflectune.core.errors import UserError
from reflectune.core.partials import partial_path
from reflectune.core.weights import UNLOADABLE, check_finite, check_names, first_few
from reflectune.models.attention.tree import IGNORE, loss_terms
from reflectune.models.weights.adapters import check_adapter, read_adapter
from reflectune.train.data.order import TrainingOrder
from reflectune.train.fine_tuning.answers import AnswerReader
from reflectune.train.fine_tuning.failures import Reading, naming, plain_worker_errors
from reflectune.train.fine_tuning.logs import LogFile, Progress
from reflectune.train.fine_tuning.validation import GateReader, Sums, gate_metrics
from reflectune.train.forecasting.memory import GIB
from reflectune.train.saving.checkpoints import (
    BEST,
    is_patience_exhausted,
    keep_newest,
    mark_checkpoint_whole,
    put_in_place,
    refuse_full_disk,
)
from reflectune.train.settings.validation import ANSWERS
from reflectune.train.setup.parameters import adapters_of, give_projector_a_rate, parameter_count, under_autocast


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
    save: Callable[[Path, nn.Module, Mapping[str, Tensor] | None], None]
    settings: Mapping[str, Any]
    projector_learning_rate: float | None = None


class ReflectionTrainer(Trainer):
    """Trains on batches from `reflectune.train.data.examples.Collator`.

    The stock Trainer is kept but for six things: the loss, the order of the data, what an error names, a learning rate
    of the projector's own, what a checkpoint holds, and how it is loaded (the stock one resumes a full fine-tune of a
    vision-language model from nothing, with a warning only: https://github.com/huggingface/transformers/issues/43701;
    `_load_from_checkpoint` here can go once that is closed).

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
        args = run.args
        self._checkpoints_to_keep, args.save_total_limit = args.save_total_limit or 1, None
        validated, callbacks = reader.dataset if reader else None, [_FollowEpochs(run.order), LogFile()]
        super().__init__(run.model, args, run.collator, run.dataset, validated, callbacks=callbacks)
        if self.pop_callback(ProgressCallback):  # there is none if tqdm is off
            self.add_callback(Progress())
        self._reader, self._answers, self.patience = reader, answers, patience
        self._order, self._save_to, self.settings = run.order, run.save, run.settings
        self._bare_model, self._folder = run.model, Path(str(args.output_dir))
        self._projector_rate, self._adapters = run.projector_learning_rate, adapters_of(run.model)
        self._tokens, self._tokens_since = 0, time.monotonic()

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The stock optimiser, in which the projector has a learning rate of its own if the run gives it one."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new and self._projector_rate is not None:
            give_projector_a_rate(optimizer, model or self._bare_model, self._projector_rate)
        return optimizer

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
                refuse_full_disk(self._folder, _checkpoint_bytes(self._bare_model, deepspeed=False))
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

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            # What is divided among the processes was gathered by the caller; adapters are never divided.
            gathered = None if isinstance(self._bare_model, PeftModel) else state_dict
            self._save_to(Path(output_dir or self._folder), self._bare_model, gathered)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.args.should_save:
            refuse_full_disk(self._folder, _checkpoint_bytes(self._bare_model, deepspeed=self.is_deepspeed_enabled))
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            step = self.state.global_step
            mark_checkpoint_whole(self._folder / f"{PREFIX_CHECKPOINT_DIR}-{step}", self.settings, step)
            keep_newest(self._folder, self._checkpoints_to_keep)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:  # each process loads its part of what FSDP has saved
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            load_weights(self._bare_model, resume_from_checkpoint)


def supervised_weight(batch: Mapping[str, Tensor]) -> Tensor:
    """The summed weight of a batch's supervised tokens; the first token of a row is never predicted. Shape ()."""
    return batch["weights"][:, 1:][batch["labels"][:, 1:] != IGNORE].sum()


def load_weights(model: PreTrainedModel | PeftModel, folder: str | Path) -> None:
    """Load the weights that a checkpoint holds into a model of the same architecture, bit by bit.

    Raises:
        UserError: The checkpoint's weights are damaged, or some are missing, unknown, of another shape or not finite.
    """
    if isinstance(model, PeftModel):
        state = read_adapter(Path(folder))
        check_adapter(model, state, Path(folder))
        set_peft_model_state_dict(model, state)
        return
    # from_pretrained, and not the raw file: the names on the disk are not the names in memory.
    dtypes = {parameter.dtype for parameter in model.parameters()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32  # a frozen part in half precision is cast exactly
    kind: Any = type(model)  # with its report it returns a pair, which its types don't say
    try:
        loaded, report = kind.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except UNLOADABLE as error:
        raise UserError(f"cannot load {folder}: {' '.join(str(error).split())[:400]}") from error
    check_names(str(folder), report)
    check_finite(str(folder), loaded)
    state, expected = loaded.state_dict(), model.state_dict()
    shapes, wanted = ({(name, tensor.shape) for name, tensor in tensors.items()} for tensors in (state, expected))
    if shapes != wanted:  # its config is of another architecture
        differing = {name for name, _ in shapes ^ wanted}
        raise UserError(f"{folder} does not hold this model's weights; differing: {first_few(differing)}")
    model.load_state_dict(state)


def _checkpoint_bytes(model: nn.Module, *, deepspeed: bool) -> int:
    """About what a checkpoint takes: the weights (or adapters) and, for what trains, the optimiser's two moments.

    DeepSpeed writes the weights a second time, and masters in fp32.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    saved = sum(
        parameter_count(p) * p.element_size() for p in (trained if isinstance(model, PeftModel) else model.parameters())
    )
    moments = 2 * sum(parameter_count(p) * 4 for p in trained)
    return saved + moments + (saved + moments // 2 if deepspeed else 0) + 2**24  # and the tokenizer


class _FollowEpochs(TrainerCallback):
    """Tells the order which epoch begins, in a resumed run too."""

    def __init__(self, order: TrainingOrder) -> None:
        super().__init__()
        self._order = order

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._order.start_epoch(int(state.epoch or 0))
