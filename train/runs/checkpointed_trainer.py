"""A trainer whose checkpoints are whole or absent, and whose weights are loaded bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import PreTrainedModel, ProgressCallback, Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reflectune.core.errors import UserError
from reflectune.core.weights import UNLOADABLE, check_finite, check_names, first_few
from reflectune.models.weights.adapters import check_adapter, read_adapter
from reflectune.train.runs.logs import ProgressWithSpeed
from reflectune.train.weights.checkpoints import keep_newest, mark_checkpoint_whole, refuse_full_disk
from reflectune.train.weights.parameters import parameter_count

Save = Callable[[Path, nn.Module, Mapping[str, Tensor] | None], None]
"""Writes model, processor and scheme into a folder, from gathered weights if there are any."""


@dataclass(frozen=True, eq=False)
class Run:
    """The part of a run that all trainers share.

    Attributes:
        model: The model, with frozen weights frozen.
        args: Arguments of the trainer. `save_total_limit` is applied only after a checkpoint is whole.
        save: Writes a checkpoint.
        settings: Everything that determines the weights, recorded in each checkpoint.
    """

    model: PreTrainedModel | PeftModel
    args: Any
    save: Save
    settings: Mapping[str, Any]


class CheckpointedTrainer(Trainer):
    """A trainer with our checkpoints: their content, their completeness, and how they are loaded.

    The stock trainer resumes a full fine-tune of a vision-language model from nothing, with a warning only:
    https://github.com/huggingface/transformers/issues/43701; `_load_from_checkpoint` here can go once that is closed.
    Other trainers come after it in the bases: `class Ours(CheckpointedTrainer, GRPOTrainer)`.
    """

    patience: int | None = None
    """Validations without a better metric before training stops; None for any number."""

    def keep_checkpoints(self, run: Run) -> None:
        """Take over checkpoints and the progress line from the stock trainer, before training begins."""
        # `save_total_limit` is applied in `_save_checkpoint`, and only after a checkpoint is whole
        self._checkpoints_to_keep, self.args.save_total_limit = self.args.save_total_limit or 1, None
        self._bare_model, self._save_to, self.settings = run.model, run.save, run.settings
        self._folder = Path(str(self.args.output_dir))
        if self.pop_callback(ProgressCallback):  # there is none if tqdm is off
            self.add_callback(ProgressWithSpeed())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            # The caller has gathered sharded weights; adapters are never sharded.
            gathered = None if isinstance(self._bare_model, PeftModel) else state_dict
            self._save_to(Path(output_dir or self._folder), self._bare_model, gathered)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.args.should_save:
            needed = checkpoint_bytes(self._bare_model, deepspeed=self.is_deepspeed_enabled, fsdp=self.is_fsdp_enabled)
            refuse_full_disk(self._folder, needed)
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            step = self.state.global_step
            mark_checkpoint_whole(self._folder / f"{PREFIX_CHECKPOINT_DIR}-{step}", self.settings, step)
            keep_newest(self._folder, self._checkpoints_to_keep)

    def _init_training_state(self, *arguments: Any, **named: Any) -> tuple[int, int]:
        """Initialise the state with the run's own `save_steps`, `logging_steps` and `eval_steps`.

        The stock trainer takes the checkpoint's, and warns.
        """
        trained: tuple[int, int] = super()._init_training_state(*arguments, **named)
        self.state.compute_steps(self.args, self.state.max_steps)
        return trained

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """Run an epoch, unless all steps are taken: the stock trainer takes one more if a run ends within its epoch."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*arguments, **named)
        else:
            self.control.should_training_stop = True

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:  # each process loads its own shard
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            load_weights(self._bare_model, resume_from_checkpoint)


def load_weights(model: PreTrainedModel | PeftModel, folder: str | Path) -> None:
    """Load a checkpoint's weights into a model of the same architecture, bit by bit.

    Raises:
        UserError: The checkpoint's weights are damaged, or some are missing, unknown, of another shape or not finite.
    """
    if isinstance(model, PeftModel):
        state = read_adapter(Path(folder))
        check_adapter(model, state, Path(folder))
        set_peft_model_state_dict(model, state)
        return
    # from_pretrained, and not the raw file: names on the disk differ from names in memory
    dtypes = {parameter.dtype for parameter in model.parameters()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32  # a frozen part in half precision is cast exactly
    kind: Any = type(model)  # its types lack the pair that it returns with its report
    try:
        loaded, report = kind.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except UNLOADABLE as error:
        raise UserError(f"cannot load {folder}: {' '.join(str(error).split())[:400]}") from error
    check_names(str(folder), report)
    check_finite(str(folder), loaded)
    state, expected = loaded.state_dict(), model.state_dict()
    found, needed = ({(name, tensor.shape) for name, tensor in tensors.items()} for tensors in (state, expected))
    if found != needed:  # its config is of another architecture
        differing = {name for name, _ in found ^ needed}
        raise UserError(f"{folder} does not hold this model's weights; differing: {first_few(differing)}")
    model.load_state_dict(state)


def checkpoint_bytes(model: nn.Module, *, deepspeed: bool, fsdp: bool) -> int:
    """Estimate the bytes of a checkpoint: the weights (or adapters), and the two moments of trained weights.

    DeepSpeed and FSDP write the weights a second time, and DeepSpeed master weights in fp32.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    saved = sum(
        parameter_count(p) * p.element_size() for p in (trained if isinstance(model, PeftModel) else model.parameters())
    )
    moments = 2 * sum(parameter_count(p) * 4 for p in trained)
    again = saved if deepspeed or fsdp else 0
    masters = moments // 2 if deepspeed else 0
    return saved + moments + again + masters + 2**24  # and the tokenizer
